"""The verb `export`: a model as a checked ONNX file."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.core.records import Artifact, ModelSource
from enginebench.models.zoo import resolve_model
from enginebench.workflow.child.jobs import SourceJob
from enginebench.workflow.progress import Reporter
from enginebench.workflow.targets.sources import make_sources

# The largest zoo model exported in 21 s; a transformer of a few GB takes minutes.
EXPORT_TIMEOUT_S = 1800.0


class ExportDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `export`."""

    schema: str = "enginebench.export/1"
    artifact: Artifact
    seconds: float


def export_model(
    source: ModelSource,
    out: Path,
    *,
    batch: int | None = None,
    dynamic_batch: bool = False,
    dynamic_axes: Mapping[str, tuple[int, ...]] | None = None,
    opset: int | None = None,
    threads: int,
    reporter: Reporter,
) -> ExportDocument:
    """Exports the model to `out` and returns the artifact, checked against PyTorch.

    Without `batch` it is 1, or the only one that the model takes.

    Raises:
        UsageError: MODEL is an ONNX file already.
        MissingDependency: PyTorch is not installed.
        ModelError: the model cannot be built, or an operator cannot be exported; the message names it.
    """
    if resolve_model(source.model).kind == "onnx":
        raise UsageError(f"{source.model} is an ONNX file already; there is nothing to export")
    with tempfile.TemporaryDirectory(prefix="enginebench-") as scratch:
        job = SourceJob(
            source=source,
            out_dir=scratch,
            batch=batch or 1,
            any_batch=batch is None,
            onnx_out=str(out.absolute()),
            dynamic_batch=dynamic_batch,
            dynamic_axes=dict(dynamic_axes or {}),
            opset=opset,
        )
        start = time.perf_counter()
        artifacts = make_sources(job, threads=threads, timeout_s=EXPORT_TIMEOUT_S, reporter=reporter)
    return ExportDocument(artifact=replace(artifacts[-1], path=str(out)), seconds=time.perf_counter() - start)
