"""`enginebench diff`: two stored runs, row by row."""

from __future__ import annotations

from pathlib import Path

import click

from enginebench.cli.options import (
    MAX_METRIC_DROP_OPTION,
    MAX_TOP1_DROP_OPTION,
    TARGETS_OPTION,
    TASK_OPTION,
    FiniteRange,
)
from enginebench.core.limits import MARGIN
from enginebench.core.records import Task

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
    type=FiniteRange(0, 1, min_open=True),
    default=MARGIN,
    show_default=True,
    help="Relative difference that matters.",
)
@click.option("--gate", is_flag=True, help="Exit with code 4 if a row is slower, less accurate, or cannot be compared.")
@click.option(
    "--allow-not-comparable",
    is_flag=True,
    help="With --gate, let rows that cannot be compared pass, but none that failed.",
)
@click.option(
    "--metric",
    metavar="NAME|package.module:function",
    help="Metric that both runs stored, or that they are asked for now. [the first one]",
)
@TARGETS_OPTION
@click.option(
    "--inputs",
    metavar="F.npz|DIR|package.module:function",
    help="Samples that both sides answer now, with --targets. [those of CAND]",
)
@click.option("--data", metavar="DIR|F.npz|digits", help="The same: a folder of one folder per class, or digits.")
@TASK_OPTION
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
    targets: str | None,
    inputs: str | None,
    data: str | None,
    task: Task | None,
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
    taken as long. Two rows of one run were measured in turns and need no such proof. For a gate in CI, prefer
    `enginebench bench --against`, which measures both sides now.

    With --between it is an upgrade report: each RUN measured the same rows in two environments (run --engines
    ort:env=old,ort), and each row tells time, answers, memory, build and size before and after, and which layers
    changed.

    With --targets the engines of both runs answer the same samples now, and are judged by --metric, whatever the runs
    stored.

    --gate fails on a row that is slower, lost accuracy (or no longer agrees with its reference), ran in another
    precision than before, or cannot be compared.
    """
    from functools import partial

    from enginebench.analyze.diff import diff_results
    from enginebench.cli.progress import open_reporter
    from enginebench.cli.verdict import finish_diff
    from enginebench.workflow.baselines import are_neighbours, find_side, read_side
    from enginebench.workflow.request import choose_drop
    from enginebench.workflow.verbs.diff import Question, ask_again
    from enginebench.workflow.verbs.upgrade import diff_environments, parse_between

    sides = (base, *cand)
    if between is None and len(sides) != 2:
        raise click.UsageError(f"expected BASE and CAND, found {len(sides)} names; several RUNs go with --between")
    named = (metric,) if metric else ()
    drop = choose_drop(max_metric_drop, max_top1_drop, named)
    question = Question(metrics=named, targets=targets, data=data, inputs=inputs, task=task)
    if question.asked and between is not None:
        raise click.UsageError(
            "--between compares what the runs stored; leave out --targets, --inputs, --data and --task"
        )
    if between is not None:
        compare = partial(diff_environments, [Path(side) for side in sides], parse_between(between))
    elif question.asked:
        with open_reporter() as reporter:
            rows = ask_again(find_side(sides[0], store), find_side(sides[1], store), question, reporter)
        compare = partial(diff_results, *rows)
    else:
        neighbours = are_neighbours(sides[0], sides[1], store)
        compare = partial(diff_results, read_side(sides[0], store), read_side(sides[1], store), neighbours=neighbours)
    document = compare(margin, allow_not_comparable=allow_not_comparable, metric=metric, max_metric_drop=drop)
    finish_diff(document, gate=gate, junit=junit, summary=summary, as_json=as_json)
