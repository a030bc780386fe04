"""A run that was interrupted and continued says what an uninterrupted one says, whatever happened meanwhile.

Most runs here do their jobs in this process. What counts is what lies on the disk at that moment, and that is the same:
a child process dies with its parent. Any moment of interruption: `unit/run/test_main_job.py`.
"""

import json
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError
from enginebench.core.records import MeasureSpec, Result
from enginebench.core.store import encode, write_atomic
from enginebench.runs.child.jobs import MeasureJob, PrepareJob, SourceJob
from enginebench.runs.child.perform import sources as perform_sources
from enginebench.runs.folder import RunFolder, RunRequest, read_results
from enginebench.runs.main_job import run_model
from enginebench.runs.plan import PlannedConfiguration
from enginebench.runs.reporting import describe_stored
from enginebench.runs.targets import sources
from in_process import Children, children
from reporters import Silent

__all__ = ["children"]

# All that may differ between the two: times, what is computed from them alone, and how much memory a process took.
TIMES_OF_RECORD = {"started_utc", "machine", "command", "took_s", "parts_s"}
TIMES_OF_ROW = {"build_s", "machine", "layers"}
TIMES_OF_MEASUREMENT = {
    *("latency_ns", "blocks", "started_utc", "reference_ns", "call_overhead_ns", "least_ns", "load_s", "first_run_s"),
    *("peak_memory_bytes", "warmup_settled", "untimed_calls", "import_s", "memory"),
}
TIMES_OF_DOCUMENT_ROW = {
    *("validity", "p50_ms", "p99_ms", "mean_ms", "throughput_per_s", "speedup", "speedup_reason", "build_s", "pareto"),
    *("caveats", "p90_ms", "p95_ms", "p50_unmarked_ms", "percentiles_ms", "marked_share", "verdict"),
    *("repetitions_needed", "peak_memory_bytes", "effective_precision", "p999_ms", "start_s", "ratio_to_next"),
    *("import_s", "load_s", "first_run_s", "cold_start_s", "memory_bytes"),
    *("verdict_to_next", "ratio_to_fastest", "verdict_to_fastest", "ratio_validity", "ratio_reason"),
}
Told: TypeAlias = dict[str, Any]
Spoil: TypeAlias = Callable[[Path], None]
MEASURE = MeasureSpec(warmup=1, iters=5, processes=2, time_limit_s=600)


