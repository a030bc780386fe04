"""`history`: all stored results under a folder, as one table and as trends."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import click

from enginebench import door
from enginebench.core.features import find_hook
from enginebench.core.hooks import HistoryFolder
from enginebench.core.text import count_of
from enginebench.options import Opt, PathLike, Printed, Texts, Unpack, verb

if TYPE_CHECKING:
    from enginebench.report.history import HistoryDocument


class HistoryOptions(TypedDict, total=False):
    engine: Annotated[Texts, Opt("Show only this engine; can be repeated.", (), metavar="ENGINE", multiple=True)]
    model: Annotated[Texts, Opt("Show only this model; can be repeated.", (), metavar="MODEL", multiple=True)]


class HistoryPrinted(Printed, total=False):
    out: Annotated[str | None, Opt("Folder for history.csv and the trend charts. [DIR/history]", path="new folder")]
    last: Annotated[int, Opt("Number of configurations to print.", 40, ge=0)]
    parquet: Annotated[
        str | None,
        Opt("Also write the table as Parquet.", metavar="F", path="new file", more="Needs the extra `parquet`"),
    ]
    site: Annotated[
        str | None,
        Opt(
            "Also write all runs as a static site to this folder.",
            path="new folder",
            more="One table that sorts and filters, a page and the raw samples of each run, and an index in Parquet",
        ),
    ]
    mlflow: Annotated[
        str | None,
        Opt("Also write each configuration as a run to this MLflow store: file:DIR, http://...", metavar="URI"),
    ]
    experiment: Annotated[str, Opt("Name of the MLflow experiment.", "enginebench")]


@verb(HistoryOptions)
def history(path: PathLike, **options: Unpack[HistoryOptions]) -> "HistoryDocument":
    """List every result stored under DIR, and write history.csv and a trend chart for each engine.

    Example: enginebench history results --last 10

    DIR may be the store of a sweep, also s3://... Results are cached: thousands take a second.

    Args:
        path: searched with all its folders.

    Raises:
        UsageError: it is no folder.
    """
    from enginebench.runs.history import read_history, select_rows

    engines, models = (
        [name] if isinstance(name, str) else list(name) for name in (options["engine"], options["model"])
    )
    return select_rows(read_history(find_results_folder(path)), engines, models)


def find_results_folder(path: PathLike) -> Path:
    """Return the folder with the results; for the store of a sweep, a copy of them."""
    find_folder = find_hook(HistoryFolder)
    return find_folder(str(path)) if find_folder else Path(path)


@door.command(history, "DIR", shown=HistoryPrinted)
def command(path: str, shown: HistoryPrinted, **options: Unpack[HistoryOptions]) -> None:
    from enginebench.report.history import export_mlflow, import_mlflow, import_pyarrow, list_history, write_parquet
    from enginebench.runs.history import write_history
    from enginebench.runs.site import find_runs, write_site

    document, stored = history(path, **options), find_results_folder(path)
    # What cannot be written is refused before anything else is.
    if shown["site"] is not None:
        find_runs(stored)
    if shown["parquet"] is not None:
        import_pyarrow()
    if shown["mlflow"] is not None:
        import_mlflow()
    out = Path(shown["out"] or ("history" if "://" in path else stored / "history"))
    written = write_history(document, stored, out)
    door.show(document, shown, door.tables(lambda document: list_history(document, shown["last"])))
    click.echo("\n".join(["", *map(str, written.paths), *written.notes]), err=True)
    if shown["parquet"] is not None:
        write_parquet(document.rows, Path(shown["parquet"]))
        click.echo(shown["parquet"], err=True)
    if shown["site"] is not None:
        site = write_site(stored, Path(shown["site"]))
        counts = f"{count_of(site.configurations, 'configurations')} of {count_of(site.runs, 'runs')}"
        click.echo("\n".join([f"{site.index}: {counts}", *site.notes]), err=True)
    if shown["mlflow"] is not None:
        written_runs, existing = export_mlflow(document.rows, shown["mlflow"], shown["experiment"])
        counts = f"{count_of(written_runs, 'runs')} written, {existing} were there already"
        click.echo(f"MLflow {shown['mlflow']}: {counts}", err=True)
