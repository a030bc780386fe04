"""`enginebench report`: page, tables and pictures of a stored run, or of what trtexec wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from enginebench.cli.options import table_options


@click.command("report")
@click.argument("folder", metavar="DIR")
@click.option(
    "--format",
    "formats",
    default="html,md,csv,json,png",
    show_default=True,
    help="Formats to write, separated by commas.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the report on a sweep. [DIR]",
)
@click.option(
    "--prices", type=click.Path(path_type=Path, dir_okay=False), help="TOML file: what an hour of a machine costs."
)
@table_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout and nothing else.")
def command(
    folder: str, formats: str, out: Path | None, prices: Path | None, wide: bool, warnings: bool, as_json: bool
) -> None:
    """Write the report on what is in DIR, and print the table.

    Example: enginebench report results/first --format md,csv

    DIR is the folder of a run, of a load, one with files that trtexec wrote, or the store of a sweep (also s3://...).
    The report is report.html, report.md, table.csv, report.json and pictures; of a load, report.html and pictures.
    Stored results are enough: it needs no engine, no model and no GPU.
    """
    from enginebench.core.errors import UsageError
    from enginebench.workflow.fleet.reading import holds_sweep
    from enginebench.workflow.folder import holds_run
    from enginebench.workflow.reporting import check_formats
    from enginebench.workflow.verbs.load import DOCUMENT

    asked = check_formats(formats.split(","))
    if holds_sweep(folder):
        _report_sweep(folder, asked, out, prices, as_json)
        return
    if out is not None or prices is not None:
        raise UsageError(f"--out and --prices belong to the report on a sweep, and {folder} holds none")
    if holds_run(Path(folder)):
        _report_run(Path(folder), asked, wide, warnings, as_json)
    elif (Path(folder) / DOCUMENT).is_file():
        _report_load(Path(folder), asked, as_json)
    else:
        _report_trtexec(Path(folder), asked, as_json)


def _report_sweep(url: str, formats: Sequence[str], out: Path | None, prices: Path | None, as_json: bool) -> None:
    from rich.console import Console

    from enginebench.core.store import encode
    from enginebench.report.sweep.sections import list_sweep
    from enginebench.report.terminal import print_sections
    from enginebench.workflow.fleet.reporting import report_sweep

    document, written = report_sweep(url, formats, out, prices)
    if as_json:
        click.echo(encode(document).decode())
    else:
        print_sections(list_sweep(document), Console(highlight=False))
        click.echo("", err=True)
    _list_files(written.paths, written.notes)


def _report_run(folder: Path, formats: Sequence[str], wide: bool, warnings: bool, as_json: bool) -> None:
    from rich.console import Console

    from enginebench.core.store import encode
    from enginebench.report.run.sections import list_sections
    from enginebench.report.terminal import print_sections
    from enginebench.workflow.folder import read_results
    from enginebench.workflow.reporting import describe_stored, write_reports

    record, results = read_results(folder)
    document = describe_stored(record, results)
    written = write_reports(folder, document, formats, record=record, results=results)
    if as_json:
        click.echo(encode(document).decode())
    else:
        sections = list_sections(document, folder=folder, wide=wide, warnings=warnings)
        print_sections(sections, Console(highlight=False))
        click.echo("", err=True)
    _list_files(written.paths, written.notes)


def _report_load(folder: Path, formats: Sequence[str], as_json: bool) -> None:
    from rich.console import Console

    from enginebench.core.store import encode
    from enginebench.report.load.sections import list_load
    from enginebench.report.terminal import print_sections
    from enginebench.workflow.verbs.load import read_load, report_load

    document = read_load(folder)
    paths, notes = report_load(folder, document, formats)
    if as_json:
        click.echo(encode(document).decode())
    else:
        print_sections(list_load(document), Console(highlight=False))
    _list_files(paths, notes)


def _report_trtexec(folder: Path, formats: Sequence[str], as_json: bool) -> None:
    from enginebench.analyze.trtexec.folder import read_folder
    from enginebench.core.store import encode
    from enginebench.report.trtexec.report import describe_cases
    from enginebench.workflow.reporting import report_trtexec

    written = report_trtexec(folder, formats)
    if as_json:
        click.echo(encode(describe_cases(read_folder(folder))).decode())
    _list_files(written.paths, written.notes)


def _list_files(paths: Sequence[Path], notes: Sequence[str]) -> None:
    click.echo("\n".join([*map(str, paths), *notes]), err=True)
