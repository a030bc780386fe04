"""`enginebench diff`: two stored runs, row by row."""

from __future__ import annotations

from pathlib import Path

import click

from enginebench.cli.options import MAX_METRIC_DROP_OPTION, MAX_TOP1_DROP_OPTION
from enginebench.core.limits import MARGIN

FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command("diff")
@click.argument("base")
@click.argument("cand", nargs=-1, metavar="CAND")
@click.option(
    "--between",
    metavar="OLD[,NEW]",
    help="Compare two environments whose rows each RUN measured in turns; NEW is the current one if left out.",
)
@click.option(
    "--margin",
    type=click.FloatRange(0, 1, min_open=True),
    default=MARGIN,
    show_default=True,
    help="Relative difference that matters.",
)
@click.option("--gate", is_flag=True, help="Exit with code 4 if a row is slower, less accurate, or cannot be compared.")
@click.option("--allow-not-comparable", is_flag=True, help="With --gate, let rows that cannot be compared pass.")
@click.option("--metric", metavar="NAME", help="Metric that both runs stored. [the first one]")
@MAX_METRIC_DROP_OPTION
@MAX_TOP1_DROP_OPTION
@click.option("--junit", type=FILE, metavar="F", help="Write the verdicts as JUnit XML.")
@click.option(
    "--summary", type=FILE, metavar="F", help="Append the table as markdown, for example to $GITHUB_STEP_SUMMARY."
)
@click.option("--store", type=FOLDER, help="Folder of baselines. [$ENGINEBENCH_BASELINES, else results/baselines]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout and nothing else.")
def command(
    base: str,
    cand: tuple[str, ...],
    between: str | None,
    margin: float,
    gate: bool,
    allow_not_comparable: bool,
    metric: str | None,
    max_metric_drop: float | None,
    max_top1_drop: float | None,
    junit: Path | None,
    summary: Path | None,
    store: Path | None,
    as_json: bool,
) -> None:
    """Compare each row of CAND with BASE: faster, slower, equivalent, not shown or not comparable.

    Example: enginebench diff results/before results/after --gate

    Example: enginebench diff results/resnet18 results/bert --between old --gate

    BASE and CAND are folders of runs, files of stored rows, or names of saved baselines. Runs made at different times
    compare only if the machine was in the same state: the fixed reference kernel, timed in every process, must have
    taken as long. For a gate in CI, prefer `enginebench bench --against`, which measures both sides now.

    With --between it is an upgrade report: each RUN measured the same rows in two environments (run --engines
    ort:env=old,ort), and each row tells time, answers, memory, build and size before and after, and which layers
    changed.

    --gate fails on a row that is slower, lost accuracy (or no longer agrees with its reference), ran in another
    precision than before, or cannot be compared.
    """
    from functools import partial

    from enginebench.analyze.diff import diff_results
    from enginebench.cli.verdict import finish_diff
    from enginebench.workflow.baselines import read_side
    from enginebench.workflow.request import choose_drop
    from enginebench.workflow.verbs.upgrade import diff_environments, parse_between

    sides = (base, *cand)
    if between is None and len(sides) != 2:
        raise click.UsageError(f"expected BASE and CAND, found {len(sides)} names; several RUNs go with --between")
    drop = choose_drop(max_metric_drop, max_top1_drop, (metric,) if metric else ())
    compare = (
        partial(diff_environments, [Path(side) for side in sides], parse_between(between))
        if between is not None
        else partial(diff_results, read_side(sides[0], store), read_side(sides[1], store))
    )
    document = compare(margin, allow_not_comparable=allow_not_comparable, metric=metric, max_metric_drop=drop)
    finish_diff(document, gate=gate, junit=junit, summary=summary, as_json=as_json)
