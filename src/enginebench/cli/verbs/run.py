"""`enginebench run`: the main job."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from enginebench.cli.options import (
    Common,
    FiniteRange,
    Judging,
    axes_option,
    builds_option,
    common_options,
    env_option,
    judging_options,
    measure_options,
    parse_batches,
    table_options,
    trtexec_option,
)
from enginebench.workflow.request import (
    DEFAULT_ENGINES,
    Timing,
    check_baseline,
    name_default_engines,
    parse_axes,
    use_trtexec,
)


@click.command("run")
@click.argument("model")
@click.option(
    "--engines",
    help=f"ENGINE[:key=value,...], separated by commas. [{DEFAULT_ENGINES['cpu']}; on a GPU {DEFAULT_ENGINES['cuda']}]",
)
@click.option(
    "--precisions",
    default="fp32",
    show_default=True,
    help="fp32, tf32, fp16, bf16, int8, fp8; several separated by commas.",
)
@click.option("--batch", help="Batch sizes, separated by commas. [that of --input-shape, else 1]")
@click.option("--quick", is_flag=True, help="One short process per row, for a first impression: no verdicts.")
@click.option("--baseline", metavar="ENGINE", help="Engine that speed-ups refer to. [pytorch, else the first]")
@click.option("--data", metavar="DIR|digits|sample-photos", help="Data: for accuracy, comparisons and 8-bit ranges.")
@click.option(
    "--calibration-method",
    type=click.Choice(["minmax", "entropy", "percentile"]),
    default="minmax",
    show_default=True,
    help="How the ranges of 8-bit graphs are taken.",
)
@click.option(
    "--p99-limit-ms",
    type=FiniteRange(0, min_open=True),
    metavar="X",
    help="Highest p99 that the recommended row may have.",
)
@click.option(
    "--load-p99-ms",
    type=FiniteRange(0, min_open=True),
    metavar="X",
    help="Look for the rate at which the rows that won hold this p99 under arrivals.",
)
@click.option(
    "--strict-precision", is_flag=True, help="Exit with code 4 if a row ran in another precision than asked for."
)
@click.option("--input-size", type=click.IntRange(1), help="Height and width of the model's images.")
@axes_option
@click.option(
    "--timeout", type=FiniteRange(1), default=900.0, show_default=True, help="Seconds that one process may take."
)
@trtexec_option
@env_option
@builds_option
@click.option("--resume", is_flag=True, help="Continue the run in --out.")
@click.option(
    "--deliver", type=click.Path(path_type=Path, file_okay=False), help="Also write the recommended row here."
)
@click.option(
    "--wait/--no-wait", default=True, help="If another run holds the device: wait for it, as by default, or refuse."
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder of the run. [results/MODEL-TIME]")
@table_options
@judging_options
@measure_options
@common_options
def command(
    model: str,
    engines: str | None,
    precisions: str,
    batch: str | None,
    quick: bool,
    baseline: str | None,
    data: str | None,
    calibration_method: str,
    p99_limit_ms: float | None,
    load_p99_ms: float | None,
    strict_precision: bool,
    input_size: int | None,
    dynamic_axes: tuple[str, ...],
    timeout: float,
    trtexec: str | None,
    builds: int | None,
    resume: bool,
    deliver: Path | None,
    wait: bool,
    out: Path | None,
    wide: bool,
    warnings: bool,
    judging: Judging,
    timing: Timing,
    common: Common,
) -> None:
    """Export MODEL, build every engine, check that the answers agree, measure, and print the table.

    Example: enginebench run digits-cnn --engines pytorch,ort --quick

    Every repetition is a fresh process and the engines take turns, so that changes of the machine's speed affect all of
    them alike. Results are stored after each repetition; continue a stopped run with --resume.
    """
    from msgspec.structs import replace

    from enginebench.backends.registry import read_engines
    from enginebench.bundle.writing import check_free
    from enginebench.cli.closing import deliver_recommended, finish_run, keep_partial
    from enginebench.cli.progress import open_reporter
    from enginebench.core.errors import UsageError
    from enginebench.core.names import parse_precision
    from enginebench.workflow.folder import default_folder
    from enginebench.workflow.main_job import run_model

    if deliver is not None:
        check_free(deliver)
    if resume and out is None:
        raise UsageError("--resume needs --out DIR, the folder of the run to continue")
    named = engines or name_default_engines(common.device)
    chosen = read_engines(named)
    check_baseline(baseline, chosen, named)
    use_trtexec(trtexec, ("trtexec",) if resume else (name for name, _ in chosen))  # a stored run names its own engines
    request = common.make_request(
        model,
        engines=chosen,
        precisions=[parse_precision(p.strip()) for p in precisions.split(",")],
        batches=parse_batches(batch) if batch else None,
        measure=timing.make_measure(common.seed, quick=quick, builds=builds),
        input_size=input_size,
    )
    request = replace(
        request,
        any_engine=engines is None,
        dynamic_axes=parse_axes(dynamic_axes),
        timeout_s=timeout,
        baseline=baseline,
        quick=quick,
        data=data,
        calibration_method=calibration_method,
        metrics=judging.metric,
        targets=judging.targets,
        task=judging.task,
        max_metric_drop=judging.max_drop,
        p99_limit_ms=p99_limit_ms,
        load_p99_ms=load_p99_ms,
    )
    root = out or default_folder(model)
    with keep_partial(root) as seen, open_reporter() as reporter:
        record, results = run_model(
            request,
            root,
            reporter=reporter,
            resume=resume,
            wait=wait,
            command=("enginebench", *sys.argv[1:]),
            on_results=seen,
        )
    finish_run(
        root,
        record,
        results,
        as_json=common.as_json,
        strict_precision=strict_precision,
        wide=wide,
        warnings=warnings,
    )
    if deliver is not None:
        deliver_recommended(root, deliver)
