"""`enginebench report`: the tables of a stored run."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("report")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--format", "formats", default="md,csv,json", show_default=True, help="Parted by commas.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")
def command(folder: Path, formats: str, as_json: bool) -> None:
    """Write report.md, table.csv and report.json from what is in DIR, and print the table.

    Stored results are enough: no engine and no model is needed.
    """
    from rich.console import Console

    from enginebench.core.store import encode
    from enginebench.report.terminal import print_run
    from enginebench.workflow.folder import read_results
    from enginebench.workflow.reporting import describe_stored, write_reports

    record, results = read_results(folder)
    document = describe_stored(record, results)
    paths = write_reports(folder, document, [f.strip() for f in formats.split(",")])
    if as_json:
        click.echo(encode(document).decode())
        return
    print_run(document, Console(highlight=False))
    click.echo("\n" + "\n".join(str(path) for path in paths), err=True)
