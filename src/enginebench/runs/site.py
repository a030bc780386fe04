"""Write a static site of all runs that are stored under a folder."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from enginebench.core.commands import join_words
from enginebench.core.errors import EngineBenchError, MissingDependency, UsageError
from enginebench.core.names import slug
from enginebench.core.shapes import format_shapes
from enginebench.core.store import encode, write_atomic
from enginebench.report.history import Unread, write_parquet
from enginebench.report.page import format_page
from enginebench.report.run.sections import list_report
from enginebench.report.run.shown import shorten_document
from enginebench.report.site import INDEX, PARQUET, Entry, SiteRow, format_card, format_site, make_entry
from enginebench.runs.folder import ARTIFACTS, RunFolder, holds_run, read_results
from enginebench.runs.reporting import describe_stored


class Site(Struct, frozen=True, kw_only=True):
    """The files of a site, and what it lacks."""

    index: Path
    runs: int
    configurations: int
    unread: tuple[Unread, ...] = ()
    notes: tuple[str, ...] = ()


def write_site(root: Path, out: Path) -> Site:
    """Write the site of all runs under `root` into the folder `out`.

    `index.html` has every configuration, `runs/NAME/index.html` the report of each run without its charts, and
    `runs/NAME/rows/*.json` the raw samples; `index.parquet` and README.md make the folder a data set. What stored runs
    say is data: names of files are made here, records are decoded and written again, and nothing in them is opened. A
    run that cannot be read is listed with the reason.

    Raises:
        UsageError: `root` is no folder, or holds no run.
    """
    entries, unread, names = list[Entry](), list[Unread](), set[str]()
    for folder in find_runs(root):
        path = os.path.relpath(folder, root)
        name = _choose_name(path if path != "." else root.resolve().name, names)
        try:
            entries += _write_run(folder, out, name)
        except EngineBenchError as error:
            unread.append(Unread(path=path, reason=str(error)))
        else:
            names.add(name)
    entries.sort(key=_order)
    write_atomic(out / INDEX, format_site(entries, unread, len(names)).encode())
    write_atomic(out / "README.md", format_card(entries, len(names)).encode())
    notes: tuple[str, ...] = ()
    try:
        write_parquet([entry.site for entry in entries], out / PARQUET, SiteRow)
    except MissingDependency as error:
        notes = (f"no {PARQUET}: {error}",)
    return Site(index=out / INDEX, runs=len(names), configurations=len(entries), unread=tuple(unread), notes=notes)


def _order(entry: Entry) -> tuple[str, str, int, float]:
    """Return the place in the table: models by name, each one's configurations fastest first."""
    site = entry.site
    return site.model, site.processor, site.batch, math.inf if site.p50_ms is None else site.p50_ms


def find_runs(root: Path) -> list[Path]:
    """List the folders of runs under `root` by name; links, hidden folders and artifacts are left out.

    Raises:
        UsageError: `root` is no folder, or holds no run.
    """
    if not root.is_dir():
        raise UsageError(f"{root} is not a folder")
    if not (folders := list(_walk_runs(root))):
        raise UsageError(f"{root} holds no runs: no folder under it has a run.json")
    return folders


def _walk_runs(root: Path) -> Iterator[Path]:
    for folder, folders, _ in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != ARTIFACTS)
        if holds_run(Path(folder)):
            yield Path(folder)


def _choose_name(path: str, taken: set[str]) -> str:
    """Return a file name for a run that no other has, whatever characters its folder's has."""
    plain = slug(path)[:80] or "run"
    names = (plain, *(f"{plain}-{number}" for number in range(2, len(taken) + 2)))
    return next(name for name in names if name not in taken)


def _write_run(folder: Path, out: Path, name: str) -> list[Entry]:
    """Write the page and the raw samples of one run; return its lines of the table."""
    record, results = read_results(folder, condensed=True)
    document = describe_stored(record, results)
    home, stored = out / "runs" / name, RunFolder(folder)
    command = join_words(record.command) if record.command else ""
    entries = []
    for number, row in enumerate(row for row in document.rows if row.status != "skipped"):
        raw = f"rows/{number:03}-{slug(row.id)[:80]}.json"
        whole = stored.read_result(row.id)
        if whole is not None:  # with the paths of a reader's machine left out
            write_atomic(home / raw, encode(stored.change_paths(whole, stored.relative)))
        entries.append(
            make_entry(
                row,
                document,
                run=name,
                started_utc=record.started_utc,
                command=command,
                shapes=format_shapes(row.setup.shapes) if row.setup.shapes else "",
                raw=f"runs/{name}/{raw}",
            )
        )
    sections = list_report(shorten_document(document), command=record.command, started_utc=record.started_utc)
    page = format_page(document.model, sections, up=f"../../{INDEX}", above="All results")
    write_atomic(home / INDEX, page.encode())
    return entries
