"""The verbs `report` and `read` for what trtexec left: a file, or a folder with one run or several."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

from msgspec import Struct

from enginebench.core.errors import MissingDependency
from enginebench.core.names import slug
from enginebench.core.store import encode, write_atomic
from enginebench.features.trtexec import verb
from enginebench.features.trtexec.folder import (
    DRIFT_FIELDS,
    TrtexecCase,
    is_trtexec_folder,
    name_in_path,
    read_folder,
    sniff_kind,
)
from enginebench.features.trtexec.report import (
    Metrics,
    TrtexecReport,
    describe_cases,
    describe_shares,
    draw_case,
    list_case_facts,
    list_drift_cells,
)
from enginebench.report.charts import load_vega
from enginebench.report.csv_table import format_csv
from enginebench.report.layer_table import format_share
from enginebench.report.markdown import format_sections
from enginebench.report.numbers import format_significant
from enginebench.report.page import format_page
from enginebench.report.table import Chart, Column, Notes, Section, Table, list_texts, make_notes, make_table
from enginebench.runs.reporting import DRAWN, FILES, Written, write_pictures

FOOTER = "p50: the median; other percentiles: nearest rank."
_DIGITS = 5
_TITLES = {
    "latency_hist": "Latencies",
    "percentiles": "Percentiles",
    "latency_series": "Latency over the run",
    "per_layer_time": "Layers",
}


def _text(title: str, name: str) -> Column:
    return Column(title, lambda case: getattr(case, name) or "")


def _figure(title: str, name: str) -> Column:
    take: Callable[[object], float | None] = attrgetter(name)

    def is_measured(cases: Sequence[object]) -> bool:
        return any(take(case) is not None for case in cases)

    return Column(title, lambda case: _show(take(case)), take, align="right", when=is_measured)


_TIMES = {"mean ms": "mean_ms", "p50 ms": "p50_ms", "p90 ms": "p90_ms", "p95 ms": "p95_ms", "p99 ms": "p99_ms"}
_TIMES |= {"p99.9 ms": "p999_ms", "queries/s": "throughput_qps", "images/s": "images_per_s"}
_COLUMNS = (
    _text("run", "name"),
    *(_text(name, name) for name in ("status", "model", "precision")),
    Column("batch", lambda case: str(case.batch or ""), attrgetter("batch"), align="right"),
    *(_figure(title, name) for title, name in _TIMES.items()),
    *(_text(name, name) for name in ("workspace", "calibration")),
    _text("TensorRT", "tensorrt_version"),
    _text("GPU", "gpu"),
)
# Of table.csv.
FIELDS = tuple(
    Column(name, str, attrgetter(name))
    for name in (
        "name",
        "status",
        "model",
        "precision",
        "calibration",
        "batch",
        "n",
        "mean_ms",
        "p50_ms",
        "p90_ms",
        "p95_ms",
        "p99_ms",
        "p999_ms",
        "throughput_qps",
        "images_per_s",
        "workspace",
        "build_s",
        "engine_bytes",
        "tensorrt_version",
        "gpu",
        "cuda_graph",
        "data_transfers",
    )
)
_LAYERS = (
    Column("layer", attrgetter("name")),
    Column("average ms", lambda layer: _show(layer.average_ms), attrgetter("average_ms"), align="right"),
    Column("share", lambda layer: format_share(layer.share), attrgetter("share"), align="right"),
)


def draw_cases(cases: Sequence[TrtexecCase]) -> dict[str, list[Chart]]:
    """Return run -> its pictures; with several runs in the folder their names begin with the run's."""
    return {
        case.name: [
            Chart(
                name=name if len(cases) == 1 else f"{slug(case.name)}.{name}",
                title=_TITLES.get(name, name),
                description=f"{_TITLES.get(name, name)} of {case.name}",
                spec=spec,
            )
            for name, spec in draw_case(case).items()
        ]
        for case in cases
    }


