"""`enginebench tune`: the fastest settings that still give the same answers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from enginebench.cli.options import Common, FiniteRange, Judging, common_options, env_option, judging_options
from enginebench.workflow.request import DEFAULT_ENGINES, name_default_engines

if TYPE_CHECKING:
    from enginebench.report.tune.document import TuneDocument
    from enginebench.workflow.search.space import Goal


@click.command("tune")
@click.argument("model")
@click.option(
    "--engines",
    help="ENGINE[:key=value,...], separated by commas; options that are named stay as they are. "
    f"[{DEFAULT_ENGINES['cpu']}; on a GPU {DEFAULT_ENGINES['cuda']}]",
)
@click.option(
    "--precisions",
    default="fp32",
    show_default=True,
    help="fp32, tf32, fp16, bf16, int8, fp8; several separated by commas.",
)
@click.option(
    "--goal",
    type=click.Choice(["latency", "throughput", "capacity"]),
    default="latency",
    show_default=True,
    help="One request at a time, as many as possible at once, or the highest rate at which --p99-limit-ms holds.",
)
@click.option(
    "--time-budget", metavar="TIME", help="What the search may take: 20m, 90s, 1.5h. [20m; with --resume what is left]"
)
@click.option(
    "--limit", multiple=True, metavar="NAME=VALUE", help="What answers must keep to: cosine=0.99,top1=0.98, as in drift"
)
@click.option("--data", metavar="DIR|digits|sample-photos", help="Data: for accuracy, comparisons and 8-bit ranges.")
@click.option("--p99-limit-ms", type=FiniteRange(0, min_open=True), metavar="X", help="The limit of the goal capacity.")
@click.option("--batch", type=click.IntRange(1), help="Batch size of the goal latency. [that of --input-shape, else 1]")
@click.option(
    "--processes",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="Fresh processes of each row of the final, at least; a verdict needs 6.",
)
@click.option("--input-size", type=click.IntRange(1), help="Height and width of the model's images.")
@click.option(
    "--timeout", type=FiniteRange(1), default=900.0, show_default=True, help="Seconds that one process may take."
)
@env_option
@click.option("--resume", is_flag=True, help="Continue the search in --out.")
@click.option("--deliver", type=click.Path(path_type=Path, file_okay=False), help="Also write the winner here.")
@click.option(
    "--wait/--no-wait", default=True, help="If another run holds the device: wait for it, as by default, or refuse."
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder. [results/tune-MODEL-TIME]")
@judging_options
@common_options
def command(
    model: str,
    engines: str | None,
    precisions: str,
    goal: Goal,
    time_budget: str | None,
    limit: tuple[str, ...],
    data: str | None,
    p99_limit_ms: float | None,
    batch: int | None,
    processes: int,
    input_size: int | None,
    timeout: float,
    resume: bool,
    deliver: Path | None,
    wait: bool,
    out: Path | None,
    judging: Judging,
    common: Common,
) -> None:
    """Search the settings of every engine for the fastest with which MODEL still gives the same answers.

    Example: enginebench tune digits-cnn --engines ort --time-budget 60s

    Settings race in fresh processes that take turns, and drop out when an interval says that they cannot win. The
    winner is then measured anew against the default settings of every engine; that these were not beaten is an answer.
    """
    from rich.console import Console

    from enginebench.backends.registry import read_engines
    from enginebench.bundle.writing import check_free
    from enginebench.cli.progress import open_reporter
    from enginebench.core.names import parse_precision
    from enginebench.core.store import encode
    from enginebench.report.terminal import print_sections
    from enginebench.report.tune.sections import list_tune
    from enginebench.verbs.drift import read_limits
    from enginebench.workflow.folder import default_folder, format_resume
    from enginebench.workflow.search.sitting import tune_model
    from enginebench.workflow.verbs.tune import deliver_winner, make_request, parse_budget

    if deliver is not None:
        check_free(deliver)
    request = make_request(
        common,
        model,
        read_engines(engines or name_default_engines(common.device)),
        [parse_precision(text.strip()) for text in precisions.split(",")],
        goal=goal,
        limits=read_limits(limit),
        data=data,
        p99_limit_ms=p99_limit_ms,
        batch=batch,
        processes=processes,
        input_size=input_size,
        timeout_s=timeout,
        metrics=judging.metric,
        targets=judging.targets,
        task=judging.task,
        max_drop=judging.max_drop,
        resume=resume and out is None,
    )
    root = out or default_folder(f"tune-{model}")

    def show(document: TuneDocument) -> None:
        if common.as_json:
            click.echo(encode(document).decode())
        else:
            print_sections(list_tune(document), Console(highlight=False))
            click.echo(f"\nStored in {root}", err=True)
        if not document.finished:
            command = format_resume("tune", request.run, root)
            click.echo(f"This search is not finished. To continue: {command} --time-budget MORE", err=True)

    with open_reporter() as reporter:
        document, notes = tune_model(
            request,
            root,
            reporter=reporter,
            resume=resume,
            budget_s=parse_budget(time_budget) if time_budget else None,
            wait=wait,
            command=("enginebench", *sys.argv[1:]),
            on_partial=show,
        )
    show(document)
    for note in notes:
        click.echo(note, err=True)
    if deliver is not None:
        with open_reporter() as reporter:
            delivered = deliver_winner(root, document, deliver, reporter=reporter)
        from enginebench.cli.closing import describe_delivery

        for line in describe_delivery(delivered):
            click.echo(line, err=True)
