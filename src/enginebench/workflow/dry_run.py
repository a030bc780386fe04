"""What would be run, without running it: composed in milliseconds, and without TensorRT where a version is given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from enginebench.backends.tensorrt_settings import BUILD_OPTIONS, read_settings, split_argv
from enginebench.backends.trtexec_command import RunSettings, compose_build, compose_measure
from enginebench.backends.trtexec_executable import read_trtexec, require_trtexec
from enginebench.backends.trtexec_flags import Trtexec, parse_version
from enginebench.core.errors import UsageError
from enginebench.core.records import Artifact, EngineSpec
from enginebench.models.onnx_head import read_onnx_head

if TYPE_CHECKING:
    from enginebench.core.records import TensorSpec

PLAN_SUFFIXES = (".plan", ".engine", ".trt")


class DryRun(Struct, frozen=True, kw_only=True):
    """A command line that would be run, and what would be done before it."""

    schema: str = "enginebench.dry-run/1"
    command: tuple[str, ...]
    tensorrt_version: str
    before: tuple[str, ...] = ()


def choose_tool(path: str | None, version: str | None) -> Trtexec:
    """The trtexec to compose for: of the version given, else the one that is installed.

    Raises:
        MissingDependency: no version is given and none is installed.
    """
    if version is not None:
        return Trtexec(version=parse_version(version), path=path)
    return read_trtexec(require_trtexec(path))


def plan_build(
    onnx: Path, plan: Path, spec: EngineSpec, *, trtexec: str | None = None, version: str | None = None
) -> DryRun:
    """The command that would build `plan` from `onnx`.

    Raises:
        UsageError: the version has no option for what was asked for.
        ParseError: `onnx` is no ONNX file.
    """
    if spec.backend != "trtexec":
        raise UsageError(f"a dry run prints trtexec's command line; engine {spec.backend} has none")
    options = {**{key: option.default for key, option in BUILD_OPTIONS.items()}, **spec.options}
    artifact = take_head(onnx)
    tool = choose_tool(trtexec, version)
    source, before = onnx, tuple[str, ...]()
    if needs_graph(spec, artifact.precision):
        source = quantized_path(onnx, spec)
        before = (f"{onnx} is {artifact.precision}: it would be quantized to {source} first",)
    settings = read_settings(spec, options, artifact)
    extra = split_argv(options.get("extra", ""))
    argv = compose_build(tool, str(source), str(plan), settings, str(plan.with_suffix(".layers.json")), extra)
    return DryRun(command=tuple(argv), tensorrt_version=tool.version_text, before=before)


def plan_measure(
    target: Path, settings: RunSettings, *, trtexec: str | None = None, version: str | None = None
) -> DryRun:
    """The command that would time the plan of `target`; a graph would be built first."""
    tool = choose_tool(trtexec, version)
    is_plan = target.suffix.lower() in PLAN_SUFFIXES
    plan = target if is_plan else target.with_suffix(".plan")
    before = () if is_plan else (f"{plan} would be built from {target} first (enginebench build --dry-run)",)
    return DryRun(
        command=tuple(compose_measure(tool, str(plan), settings)), tensorrt_version=tool.version_text, before=before
    )


def take_head(onnx: Path) -> Artifact:
    """The artefact of an ONNX file as far as its head tells: not hashed, weights not looked at."""
    head = read_onnx_head(onnx)
    inputs: tuple[TensorSpec, ...] = head.inputs
    return Artifact(
        kind="onnx",
        model=onnx.name,
        path=str(onnx),
        sha256="",
        files=(),
        inputs=inputs,
        outputs=head.outputs,
        precision=head.precision,
    )


def needs_graph(spec: EngineSpec, precision: str) -> bool:
    """Whether another graph must be made first: the precision asked for is neither the graph's nor a setting."""
    if spec.options.get("weak_typing") == "1":
        return False
    return spec.precision != precision and {spec.precision, precision} != {"fp32", "tf32"}


def quantized_path(onnx: Path, spec: EngineSpec) -> Path:
    """Where the graph in another precision goes: beside the one that it is made from."""
    recipe = f"-{spec.recipe}" if spec.recipe else ""
    return onnx.with_suffix(f".{spec.precision}{recipe}.onnx")
