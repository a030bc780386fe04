"""`enginebench report`: page, tables and pictures of a stored run, or of what trtexec left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click


@click.command("report")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--format", "formats", default="html,md,csv,json,png", show_default=True, help="Parted by commas.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")
def command(folder: Path, formats: str, as_json: bool) -> None:
    """Write report.html, report.md, table.csv, report.json and pictures from what is in DIR, and print the table.

    DIR is the folder of a run, or one with files that trtexec wrote. Stored results are enough: no engine, no model and
    no GPU is needed.
    """
    from enginebench.workflow.folder import holds_run
    from enginebench.workflow.reporting import check_formats

    asked = check_formats(formats.split(","))
    if holds_run(folder):
        _report_run(folder, asked, as_json)
    else:
        _report_trtexec(folder, asked, as_json)


def _report_run(folder: Path, formats: Sequence[str], as_json: bool) -> None:
    from rich.console import Console

    from enginebench.core.store import encode
    from enginebench.report.terminal import print_run
    from enginebench.workflow.folder import read_results
    from enginebench.workflow.reporting import describe_stored, write_reports

    record, results = read_results(folder)
    document = describe_stored(record, results)
    written = write_reports(folder, document, formats, record=record, results=results)
    if as_json:
        click.echo(encode(document).decode())
    else:
        print_run(document, Console(highlight=False))
        click.echo("", err=True)
    _list_files(written.paths, written.notes)


def _report_trtexec(folder: Path, formats: Sequence[str], as_json: bool) -> None:
    from enginebench.analyze.trtexec.folder import read_folder
    from enginebench.core.store import encode
    from enginebench.report.trtexec import describe_cases
    from enginebench.workflow.reporting import report_trtexec

    written = report_trtexec(folder, formats)
    if as_json:
        click.echo(encode(describe_cases(read_folder(folder))).decode())
    _list_files(written.paths, written.notes)


def _list_files(paths: Sequence[Path], notes: Sequence[str]) -> None:
    click.echo("\n".join([*map(str, paths), *notes]), err=True)
