"""Writes the report of a sweep: the matrix page with the pages of its groups, the table, the document."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import msgspec
from msgspec import Struct

from enginebench.core.errors import UsageError
from enginebench.core.names import slug
from enginebench.core.store import check_regular, encode, explain_access, parsing, write_atomic
from enginebench.core.text import clean_text, count_of
from enginebench.core.warnings import format_warning
from enginebench.features.sweep.document import SweepCell, SweepDocument, SweepRow, price
from enginebench.features.sweep.reading import holds_sweep, read_sweep
from enginebench.features.sweep.sections import COLUMNS, group_cells, list_rest, list_sweep, rank_cell, summarize_sweep
from enginebench.features.sweep.store import FolderStore, open_store
from enginebench.report.csv_table import format_csv
from enginebench.report.numbers import format_latency, format_range, format_significant
from enginebench.report.page import format_page
from enginebench.report.run.columns import SPEED_UP
from enginebench.report.scores import format_score_range
from enginebench.report.table import Column, Section, Table, make_notes, make_table
from enginebench.runs.reporting import FILES, Written
from enginebench.stats.metrics.tasks import name_metric
from enginebench.verbs.common import to_path

# The folder of the groups' pages, beside the matrix.
PAGES = "sweep-pages"
SCRIPT = Path(__file__).with_name("sweep.js")
KEYS = {"model": "model", "machine": "machine_kind", "engine": "engine", "precision": "precision"}
_P50 = [column.title for column in COLUMNS].index("p50")
_ABOUT = (
    "A line is the fastest valid configuration of an engine whose outputs are the same. Speed-ups are against the "
    "baseline on the same machine; between machines there is no verdict."
)


def format_sweep_page(document: SweepDocument) -> str:
    """The matrix as one HTML file; its links lead into the folder `PAGES` beside it."""
    groups = group_cells(document, "model", "machine_kind", "engine")
    best = [min(cells, key=rank_cell) for cells in groups.values()]
    links = [
        f"{PAGES}/{name_page(one.model, one.machine_kind)}" + (f"#{one.row.id}" if one.row else "") for one in best
    ]
    counts = {id(one): len(cells) for one, cells in zip(best, groups.values(), strict=True)}
    number = Column("rows", lambda cell: str(counts[id(cell)]), lambda cell: counts[id(cell)], align="right")
    head = Section(title=summarize_sweep(document), parts=tuple(make_notes([_ABOUT])))
    return _assemble("Sweep", head, [*COLUMNS, number], best, links, list_rest(document))


def list_group_pages(document: SweepDocument) -> Iterable[tuple[str, str]]:
    """(file name, HTML) of each model on each kind of machine."""
    for (model, kind), cells in group_cells(document, "model", "machine_kind").items():
        title = f"{model} on {kind}"
        details = {cell.row.id: _describe_details(cell, cell.row) for cell in cells if cell.row is not None}
        links = [f"#{cell.row.id}" if cell.row else "" for cell in cells]
        row_section = [Section(name="row", parts=())]
        page = _assemble(
            title, Section(title=title, parts=()), COLUMNS, cells, links, row_section, "../report.html", details
        )
        yield name_page(model, kind), page


def name_page(model: str, kind: str) -> str:
    return f"{slug(f'{model}-{kind}')}.html"


class _Details(TypedDict):
    """The details of one line of the page, as its script reads them."""

    title: str
    facts: list[tuple[str, str]]
    warnings: list[str]


def _assemble(
    title: str,
    head: Section,
    columns: Sequence[Column],
    cells: Sequence[SweepCell],
    links: Sequence[str],
    sections: Sequence[Section],
    up: str = "",
    details: dict[str, _Details] | None = None,
) -> str:
    table = make_table(columns, cells)
    lines = []
    for cell, link in zip(cells, links, strict=True):  # [text, what it is sorted by, link] of each column
        texts = [clean_text(column.text(cell)) for column in table.columns]
        shown = [[t, c.value(cell) if c.value else t] for t, c in zip(texts, table.columns, strict=True)]
        if link:
            shown[_P50].append(link)
        lines.append({"cells": shown, "keys": {key: getattr(cell, name) for key, name in KEYS.items()}})
    numbers = [index for index, column in enumerate(table.columns) if column.align != "left"]
    empty = Table(columns=table.columns, rows=(), file="matrix")
    matrix = Section(title=count_of(len(cells), "lines"), name="matrix", parts=(empty,))
    data = {"lines": lines, "numbers": numbers, "keys": [*KEYS], "details": details or {}}
    return format_page(title, [head, matrix, *sections], data=data, script=SCRIPT.read_text(encoding="utf-8"), up=up)


def _describe_details(cell: SweepCell, row: SweepRow) -> _Details:
    facts = [
        ("engine", f"{cell.engine} {row.engine_version or ''}"),
        ("precision", cell.precision),
        ("batch, scope", f"{cell.batch}, {cell.scope}"),
        ("device", row.device + (f", {count_of(row.threads, 'threads')}" if row.device == "cpu" else "")),
        ("status", row.status + (f": {row.reason}" if row.reason else "")),
        ("times", row.validity),
        ("p50", format_latency(row.p50_ms) if row.p50_ms else ""),
        ("p99", format_latency(row.p99_ms) if row.p99_ms else ""),
        ("samples", f"{row.n} in {count_of(row.processes, 'trials')}"),
        ("throughput", f"{format_significant(row.throughput_per_s)} inferences/s" if row.throughput_per_s else ""),
        (SPEED_UP, f"{format_range(row.speedup, 'x')} {row.verdict or ''}" if row.speedup else ""),
        ("outputs", {True: "same", False: "changed", None: ""}[row.outputs_agree]),
        *((name_metric(score.metric), format_score_range(score)) for score in row.scores),
        ("reference kernel", f"{format_significant(row.reference_ms)} ms" if row.reference_ms else ""),
        ("environment", row.environment),
        ("samples in", row.result),
    ]
    return {
        "title": clean_text(f"{cell.engine} {cell.precision} batch {cell.batch} {cell.scope}"),
        "facts": [(name, clean_text(value)) for name, value in facts if value],
        "warnings": [clean_text(format_warning(warning)) for warning in row.warnings],
    }


FIELDS = ("model", "machine_kind", "engine", "precision", "batch", "scope")
FIGURES = ("p50_ms", "p99_ms", "throughput_per_s", "speedup", "verdict", "outputs_agree", "energy_mj")
SCORE = {"metric": ("metric",), "score": ("value", "value")}
RANGED = ("p50_ms", "p99_ms", "speedup")
MORE = ("cost_per_million", "status", "validity", "n", "processes", "environment", "reference_ms", "result")


class Prices(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of prices: what an hour of each kind of machine costs."""

    per_hour: dict[str, float]
    currency: str = ""


