"""`enginebench run`: the main job."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from enginebench.cli.options import (
    Common,
    Timing,
    common_options,
    measure_options,
    parse_batches,
    trtexec_option,
    use_trtexec,
)

# By kind of device. TensorRT is asked for by name: building its plans takes minutes.
DEFAULT_ENGINES = {
    "cpu": "pytorch,pytorch-compile,ort,openvino",
    "cuda": "pytorch,pytorch-compile:mode=reduce-overhead,pytorch-cudagraph,ort-cuda",
}


@click.command("run")
@click.argument("model")
@click.option(
    "--engines",
    help=f"ENGINE[:key=value,...], parted by commas. [{DEFAULT_ENGINES['cpu']}; on a GPU {DEFAULT_ENGINES['cuda']}]",
)
@click.option("--precisions", default="fp32", show_default=True, help="Parted by commas.")
@click.option("--batch", help="Batch sizes, parted by commas. [that of --input-shape, else 1]")
@click.option("--quick", is_flag=True, help="One short process a row: an impression, no claims.")
@click.option("--baseline", metavar="ENGINE", help="What speed-ups refer to. [pytorch, else the first]")
@click.option("--data", metavar="DIR/digits", help="Labelled data: accuracy, and ranges for int8.")
@click.option("--calibration-method", type=click.Choice(["minmax", "entropy", "percentile"]), default="minmax")
@click.option(
    "--max-top1-drop",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    metavar="POINTS",
    help="Of top-1 accuracy, that the recommended row may lose.",
)
@click.option("--p99-limit-ms", type=click.FloatRange(0, min_open=True), metavar="X", help="Of the recommended row.")
@click.option("--strict-precision", is_flag=True, help="End with exit code 4 if a row ran in another precision.")
@click.option("--input-size", type=click.IntRange(1), help="Height and width of the model's images.")
@click.option(
    "--timeout", type=click.FloatRange(1), default=900.0, show_default=True, help="Seconds a process may take."
)
@trtexec_option
@click.option("--resume", is_flag=True, help="Continue the run that --out holds.")
@click.option("--wait/--no-wait", default=True, help="If another run holds the device: wait, or refuse.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="The run's folder. [results/MODEL-TIME]")
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
    max_top1_drop: float,
    p99_limit_ms: float | None,
    strict_precision: bool,
    input_size: int | None,
    timeout: float,
    trtexec: str | None,
    resume: bool,
    wait: bool,
    out: Path | None,
    timing: Timing,
    common: Common,
) -> None:
    """Export MODEL, build every engine, check that the answers agree, measure, and print the table.

    Every repetition is a fresh process and the engines take turns, so that the machine's moods hit all of them. Results
    are stored after each repetition; a run that was stopped goes on with --resume.
    """
    from msgspec.structs import replace

    from enginebench.cli.closing import finish_run, keep_partial
    from enginebench.cli.progress import open_reporter
    from enginebench.core.errors import UsageError
    from enginebench.core.names import parse_engine, parse_engines, parse_precision
    from enginebench.workflow.folder import default_folder
    from enginebench.workflow.main_job import run_model

    if resume and out is None:
        raise UsageError("--resume needs --out DIR, the folder of the run to continue")
    named = engines or DEFAULT_ENGINES["cuda" if common.device.startswith("cuda") else "cpu"]
    chosen = parse_engines(named)
    if baseline is not None and parse_engine(baseline) not in chosen:
        raise UsageError(f"--baseline {baseline} is not among --engines {named}")
    use_trtexec(trtexec, ("trtexec",) if resume else (name for name, _ in chosen))  # a stored run names its own engines
    request = common.make_request(
        model,
        engines=chosen,
        precisions=[parse_precision(p.strip()) for p in precisions.split(",")],
        batches=parse_batches(batch) if batch else None,
        measure=timing.make_measure(common.seed, quick=quick),
        input_size=input_size,
    )
    request = replace(
        request,
        timeout_s=timeout,
        baseline=baseline,
        quick=quick,
        data=data,
        calibration_method=calibration_method,
        max_top1_drop=max_top1_drop,
        p99_limit_ms=p99_limit_ms,
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
    finish_run(root, record, results, as_json=common.as_json, strict_precision=strict_precision)
