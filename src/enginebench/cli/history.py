"""`enginebench history`: all stored rows under a folder, as one table and as trends."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from enginebench.report.history import HistoryDocument

FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command("history")
@click.argument("folder", metavar="DIR", type=FOLDER)
@click.option("--out", type=FOLDER, help="Where history.csv and the trend pictures go. [DIR/history]")
@click.option("--last", type=click.IntRange(0), default=40, show_default=True, help="Rows that are printed.")
@click.option("--engine", "engines", multiple=True, metavar="ENGINE", help="Only this engine; repeat it for several.")
@click.option("--model", "models", multiple=True, metavar="MODEL", help="Only this model; repeat it for several.")
@click.option("--parquet", type=FILE, metavar="F", help="Write the table as Parquet, too.")
@click.option(
    "--mlflow", metavar="URI", help="Write each row as a run into this MLflow store, too: file:DIR, http://..."
)
@click.option("--experiment", default="enginebench", show_default=True, help="Of MLflow.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")
def command(
    folder: Path,
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

    Rows that were read before come from a cache, so that thousands of them take a second.
    """
    from enginebench.core.store import encode
    from enginebench.workflow.history import read_history, write_history

    document = _select(read_history(folder), engines, models)
    written = write_history(document, folder, out or folder / "history")
    if as_json:
        click.echo(encode(document).decode())
    else:
        _print(document, last)
    click.echo("\n".join(["", *map(str, written.paths), *written.notes]), err=True)
    _export(document, parquet, mlflow, experiment)


def _select(document: HistoryDocument, engines: tuple[str, ...], models: tuple[str, ...]) -> HistoryDocument:
    from msgspec.structs import replace

    rows = [
        row
        for row in document.rows
        if (not engines or row.engine in engines or row.engine.partition(":")[0] in engines)
        and (not models or row.model in models)
    ]
    return replace(document, rows=tuple(rows))


def _print(document: HistoryDocument, last: int) -> None:
    from rich.console import Console

    from enginebench.report.history import print_history

    print_history(document, Console(highlight=False), last)


def _export(document: HistoryDocument, parquet: Path | None, mlflow: str | None, experiment: str) -> None:
    from enginebench.report.history_export import export_mlflow, write_parquet

    if parquet is not None:
        write_parquet(document.rows, parquet)
        click.echo(str(parquet), err=True)
    if mlflow is not None:
        new, known = export_mlflow(document.rows, mlflow, experiment)
        click.echo(f"MLflow {mlflow}: {new} runs written, {known} were there already", err=True)
