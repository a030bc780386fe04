"""`enginebench build`: an ONNX file to an engine file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from enginebench.cli.device import read_gpu
from enginebench.cli.options import merge_options, trtexec_option

if TYPE_CHECKING:
    from enginebench.core.records import EngineSpec
    from enginebench.workflow.building import BuildDocument


@click.command("build", context_settings={"ignore_unknown_options": False})
@click.argument("onnx", metavar="F.onnx", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("arguments", nargs=-1, metavar="[ARG]...")
@click.option("--engine", default="trtexec", show_default=True, help="trtexec or tensorrt, with key=value options.")
@click.option("--precision", help="Of the engine. [that of the graph]")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The engine file. [F.plan]")
@click.option("--batch", type=click.IntRange(1), help="For which a dynamic axis is built, without shapes. [1]")
@click.option("--workspace-mb", type=click.IntRange(1), help="Scratch space of a layer. [the GPU's memory]")
@click.option("--min-shapes", help="Smallest shapes, NAME:1x3x224x224; several parted by commas.")
@click.option("--opt-shapes", help="Shapes to tune for.")
@click.option("--max-shapes", help="Largest shapes.")
@click.option("--profile", "profiles", multiple=True, metavar="NAME:MIN/OPT/MAX", help="A further profile; repeat it.")
@click.option("--timing-cache", type=click.Path(path_type=Path, dir_okay=False), help="Keeps timings between builds.")
@click.option("--optimization-level", type=click.IntRange(0, 5), help="How long the builder searches. [3]")
@click.option("--version-compatible", is_flag=True, help="A plan for later versions of the same major, too.")
@click.option(
    "--hardware-compatibility",
    type=click.Choice(["none", "ampere+", "sameComputeCapability"]),
    default="none",
    show_default=True,
    help="A plan for other GPUs, too.",
)
@click.option("--plugins", multiple=True, type=click.Path(path_type=Path, dir_okay=False), help="A library; repeat it.")
@click.option("--refit", is_flag=True, help="Weights can be replaced later.")
@click.option("--strip", is_flag=True, help="Leave the weights out, to be refitted.")
@click.option("--weak-typing", is_flag=True, help="Precision by builder flags: TensorRT 10 and older.")
@click.option(
    "--calib", type=click.Path(path_type=Path, dir_okay=False), help="Ranges or arrays, where it is quantized first."
)
@click.option(
    "--calib-cache", type=click.Path(path_type=Path, dir_okay=False), help="The same as TensorRT's text cache."
)
@trtexec_option
@click.option("--tensorrt-version", metavar="V", help="With --dry-run: compose for this version, installed or not.")
@click.option("--dry-run", is_flag=True, help="Print the command as one shell line and do nothing.")
@click.option(
    "--extra", multiple=True, metavar="ARG", help="A further argument for trtexec; repeat it, or put -- first."
)
@click.option("--device", callback=read_gpu, default="cuda:0", show_default=True, help="The GPU, as cuda:N.")
@click.option(
    "--timeout", type=click.FloatRange(1), default=7200.0, show_default=True, help="Seconds that the build may take."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")
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
    """Build an engine file from F.onnx. The log, the layers and the timing cache stay beside it.

    What comes after -- goes to trtexec as it is.
    """
    import shlex

    from enginebench.core.errors import UsageError

    if tensorrt_version is not None and not dry_run:
        raise UsageError("--tensorrt-version composes a command without running it; add --dry-run")
    if batch is not None and calib is None and any((min_shapes, opt_shapes, max_shapes, profiles)):
        raise UsageError("--batch is for a dynamic axis without shapes; with them, they say what is built")
    settings = {
        "workspace_mb": workspace_mb,
        "min_shapes": min_shapes,
        "opt_shapes": opt_shapes,
        "max_shapes": max_shapes,
        "profiles": "\n".join(profiles),
        "timing_cache": timing_cache and timing_cache.absolute(),
        "optimization_level": optimization_level,
        "version_compatible": int(version_compatible) or None,
        "hardware_compatibility": None if hardware_compatibility == "none" else hardware_compatibility,
        "plugins": "\n".join(str(path) for path in plugins),
        "refit": int(refit) or None,
        "strip": int(strip) or None,
        "weak_typing": int(weak_typing) or None,
        "calib_cache": calib_cache.absolute() if calib_cache and weak_typing else None,
        "calib_data": calib.absolute() if calib and weak_typing else None,
        "path": trtexec,
        "extra": shlex.join((*extra, *arguments)),
    }
    given = {key: str(value) for key, value in settings.items() if value not in (None, "")}
    target = out or onnx.with_suffix(".plan")
    spec = make_spec(onnx, engine, precision, batch or 1, device, given)
    if dry_run:
        _print_plan(onnx, target, spec, tensorrt_version, as_json)
    else:
        _build(onnx, target, spec, calib, calib_cache, timeout, as_json)


def make_spec(
    onnx: Path, engine: str, precision: str | None, batch: int, device: str, options: dict[str, str]
) -> EngineSpec:
    """The engine of the options; without --precision that of the graph."""
    from enginebench.core.errors import UsageError
    from enginebench.core.names import parse_engine, parse_precision
    from enginebench.core.records import EngineSpec
    from enginebench.models.onnx_head import read_onnx_head

    name, own = parse_engine(engine)
    wanted, recipe = parse_precision(precision) if precision else (read_onnx_head(onnx).precision, None)
    if name != "trtexec" and options.keys() & {"path", "extra"}:
        raise UsageError(f"--trtexec, --extra and what follows -- are for engine trtexec, not for {name}")
    if name == "trtexec" and "calib_data" in options:
        raise UsageError("trtexec calibrates on no data; give --calib-cache, or --engine tensorrt")
    options = merge_options(name, own, options)
    return EngineSpec(backend=name, options=options, device=device, precision=wanted, recipe=recipe, batch=batch)


def _print_plan(onnx: Path, target: Path, spec: EngineSpec, version: str | None, as_json: bool) -> None:
    import shlex

    from enginebench.core.store import encode
    from enginebench.workflow.dry_run import plan_build

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
    from enginebench.workflow.building import build_engine

    with open_reporter() as reporter:
        document = build_engine(
            onnx, target, spec, calib=calib, calib_cache=calib_cache, timeout_s=timeout, reporter=reporter
        )
    if as_json:
        click.echo(encode(document).decode())
    else:
        _print_build(document)


def _print_build(document: BuildDocument) -> None:
    artifact = document.artifact
    click.echo(
        f"{artifact.path}: {artifact.precision}, TensorRT {document.tensorrt_version}, "
        f"{sum(f.size_bytes for f in artifact.files) / 2**20:.1f} MiB, built in {document.build_s:.1f} s, "
        f"sha256 {artifact.sha256[:12]}"
    )
    if document.effective_precision:
        shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in document.effective_precision.items())
        click.echo(f"time by precision: {shares}")
    for caveat in document.caveats:
        click.echo(f"{caveat.message.rstrip('.')}. {caveat.advice}")
    click.echo(f"log and layers: {artifact.path}.build/plans", err=True)