def fake(**options: str) -> tuple[str, dict[str, str]]:
    return "fake", options


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> RunRequest:
    """A reference and two rows that answer otherwise, of the shipped graph with its labelled data.

    It is taken as where PyTorch is not installed: without an export.
    """
    monkeypatch.setattr(perform_sources, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    return RunRequest(model="digits-mlp", engines=(fake(), fake(bias="0.1"), fake(bias="0.2")), measure=MEASURE)


def run(request: RunRequest, root: Path, *, resume: bool = False) -> list[Result]:
    return run_model(request, root, reporter=Silent(), resume=resume)[1]


def interrupt(children: Children, request: RunRequest, root: Path, kind: type[Any], which: int = 0) -> None:
    """Begins a run, and interrupts it ahead of this job; what is asked from then on is counted anew."""
    children.jobs.clear()

    def stop(job: Any) -> None:
        if isinstance(job, kind) and len(children.of(kind)) > which:
            raise KeyboardInterrupt

    children.before = stop
    with pytest.raises(KeyboardInterrupt):
        run(request, root)
    children.before = lambda job: None
    children.jobs.clear()


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
    document = msgspec.json.decode(encode(describe_stored(record, rows)))
    said = {
        "run.json": without(msgspec.to_builtins(record), TIMES_OF_RECORD),
        "rows": [strip_row(row) for row in rows],
        "document": [without(row, TIMES_OF_DOCUMENT_ROW) for row in document["rows"]],
    }
    text = msgspec.json.encode(said).decode().replace(str(root.absolute()), "ROOT")
    told: dict[str, Any] = msgspec.json.decode(text)
    return told


def check_references(root: Path) -> None:
    """No row is compared with itself, but the first of its batch that answered; all others with that one."""
    first: dict[int, str] = {}
    for row in read_results(root)[1]:
        if row.drift is not None:
            assert row.drift.reference == first.setdefault(row.engine.batch, row.id), row.id


def ids(root: Path) -> tuple[str, ...]:
    return RunFolder(root).read_record().rows


def differences(root: Path) -> list[float]:
    """How far each row that was compared is from its reference."""
    rows = read_results(root)[1]
    return [round(row.drift.outputs[0].max_abs_diff or 0, 3) for row in rows if row.drift]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "r"


@pytest.fixture
def whole(three: RunRequest, children: Children, tmp_path: Path) -> Told:
    """What the run says that nothing interrupts."""
    run(three, tmp_path / "whole")
    return tell(tmp_path / "whole")


@pytest.fixture(params=["removed", "cut", "spoilt"])
def damage(request: pytest.FixtureRequest) -> Spoil:
    def spoil(path: Path) -> None:
        data = path.read_bytes()
        path.unlink()
        if request.param == "cut":
            path.write_bytes(data[: len(data) // 2])
        if request.param == "spoilt":
            path.write_bytes(data[:300] + bytes([data[300] ^ 1]) + data[301:])

    return spoil


@pytest.mark.parametrize("what", ["outputs_path", "labelled_path"])
@pytest.mark.parametrize("moment", [PrepareJob, MeasureJob])
def test_outputs_that_are_gone_are_taken_again(what, moment, damage, children, three, root, whole) -> None:
    """The reference's answers are damaged while the run rests: no other row takes its place."""
    interrupt(children, three, root, moment, 2)
    damage(getattr(RunFolder(root), what)(ids(root)[0]))
    resume(three, root)
    assert tell(root) == whole and differences(root) == [0, 0.1, 0.2]
    assert len(children.of(PrepareJob)) == (2 if moment is PrepareJob else 1)


@pytest.mark.parametrize("fails_first", [True, False])
def test_a_reference_that_fails_on_one_side_of_an_interruption_only(fails_first, children, three, root) -> None:
    """All rows are compared with the row that is the reference in the end, also those that were compared before."""

    def fail(job: Any) -> None:
        if isinstance(job, PrepareJob) and "bias" not in job.engine.options:
            raise RuntimeError("no memory just now")

    def fail_and_stop(job: Any) -> None:
        if isinstance(job, MeasureJob) and len(children.of(MeasureJob)) > 1:
            raise KeyboardInterrupt
        if fails_first:
            fail(job)

    children.before = fail_and_stop
    with pytest.raises(KeyboardInterrupt):
        run(three, root)
    if not fails_first:  # it must be built again, which then fails
        RunFolder(root).configuration_path(ids(root)[0]).unlink()
    children.before = (lambda job: None) if fails_first else fail
    rows = resume(three, root)
    assert [row.status for row in rows] == (["ok"] * 3 if fails_first else ["failed", "ok", "ok"])
    assert differences(root) == ([0, 0.1, 0.2] if fails_first else [0, 0.1])
    check_references(root)


def test_a_configuration_whose_engine_is_gone_keeps_what_was_measured(
    children, three, root, whole, monkeypatch
) -> None:
    """It says why it cannot go on, stays the reference, and is measured to its end once the engine is back."""
    interrupt(children, three, root, MeasureJob, 3)
    plan = sources.plan_configurations

    def plan_without(*args: Any, **more: Any) -> list[PlannedConfiguration]:
        first, *others = plan(*args, **more)
        return [replace(first, skip="the engine is not installed"), *others]

    with monkeypatch.context() as patch:
        patch.setattr(sources, "plan_configurations", plan_without)
        rows = resume(three, root)
    assert [row.status for row in rows] == ["failed", "ok", "ok"] and len(rows[0].measurements) == 1
    assert rows[0].reason == "it cannot continue: the engine is not installed" and differences(root) == [0, 0.1, 0.2]
    resume(three, root)
    assert tell(root) == whole


def test_a_measured_configuration_whose_outputs_cannot_be_taken_again_fails_alone(
    damage, children, three, root, whole
) -> None:
    """It keeps its times and says why; the others are compared with the first that still has answers."""
    interrupt(children, three, root, MeasureJob, 3)
    damage(RunFolder(root).outputs_path(ids(root)[0]))

    def fail(job: Any) -> None:
        if isinstance(job, PrepareJob):
            raise RuntimeError("no memory just now")

    children.before = fail
    rows = resume(three, root)
    assert [row.status for row in rows] == ["failed", "ok", "ok"] and len(rows[0].measurements) == 1
    assert "no memory just now" in str(rows[0].reason)
    assert [row.drift.reference for row in rows[1:] if row.drift] == [rows[1].id] * 2
    children.before = lambda job: None
    resume(three, root)
    assert tell(root) == whole


def test_times_of_an_engine_that_was_built_anew_are_taken_anew(children, three, root, whole) -> None:
    """The answers are gone, and what is built for new ones is another engine than the one that was timed."""
    interrupt(children, three, root, MeasureJob, 4)
    first, folder = ids(root)[-1], RunFolder(root)  # the second round begins with the last row
    folder.outputs_path(first).unlink()
    stored = folder.read_result(first)
    assert stored is not None and len(stored.measurements) == 2
    other = tuple(replace(artifact, sha256="0" * 64) for artifact in stored.artifacts)
    folder.write_result(replace(stored, artifacts=other))
    resume(three, root)
    assert tell(root) == whole
    assert len(children.of(MeasureJob)) == 2 + 2  # both of the last row, one of each other


def test_a_source_that_was_changed_is_found_before_a_configuration_starts_from_it(children, three, root) -> None:
    """No row was begun, so that none could show it."""
    interrupt(children, three, root, PrepareJob)
    graph = next((root / "artefacts").rglob("*.onnx"))
    write_atomic(graph, graph.read_bytes() + b" ")
    with pytest.raises(ArtifactError, match="was changed after the run began"):
        resume(three, root)


def test_ranges_of_a_try_that_was_interrupted_are_not_taken_up(children, three, root, tmp_path) -> None:
    """They may be of other weights, which then no graph could be made from."""
    request = replace(three, precisions=(("int8", None),))
    run(request, tmp_path / "whole")
    interrupt(children, request, root, SourceJob)
    record = json.loads((tmp_path / "whole" / "artefacts" / "calib.json").read_bytes())
    ranges = root / "artefacts" / "calib.json"
    ranges.parent.mkdir(exist_ok=True)
    ranges.write_text(json.dumps({**record, "model_sha256": "0" * 64, "weights_sha256": "0" * 64}))
    resume(request, root)
    assert tell(root) == tell(tmp_path / "whole")
