"""`enginebench build`: from an ONNX file to an engine file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from enginebench.cli.device import read_gpu
from enginebench.cli.options import FiniteRange, trtexec_option

if TYPE_CHECKING:
    from enginebench.core.records import EngineSpec
    from enginebench.workflow.verbs.build import BuildDocument


@click.command("build", context_settings={"ignore_unknown_options": False})
@click.argument("onnx", metavar="F.onnx", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("arguments", nargs=-1, metavar="[ARG]...")
@click.option(
    "--engine", default="trtexec", show_default=True, help="trtexec, tensorrt or tensorrt-rtx, with key=value options."
)
@click.option("--precision", help="Precision of the engine. [that of the graph]")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The engine file. [F.plan]")
@click.option("--batch", type=click.IntRange(1), help="Batch for a dynamic axis without given shapes. [1]")
@click.option("--workspace-mb", type=click.IntRange(1), help="Scratch memory for one layer. [the GPU's memory]")
@click.option("--min-shapes", help="Smallest shapes: NAME:1x3x224x224, several separated by commas.")
@click.option("--opt-shapes", help="Shapes to tune for.")
@click.option("--max-shapes", help="Largest shapes.")
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    metavar="NAME:MIN/OPT/MAX",
    help="One more optimization profile; can be repeated.",
)
@click.option(
    "--timing-cache", type=click.Path(path_type=Path, dir_okay=False), help="File that keeps timings between builds."
)
@click.option("--optimization-level", type=click.IntRange(0, 5), help="How hard the builder searches. [3]")
@click.option(
    "--version-compatible", is_flag=True, help="The plan also runs on later versions of the same major version."
)
@click.option(
    "--hardware-compatibility",
    type=click.Choice(["none", "ampere+", "sameComputeCapability"]),
    default="none",
    show_default=True,
    help="Other GPUs that the plan also runs on.",
)
@click.option(
    "--compute-capability",
    metavar="LIST",
    help="GPUs that a plan of tensorrt-rtx is for, such as 8.6,8.9,12.0. [all from 8.0 that have the precision]",
)
@click.option(
    "--plugins",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="A plugin library; can be repeated.",
)
@click.option("--refit", is_flag=True, help="Allow the weights to be replaced later.")
@click.option("--strip", is_flag=True, help="Leave out the weights; refit them later.")
@click.option("--weak-typing", is_flag=True, help="Set the precision by builder flags (TensorRT 10 and older).")
@click.option(
    "--calib",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Ranges or arrays, for a graph that is quantized first.",
)
@click.option("--calib-cache", type=click.Path(path_type=Path, dir_okay=False), help="Ranges as TensorRT's text cache.")
@trtexec_option
@click.option(
    "--tensorrt-version", metavar="V", help="With --dry-run: write the command for this version, installed or not."
)
@click.option("--dry-run", is_flag=True, help="Print the command as one shell line; run nothing.")
@click.option(
    "--extra",
    multiple=True,
    metavar="ARG",
    help="Extra argument for trtexec; can be repeated, or give them all after --.",
)
@click.option("--device", callback=read_gpu, default="cuda:0", show_default=True, help="The GPU: cuda:N.")
@click.option(
    "--timeout", type=FiniteRange(1), default=7200.0, show_default=True, help="Seconds that the build may take."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout and nothing else.")
def command(
    onnx: Path,
    arguments: tuple[str, ...],
    engine: str,
    precision: str | None,
    out: Path | None,
    batch: int | None,
    workspace_mb: int | None,
    min_shapes: str | None,
    opt_shapes: str | None,
    max_shapes: str | None,
    profiles: tuple[str, ...],
    timing_cache: Path | None,
    optimization_level: int | None,
    version_compatible: bool,
    hardware_compatibility: str,
    compute_capability: str | None,
    plugins: tuple[Path, ...],
    refit: bool,
    strip: bool,
    weak_typing: bool,
    calib: Path | None,
    calib_cache: Path | None,
    trtexec: str | None,
    tensorrt_version: str | None,
    dry_run: bool,
    extra: tuple[str, ...],
    device: str,
    timeout: float,
    as_json: bool,
) -> None:
    """Build an engine file from F.onnx.

    Example: enginebench build model.onnx --precision fp16 --out model.plan

    The log, the layers and the timing cache are kept beside the engine. Arguments after -- go to trtexec unchanged.
    """
    from enginebench.core.errors import UsageError
    from enginebench.workflow.verbs.build import BuildSettings, plan_engine

    if tensorrt_version is not None and not dry_run:
        raise UsageError("--tensorrt-version only writes a command without running it; add --dry-run")
    settings = BuildSettings(
        workspace_mb=workspace_mb,
        min_shapes=min_shapes,
        opt_shapes=opt_shapes,
        max_shapes=max_shapes,
        profile=profiles,
        timing_cache=timing_cache,
        optimization_level=optimization_level,
        version_compatible=version_compatible,
        hardware_compatibility=hardware_compatibility,
        compute_capability=compute_capability,
        plugins=plugins,
        refit=refit,
        strip=strip,
        weak_typing=weak_typing,
        calib=calib,
        calib_cache=calib_cache,
        trtexec=trtexec,
        extra=(*extra, *arguments),
    )
    target = out or onnx.with_suffix(".plan")
    spec = plan_engine(onnx, engine, precision, batch, device, settings)
    if dry_run:
        _print_plan(onnx, target, spec, tensorrt_version, as_json)
    else:
        _build(onnx, target, spec, calib, calib_cache, timeout, as_json)


def _print_plan(onnx: Path, target: Path, spec: EngineSpec, version: str | None, as_json: bool) -> None:
    import shlex

    from enginebench.core.store import encode
    from enginebench.workflow.verbs.dry_run import plan_build

    plan = plan_build(onnx, target, spec, version=version)
    for text in plan.before:
        click.echo(text, err=True)
    click.echo(encode(plan).decode() if as_json else shlex.join(plan.command))


def _build(
    onnx: Path,
    target: Path,
    spec: EngineSpec,
    calib: Path | None,
    calib_cache: Path | None,
    timeout: float,
    as_json: bool,
) -> None:
    from enginebench.cli.progress import open_reporter
    from enginebench.core.store import encode
    from enginebench.workflow.verbs.build import build_engine

    with open_reporter() as reporter:
        document = build_engine(
            onnx, target, spec, calib=calib, calib_cache=calib_cache, timeout_s=timeout, reporter=reporter
        )
    if as_json:
        click.echo(encode(document).decode())
    else:
        _print_build(document)


def _print_build(document: BuildDocument) -> None:
    from enginebench.core.caveats import format_caveat

    artifact = document.artifact
    tool = "TensorRT for RTX" if "tensorrt-rtx" in artifact.made_by else "TensorRT"
    click.echo(
        f"{artifact.path}: {artifact.precision}, {tool} {document.tensorrt_version}, "
        f"{sum(f.size_bytes for f in artifact.files) / 2**20:.1f} MiB, built in {document.build_s:.1f} s, "
        f"sha256 {artifact.sha256[:12]}"
    )
    if document.effective_precision:
        shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in document.effective_precision.items())
        click.echo(f"time by precision: {shares}")
    for caveat in document.caveats:
        click.echo(format_caveat(caveat))
    click.echo(f"log and layers: {artifact.path}.build/plans", err=True)
