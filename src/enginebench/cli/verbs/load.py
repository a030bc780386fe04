"""`enginebench load`: latency under arrivals, and the highest rate at which a limit holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from enginebench.cli.options import Common, FiniteRange, code_option, common_options

if TYPE_CHECKING:
    from enginebench.report.load.document import Scenario


@click.command("load")
@click.argument("target")
@click.option(
    "--engine", help="ENGINE[:key=value,...]; several, separated by commas, take turns. A bundle brings its own."
)
@click.option("--precision", default="fp32", show_default=True, help="Precisions, separated by commas.")
@click.option(
    "--scenario",
    type=click.Choice(["single", "multi", "server", "offline"]),
    default="server",
    show_default=True,
    help="One request at a time, eight at a time, requests at a rate, or all at once.",
)
@click.option("--qps", type=FiniteRange(0, min_open=True), metavar="N", help="Requests a second.")
@click.option("--find-capacity", is_flag=True, help="Look for the highest rate at which --p99-limit-ms holds.")
@click.option(
    "--p99-limit-ms", type=FiniteRange(0, min_open=True), metavar="X", help="Limit on the --percentile of latency."
)
@click.option(
    "--percentile",
    type=FiniteRange(50, 100, min_open=True, max_open=True),
    default=99.0,
    show_default=True,
    help="The percentile that the limit is on.",
)
@click.option(
    "--arrivals",
    default="poisson",
    show_default=True,
    metavar="KIND",
    help="poisson, constant, or a file with one time in seconds on each line.",
)
@click.option(
    "--duration", type=FiniteRange(0, min_open=True), metavar="S", help="Seconds of a point. [10; of a probe 3]"
)
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    default=1,
    show_default=True,
    help="Searches for the capacity of each engine, in turns; a verdict needs 6.",
)
@click.option(
    "--time-budget",
    type=FiniteRange(0, min_open=True),
    default=900.0,
    show_default=True,
    metavar="S",
    help="Seconds that all searches together may take.",
)
@click.option("--streams", metavar="S", help="Streams of the engine, each with --threads; several by commas. [1]")
@click.option("--max-batch", metavar="B", help="Requests computed together at most; several by commas. [1]")
@click.option(
    "--max-wait-ms",
    type=FiniteRange(0),
    default=0.0,
    show_default=True,
    help="How long a request waits for others to fill its batch.",
)
@click.option("--input-size", type=click.IntRange(1), help="Height and width of the model's images.")
@click.option("--wait/--no-wait", default=True, help="If another run holds the device, wait for it or refuse.")
@click.option(
    "--resume", is_flag=True, help="Continue the load in --out, asked as before; --rounds and --time-budget may differ."
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder. [results/load-TARGET-TIME]")
@code_option
@common_options
def command(
    target: str,
    engine: str | None,
    precision: str,
    scenario: Scenario,
    qps: float | None,
    find_capacity: bool,
    p99_limit_ms: float | None,
    percentile: float,
    arrivals: str,
    duration: float | None,
    rounds: int,
    time_budget: float,
    streams: str | None,
    max_batch: str | None,
    max_wait_ms: float,
    input_size: int | None,
    wait: bool,
    resume: bool,
    out: Path | None,
    common: Common,
) -> None:
    """Measure how TARGET answers requests that arrive when they like.

    Example: enginebench load digits-cnn --engine ort --qps 100 --duration 3

    Requests are scheduled beforehand and released on time by a process of their own; latency runs from the scheduled
    moment, so that a stalled engine cannot hide.
    """
    from rich.console import Console

    from enginebench.backends.registry import read_engines
    from enginebench.cli.options import parse_batches
    from enginebench.cli.progress import open_reporter
    from enginebench.core.errors import UsageError
    from enginebench.core.names import parse_precision
    from enginebench.core.store import encode
    from enginebench.report.load.document import LoadDocument, LoadSettings
    from enginebench.report.load.sections import list_load
    from enginebench.report.terminal import print_sections
    from enginebench.workflow.folder import default_folder
    from enginebench.workflow.targets.bundles import fill_request, read_target
    from enginebench.workflow.verbs.load import check_settings, load_target, make_request, write_load

    if resume and out is None:
        raise UsageError("--resume needs --out DIR, the folder of the load to continue")
    settings = LoadSettings(
        scenario=scenario,
        qps=qps,
        find_capacity=find_capacity,
        limit_ms=p99_limit_ms,
        percentile=percentile,
        arrivals=arrivals,
        duration_s=duration,
        streams=parse_batches(streams or "1", "--streams"),
        max_batches=parse_batches(max_batch or "1", "--max-batch"),
        max_wait_ms=max_wait_ms,
        rounds=rounds,
        time_budget_s=time_budget,
    )
    check_settings(settings)
    bundle = read_target(target, {"--engine": engine, "--threads": common.threads, "--input-shape": common.input_shape})
    request = make_request(
        common,
        target,
        read_engines(engine) if engine else [],
        [parse_precision(text.strip()) for text in precision.split(",")],
        input_size=input_size,
        streams=max(settings.streams),
    )
    request = request if bundle is None else fill_request(request, bundle)
    root = out or default_folder(f"load-{target}")

    def show(document: LoadDocument) -> None:
        notes = write_load(root, document)
        if common.as_json:
            click.echo(encode(document).decode())
        else:
            print_sections(list_load(document), Console(highlight=False))
            click.echo(f"\nStored in {root}", err=True)
        for note in notes:
            click.echo(note, err=True)

    with open_reporter() as reporter:
        document = load_target(request, settings, root, reporter=reporter, wait=wait, resume=resume, on_partial=show)
    show(document)
