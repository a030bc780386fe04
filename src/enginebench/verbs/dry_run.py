"""What would be run, without running it; without TensorRT, too, if a version is given."""

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.core.names import PLAN_SUFFIXES
from enginebench.core.records import Artifact, EngineSpec, MeasureSpec
from enginebench.verbs.given import open_composing


class DryRun(Struct, frozen=True, kw_only=True):
    """The command line that would run, and what would be done before it."""

    schema: str = "enginebench.dry-run/1"
    command: tuple[str, ...]
    tensorrt_version: str
    before: tuple[str, ...] = ()


def plan_build(onnx: Path, plan: Path, spec: EngineSpec, *, version: str | None = None) -> DryRun:
    """The command that would build `plan` from `onnx`.

    Args:
        version: the version of TensorRT, installed or not; None: that of the installed tool.
    """
    from enginebench.models.onnx.source import read_onnx_head

    artifact, before = read_onnx_head(onnx), tuple[str, ...]()
    check_batch_axis(artifact, spec)
    if needs_graph(spec, artifact.precision):
        source = quantized_path(onnx, spec)
        before = (f"{onnx} is {artifact.precision}; it would be quantized to {source} first",)
        artifact = replace(artifact, path=str(source))
    composed = open_composing(spec).compose_build(artifact, str(plan), spec, version)
    return DryRun(command=composed.argv, tensorrt_version=composed.version, before=(*before, *composed.doubts))


def plan_measure(target: Path, spec: EngineSpec, measure: MeasureSpec, *, version: str | None = None) -> DryRun:
    """The command that would time the plan `target`; a graph would be built first."""
    from enginebench.models.onnx.source import read_onnx_head

    if not target.suffix:
        raise UsageError(f"a dry run opens no model: give an .onnx file (enginebench export {target}) or a plan")
    if target.suffix.lower() in PLAN_SUFFIXES:
        before = tuple[str, ...]()
        artifact = Artifact(
            kind="plan", model=target.name, path=str(target), sha256="", files=(), inputs=(), outputs=()
        )
    else:
        plan = target.with_suffix(".plan")
        before = (f"{plan} would be built from {target} first: enginebench build --dry-run",)
        artifact = replace(read_onnx_head(target), path=str(plan))
    composed = open_composing(spec).compose_measure(artifact, spec, measure, version)
    return DryRun(command=composed.argv, tensorrt_version=composed.version, before=(*before, *composed.doubts))


def check_batch_axis(graph: Artifact, spec: EngineSpec) -> None:
    """Checks that the graph has the requested batch, or a dynamic axis for it."""
    first = graph.inputs[0].shape[:1] if graph.inputs else ()
    if first and isinstance(first[0], int) and spec.batch not in (1, first[0]):
        raise UsageError(
            f"{graph.path} has a batch of {first[0]}, not {spec.batch}: leave out --batch, or export it with "
            "--dynamic-batch"
        )


def needs_graph(spec: EngineSpec, precision: str | None) -> bool:
    """Whether another graph must be made first: the requested precision is neither the graph's nor a setting."""
    if spec.options.get("weak_typing") == "1":
        return False
    return spec.precision != precision and {spec.precision, precision} != {"fp32", "tf32"}


def quantized_path(onnx: Path, spec: EngineSpec) -> Path:
    """The file of the graph in another precision: beside the one that it is made from."""
    recipe = f"-{spec.recipe}" if spec.recipe else ""
    return onnx.with_suffix(f".{spec.precision}{recipe}.onnx")
