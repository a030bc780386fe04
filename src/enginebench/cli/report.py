"""`enginebench report`: the tables and pictures of what a folder holds."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("report")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--format", "formats", metavar="LIST", help="Of md, csv, json, png; parted by commas. [all]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")
def command(folder: Path, formats: str | None, as_json: bool) -> None:
    """Write the reports of DIR: a stored run, or a folder with what trtexec left.

    A run gives report.md, table.csv and report.json, and the table is printed. A trtexec folder gives report.md,
    report.json and pictures. What is stored is enough: no engine and no model is needed.
    """
    from enginebench.workflow.folder import holds_run

    chosen = [name.strip() for name in formats.split(",")] if formats else None
    if holds_run(folder):
        _report_run(folder, chosen, as_json)
    else:
        _report_trtexec(folder, chosen, as_json)


def _report_run(folder: Path, formats: list[str] | None, as_json: bool) -> None:
    from rich.console import Console

    from enginebench.core.store import encode
    from enginebench.report.terminal import print_run
    from enginebench.workflow.folder import read_results
    from enginebench.workflow.reporting import FORMATS, describe_stored, write_reports

    record, results = read_results(folder)
    document = describe_stored(record, results)
    paths = write_reports(folder, document, formats or FORMATS)
    if as_json:
        click.echo(encode(document).decode())
        return
    print_run(document, Console(highlight=False))
    click.echo("\n" + "\n".join(str(path) for path in paths), err=True)


def _report_trtexec(folder: Path, formats: list[str] | None, as_json: bool) -> None:
    from enginebench.report.trtexec import render_trtexec_folder

    wanted = [*(formats or ("md", "json", "png")), *(["json"] if as_json else [])]
    paths = render_trtexec_folder(folder, wanted)
    if as_json:
        click.echo((folder / "report.json").read_text(encoding="utf-8"), nl=False)
        return
    click.echo("\n".join(str(path) for path in paths))
