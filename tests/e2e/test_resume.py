"""A run that was interrupted and continued says what an uninterrupted one says, wherever it was interrupted.

Most runs here do their jobs in this process, since an interrupt at every step of a run takes hundreds of them. What
counts is what lies on the disk at that moment, and that is the same: a child process dies with its parent.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import in_process
from enginebench.core.errors import ArtifactError, ChildFailed, EngineBenchError
from enginebench.core.records import MeasureSpec, Result
from enginebench.core.store import write_atomic
from enginebench.measure import reference
from enginebench.runs import campaign, main_job
from enginebench.runs.child.jobs import MeasureJob, PrepareJob
from enginebench.runs.child.perform import sources as perform_sources
from enginebench.runs.folder import RunFolder, RunRequest, read_results
from enginebench.runs.main_job import run_model
from enginebench.runs.plan import PlannedRow
from enginebench.runs.reporting import describe_stored
from enginebench.runs.targets import sources
from processes import environment
from reporters import Silent

# All that may differ between the two: times, what is computed from them alone, and how much memory a process took.
TIMES_OF_RECORD = {"started_utc", "machine", "command", "took_s"}
TIMES_OF_ROW = {"build_s", "machine", "layers"}
TIMES_OF_MEASUREMENT = {
    *("latency_ns", "blocks", "started_utc", "reference_ns", "call_overhead_ns", "least_ns", "load_s", "first_run_s"),
    *("peak_memory_bytes", "warmup_settled", "untimed_calls"),
}
TIMES_OF_DOCUMENT_ROW = {
    *("validity", "p50_ms", "p99_ms", "mean_ms", "throughput_per_s", "speedup", "speedup_reason", "build_s", "pareto"),
    *("caveats", "p90_ms", "p95_ms", "p50_unmarked_ms", "percentiles_ms", "marked_share", "verdict"),
    *("repetitions_needed", "peak_memory_bytes", "effective_precision", "p999_ms", "start_s", "ratio_to_next"),
    *("verdict_to_next", "ratio_to_fastest", "verdict_to_fastest", "ratio_validity", "ratio_reason"),
}
MEASURE = MeasureSpec(warmup=1, iters=5, processes=2, time_limit_s=600)


def fake(**options: str) -> tuple[str, dict[str, str]]:
    return "fake", options


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> RunRequest:
    """Rows that answer, answer otherwise, cannot be built, fail while they are timed, and tell of another precision.

    The model is the shipped graph with its labelled data, taken as where PyTorch is not installed: without an export.
    """
    monkeypatch.setattr(perform_sources, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    return RunRequest(
        model="digits-mlp",
        engines=(
            fake(fault="raise", at="build"),
            fake(),
            fake(bias="0.1"),
            fake(fault="raise", after="60"),
            fake(ran="fp16", bias="0.001"),
        ),
        measure=MEASURE,
    )


# Modules that write files and are imported as late as by the job that needs them.
LATE = ("enginebench.models.precision.calibrate", "enginebench.models.precision.quantize")


class Interrupts:
    """Counts the steps of a run, each job and each file written, and interrupts before the one it was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.steps: list[str] = []
        self.at: int | None = None
        self.before_job: Callable[[Any], None] = lambda job: None
        for name in LATE:
            import_module(name)
        for module in list(sys.modules.values()):
            if getattr(module, "write_atomic", None) is write_atomic and module.__name__ != __name__:
                monkeypatch.setattr(module, "write_atomic", self._write)
        for module in (campaign, sources):
            monkeypatch.setattr(module, "run_child", lambda job, **how: self.perform(job))
            monkeypatch.setattr(module, "Child", lambda environment, place=None: InProcess(self))
        monkeypatch.setattr(campaign, "count_at_once", lambda machine: 1)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))  # nothing is timed that other runs could disturb
        monkeypatch.setattr(os, "fsync", lambda handle: None)  # no power fails here
        monkeypatch.setattr(gc, "collect", lambda: 0)  # before each timing; slow in a process of many tests
        monkeypatch.setattr(reference, "time_reference", lambda repeats: [1] * repeats)
        monkeypatch.setattr(sources, "LABELLED_ENTRIES", 60)

    def step(self, name: str) -> None:
        if self.at == len(self.steps):
            raise KeyboardInterrupt(name)
        self.steps.append(name)

    def _write(self, path: Path, data: bytes) -> None:
        self.step(f"write {path.name}")
        write_atomic(path, data)

    def perform(self, job: Any) -> Any:
        self.step(type(job).__name__)
        try:
            self.before_job(job)
            job = replace(job, pin=False) if isinstance(job, MeasureJob) else job
            return job.perform(lambda text: None, lambda sure: None)
        except EngineBenchError:
            raise
        except Exception as error:
            raise ChildFailed(f"{type(error).__name__}: {error}") from error