def read_prices(path: Path) -> Prices:
    expected = "a table [per_hour] with a price for each machine kind"
    with explain_access(f"--prices {path}", kind=UsageError), parsing(path, expected):
        prices = msgspec.toml.decode(check_regular(path).read_bytes(), type=Prices)
    for kind, amount in prices.per_hour.items():
        if not 0 <= amount < float("inf"):
            raise UsageError(f"--prices {path}: an hour of {kind} cannot cost {amount:g}")
    return prices


def report_sweep(
    url: str, formats: Sequence[str], out: Path | None = None, prices: Path | None = None
) -> tuple[SweepDocument, Written]:
    """The document of a sweep, and the files of its report, in `out` or else in the store, if that is a folder."""
    store = open_store(url)
    folder = out or (store.root if isinstance(store, FolderStore) else None)
    if folder is None:
        raise UsageError(f"--out DIR is missing: the report on {url} needs a folder of this machine")
    document = read_sweep(store)
    if prices is not None:
        file_prices = read_prices(prices)
        kinds = dict.fromkeys(cell.machine_kind for cell in document.cells)
        if unknown := [kind for kind in file_prices.per_hour if kind not in kinds]:
            raise UsageError(f"--prices {prices}: no machine kind {unknown[0]}; there are: {', '.join(kinds)}")
        document = price(document, file_prices.per_hour, file_prices.currency)
    paths = list(_write(document, folder, formats))
    unsupported = [name for name in formats if name in ("md", "png")]
    missing = " and ".join(unsupported)
    note = f"a sweep has no report in {missing}: it is a table with pages; html, csv and json are written"
    return document, Written(paths=tuple(paths), notes=(note,) if unsupported and len(formats) < 3 else ())


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
    paths = {name: name for name in FIELDS}
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
