"""`load` with real processes: what it counts, what it keeps when something dies."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, ChildFailed, ParseError, UsageError
from enginebench.core.names import parse_engine
from enginebench.core.records import Artifact, BlockReading, Capacity, EngineSpec, MeasureSpec, Probe, TensorSpec
from enginebench.core.store import encode, read_record
from enginebench.features.load import probe
from enginebench.features.load.arrivals import RELEASED, SharedBoard, read_arrivals, schedule_constant, schedule_poisson
from enginebench.features.load.document import LoadDocument, LoadSettings, format_row
from enginebench.features.load.jobs import ArriveJob, ServeJob
from enginebench.features.load.rates import make_bench, name_row, widen_profile
from enginebench.features.load.verb import LoadOptions, load_target, read_load, write_load
from enginebench.measure.pin import share_cpus
from enginebench.measure.watch import BlockWatch
from enginebench.models.zoo import DATA_DIR
from enginebench.options import fill
from enginebench.runs.child.isolate import Child
from enginebench.runs.traffic import read_traffic
from enginebench.verbs.report import command as report
from enginebench.verbs.requests import make_request
from graphs import write_text
from processes import Cli, start_cli
from reporters import Silent

# A graph is ready to be loaded; by its name the model would be exported first.
GRAPH = str(DATA_DIR / "digits-mlp.onnx")
# Arguments of a quick load.
QUICK: dict[str, Any] = {"duration_s": 0.5}

EMPTY = LoadDocument(
    model="m", scenario="server", arrivals="poisson", limit_ms=None, percentile=99, seed=0, points=(), rows=()
)


def load(folder: Path, *engines: str, model: str = GRAPH, inputs: str | None = None, **given: Any) -> LoadDocument:
    options: Any = fill(LoadOptions, {"threads": 1, "inputs": inputs})
    named = [parse_engine(engine) for engine in engines]
    how: Any = {"batches": (1,), "measure": MeasureSpec(seed=0, processes=1)}
    request = make_request(model, options, engines=named, precisions=[("fp32", None)], **how)
    request = replace(request, traffic=given.get("traffic", ()))
    return load_target(request, LoadSettings(**{**QUICK, **given}), folder, reporter=Silent())


def test_a_point_has_every_request_and_the_fields_of_the_contract(tmp_path: Path) -> None:
    document = load(tmp_path, "fake", qps=200.0)
    (point,) = document.points
    assert point.offered == point.completed == 100 and point.failed == point.dropped == 0
    assert point.mean_ms is not None and point.queue_ms is not None and point.service_ms is not None
    assert point.queue_ms + point.service_ms == pytest.approx(point.mean_ms)
    fields = msgspec.to_builtins(document)
    assert fields.keys() >= {"scenario", "points", "capacity"}
    wanted = "qps offered completed p50_ms p90_ms p99_ms queue_ms service_ms utilisation generator_late_ms validity"
    assert fields["points"][0].keys() >= {*wanted.split(), "caveats"}
    assert write_load(tmp_path, document) == ()
    names = {path.stem for path in tmp_path.glob("load_*.png")}
    assert names == {"load_latency", "load_throughput", "load_utilisation"}
    assert read_record(tmp_path / "load.json", LoadDocument) == document
    page = (tmp_path / "report.html").read_text()
    assert "under load" in page
    (tmp_path / "report.html").unlink()
    (tmp_path / "load_latency.png").unlink()
    done = CliRunner().invoke(report, [str(tmp_path), "--json"])
    assert msgspec.json.decode(done.stdout, type=LoadDocument) == document
    assert (tmp_path / "report.html").read_text() == page and (tmp_path / "load_latency.png").is_file()


def test_a_report_reads_nothing_foreign_and_no_capacity_without_its_probes(tmp_path: Path) -> None:
    asked = ["--format", "csv,md"]
    stored, other = tmp_path / "load.json", tmp_path / "other"
    stored.write_text('{"schema": "enginebench.load/1"')
    assert isinstance(CliRunner().invoke(report, [str(tmp_path)]).exception, ParseError)
    other.write_bytes(encode(EMPTY))
    stored.unlink()
    stored.symlink_to(other)
    refused = CliRunner().invoke(report, [str(tmp_path)]).exception
    assert isinstance(refused, ArtifactError) and "symbolic link" in str(refused)
    other.replace(stored)
    refused = CliRunner().invoke(report, [str(tmp_path), *asked]).exception
    assert isinstance(refused, UsageError) and "html and png" in str(refused)
    row = name_row(EngineSpec(backend="fake"), streams=1, max_batch=1, max_wait_ms=0.0)
    probes = (Probe(qps=50.0, passed=True), Probe(qps=52.0, passed=False))
    found = Capacity(passes_qps=50.0, fails_qps=52.0, limit_ms=9.0, percentile=99.0, probes=probes)
    claimed = replace(found, passes_qps=5000.0)

    def store(capacity: Capacity, one: Capacity) -> None:
        rows = (replace(row, capacity=capacity, rounds=(one,)),)
        (tmp_path / "load.json").write_bytes(encode(replace(EMPTY, rows=rows)))

    store(found, found)
    assert read_load(tmp_path).rows[0].capacity == found
    for capacity, one in ((claimed, found), (found, claimed)):
        store(capacity, one)
        with pytest.raises(ParseError, match="a capacity that its probes do not show"):
            read_load(tmp_path)


def test_batches_and_streams_are_configurations_where_the_batch_is_open(tmp_path: Path) -> None:
    document = load(tmp_path, "ort", qps=100, streams=(1, 2), max_batches=(4,))
    assert {(row.streams, row.max_batch) for row in document.rows} == {(1, 4), (2, 4)}
    assert [point.completed for point in document.points] == [50, 50]
    row = name_row(EngineSpec(backend="ort"), streams=1, max_batch=4, max_wait_ms=0.0)
    with pytest.raises(UsageError, match="fixed batch"):
        make_bench(row, make_source((1, 3)), model="m", out_dir=tmp_path, seed=0)
    assert make_bench(row, make_source(("batch", 3)), model="m", out_dir=tmp_path, seed=0).job.max_batch == 4
    source = make_source(("batch", 3, 8))
    built = widen_profile(EngineSpec(backend="tensorrt"), source, 16).options
    assert built == {"min_shapes": "x:1x3x8", "opt_shapes": "x:16x3x8", "max_shapes": "x:16x3x8"}
    named = EngineSpec(backend="tensorrt", options={"max_shapes": "x:4x3x8"})
    assert widen_profile(named, source, 16) is named
    for engine, batch, shape in (("tensorrt", 1, ("batch", 3)), ("tensorrt", 4, (2, 3)), ("ort", 4, ("batch", 3))):
        spec = EngineSpec(backend=engine)
        assert widen_profile(spec, make_source(shape), batch) is spec


@pytest.mark.parametrize(("scenario", "together"), [("single", 1), ("multi", 8)])
def test_a_closed_loop_asks_when_it_was_answered(scenario: str, together: int, tmp_path: Path) -> None:
    (point,) = load(tmp_path, "fake:latency_us=2000,waiting=asleep", scenario=scenario, duration_s=0.3).points
    assert point.completed == point.offered > 1
    assert point.generator_late_ms is None and point.qps is None
    assert point.p50_ms is not None and point.p50_ms >= 2.0 * together


def test_a_trace_is_followed_and_offline_asks_everything_at_once(tmp_path: Path) -> None:
    (point,) = load(tmp_path, "fake", scenario="offline", max_batches=(16,), duration_s=0.05).points
    assert point.completed == point.offered >= 256
    assert point.batch is not None and point.batch > 8
    trace = tmp_path / "trace.txt"
    trace.write_text("# seconds\n3.0\n3.1\n\n3.1\n3.4\n")
    assert read_arrivals(trace).tolist() == pytest.approx([0, 1e8, 1e8, 4e8], abs=2)
    (point,) = load(tmp_path / "t", "fake", arrivals=str(trace)).points
    assert point.offered == point.completed == 4
    for text in ("1\n0.5\n", "1\nx\n", "1\n", "1\nnan\n"):
        trace.write_text(text)
        with pytest.raises(ParseError):
            read_arrivals(trace)


def test_an_engine_that_dies_or_fails_leaves_what_was_measured(tmp_path: Path) -> None:
    document = load(tmp_path, "fake:fault=segfault,after=43", qps=100, duration_s=1.0)
    (point,) = document.points
    assert 0 < point.completed <= 40
    assert point.validity != "valid" and point.p50_ms is not None
    told = next(warning.message for warning in point.warnings if warning.code == "cut_short")
    assert "SIGSEGV" in told and "of 100 requests" in told
    with pytest.raises(ChildFailed, match="SIGSEGV"):  # at once
        load(tmp_path / "other", "fake:fault=segfault,at=load", qps=100)
    (point,) = load(tmp_path / "failing", "fake:fault=raise,after=43", qps=100).points
    assert (point.completed, point.failed) == (40, 10)
    assert "raised an error, as requested" in next(c.message for c in point.warnings if c.code == "failed_requests")


def watch_children(monkeypatch: pytest.MonkeyPatch, see: Any) -> None:
    """Has `see` choose the job that a child of a probe gets."""

    class Seen(Child):
        def start(self, job: Any, **options: Any) -> Any:
            return super().start(see(self, job), **options)

    monkeypatch.setattr(probe, "Child", Seen)


def kill_generators(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Has every generator killed once it has released so many requests."""

    def kill(pid: int, board: SharedBoard) -> None:
        while board.head[RELEASED] < after:
            time.sleep(0.01)
        os.kill(pid, signal.SIGKILL)

    def see(child: Child, job: Any) -> Any:
        if isinstance(job, ArriveJob):
            threading.Thread(target=kill, args=(child.pid, SharedBoard(job.board))).start()
        return job

    watch_children(monkeypatch, see)