class InProcess:
    """Stands in for `Child`: the job is done here."""

    alive, kept = True, None

    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts

    def __enter__(self) -> "InProcess":
        return self

    def __exit__(self, *error: object) -> None: ...

    def perform(self, job: Any, **how: Any) -> Any:
        return self._interrupts.perform(job)

    start = in_process.InProcess.start


@pytest.fixture
def interrupts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Interrupts:
    return Interrupts(monkeypatch, tmp_path)


def run(request: RunRequest, root: Path, *, resume: bool = False) -> list[Result]:
    return run_model(request, root, reporter=Silent(), resume=resume)[1]


def interrupt(interrupts: Interrupts, request: RunRequest, root: Path, at: int, *, resume: bool = False) -> None:
    interrupts.steps, interrupts.at = [], at
    with pytest.raises(KeyboardInterrupt):
        run(request, root, resume=resume)
    interrupts.at = None


def resume(request: RunRequest, root: Path) -> list[Result]:
    """Continues a run; one that was interrupted before it had a record is begun."""
    return run(request, root, resume=(root / "run.json").exists())


def without(record: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in names}


def strip_row(row: Result) -> dict[str, Any]:
    record = msgspec.to_builtins(row)
    # Shares are of time: that of a single short operator comes and goes, what most of the time ran in does not.
    shares = record["effective_precision"] or {}
    record["effective_precision"] = max(shares, key=lambda name: shares[name], default=None)
    measurements = [without(m, TIMES_OF_MEASUREMENT) for m in record["measurements"]]
    return {**without(record, TIMES_OF_ROW), "measurements": measurements}


def tell(root: Path) -> dict[str, Any]:
    """Everything that a stored run says, less its times."""
    record, rows = read_results(root)
    document = msgspec.to_builtins(describe_stored(record, rows))
    said = {
        "run.json": without(msgspec.to_builtins(record), TIMES_OF_RECORD),
        "rows": [strip_row(row) for row in rows],
        "document": [without(row, TIMES_OF_DOCUMENT_ROW) for row in document["rows"]],
    }
    text = msgspec.json.encode(said).decode().replace(str(root.absolute()), "ROOT")
    told: dict[str, Any] = msgspec.json.decode(text)
    return told


def find_differences(found: Any, expected: Any, place: str = "$") -> list[str]:
    """Where two such answers differ, and in what."""
    if isinstance(found, dict) and isinstance(expected, dict) and found.keys() == expected.keys():
        return [text for key in found for text in find_differences(found[key], expected[key], f"{place}.{key}")]
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = enumerate(zip(found, expected, strict=True))
        return [text for i, (one, other) in pairs for text in find_differences(one, other, f"{place}[{i}]")]
    return [] if found == expected else [f"{place}: {found!r}, expected {expected!r}"]


def check_references(root: Path) -> None:
    """No row is compared with itself, but the first of its batch that answered; all others with that one."""
    first: dict[int, str] = {}
    for row in read_results(root)[1]:
        if row.drift is not None:
            assert row.drift.reference == first.setdefault(row.engine.batch, row.id), row.id


@pytest.mark.parametrize("more", [{}, {"batches": (1, 2)}, {"precisions": (("fp32", None), ("int8", None))}])
def test_a_run_interrupted_at_any_step_ends_as_if_it_had_not_been(
    more: dict[str, Any], interrupts: Interrupts, asked: RunRequest, tmp_path: Path
) -> None:
    """Every other time what goes on is interrupted as well, at its third step."""
    request = replace(asked, **more)
    if more:
        request = replace(request, engines=request.engines[:3], measure=replace(MEASURE, processes=1))
    run(request, tmp_path / "whole")
    expected, steps = tell(tmp_path / "whole"), list(interrupts.steps)
    assert {row["status"] for row in expected["rows"]} == {"ok", "failed"} and len(steps) > 25
    assert {row["scores"][0]["value"]["n"] for row in expected["rows"] if row["status"] == "ok"} == {60}
    for at, step in enumerate(steps):
        root = tmp_path / str(at)
        interrupt(interrupts, request, root, at)
        if at % 2:
            interrupts.steps, interrupts.at = [], 2
            with suppress(KeyboardInterrupt):
                resume(request, root)
            interrupts.at = None
        resume(request, root)
        assert find_differences(tell(root), expected) == [], f"interrupted before step {at}: {step}"
        check_references(root)


def find_step(steps: list[str], name: str, which: int = 0) -> int:
    return [at for at, step in enumerate(steps) if step == name][which]


@pytest.fixture
def three(asked: RunRequest) -> RunRequest:
    """A reference and two rows that answer otherwise."""
    return replace(asked, engines=(fake(), fake(bias="0.1"), fake(bias="0.2")))


