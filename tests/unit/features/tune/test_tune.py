"""`tune` from the request to its folder, with the fake engine in this process: no figure is looked at."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import enginebench
from enginebench.core.errors import BackendUnavailable, ChildFailed, UsageError
from enginebench.core.hooks import LoadCheck, LoadTrial
from enginebench.core.records import Artifact, Capacity, MeasureSpec
from enginebench.core.store import read_record
from enginebench.features.tune import session, under_load
from enginebench.features.tune.records import SearchRequest, TuneDocument, read_search
from enginebench.features.tune.session import find_arms, tune_model
from enginebench.features.tune.space import Setting
from enginebench.features.tune.under_load import LoadTrack, StoredTrial, make_trial
from enginebench.features.tune.verb import TuneOptions, make_request, parse_budget
from enginebench.measure.machine import describe_machine
from enginebench.models.zoo import DATA_DIR
from enginebench.options import fill
from enginebench.runs.child.jobs import MeasureJob, PrepareJob
from enginebench.runs.folder import RunFolder, RunRequest, read_results
from enginebench.runs.reporting import Written, describe_stored
from enginebench.stats.compare import Comparison
from enginebench.stats.validity import assess_samples
from in_process import Children
from reporters import Silent
from samples import make_estimate, make_result
from tracks import DISTURBED

MEASURE = MeasureSpec(warmup=1, iters=5, processes=6, time_limit_s=2.0)  # not that of the race
REQUEST = SearchRequest(
    run=RunRequest(model="digits-mlp", engines=(("fake", {"latency_us": "300"}),), measure=MEASURE, threads=2),
    budget_s=600.0,
    limits={"cosine": 0.99},
    threads=2,
)


def search(folder: Path, request: SearchRequest = REQUEST, **more: Any) -> TuneDocument:
    return tune_model(request, folder, reporter=Silent(), **more)[0]


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reports of the final take longer to draw than all else together; one test has them drawn."""
    if "drawn" not in request.keywords:
        monkeypatch.setattr(session, "write_reports", lambda *_, **__: Written(paths=()))


@pytest.fixture
def crash(children: Children) -> Children:
    """The fake engine's trick `crash` would take this process along: here its child fails instead."""

    def before(job: Any) -> None:
        if isinstance(job, PrepareJob) and job.engine.options.get("trick") == "crash":
            raise ChildFailed("the process was killed by SIGSEGV", "its last words")

    children.before = before
    return children


@pytest.mark.feature("roofline")
def test_a_search_ends_as_a_document_a_page_and_a_run(tmp_path: Path, crash: Children) -> None:
    folder = tmp_path / "t"
    document = search(folder)
    assert document.winner is not None and document.winner.id is not None and document.finished
    assert document.unit == "ms a sample" and any("What the hardware could do" in note for note in document.notes)
    reasons = {dropped.candidate: dropped for dropped in document.dropped}
    assert "SIGSEGV" in reasons["fake:latency_us=300,trick=crash fp32 2 threads"].reason
    wrong = reasons["fake:latency_us=300,trick=wrong fp32 2 threads"]
    assert wrong.round == 0 and " below 0.99" in wrong.reason and "cosine " in wrong.reason
    slow = reasons["fake:latency_us=300,trick=slow fp32 2 threads"]
    assert slow.round >= 1 and slow.ratio is not None
    stored = read_record(folder / "tune.json", TuneDocument)
    assert stored == document == enginebench.read(folder / "tune.json")
    page = (folder / "tune.html").read_text(encoding="utf-8")
    assert "SIGSEGV" in page and "before it raced" in page
    assert document.winner.candidate.removesuffix(" 2 threads") in page
    record, results = read_results(folder)
    assert record.verb == "tune" and {r.status for r in results} == {"ok"}
    assert document.winner.id in record.rows
    assert all(len(r.measurements) >= 6 for r in results)
    rows = describe_stored(record, results).rows
    assert all(row.agreement.outputs_agree for row in rows) and any(row.is_reference for row in rows)
    judged = {r.id: tuple(map(tuple, assess_samples(r.measurements))) for r in results}
    assert all((tuple(row.validity), row.warnings) == judged[row.id] for row in document.final)
    assert "fake:latency_us=300 fp32 2 threads" in [row.candidate for row in document.final if row.default]
    winner, done = document.winner.id, len(crash.jobs)
    final, race = (json.loads((folder / "rows" / f"{name}.json").read_bytes()) for name in (winner, f"{winner}-race"))
    taken = [{(m["started_utc"], tuple(m["latency_ns"])) for m in row["measurements"]} for row in (final, race)]
    assert not taken[0] & taken[1], "the final is measured anew"
    again = search(folder, resume=True)
    assert len(crash.jobs) == done and replace(again, spent_s=0) == replace(document, spent_s=0)
    other = replace(REQUEST, run=replace(REQUEST.run, model="digits-cnn"))
    with pytest.raises(UsageError, match="holds a run of digits-mlp, not of digits-cnn"):
        search(folder, other, resume=True)
    with pytest.raises(UsageError, match="holds a run already"):
        search(folder)
    with pytest.raises(UsageError, match="holds no search to continue"):
        search(folder / "nothing", resume=True)
    changed = {"engines": "ort", "threads": 2, "precisions": "int8", "limit": "cosine=0.99", "time_budget": "1s"}
    with pytest.raises(UsageError, match=r"^--engines, --precisions: --resume continues with the options that it was"):
        enginebench.tune("digits-mlp", out=folder, resume=True, **changed)  # type: ignore[arg-type]


