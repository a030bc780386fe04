"""When an engine is asked for its record, and what comes of it."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from asked import make_measure_job, make_prepare_job
from enginebench.core.records import Artifact, MeasureSpec, Result
from enginebench.models.onnx.source import read_packaged_onnx
from enginebench.models.zoo import DATA_DIR
from enginebench.runs import campaign
from enginebench.runs.child.isolate import Child
from enginebench.runs.folder import RunRequest
from enginebench.runs.main_job import run_model
from reporters import Silent

# A graph is ready to be measured; by its name the model would be exported first.
GRAPH = str(DATA_DIR / "digits-mlp.onnx")
MEASURE = MeasureSpec(warmup=1, iters=5, processes=1)


@pytest.fixture(scope="module")
def graph() -> Artifact:
    return read_packaged_onnx("digits-mlp")


@pytest.mark.parametrize("prove", [True, False])
def test_a_row_is_proven_where_it_is_asked_to_be(graph: Artifact, tmp_path: Path, prove: bool) -> None:
    built = make_prepare_job(tmp_path, graph, prove=not prove).perform(print, lambda sure: None)
    timed = make_measure_job(tmp_path, graph, pin=False, prove=prove).perform(print, lambda sure: None)
    proof, none = (timed.proof, built.proof) if prove else (built.proof, timed.proof)
    assert none is None
    assert proof is not None and proof.effective_precision == {"fp32": 1.0} and proof.layers
    assert len(timed.measurement.latency_ns) == 5


def run_proven_when_timed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], **more: Any
) -> tuple[list[Result], list[tuple[int, bool]]]:
    """The rows of a run whose engines are proven by the processes that time them, and which of those were asked."""
    asked: list[tuple[int, bool]] = []

    class Listening(Child):
        def perform(self, job: Any, **how: Any) -> Any:
            asked.append((job.repetition, job.prove))
            if more.get("interrupt_at") == job.repetition:
                raise KeyboardInterrupt
            return super().perform(job, **how)

    monkeypatch.setattr(campaign, "Child", Listening)
    monkeypatch.setattr(campaign, "proves_when_timed", lambda row: True)
    request = RunRequest(model=GRAPH, engines=(("fake", options),), measure=replace(MEASURE, processes=4))
    results: list[Result] = []
    with suppress(KeyboardInterrupt):
        results = run_model(request, folder, reporter=Silent(), resume=more.get("resume", False))[1]
    return results, asked


@pytest.mark.parametrize("fault", ["raise", "segfault"])
def test_a_record_that_fails_or_kills_is_tried_twice_and_said(fault, tmp_path, monkeypatch) -> None:
    (row,), asked = run_proven_when_timed(tmp_path / "r", monkeypatch, {"fault": fault, "at": "proof"})
    assert asked == [(0, True), (1, True), (2, False), (3, False)]
    assert row.status == "ok" and [len(m.latency_ns) for m in row.measurements] == [5] * 4
    (doubt,) = row.caveats
    said = "requested fp32; the record that would verify it failed: "
    assert doubt.code == "failed_proof" and doubt.message.startswith(said)


def test_only_the_first_process_proves_also_when_a_run_is_continued(tmp_path, monkeypatch) -> None:
    options = {"ran": "int8"}
    _, asked = run_proven_when_timed(tmp_path / "r", monkeypatch, options, interrupt_at=2)
    assert asked == [(0, True), (1, False), (2, False)]
    (row,), asked = run_proven_when_timed(tmp_path / "r", monkeypatch, options, resume=True)
    assert asked == [(2, False), (3, False)]
    assert row.status == "ok" and row.engine.precision == "int8" and row.effective_precision == {"int8": 1.0}
    assert [c.code for c in row.caveats] == ["relabelled"] and len(row.measurements) == 4


@pytest.mark.parametrize("fault", ["raise", "segfault"])
def test_a_row_on_a_cpu_is_timed_whatever_becomes_of_its_proof(fault: str, tmp_path: Path) -> None:
    request = RunRequest(model=GRAPH, engines=(("fake", {"fault": fault, "at": "proof"}),), measure=MEASURE)
    (row,) = run_model(request, tmp_path / "r", reporter=Silent())[1]
    assert row.status == "ok" and [len(m.latency_ns) for m in row.measurements] == [5]
    assert [c.code for c in row.caveats] == ["failed_proof"] and row.drift is not None and row.drift.n == 32
