"""When an engine is asked for its record, and what comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from enginebench.core.errors import MeasurementError
from enginebench.core.records import Artifact, EngineSpec, LayerProfile, MeasureSpec, Result
from enginebench.models.onnx_source import read_packaged_onnx
from enginebench.workflow.campaign import judge_proof, proves_when_timed
from enginebench.workflow.jobs import MeasureAnswer, MeasureJob, PrepareAnswer, PrepareJob, Proof
from enginebench.workflow.perform import perform
from enginebench.workflow.plan import PlannedRow
from enginebench.workflow.proving import prove_timed_engine

SPEC = EngineSpec(backend="fake")
MEASURE = MeasureSpec(warmup=1, iters=5, processes=1)


@pytest.fixture(scope="module")
def graph() -> Artifact:
    return read_packaged_onnx("digits-mlp")


@pytest.mark.parametrize("prove", [True, False])
def test_a_row_is_proven_where_it_is_asked_to_be(graph: Artifact, tmp_path: Path, prove: bool) -> None:
    built = perform(
        PrepareJob(
            model="digits-mlp",
            artifact=graph,
            engine=SPEC,
            out_dir=str(tmp_path),
            outputs_path=str(tmp_path / "out.npz"),
            samples=2,
            seed=0,
            prove=not prove,
        ),
        print,
    )
    timed = perform(
        MeasureJob(
            model="digits-mlp",
            artifact=graph,
            engine=SPEC,
            measure=MEASURE,
            out_dir=str(tmp_path),
            repetition=0,
            order=0,
            pin=False,
            prove=prove,
        ),
        print,
    )
    assert isinstance(built, PrepareAnswer) and isinstance(timed, MeasureAnswer)
    proof, none = (timed.proof, built.proof) if prove else (built.proof, timed.proof)
    assert none is None
    assert proof is not None and proof.effective_precision == {"fp32": 1.0} and proof.layers
    assert len(timed.measurement.latency_ns) == 5


class Broken:
    """An engine whose profiler fails."""

    def effective_precision(self) -> dict[str, float]:
        raise MeasurementError("the recorder is taken\nby another")

    def profile_layers(self) -> LayerProfile:
        raise AssertionError("asked for layers without a record")


def test_a_record_that_fails_after_timing_is_a_doubt() -> None:
    engine: Any = Broken()
    proof = prove_timed_engine(engine)
    assert proof.effective_precision is None and proof.layers == ()
    assert [c.message for c in proof.caveats] == ["the engine's profiler gave no layer times: the recorder is taken"]


@pytest.mark.parametrize(("device", "when_timed"), [("cpu", False), ("cuda:0", True)])
def test_rows_on_a_gpu_are_proven_by_the_process_that_times_them(device: str, when_timed: bool) -> None:
    row = PlannedRow(
        id="r",
        model="m",
        engine=replace(SPEC, device=device),
        measure=MEASURE,
        requested_precision="fp32",
        source=None,
        chain=(),
    )
    assert proves_when_timed(row) is when_timed


def test_a_row_is_named_after_what_its_record_shows() -> None:
    result = Result(
        id="r",
        model="m",
        engine=replace(SPEC, precision="int8"),
        measure=MEASURE,
        requested_precision="int8",
        machine=None,  # type: ignore[arg-type]
        artifacts=(),
        status="ok",
    )
    shown = judge_proof(result, Proof(effective_precision={"fp32": 1.0}))
    assert shown.engine.precision == "fp32" and [c.code for c in shown.caveats] == ["relabelled"]
    unknown = judge_proof(result, Proof())
    assert unknown.engine.precision == "int8" and [c.code for c in unknown.caveats] == ["unproved_precision"]
