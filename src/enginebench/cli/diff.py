"""`enginebench diff`: two stored runs, row by row."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("diff")
@click.argument("base", type=click.Path(path_type=Path))
@click.argument("cand", type=click.Path(path_type=Path))
@click.option("--margin", type=click.FloatRange(0, 1, min_open=True), default=0.02, show_default=True)
@click.option("--gate", is_flag=True, help="End with exit code 4 if a row is slower or cannot be compared.")
@click.option("--allow-not-comparable", is_flag=True, help="Under --gate, let rows that cannot be compared pass.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")
def command(base: Path, cand: Path, margin: float, gate: bool, allow_not_comparable: bool, as_json: bool) -> None:
    """Say of each row of CAND whether it is faster than in BASE, slower, equivalent, or not comparable.

    BASE and CAND are folders of runs, or files of stored rows. Runs made at different times compare only if the machine
    was in the same state: the fixed reference kernel, timed in every process, must have taken as long. For a gate in CI
    use `enginebench bench --against`, which measures both sides now.
    """
    from rich.console import Console

    from enginebench.analyze.diff import diff_results
    from enginebench.core.errors import GateFailed
    from enginebench.core.store import encode
    from enginebench.report.terminal import print_diff
    from enginebench.workflow.folder import read_rows

    document = diff_results(read_rows(base), read_rows(cand), margin, allow_not_comparable=allow_not_comparable)
    if as_json:
        click.echo(encode(document).decode())
    else:
        print_diff(document, Console(highlight=False))
    if gate and document.gate_failed:
        raise GateFailed(f"verdict {document.verdict}: see the rows that are slower or cannot be compared")
