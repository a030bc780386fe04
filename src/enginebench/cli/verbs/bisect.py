"""`enginebench bisect`: the first version of a package that is slower, or answers otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from enginebench.cli.options import (
    Common,
    FiniteRange,
    Judging,
    Share,
    common_options,
    judging_options,
    measure_options,
)
from enginebench.core.limits import REGRESSION_MARGIN
from enginebench.workflow.request import Timing

if TYPE_CHECKING:
    from enginebench.workflow.verbs.bisect import BisectDocument


@click.command("bisect")
@click.argument("model")
@click.option("--engine", help="ENGINE[:key=value,...] that is measured. [the one that the package is for]")
@click.option("--package", required=True, metavar="NAME", help="The package whose versions are tried.")
@click.option("--good", required=True, metavar="V", help="A version that is good; 1.24 is the newest 1.24.")
@click.option("--bad", required=True, metavar="V", help="A later version that is bad.")
@click.option(
    "--margin",
    type=Share(),
    default=REGRESSION_MARGIN,
    show_default=True,
    metavar="M",
    help="How much slower is bad: 5% or 0.05.",
)
@click.option("--drift", is_flag=True, help="Bad means other answers, not longer times.")
@click.option("--data", metavar="DIR|digits", help="Labelled data for --metric, and for the ranges of 8-bit graphs.")
@click.option("--precision", default="fp32", show_default=True, help="Precision, with a recipe as in int8@cpu.")
@click.option("--batch", type=click.IntRange(1), help="Batch size. [that of --input-shape, else 1]")
@click.option(
    "--timeout", type=FiniteRange(1), default=900.0, show_default=True, help="Seconds that one process may take."
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Folder of the measurements. [results/bisect-...]"
)
@judging_options
@measure_options
@common_options
def command(
    model: str,
    engine: str | None,
    package: str,
    good: str,
    bad: str,
    margin: float,
    drift: bool,
    data: str | None,
    precision: str,
    batch: int | None,
    timeout: float,
    out: Path | None,
    judging: Judging,
    timing: Timing,
    common: Common,
) -> None:
    """Find the first version of a package with which an engine is slower on MODEL, or answers otherwise.

    Example: enginebench bisect resnet18 --package torch --good 2.11 --bad 2.13

    Each version gets an environment of its own and is measured in turns with the good one. A verdict that is not shown
    gets more repetitions, not a guess. With --metric bad means worse answers on labelled samples. Environments stay for
    the next time: `enginebench env list`.
    """
    from msgspec.structs import replace

    from enginebench.backends.registry import read_engine
    from enginebench.cli.progress import open_reporter
    from enginebench.core.names import parse_precision
    from enginebench.core.store import encode
    from enginebench.workflow.folder import default_folder
    from enginebench.workflow.verbs.bisect import bisect_package, choose_judge, find_engine_of

    request = common.make_request(
        model,
        engines=[read_engine(engine or find_engine_of(package))],
        precisions=[parse_precision(precision)],
        batches=None if batch is None else (batch,),
        measure=timing.make_measure(common.seed),
        input_size=None,
    )
    with open_reporter() as reporter:
        document = bisect_package(
            replace(
                request,
                timeout_s=timeout,
                data=data,
                metrics=judging.metric,
                targets=judging.targets,
                task=judging.task,
                max_metric_drop=judging.max_drop,
            ),
            package,
            good,
            bad,
            out or default_folder(f"bisect-{Path(model).stem}-{package}"),
            by=choose_judge(drift, judging.metric),
            margin=margin,
            reporter=reporter,
        )
    if common.as_json:
        click.echo(encode(document).decode())
    else:
        _print(document)


def _print(document: BisectDocument) -> None:
    from rich.console import Console

    from enginebench.report.numbers import format_ratio
    from enginebench.report.table import Section, list_texts, make_notes, make_table
    from enginebench.report.terminal import print_sections
    from enginebench.workflow.verbs.bisect import format_outcome

    outputs = {True: "same", False: "changed", None: "-"}
    lines = [
        (
            tried.version,
            tried.verdict.replace("_", " "),
            outputs[tried.outputs_agree],
            str(tried.repetitions),
            format_ratio(tried.ratio) if tried.ratio else "-",
        )
        for tried in document.tried
    ]
    columns = list_texts(("version", f"against {document.good}", "outputs"), ("trials", "ratio"))
    table = make_table(columns, lines)
    print_sections([Section(parts=(*make_notes([*format_outcome(document)]), table))], Console(highlight=False))
