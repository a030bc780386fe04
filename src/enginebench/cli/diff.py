"""`enginebench diff`: two stored runs, row by row."""

from __future__ import annotations

from pathlib import Path

import click

FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command("diff")
@click.argument("base")
@click.argument("cand")
@click.option("--margin", type=click.FloatRange(0, 1, min_open=True), default=0.02, show_default=True)
@click.option("--gate", is_flag=True, help="End with exit code 4 if a row is slower, worse, or cannot be compared.")
@click.option("--allow-not-comparable", is_flag=True, help="Under --gate, let rows that cannot be compared pass.")
@click.option(
    "--max-top1-drop",
    type=click.FloatRange(0, 100),
    default=1.0,
    show_default=True,
    help="Points of top-1 accuracy that a row may lose under --gate.",
)
@click.option("--junit", type=FILE, metavar="F", help="Write the verdicts as JUnit XML.")
@click.option("--summary", type=FILE, metavar="F", help="Append the table as markdown, as to $GITHUB_STEP_SUMMARY.")
@click.option("--store", type=FOLDER, help="Where named baselines lie. [see `enginebench baseline --help`]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")
def command(
    base: str,
    cand: str,
    margin: float,
    gate: bool,
    allow_not_comparable: bool,
    max_top1_drop: float,
    junit: Path | None,
    summary: Path | None,
    store: Path | None,
    as_json: bool,
) -> None:
    """Say of each row of CAND whether it is faster than in BASE, slower, equivalent, or not comparable.

    BASE and CAND are folders of runs, files of stored rows, or names of saved baselines. Runs made at different times
    compare only if the machine was in the same state: the fixed reference kernel, timed in every process, must have
    taken as long. For a gate in CI use `enginebench bench --against`, which measures both sides now.

    --gate fails on a row that is slower, lost accuracy (or no longer agrees with its reference), ran in another
    precision than before, or cannot be compared.
    """
    from enginebench.analyze.diff import diff_results
    from enginebench.cli.verdict import finish_diff
    from enginebench.workflow.baselines import read_side

    document = diff_results(
        read_side(base, store),
        read_side(cand, store),
        margin,
        allow_not_comparable=allow_not_comparable,
        max_top1_drop=max_top1_drop,
    )
    finish_diff(document, gate=gate, junit=junit, summary=summary, as_json=as_json)
