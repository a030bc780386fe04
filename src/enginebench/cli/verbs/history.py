"""`enginebench history`: all stored rows under a folder, as one table and as trends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from enginebench.core.text import count_of

if TYPE_CHECKING:
    from enginebench.report.history.table import HistoryDocument

FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command("history")
@click.argument("folder", metavar="DIR")
@click.option("--out", type=FOLDER, help="Folder for history.csv and the trend pictures. [DIR/history]")
@click.option("--last", type=click.IntRange(0), default=40, show_default=True, help="Number of rows to print.")
@click.option("--engine", "engines", multiple=True, metavar="ENGINE", help="Show only this engine; can be repeated.")
@click.option("--model", "models", multiple=True, metavar="MODEL", help="Show only this model; can be repeated.")
@click.option("--parquet", type=FILE, metavar="F", help="Also write the table as Parquet.")
@click.option("--mlflow", metavar="URI", help="Also write each row as a run to this MLflow store: file:DIR, http://...")
@click.option("--experiment", default="enginebench", show_default=True, help="Name of the MLflow experiment.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout and nothing else.")
def command(
    folder: str,
    out: Path | None,
    last: int,
    engines: tuple[str, ...],
    models: tuple[str, ...],
    parquet: Path | None,
    mlflow: str | None,
    experiment: str,
    as_json: bool,
) -> None:
    """Show every row stored under DIR, and write history.csv and a trend picture for each engine.

    Example: enginebench history results --last 10

    DIR may be the store of a sweep, also s3://... Rows read before come from a cache, so that thousands of them take a
    second.
    """
    from enginebench.core.store import encode
    from enginebench.workflow.fleet.reading import find_rows_folder
    from enginebench.workflow.history import read_history, select_rows, write_history

    place = find_rows_folder(folder)
    document = select_rows(read_history(place), engines, models)
    written = write_history(document, place, out or (Path("history") if "://" in folder else place / "history"))
    if as_json:
        click.echo(encode(document).decode())
    else:
        _print(document, last)
    click.echo("\n".join(["", *map(str, written.paths), *written.notes]), err=True)
    _export(document, parquet, mlflow, experiment)


def _print(document: HistoryDocument, last: int) -> None:
    from rich.console import Console

    from enginebench.report.history.table import list_history
    from enginebench.report.terminal import print_sections

    print_sections(list_history(document, last), Console(highlight=False))


def _export(document: HistoryDocument, parquet: Path | None, mlflow: str | None, experiment: str) -> None:
    from enginebench.report.history.export import export_mlflow, write_parquet

    if parquet is not None:
        write_parquet(document.rows, parquet)
        click.echo(str(parquet), err=True)
    if mlflow is not None:
        new, known = export_mlflow(document.rows, mlflow, experiment)
        click.echo(f"MLflow {mlflow}: {count_of(new, 'runs')} written, {known} were there already", err=True)
