"""The verb `export`: a model as a checked ONNX file."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.core.records import Artifact
from enginebench.models.zoo import resolve_model
from enginebench.workflow.campaign import Reporter
from enginebench.workflow.jobs import SourceJob
from enginebench.workflow.sources import make_sources

# The largest zoo model exported in 21 s; a transformer of a few GB takes minutes.
EXPORT_TIMEOUT_S = 1800.0


class ExportDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `export`."""

    schema: str = "enginebench.export/1"
    artifact: Artifact
    seconds: float


def export_model(
    model: str,
    out: Path,
    *,
    weights: str = "default",
    seed: int = 0,
    input_size: int | None = None,
    input_shapes: dict[str, tuple[int, ...]] | None = None,
    batch: int = 1,
    dynamic_batch: bool = False,
    opset: int | None = None,
    threads: int,
    reporter: Reporter,
) -> ExportDocument:
    """The ONNX artefact at `out`, checked against PyTorch.

    Raises:
        UsageError: MODEL is an ONNX file already.
        MissingDependency: PyTorch is not installed.
        ModelError: the model cannot be built, or an operator cannot be exported; names it.
    """
    if resolve_model(model).kind == "onnx":
        raise UsageError(f"{model} is an ONNX file already; there is nothing to export")
    with tempfile.TemporaryDirectory(prefix="enginebench-") as scratch:
        job = SourceJob(
            model=model,
            out_dir=scratch,
            weights=weights,
            seed=seed,
            input_size=input_size,
            input_shapes=input_shapes,
            batch=batch,
            onnx_out=str(out.absolute()),
            dynamic_batch=dynamic_batch,
            opset=opset,
        )
        start = time.perf_counter()
        artifacts = make_sources(job, threads=threads, timeout_s=EXPORT_TIMEOUT_S, reporter=reporter)
    return ExportDocument(artifact=replace(artifacts[-1], path=str(out)), seconds=time.perf_counter() - start)
