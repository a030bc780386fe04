"""What children are asked in tests: jobs of the engine `fake`, and the rows that they are of."""

from pathlib import Path
from typing import Any

from enginebench.core.names import configuration_id
from enginebench.core.records import Artifact, EngineSpec, MeasureSpec
from enginebench.runs.child.jobs import MeasureJob, PrepareJob
from enginebench.runs.plan import PlannedConfiguration

FAKE = EngineSpec(backend="fake")


def make_row(engine: EngineSpec, source: Artifact | None, measure: MeasureSpec, **more: Any) -> PlannedConfiguration:
    model, chain = source.model if source else "m", (source,) if source else ()
    given = {"id": configuration_id(engine, "fp32", measure), "model": model, "requested_precision": "fp32", **more}
    return PlannedConfiguration(engine=engine, measure=measure, source=source, chain=chain, **given)


def make_measure_job(folder: Path, artifact: Artifact, **more: Any) -> MeasureJob:
    given = {"engine": FAKE, "measure": MeasureSpec(warmup=1, iters=5), "trial": 0, "order": 0, **more}
    return MeasureJob(model=artifact.model, artifact=artifact, out_dir=str(folder), **given)


def make_prepare_job(folder: Path, artifact: Artifact, outputs: str = "out.npz", **more: Any) -> PrepareJob:
    given = {"engine": FAKE, "samples": 2, "seed": 0, "outputs_path": str(folder / outputs), **more}
    return PrepareJob(model=artifact.model, artifact=artifact, out_dir=str(folder), **given)