def test_ctrl_c_leaves_the_best_so_far_and_a_folder_that_goes_on(tmp_path: Path, crash: Children) -> None:
    folder, seen = tmp_path / "t", list[TuneDocument]()
    unbroken, left = crash.before, iter(range(9))

    def interrupt(job: Any) -> None:
        """Ctrl-C in the tenth measurement."""
        unbroken(job)
        if isinstance(job, MeasureJob) and next(left, None) is None:
            raise KeyboardInterrupt

    crash.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        search(folder, on_partial=seen.append)
    assert seen[0].winner is not None and not seen[0].finished
    assert read_record(folder / "tune.json", TuneDocument) == seen[0]
    before = len(crash.of(MeasureJob))
    crash.before = unbroken
    document = search(folder, resume=True)
    assert document.finished and document.winner is not None
    repeated = [(j.engine.options.get("trick"), j.measure.time_limit_s, j.trial) for j in crash.of(MeasureJob)]
    assert len(repeated) - len(set(repeated)) <= 1, "only what was interrupted is measured twice"
    assert len(crash.of(MeasureJob)) > before
    crashed = [j for j in crash.of(PrepareJob) if j.engine.options.get("trick") == "crash"]
    assert len(crashed) == 1, "what crashed is not built again"


def test_no_path_of_the_user_is_stored(tmp_path: Path, crash: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    model = tmp_path / "mine.onnx"
    model.write_bytes((DATA_DIR / "digits-mlp.onnx").read_bytes())
    run = replace(REQUEST.run, model=str(model))
    search(tmp_path / "t", replace(REQUEST, run=run, budget_s=8))
    for name in ("search.json", "run.json", "tune.json"):
        assert str(tmp_path) not in (tmp_path / "t" / name).read_text(encoding="utf-8"), name
    assert read_search(tmp_path / "t").request.run.model == "~/mine.onnx"


def test_budgets() -> None:
    given = {"20m": 1200, "90s": 90, "1.5h": 5400, "45": 45, " 2 m ": 120}
    assert {text: parse_budget(text) for text in given} == given
    for text in ("", "0", "-5", "20 minutes", "m", "1e3", "nan"):
        with pytest.raises(UsageError, match="expected a time such as 20m"):
            parse_budget(text)


def ask(**changes: Any) -> SearchRequest:
    return make_request("digits-mlp", fill(TuneOptions, {"engines": "fake", **changes}))  # type: ignore[arg-type]


def test_fp32_is_the_reference_whatever_is_asked_for() -> None:
    assert ask(precisions="int8@cpu").run.precisions == (("fp32", None), ("int8", "cpu"))
    assert ask(precisions="int8,fp32").run.precisions == (("fp32", None), ("int8", None))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"goal": "capacity"}, "needs --p99-limit-ms"),
        ({"p99_limit_ms": 5.0}, "no other goal takes it"),
        ({"goal": "throughput", "batch": 8}, "leave --batch out"),
        ({"processes": 5}, "needs 6"),
        ({"resume": True}, "--resume needs --out"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ask(**changes)


def test_engines_that_cannot_run_are_left_out_and_alone_they_are_an_error() -> None:
    """Of a graph PyTorch is none, as in `run`; that is told where it was named, and where nobody runs the precision."""
    pytest.importorskip("torch")
    machine = describe_machine()
    graph = Artifact(kind="onnx", model="m", path="m.onnx", sha256="", files=(), inputs=(), outputs=())
    engines = (("pytorch", {}), ("ort", {}), ("tensorrt", {}))
    named = replace(REQUEST, run=replace(REQUEST.run, engines=engines, precisions=(("fp32", None), ("fp8", None))))
    assert ask(engines=None).any_engine and not ask().any_engine
    for request, told in [(named, ["pytorch fp32"]), (replace(named, any_engine=True), [])]:
        arms, lines = find_arms(request, machine, [graph])
        assert [(arm.engine, arm.precision) for arm in arms] == [("ort", "fp32")]
        assert [line.split(": ")[1] for line in lines] == ["tensorrt", *told, "pytorch fp8", "ort fp8"]
        assert lines[-2].startswith("Not run: pytorch fp8: pytorch needs a PyTorch model; MODEL is a graph, for ")
    with pytest.raises(BackendUnavailable, match=r"no configuration can run here:\n- tensorrt .*\n- pytorch needs"):
        find_arms(replace(named, run=replace(named.run, engines=engines[::2])), machine, [graph])


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> dict[Any, Any]:
    """The functions that put a configuration under load, by hook: it is not `tune` that does."""
    functions: dict[Any, Any] = {LoadCheck: lambda *given: None}
    monkeypatch.setattr(under_load, "require_hook", functions.__getitem__)
    return functions


@pytest.mark.parametrize(
    ("ended", "said"), [("budget", "was found within 240 s"), ("nothing passes", "that was tried")]
)
def test_a_lap_without_a_rate_says_why(tmp_path: Path, loads: dict[Any, Any], ended: Any, said: str) -> None:
    """The search for a capacity gets the time of one process, and no more."""
    given: list[Any] = []

    def carry(folder: Any, result: Any, streams: int, max_batch: int, settings: dict[str, Any], **more: Any) -> Any:
        given.append((streams, max_batch, *settings.values(), more["name"]))
        capacity = Capacity(passes_qps=None, fails_qps=9.0, limit_ms=5.0, percentile=99, probes=(), ended=ended)
        return SimpleNamespace(per_s=None, capacity=capacity, validity="invalid", warnings=(DISTURBED,))

    loads[LoadTrial] = carry
    request = replace(REQUEST, goal="capacity", p99_limit_ms=5.0, budget_s=1200.0)
    timed = SimpleNamespace(find_result=lambda setting, final: make_result())
    track = LoadTrack(request, timed, RunFolder(tmp_path), Silent())  # type: ignore[arg-type]
    setting = Setting(engine="fake", streams=2, max_batch=4, max_wait_ms=0.5)
    (trial,) = track.run([setting], 0)
    assert track.assess_trials(setting) == ("invalid", (DISTURBED,)) and track.assess_trials(setting, final=True) == (
        "valid",
        (),
    )
    assert trial.cost is None and said in trial.reason
    assert given == [(2, 4, 5.0, 240.0, 0.5, *under_load.RACE.values(), setting.name)]
    tuple(track.run([setting], 0, final=True))
    faster = Comparison(verdict="faster", ratio=make_estimate(2.0, 1.9, 2.1))
    assert track.assess_ratio(replace(setting, streams=1), setting, faster).verdict == "not_shown", "disturbed alone"
    assert track.assess_ratio(setting, setting, faster).verdict == "faster"


@pytest.mark.parametrize("goal", ["throughput", "capacity"])
def test_under_load_streams_and_batches_race_and_laps_are_kept(tmp_path, children, monkeypatch, loads, goal) -> None:
    """Rates are scripted: twice the streams carry more, a batch of 4 most of all."""
    monkeypatch.setattr(session, "default_threads", lambda: 4)
    probed: list[str] = []

    def probe(self: LoadTrack, setting: Any, number: int, final: bool) -> Any:
        probed.append(setting.name)
        rate = 100.0 * setting.streams**0.5 * {1: 1.0, 4: 2.0}.get(setting.max_batch, 1.5) * (1 + number % 3 / 1000)
        return StoredTrial(candidate=setting.name, round=number, final=final, lap=make_trial(rate, ""))

    monkeypatch.setattr(LoadTrack, "_probe", probe)
    request = replace(
        REQUEST,
        goal=goal,
        threads=None,
        limits=None,
        p99_limit_ms=5.0 if goal == "capacity" else None,
        candidates=40,
        run=replace(REQUEST.run, engines=(("fake", {"latency_us": "300", "trick": "none"}),)),
    )
    document = search(tmp_path / "t", request)
    assert document.winner is not None and (document.winner.streams, document.winner.max_batch) == (4, 4)
    assert document.beaten and document.ratio is not None and document.ratio.value == pytest.approx(4, rel=0.02)
    assert document.default is not None and document.default.streams == document.default.max_batch == 1
    left = [7]

    def stop(self: LoadTrack, *given: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return probe(self, *given)

    monkeypatch.setattr(LoadTrack, "_probe", stop)
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "broken", request)
    broken = search(tmp_path / "broken", request, resume=True)
    same = {"spent_s": 0, "started_utc": "", "machine": document.machine}
    assert replace(broken, **same) == replace(document, **same)
    monkeypatch.setattr(LoadTrack, "_probe", probe)
    count = len(probed)
    again = search(tmp_path / "t", request, resume=True)
    assert len(probed) == count and again.winner == document.winner
    assert msgspec.json.decode((tmp_path / "t" / "laps.json").read_bytes())["schema"] == "enginebench.laps/1"
    assert len(read_results(tmp_path / "t")[1]) >= 1