def load_two(monkeypatch: pytest.MonkeyPatch, folder: Path, engine: str, count: int) -> tuple[LoadDocument, list[Any]]:
    """A load of one server on each of two GPUs, and the job of each server, which `fake` does without."""
    jobs: list[Any] = []

    def see(child: Child, job: Any) -> Any:
        if not isinstance(job, ServeJob):
            return job
        jobs.append(job)
        return replace(job, engine=replace(job.engine, device="cpu"))

    watch_children(monkeypatch, see)
    devices = ("cuda:0", "cuda:1")
    return load(folder, engine, qps=float(count), duration_s=1.0, limit_ms=500.0, devices=devices), jobs


def test_two_servers_share_the_requests_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every two requests each takes one: where either raises an error after 63 runs, both have answered 60."""
    document, jobs = load_two(monkeypatch, tmp_path, "fake:fault=raise,after=63", 150)
    (point,), (row,) = document.points, document.rows
    assert (point.completed, point.failed) == (120, 30)
    assert [(job.engine.device, job.share) for job in jobs] == [("cuda:0", (0, 2)), ("cuda:1", (1, 2))]
    assert row.devices == ("cuda:0", "cuda:1") and "batcher" in point.stages


@pytest.mark.parametrize("scenario", ["server", "offline"])
def test_a_generator_that_dies_ends_the_probe_and_is_named(tmp_path, monkeypatch, scenario) -> None:
    kill_generators(monkeypatch, after=0)
    with pytest.raises(ChildFailed, match="the generator of requests: the process was killed by SIGKILL"):
        load(tmp_path, "fake", scenario=scenario, qps=100 if scenario == "server" else None)


def test_a_generator_that_dies_later_leaves_what_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_generators(monkeypatch, after=9)
    (point,) = load(tmp_path, "fake", qps=100, duration_s=600.0).points
    assert 0 < point.completed < 60_000
    (told,) = [warning.message for warning in point.warnings if warning.code == "cut_short"]
    assert "of 60000 requests: the generator of requests: the process was killed by SIGKILL" in told


class Busy(BlockWatch):
    """A watch that sees a neighbour, for as long as the engine serves."""

    def end(self) -> BlockReading:
        assert super().end().foreign_cpu_cores is not None, "it was begun"
        return BlockReading(foreign_cpu_cores=1.0, marks=("foreign_cpu",))


@pytest.mark.parametrize("scenario", ["single", "server"])
def test_a_neighbour_makes_a_point_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: str) -> None:
    monkeypatch.setattr(probe, "BlockWatch", Busy)
    (point,) = load(tmp_path, "fake", scenario=scenario, qps=100 if scenario == "server" else None).points
    assert point.validity == "invalid" and "foreign_cpu" in {warning.code for warning in point.warnings}


@pytest.mark.parametrize("engine", ["ort", "openvino"])
def test_shapes_may_differ_from_request_to_request(tmp_path: Path, engine: str) -> None:
    """Lengths of their own, most of them joined into batches with others of the same length."""
    inputs = tmp_path / "given"
    inputs.mkdir()
    for i, length in enumerate((3, 16, 7, 16, 3)):
        np.savez(inputs / f"{i}.npz", x=np.full((1, length), i, np.float32))
    text = "(float[batch, length] x) => (float[batch, 1] y) { y = ReduceSum <keepdims = 1> (x, axis) }"
    path = write_text(tmp_path / "lengths.onnx", text, {"axis": np.array([1])})
    (point,) = load(
        tmp_path / "out", engine, model=str(path), qps=100, inputs=str(inputs), max_batches=(4,), max_wait_ms=30.0
    ).points
    assert (point.completed, point.failed, point.offered) == (50, 0, 50)
    assert point.batch is not None and point.batch > 1


def test_requests_are_drawn_from_a_mix_of_shapes(tmp_path: Path) -> None:
    """Each shape has its fraction of them; OpenVINO and ONNX Runtime take all with what one stream has loaded."""
    document = load(tmp_path, "ort", "openvino", qps=200, traffic=read_traffic("batch=1:0.7,batch=8:0.3"))
    for point in document.points:
        small, large = point.by_shape
        assert (small.name, large.name, point.failed) == ("batch=1", "batch=8", 0)
        assert small.offered + large.offered == point.offered == 100 and 15 <= large.offered <= 45
        assert small.p50_ms is not None and small.weight == pytest.approx(0.7)
    assert len({point.by_shape[0].offered for point in document.points}) == 1  # of the same seed
    assert read_load(tmp_path).points == document.points


def test_an_interrupt_keeps_what_was_measured(tmp_path: Path) -> None:
    asked = (GRAPH, "--engine", "fake", "--threads", 1, "--qps", 100, "--duration", 60, "--out", "out")
    child = start_cli(tmp_path, "load", *asked)
    assert child.stderr is not None
    for line in child.stderr:
        if "requests a second" in line:
            break
    time.sleep(4)  # both processes start, and some requests come
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=60)
    assert child.returncode == 130
    document = read_record(tmp_path / "out" / "load.json", LoadDocument)
    assert not document.finished
    (point,) = document.points
    assert 0 < point.completed < 6000
    assert [warning.code for warning in point.warnings if warning.code == "cut_short"]


def test_a_load_that_is_killed_goes_on_and_leaves_no_memory_behind(cli: Cli, tmp_path: Path) -> None:
    with probe.open_memory() as memory:
        assert os.fstat(memory).st_nlink == 0, "nothing has its name"
    asked = ["load", GRAPH, "--engine", "fake,fake:latency_us=900", "--threads", 1, "--qps", 100, "--out", "o"]
    child = start_cli(tmp_path, *asked, "--duration", 1)
    assert child.stderr is not None
    while "latency_us" not in (line := child.stderr.readline()) or "requests a second" not in line:
        assert line, "it ended too early"
    child.kill()
    child.communicate()
    (first,) = read_load(tmp_path / "o").points
    done = cli(*asked, "--duration", 1, "--resume", "--json", code=0)
    document = msgspec.json.decode(done.stdout, type=LoadDocument)
    assert document.finished and document.points[0] == first and len(document.points) == 2
    assert cli(*asked, "--duration", 2, "--resume").returncode == cli(*asked).returncode == 2


def test_schedules_are_those_of_their_rates_on_a_core_of_their_own(tmp_path: Path) -> None:
    assert schedule_constant(1000, 3).tolist() == [1_000_000, 2_000_000, 3_000_000]
    drawn = schedule_poisson(1000, 20_000, seed=1)
    assert drawn.tolist() == schedule_poisson(1000, 20_000, seed=1).tolist()
    gaps = np.diff(drawn)
    assert gaps.mean() == pytest.approx(1e6, rel=0.03) and gaps.std() == pytest.approx(1e6, rel=0.05)
    assert share_cpus(1, allowed=(0,), root=tmp_path) == ((0,), (0,))
    assert share_cpus(1, allowed=(0, 1), root=tmp_path) == ((1,), (0,))
    assert share_cpus(2, allowed=(0, 1), root=tmp_path) == ((0, 1), (0, 1))
    assert share_cpus(2, allowed=(0, 1, 2, 3), root=tmp_path) == ((2, 3), (0,))
    assert share_cpus(9, 0.5, allowed=(0, 1, 2, 3), root=tmp_path) == ((2, 3), (0, 1))
    assert os.sched_getaffinity(0)


@pytest.mark.parametrize(
    ("engine", "device", "compiled"),
    [
        ("pytorch-compile", "cuda:0", (1, 8, 16, 32)),
        ("ort-tensorrt", "cuda:0", (1, 8, 16, 32)),
        ("tensorrt", "cuda:0", ()),  # one plan for every batch
        ("pytorch-cudagraph", "cuda:0", ()),
        ("pytorch-compile", "cpu", ()),  # to fill a batch up costs as much as to compute it
    ],
)
def test_where_a_batch_is_minutes_of_compiling_few_are_made(engine, device, compiled, tmp_path) -> None:
    row = name_row(EngineSpec(backend=engine, device=device), streams=3, max_batch=32, max_wait_ms=0.0)
    job = make_bench(row, make_source(("batch", 3)), model="m", out_dir=tmp_path, seed=0).job
    assert row.compiled_for == job.compiled_for == compiled
    assert ("compiled for 1, 8, 16, 32" in format_row(row)) == bool(compiled)


def make_source(shape: tuple[int | str, ...]) -> Artifact:
    spec = TensorSpec(name="x", dtype="float32", shape=shape)
    return Artifact(kind="onnx", model="m", path="", sha256="", files=(), inputs=(spec,), outputs=())
