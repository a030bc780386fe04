"""`enginebench bench`: one engine, or two side by side."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from enginebench.cli.options import (
    Common,
    Timing,
    common_options,
    measure_options,
    merge_options,
    parse_percentiles,
    trtexec_option,
    use_trtexec,
)

FILE = click.Path(path_type=Path, dir_okay=False)
if TYPE_CHECKING:
    from enginebench.workflow.folder import RunRequest


@click.command("bench")
@click.argument("target")
@click.option("--engine", required=True, help="ENGINE[:key=value,...]")
@click.option("--precision", default="fp32", show_default=True)
@click.option("--batch", type=click.IntRange(1), help="[that of --input-shape, else 1]")
@click.option("--against", metavar="SIDE", help="ENGINE@TARGET, ENGINE, or the file of a stored row.")
@click.option("--against-precision", metavar="PRECISION", help="Of the other side. [--precision]")
@click.option("--gate", is_flag=True, help="End with exit code 4 if TARGET is slower, or the sides cannot be compared.")
@click.option("--margin", type=click.FloatRange(0, 1, min_open=True), default=0.02, show_default=True)
@click.option("--junit", type=FILE, metavar="F", help="With --against: write the verdict as JUnit XML.")
@click.option("--summary", type=FILE, metavar="F", help="With --against: append the verdict as markdown.")
@click.option("--percentile", default="50,90,95,99", show_default=True, help="Beside p50 and p99, parted by commas.")
@click.option("--input-size", type=click.IntRange(1), help="Height and width of the model's images.")
@click.option(
    "--timeout", type=click.FloatRange(1), default=900.0, show_default=True, help="Seconds a process may take."
)
@click.option("--wait/--no-wait", default=True, help="If another run holds the device: wait, or refuse.")
@click.option("--cuda-graph/--no-cuda-graph", default=None, help="Launch as a CUDA graph. [the engine's own]")
@click.option("--profile-index", type=click.IntRange(0), help="Optimization profile of a plan.")
@click.option("--extra", multiple=True, metavar="ARG", help="A further argument for trtexec; repeat it.")
@click.option("--dry-run", is_flag=True, help="Print trtexec's command as one shell line and do nothing.")
@click.option("--tensorrt-version", metavar="V", help="With --dry-run: compose for this version, installed or not.")
@click.option("--log", type=FILE, metavar="F", help="Of TARGET: write all that trtexec printed here, too.")
@trtexec_option
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="Write the JSON document here, too.")
@measure_options
@common_options
def command(
    target: str,
    engine: str,
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
    out: Path | None,
    timing: Timing,
    common: Common,
) -> None:
    """Measure one engine on TARGET. With --against, measure another beside it, in turns, and give a verdict.

    Both sides are measured now, neighbouring repetitions in pairs: the comparison that a CI job can trust.
    """
    from msgspec.structs import replace

    from enginebench.cli.closing import finish_bench
    from enginebench.cli.progress import open_reporter
    from enginebench.core.errors import UsageError
    from enginebench.core.names import parse_engine, parse_precision
    from enginebench.workflow.comparison import bench_sides, check_log, keep_log, parse_side
    from enginebench.workflow.folder import default_folder

    if against is None and (gate or junit or summary):
        raise UsageError("--gate, --junit and --summary need --against SIDE: a verdict is about two sides")
    name, options = parse_engine(engine)
    options = merge_options(name, options, read_settings(cuda_graph, profile_index, extra))
    check_dry_run(dry_run, tensorrt_version, against)
    if batch is None and not common.input_shape and options.get("implicit_batch", "").isdecimal():
        batch = int(options["implicit_batch"])
    side = parse_side(against, target, parse_precision(against_precision or precision)) if against else None
    use_trtexec(trtexec, (name, side.engine[0]) if side else (name,))
    if log is not None:
        check_log(name)
    request = common.make_request(
        target,
        engines=[(name, options)],
        precisions=[parse_precision(precision)],
        batches=None if batch is None else (batch,),
        measure=timing.make_measure(common.seed, percentiles=parse_percentiles(percentile)),
        input_size=input_size,
    )
    request = replace(request, timeout_s=timeout)
    if dry_run:
        print_dry_run(target, request, tensorrt_version, common.as_json)
        return
    root = default_folder(f"bench-{Path(target).stem if target.endswith('.onnx') else target}")
    with open_reporter() as reporter:
        results = bench_sides(request, side, root, reporter=reporter, wait=wait, command=("enginebench", *sys.argv[1:]))
    if log is not None:
        keep_log(root, results[-1], log)
    files = (junit, summary)
    finish_bench(root, results, margin=margin, gate=gate, out=out, as_json=common.as_json, verdict_files=files)


def check_dry_run(dry_run: bool, version: str | None, against: str | None) -> None:
    """Returns if nothing was given that a dry run, or a real one, would pass over.

    Raises:
        UsageError: something was.
    """
    from enginebench.core.errors import UsageError

    if version is not None and not dry_run:
        raise UsageError("--tensorrt-version composes a command without running it; add --dry-run")
    if dry_run and against is not None:
        raise UsageError("--dry-run prints the command of one side; leave --against out")


def read_settings(cuda_graph: bool | None, profile_index: int | None, extra: tuple[str, ...]) -> dict[str, str]:
    """The options of an engine that have a name of their own on the command line."""
    import shlex

    given = {
        "graph": None if cuda_graph is None else str(int(cuda_graph)),
        "profile_index": None if profile_index is None else str(profile_index),
        "run_extra": shlex.join(extra) or None,
    }
    return {key: value for key, value in given.items() if value is not None}


def print_dry_run(target: str, request: RunRequest, version: str | None, as_json: bool) -> None:
    """The command line that would be run, on stdout; what would be done before it, on stderr."""
    import shlex

    from enginebench.backends.registry import find_device
    from enginebench.core.records import EngineSpec
    from enginebench.core.shapes import format_shapes
    from enginebench.core.store import encode
    from enginebench.workflow.dry_run import plan_measure

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
