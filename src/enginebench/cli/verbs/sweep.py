"""`enginebench sweep`: many models on many machines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from enginebench.workflow.verbs.sweep import SweepPlan


@click.command("sweep")
@click.argument("spec", metavar="SPEC.toml", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--on",
    default="local",
    show_default=True,
    metavar="local|auto|ray://HOST:PORT",
    help="This machine, the Ray cluster that it belongs to, or the one at this address.",
)
@click.option("--kind", metavar="KIND", help="Which kind of machine of the sweep this one is, with --on local.")
@click.option(
    "--share-machine", is_flag=True, help="Measure on each GPU of a machine at once, and say what that costs."
)
@click.option("--dry-run", is_flag=True, help="Print the matrix and how long it takes at most; measure nothing.")
@click.option("--resume", is_flag=True, help="Continue the sweep in --out.")
@click.option("--out", metavar="STORE", help="A folder, or s3://BUCKET/PREFIX, that all machines see.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout and nothing else.")
def command(
    spec: Path,
    on: str,
    kind: str | None,
    share_machine: bool,
    dry_run: bool,
    resume: bool,
    out: str | None,
    as_json: bool,
) -> None:
    """Measure the models, engines and precisions of SPEC.toml on every kind of machine that it names.

    Example: enginebench sweep matrix.toml --on auto --out s3://bucket/august

    All rows of one model on one kind of machine take turns on one machine; between machines there is no verdict. The
    sweep can be stopped, or lose machines, at any time: --resume measures what is missing. Read it with `report STORE`.
    """
    from rich.console import Console

    from enginebench.cli.progress import open_reporter
    from enginebench.core.errors import MeasurementError, UsageError
    from enginebench.core.store import encode
    from enginebench.report.sweep.sections import list_sweep
    from enginebench.report.terminal import print_sections
    from enginebench.workflow.fleet.spec import read_spec
    from enginebench.workflow.verbs.sweep import plan_sweep, run_sweep

    asked = read_spec(spec)
    if dry_run:
        _print_plan(plan_sweep(asked), as_json)
        return
    if out is None:
        raise UsageError("--out STORE is missing: the folder, or the address, that keeps what is measured")
    with open_reporter() as reporter:
        document = run_sweep(
            asked,
            out,
            on=on,
            kind=kind,
            share_machine=share_machine,
            resume=resume,
            reporter=reporter,
            command=("enginebench", *sys.argv[1:]),
        )
    if as_json:
        click.echo(encode(document).decode())
    else:
        print_sections(list_sweep(document), Console(highlight=False))
        click.echo(f"\nStored in {out}. The page: enginebench report {out}", err=True)
    if not any(cell.row is not None and cell.row.status == "ok" for cell in document.cells):
        raise MeasurementError("no cell of the sweep has a figure; each says why, above")


def _print_plan(plan: SweepPlan, as_json: bool) -> None:
    from rich.console import Console

    from enginebench.core.store import encode
    from enginebench.report.sweep.sections import list_plan
    from enginebench.report.terminal import print_sections

    if as_json:
        click.echo(encode(plan).decode())
        return
    rows = [(c.model, c.machine, c.engine, c.precision, str(c.batch), c.scope) for c in plan.cells]
    kinds = [(k.machine_kind, k.groups, k.rows, k.processes, k.at_most_s) for k in plan.kinds]
    print_sections(list_plan(rows, kinds, plan.start_s), Console(highlight=False))