def ids(request: RunRequest, root: Path) -> tuple[str, ...]:
    return RunFolder(root).read_record().rows


def differences(root: Path) -> list[float]:
    """How far each row that was compared is from its reference."""
    rows = read_results(root)[1]
    return [round(row.drift.outputs[0].max_abs_diff or 0, 3) for row in rows if row.drift]


@pytest.fixture(params=["removed", "cut", "spoilt"])
def damage(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        data = path.read_bytes()
        path.unlink()
        if request.param == "cut":
            path.write_bytes(data[: len(data) // 2])
        if request.param == "spoilt":
            path.write_bytes(data[:300] + bytes([data[300] ^ 1]) + data[301:])

    return spoil


@pytest.mark.parametrize("what", ["outputs_path", "answers_path"])
@pytest.mark.parametrize("moment", ["PrepareJob", "MeasureJob"])
def test_answers_that_are_gone_are_taken_again(
    what: str, moment: str, damage: Callable[[Path], None], interrupts: Interrupts, three: RunRequest, tmp_path: Path
) -> None:
    """The reference's answers are damaged while the run rests: no other row takes its place."""
    run(three, tmp_path / "whole")
    at = find_step(interrupts.steps, moment, 2)
    root = tmp_path / "r"
    interrupt(interrupts, three, root, at)
    damage(getattr(RunFolder(root), what)(ids(three, root)[0]))
    interrupts.steps = []
    resume(three, root)
    assert tell(root) == tell(tmp_path / "whole") and differences(root) == [0, 0.1, 0.2]
    assert interrupts.steps.count("PrepareJob") == (2 if moment == "PrepareJob" else 1)


@pytest.mark.parametrize("fails_first", [True, False])
def test_a_reference_that_fails_on_one_side_of_an_interruption_only(
    fails_first: bool, interrupts: Interrupts, three: RunRequest, tmp_path: Path
) -> None:
    """All rows are compared with the row that is the reference in the end, also those that were compared before."""
    failing = fails_first

    def fail(job: Any) -> None:
        if failing and isinstance(job, PrepareJob) and "bias" not in job.engine.options:
            raise RuntimeError("no memory just now")

    interrupts.before_job = fail
    run(three, tmp_path / "whole")
    root = tmp_path / "r"
    interrupt(interrupts, three, root, find_step(interrupts.steps, "MeasureJob", 1))
    if not fails_first:  # it must be built again, which then fails
        RunFolder(root).row_path(ids(three, root)[0]).unlink()
    failing = not fails_first
    rows = resume(three, root)
    assert [row.status for row in rows] == (["ok"] * 3 if fails_first else ["failed", "ok", "ok"])
    assert differences(root) == ([0, 0.1, 0.2] if fails_first else [0, 0.1])
    check_references(root)


def test_a_row_whose_engine_is_gone_keeps_what_was_measured(
    interrupts: Interrupts, three: RunRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says why it cannot go on, stays the reference, and is measured to its end once the engine is back."""
    run(three, tmp_path / "whole")
    root = tmp_path / "r"
    interrupt(interrupts, three, root, find_step(interrupts.steps, "MeasureJob", 3))
    plan = main_job.plan_rows

    def plan_without(*args: Any, **more: Any) -> list[PlannedRow]:
        first, *others = plan(*args, **more)
        return [replace(first, skip="the engine is not installed"), *others]

    with monkeypatch.context() as patch:
        patch.setattr(main_job, "plan_rows", plan_without)
        rows = resume(three, root)
    assert [row.status for row in rows] == ["failed", "ok", "ok"] and len(rows[0].measurements) == 1
    assert rows[0].reason == "it cannot continue: the engine is not installed" and differences(root) == [0, 0.1, 0.2]
    resume(three, root)
    assert tell(root) == tell(tmp_path / "whole")


def test_a_measured_row_whose_answers_cannot_be_taken_again_fails_alone(
    damage: Callable[[Path], None], interrupts: Interrupts, three: RunRequest, tmp_path: Path
) -> None:
    """It keeps its times and says why; the others are compared with the first that still has answers."""
    run(three, tmp_path / "whole")
    root = tmp_path / "r"
    interrupt(interrupts, three, root, find_step(interrupts.steps, "MeasureJob", 3))
    damage(RunFolder(root).outputs_path(ids(three, root)[0]))

    def fail(job: Any) -> None:
        if isinstance(job, PrepareJob):
            raise RuntimeError("no memory just now")

    interrupts.before_job = fail
    rows = resume(three, root)
    assert [row.status for row in rows] == ["failed", "ok", "ok"] and len(rows[0].measurements) == 1
    assert "no memory just now" in str(rows[0].reason)
    assert [row.drift.reference for row in rows[1:] if row.drift] == [rows[1].id] * 2
    interrupts.before_job = lambda job: None
    resume(three, root)
    assert tell(root) == tell(tmp_path / "whole")


def test_times_of_an_engine_that_was_built_anew_are_taken_anew(
    interrupts: Interrupts, three: RunRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers are gone, and what is built for new ones is another engine than the one that was timed."""
    run(three, tmp_path / "whole")
    root = tmp_path / "r"
    interrupt(interrupts, three, root, find_step(interrupts.steps, "MeasureJob", 4))
    first = ids(three, root)[0]
    RunFolder(root).outputs_path(first).unlink()
    row_file = RunFolder(root).row_path(first)
    stored = RunFolder(root).read_result(first)
    assert stored is not None and len(stored.measurements) == 2
    other = tuple(replace(artifact, sha256="0" * 64) for artifact in stored.artifacts)
    RunFolder(root).write_result(replace(stored, artifacts=other))
    interrupts.steps = []
    resume(three, root)
    assert tell(root) == tell(tmp_path / "whole") and row_file.exists()
    assert interrupts.steps.count("MeasureJob") == 2 + 2  # both of the first row, one of each other


def test_a_source_that_was_changed_is_found_before_a_row_starts_from_it(
    interrupts: Interrupts, three: RunRequest, tmp_path: Path
) -> None:
    """No row was begun, so that none could show it."""
    run(three, tmp_path / "whole")
    root = tmp_path / "r"
    interrupt(interrupts, three, root, find_step(interrupts.steps, "PrepareJob"))
    graph = next((root / "artefacts").rglob("*.onnx"))
    data = graph.read_bytes()
    graph.unlink()
    graph.write_bytes(data + b" ")
    with pytest.raises(ArtifactError, match="was changed after the run began"):
        resume(three, root)


def test_ranges_of_a_try_that_was_interrupted_are_not_taken_up(
    interrupts: Interrupts, three: RunRequest, tmp_path: Path
) -> None:
    """They may be of other weights, which then no graph could be made from."""
    request = replace(three, precisions=(("int8", None),))
    run(request, tmp_path / "whole")
    root = tmp_path / "r"
    interrupt(interrupts, request, root, find_step(interrupts.steps, "write calib.json") + 1)
    ranges = root / "artefacts" / "calib.json"
    record = json.loads(ranges.read_bytes())
    ranges.write_text(json.dumps({**record, "model_sha256": "0" * 64, "weights_sha256": "0" * 64}))
    resume(request, root)
    assert tell(root) == tell(tmp_path / "whole")


# Two engines that nobody here wrote, in two precisions, as processes that are killed without a word.
REAL = ("--engines", "ort,openvino", "--precisions", "fp32,int8", "--quick", "--iters", "20", "--warmup", "2")
# Which file appears, and how many of its kind, before the kill.
MOMENTS = [("artefacts/model.int8-*.onnx", 1), ("artefacts/*.xml", 1), ("artefacts/outputs/*.labelled.npz", 3),
           ("rows/*.json", 4), ("*/outputs/*.npz", 8)]  # fmt: skip


def start_run(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    """The run as where PyTorch is not installed: the graph is the shipped one."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    variables = environment(folder)
    variables["PYTHONPATH"] = f"{folder}:{variables['PYTHONPATH']}"
    command = [sys.executable, "-m", "enginebench", "run", "digits-cnn", *REAL, "--out", "r", *more]
    with (folder / "log.txt").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, env=variables, stdout=log, stderr=log)


def kill_when(run: subprocess.Popen[bytes], root: Path, pattern: str, count: int) -> None:
    while run.poll() is None and len(list(root.glob(pattern))) < count:
        time.sleep(0.002)
    run.kill()
    assert run.wait() == -signal.SIGKILL, f"it ended before it was to be killed: {log_of(root)}"


def log_of(root: Path) -> str:
    return (root.parent / "log.txt").read_text()


def test_real_engines_killed_on_the_way_end_as_if_they_had_not_been(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start_run(whole).wait() == 0, log_of(whole / "r")
    expected = tell(whole / "r")
    assert [row["status"] for row in expected["rows"]] == ["ok"] * 4
    kill_when(start_run(killed), killed / "r", *MOMENTS[0])
    for moment in MOMENTS[1:]:  # the same run, killed again and again
        kill_when(start_run(killed, "--resume"), killed / "r", *moment)
    assert start_run(killed, "--resume").wait() == 0, log_of(killed / "r")
    assert find_differences(tell(killed / "r"), expected) == []
    check_references(killed / "r")
    assert all(row["drift"]["outputs"][0]["max_abs_diff"] > 0.01 for row in expected["rows"][2:])