def list_trtexec(
    report: TrtexecReport, title: str, charts: Mapping[str, Sequence[Chart]] | None = None
) -> list[Section]:
    cases = [case for case in report.cases if set(case.files) != {"drift"}]
    failed = [case.name for case in cases if case.status == "failed"]
    count = f"{len(cases)} run{'s' if len(cases) != 1 else ''}" + (f", failed: {', '.join(failed)}" if failed else "")
    table = make_table(_COLUMNS, cases, file="runs", title="All runs")
    return [
        Section(title=title, parts=tuple(make_notes([count, *report.notes]))),
        Section(title="Runs", name="runs", parts=(table,)),
        *(_list_case(case, (charts or {}).get(case.name, ())) for case in report.cases),
    ]


def _list_case(case: Metrics, charts: Sequence[Chart]) -> Section:
    layers = [make_table(_LAYERS, case.top_layers, file=f"{slug(case.name)}.layers")] if case.top_layers else []
    columns = list_texts(DRIFT_FIELDS[:1], DRIFT_FIELDS[1:])
    rows = list_drift_cells(case.drift)
    drift = [make_table(columns, rows, file=f"{slug(case.name)}.drift", title="Differences of outputs")] if rows else []
    notes = Notes(lines=tuple(_list_notes(case)), kind="list")
    parts: list[Table | Notes | Chart] = [notes, *charts, *layers, *make_notes(describe_shares(case)), *drift]
    return Section(title=case.name, name=f"case-{slug(case.name)}", parts=tuple(parts))


def _list_notes(case: Metrics) -> Iterator[tuple[str, str]]:
    yield from (("contradiction", text) for text in case.contradictions)
    if case.contradictions:
        yield "", "the log and the timing file are not of one run; the figures are those of the timing file"
    yield from (("not readable", text) for text in case.unreadable)
    if case.status and case.status != "passed":
        yield case.status, case.status_reason or ""
    yield from (("error", text.strip()) for text in case.errors)
    yield from (("warning", text.strip()) for text in case.warnings)
    yield from (("", text) for text in (*list_case_facts(case), *case.notes))


def _show(value: float | None) -> str:
    return "" if value is None else format_significant(value, _DIGITS)


def read_any(path: Path) -> Struct | None:
    """Read the document of a file or folder; None if it is not of trtexec."""
    if path.is_dir():
        return describe_cases(read_folder(path)) if is_trtexec_folder(path) else None
    read: Callable[[Path], Struct] | None = getattr(verb, f"parse_{sniff_kind(path)}", None)
    return read(path) if read else None


def report_any(path: str, formats: Sequence[str], options: Mapping[str, Any]) -> tuple[Written, Struct, None]:
    """Write the reports of a folder, as `report_folder` does; a terminal shows no table of it."""
    overrides = {name: options[name] for name in ("model", "precision", "batch") if options[name] is not None}
    return (*report_folder(Path(path), formats, overrides), None)


def report_folder(
    folder: Path, formats: Sequence[str], overrides: Mapping[str, Any] | None = None
) -> tuple[Written, TrtexecReport]:
    """Write the reports of a folder with files of trtexec; `overrides` replace figures of its files."""
    cases = read_folder(folder)
    charts: dict[str, list[Chart]] = {}
    notes: tuple[str, ...] = ()
    try:
        bundle = load_vega() if "html" in formats else None
        charts = draw_cases(cases) if set(formats) & set(DRAWN) else {}
    except MissingDependency as error:
        notes = (f"no {'report.html and no ' if 'html' in formats else ''}pictures: {error}",)
    paths = write_pictures(folder, [chart for drawn in charts.values() for chart in drawn]) if "png" in formats else []
    written = {name: tuple(f"{chart.name}.png" for chart in drawn) for name, drawn in charts.items() if paths}
    report = describe_cases(cases, written, notes, overrides)
    title = f"trtexec: {name_in_path(folder)}"
    sections = list_trtexec(report, title, charts)
    texts = {
        "html": lambda: format_page(title, sections, bundle=bundle, footer=FOOTER).encode(),
        "md": lambda: format_sections(sections, pictures=[path.name for path in paths]).encode(),
        "csv": lambda: format_csv(FIELDS, report.cases).encode(),
        "json": lambda: encode(report, indent=2) + b"\n",
    }
    made = [name for name in formats if name in texts and not (name == "html" and notes)]
    for name in made:
        write_atomic(folder / FILES[name], texts[name]())
    left = Written(paths=(*(folder / FILES[name] for name in made), *paths), notes=notes if "html" in formats else ())
    return left, describe_cases(cases, overrides=overrides)
