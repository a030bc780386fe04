"""Writes the report of a sweep: the matrix page with the pages of its groups, the table, the document."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from enginebench.core.errors import ParseError, UsageError
from enginebench.core.store import DECODE_ERRORS, encode, write_atomic
from enginebench.features.sweep.document import SweepCell, SweepDocument, price
from enginebench.features.sweep.page import PAGES, format_sweep_page, list_group_pages
from enginebench.features.sweep.reading import holds_sweep, read_sweep
from enginebench.features.sweep.sections import list_sweep
from enginebench.features.sweep.store import FolderStore, open_store
from enginebench.report.csv_table import format_csv
from enginebench.report.table import Column, Section
from enginebench.runs.reporting import FILES, Written
from enginebench.verbs.given import to_path

COLUMNS = ("model", "machine_kind", "engine", "precision", "batch", "scope")
FIGURES = ("p50_ms", "p99_ms", "throughput_per_s", "speedup", "verdict", "outputs_agree", "energy_mj")
SCORE = {"metric": ("metric",), "score": ("value", "value")}
RANGED = ("p50_ms", "p99_ms", "speedup")
MORE = ("cost_per_million", "status", "validity", "n", "processes", "environment", "reference_ms", "result")


class Prices(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of prices: what an hour of each kind of machine costs."""

    per_hour: dict[str, float]
    currency: str = ""


def read_prices(path: Path) -> Prices:
    try:
        found = msgspec.toml.decode(path.read_bytes(), type=Prices)
    except OSError as error:
        raise UsageError(f"--prices {path}: {error.strerror}") from error
    except DECODE_ERRORS as error:
        raise ParseError(path, "", str(error), "a table [per_hour] with a price for each machine kind") from error
    for kind, amount in found.per_hour.items():
        if not 0 <= amount < float("inf"):
            raise UsageError(f"--prices {path}: an hour of {kind} cannot cost {amount:g}")
    return found


def report_sweep(
    url: str, formats: Sequence[str], out: Path | None = None, prices: Path | None = None
) -> tuple[SweepDocument, Written]:
    """The document of a sweep, and the files of its report.

    Args:
        out: folder of the files; by default the store, if it is a folder.
        prices: TOML file with the price of an hour of each machine kind.
    """
    store = open_store(url)
    folder = out or (store.root if isinstance(store, FolderStore) else None)
    if folder is None:
        raise UsageError(f"--out DIR is missing: the report on {url} needs a folder of this machine")
    document = read_sweep(store)
    if prices is not None:
        given = read_prices(prices)
        kinds = dict.fromkeys(cell.machine_kind for cell in document.cells)
        if unknown := [kind for kind in given.per_hour if kind not in kinds]:
            raise UsageError(f"--prices {prices}: no machine kind {unknown[0]}; there are: {', '.join(kinds)}")
        document = price(document, given.per_hour, given.currency)
    paths = list(_write(document, folder, formats))
    left = [name for name in formats if name in ("md", "png")]
    note = f"a sweep has no report in {' and '.join(left)}: it is a table with pages; html, csv and json are written"
    return document, Written(paths=tuple(paths), notes=(note,) if left and len(formats) < 3 else ())


def report_any(
    url: str, formats: Sequence[str], options: Mapping[str, Any]
) -> tuple[Written, SweepDocument, Callable[[SweepDocument], list[Section]]] | None:
    """The files of the report on a sweep, its document, and what lists its sections; None if it holds none."""
    if not holds_sweep(url):
        return None
    document, written = report_sweep(url, formats, to_path(options["out"]), to_path(options["prices"]))
    return written, document, list_sweep


def _write(document: SweepDocument, folder: Path, formats: Sequence[str]) -> Iterator[Path]:
    if "html" in formats:
        for name, text in list_group_pages(document):
            write_atomic(folder / PAGES / name, text.encode())
    texts: dict[str, Callable[[], bytes]] = {
        "html": lambda: format_sweep_page(document).encode(),
        "csv": lambda: format_sweep_csv(document).encode(),
        "json": lambda: encode(document),
    }
    for name, make in texts.items():
        if name in formats:
            write_atomic(folder / FILES[name], make())
            yield folder / FILES[name]


def format_sweep_csv(document: SweepDocument) -> str:
    """The cells as a table, intervals as columns of their own; full precision."""
    ends = {name: f"row.{name}.value" for name in RANGED}
    ends |= {f"{name}_{end}": f"row.{name}.{end}" for name in RANGED for end in ("low", "high")}
    paths = {name: name for name in COLUMNS}
    for name in FIGURES:
        paths |= {key: path for key, path in ends.items() if key.startswith(name)} if name in RANGED else {}
        paths.setdefault(name, f"row.{name}")
    paths |= {"capacity_per_s": "row.capacity.passes_qps", **{name: f"row.{name}" for name in MORE}}
    columns = [Column(name, str, partial(_follow, path.split("."))) for name, path in paths.items()]
    columns += [Column(name, str, partial(_take_score, path)) for name, path in SCORE.items()]
    return format_csv(columns, document.cells)


def _take_score(path: Sequence[str], cell: SweepCell) -> Any:
    return _follow(path, cell.row.scores[0]) if cell.row and cell.row.scores else None


def _follow(names: Sequence[str], value: object) -> Any:
    for name in names:
        value = getattr(value, name, None)
    return value
