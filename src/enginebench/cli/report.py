"""`enginebench report`: the tables of a stored run."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("report")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--format", "formats", default="html,md,csv,json,png", show_default=True, help="Parted by commas.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")
def command(folder: Path, formats: str, as_json: bool) -> None:
    """Write report.html, report.md, table.csv, report.json and pictures from what is in DIR, and print the table.

    Stored results are enough: no engine and no model is needed.
    """
    from rich.console import Console

    from enginebench.core.store import encode
    from enginebench.report.terminal import print_run
    from enginebench.workflow.folder import read_results
    from enginebench.workflow.reporting import describe_stored, write_reports

    record, results = read_results(folder)
    document = describe_stored(record, results)
    asked = [name.strip() for name in formats.split(",")]
    written = write_reports(folder, document, asked, record=record, results=results)
    if as_json:
        click.echo(encode(document).decode())
        return
    print_run(document, Console(highlight=False))
    click.echo("\n" + "\n".join([*map(str, written.paths), *written.notes]), err=True)
