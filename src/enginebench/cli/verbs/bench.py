"""`enginebench bench`: one engine, or two side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from enginebench.cli.options import (
    Common,
    FiniteRange,
    builds_option,
    code_option,
    common_options,
    env_option,
    measure_options,
    parse_percentiles,
    trtexec_option,
)
from enginebench.core.limits import MARGIN
from enginebench.workflow.request import Timing, choose_row_batch, merge_options, name_settings, use_trtexec

FILE = click.Path(path_type=Path, dir_okay=False)
if TYPE_CHECKING:
    from enginebench.workflow.folder import RunRequest


@click.command("bench")
@click.argument("target")
@click.option("--engine", help="ENGINE[:key=value,...]; required unless TARGET is a bundle.")
@click.option("--precision", default="fp32", show_default=True, help="fp32, tf32, fp16, bf16, int8 or fp8.")
@click.option("--batch", type=click.IntRange(1), help="Batch size. [that of --input-shape, else 1]")
@click.option(
    "--against",
    metavar="SIDE",
    help="ENGINE, ENGINE@TARGET, the file of a stored row, or a bundle; if TARGET is a bundle, also its RUN.",
)
@click.option("--against-precision", metavar="PRECISION", help="Precision of the other side. [--precision]")
@click.option(
    "--gate", is_flag=True, help="Exit with code 4 if TARGET is slower, answers differently, or cannot be compared."
)
@click.option(
    "--margin",
    type=FiniteRange(0, 1, min_open=True),
    default=MARGIN,
    show_default=True,
    help="Relative difference that matters.",
)
@click.option("--junit", type=FILE, metavar="F", help="With --against: write the verdict as JUnit XML.")
@click.option("--summary", type=FILE, metavar="F", help="With --against: append the verdict as markdown.")
@click.option(
    "--percentile", default="50,90,95,99", show_default=True, help="Percentiles to report, separated by commas."
)
@click.option("--input-size", type=click.IntRange(1), help="Height and width of the model's images.")
@click.option(
    "--timeout", type=FiniteRange(1), default=900.0, show_default=True, help="Seconds that one process may take."
)
@click.option(
    "--wait/--no-wait", default=True, help="If another run holds the device: wait for it, as by default, or refuse."
)
@click.option("--cuda-graph/--no-cuda-graph", default=None, help="Launch as a CUDA graph. [the engine's default]")
@click.option("--profile-index", type=click.IntRange(0), help="Optimization profile of a plan.")
@click.option("--extra", multiple=True, metavar="ARG", help="Extra argument for trtexec; can be repeated.")
@click.option("--dry-run", is_flag=True, help="Print trtexec's command as one shell line; run nothing.")
@click.option(
    "--tensorrt-version", metavar="V", help="With --dry-run: write the command for this version, installed or not."
)
@click.option("--log", type=FILE, metavar="F", help="Write everything trtexec prints for TARGET to this file.")
@trtexec_option
@env_option
@builds_option
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Also write the JSON document to this file."
)
@measure_options
@code_option
@common_options
def command(
    target: str,
    engine: str | None,
    precision: str,
    batch: int | None,
    against: str | None,
    against_precision: str | None,
    gate: bool,
    margin: float,
    junit: Path | None,
    summary: Path | None,
    percentile: str,
    input_size: int | None,
    timeout: float,
    wait: bool,
    cuda_graph: bool | None,
    profile_index: int | None,
    extra: tuple[str, ...],
    dry_run: bool,
    tensorrt_version: str | None,
    log: Path | None,
    trtexec: str | None,
    builds: int | None,
    out: Path | None,
    timing: Timing,
    common: Common,
) -> None:
    """Measure one engine on TARGET; with --against, compare it with another one.

    Example: enginebench bench digits-cnn --engine ort --against pytorch

    With --against both sides get the same inputs and are measured now, in turns, so that neighbouring repetitions form
    pairs: a comparison that a CI job can rely on.
    """
    from msgspec.structs import replace

    from enginebench.backends.registry import read_engine
    from enginebench.cli.closing import finish_bench
    from enginebench.cli.progress import open_reporter
    from enginebench.core.errors import UsageError
    from enginebench.core.names import parse_precision
    from enginebench.workflow.folder import default_folder, holds_run
    from enginebench.workflow.targets.bundles import fill_request, find_row, read_target
    from enginebench.workflow.targets.stored import parse_side
    from enginebench.workflow.verbs.bench import bench_sides, check_log, keep_log

    fixed = {"--engine": engine, "--batch": batch, "--threads": common.threads, "--input-shape": common.input_shape}
    fixed |= {"--inputs": common.inputs, "--input-size": input_size, "--profile-index": profile_index, "--extra": extra}
    fixed |= {"--cuda-graph": None if cuda_graph is None else str(cuda_graph)}
    bundle = read_target(target, fixed)
    if bundle is not None and against is not None and holds_run(Path(against)):
        against = str(find_row(Path(against), bundle))
    if against is None and (gate or junit or summary):
        raise UsageError("--gate, --junit and --summary need a verdict on two sides; add --against SIDE")
    if against is None and against_precision:
        raise UsageError("--against-precision is that of the other side; add --against SIDE")
    name, options = read_engine(engine or "") if bundle is None else (bundle.engine.backend, bundle.engine.options)
    options = merge_options(name, options, name_settings(cuda_graph, profile_index, extra))
    check_dry_run(dry_run, tensorrt_version, against)
    if log is not None:
        check_log(name)
    request = common.make_request(
        target,
        engines=[(name, options)],
        precisions=[parse_precision(precision)],
        batches=choose_row_batch(batch, options, common.read_shapes()),
        measure=timing.make_measure(
            common.seed,
            percentiles=parse_percentiles(percentile),
            builds=builds,
            margin=margin if against else None,
        ),
        input_size=input_size,
    )
    side = parse_side(against, target, parse_precision(against_precision or precision)) if against else None
    use_trtexec(trtexec, (name, side.engine[0]) if side else (name,))
    request = replace(request if bundle is None else fill_request(request, bundle), timeout_s=timeout)
    if dry_run:
        print_dry_run(target, request, tensorrt_version, common.as_json)
        return
    root = default_folder(f"bench-{Path(target).stem if target.endswith('.onnx') or bundle else target}")
    with open_reporter() as reporter:
        results = bench_sides(request, side, root, reporter=reporter, wait=wait, command=("enginebench", *sys.argv[1:]))
    if log is not None:
        keep_log(root, results[-1], log)
    files = (junit, summary)
    finish_bench(root, results, margin=margin, gate=gate, out=out, as_json=common.as_json, verdict_files=files)


def check_dry_run(dry_run: bool, version: str | None, against: str | None) -> None:
    """Checks that no option was given that this run, dry or real, would ignore.

    Raises:
        UsageError: one was.
    """
    from enginebench.core.errors import UsageError

    if version is not None and not dry_run:
        raise UsageError("--tensorrt-version only writes a command without running it; add --dry-run")
    if dry_run and against is not None:
        raise UsageError("--dry-run prints the command of one side only; leave out --against")


def print_dry_run(target: str, request: RunRequest, version: str | None, as_json: bool) -> None:
    """Prints the command that would run on stdout, and what would happen before it on stderr."""
    import shlex

    from enginebench.backends.registry import find_device
    from enginebench.core.records import EngineSpec
    from enginebench.core.shapes import format_shapes
    from enginebench.core.store import encode
    from enginebench.workflow.verbs.dry_run import plan_measure

    ((name, options),), ((precision, recipe),) = request.engines, request.precisions
    if request.input_shapes:  # a dry run opens no graph whose axes could be fixed
        options = {"shapes": format_shapes(request.input_shapes), **options}
    spec = EngineSpec(
        backend=name,
        options=options,
        device=find_device(name, request.device),
        precision=precision,
        recipe=recipe,
        batch=request.batches[0],
    )
    plan = plan_measure(Path(target), spec, request.measure, version=version)
    for text in plan.before:
        click.echo(text, err=True)
    click.echo(encode(plan).decode() if as_json else shlex.join(plan.command))
