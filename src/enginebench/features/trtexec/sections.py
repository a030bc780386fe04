"""A folder that trtexec left, as sections: the table of all runs, then each with its contradictions first."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter

from enginebench.core.names import slug
from enginebench.features.trtexec.folder import DRIFT_FIELDS, TrtexecCase
from enginebench.features.trtexec.report import Metrics, TrtexecReport, draw_case, list_drift, list_facts, list_shares
from enginebench.report.layer_table import format_share
from enginebench.report.numbers import format_significant
from enginebench.report.table import Chart, Column, Notes, Section, Table, list_texts, make_notes, make_table

FOOTER = "Percentiles: nearest rank."
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
    known: Callable[[Sequence[object]], bool] = lambda cases: any(take(case) is not None for case in cases)  # noqa: E731
    return Column(title, lambda case: _show(take(case)), take, align="right", when=known)


_COLUMNS = (
    _text("run", "name"),
    _text("status", "status"),
    _text("model", "model"),
    _text("precision", "precision"),
    Column("batch", lambda case: str(case.batch or ""), attrgetter("batch"), align="right"),
    _figure("mean ms", "mean_ms"),
    _figure("p50 ms", "p50_ms"),
    _figure("p90 ms", "p90_ms"),
    _figure("p95 ms", "p95_ms"),
    _figure("p99 ms", "p99_ms"),
    _figure("p99.9 ms", "p999_ms"),
    _figure("queries/s", "throughput_qps"),
    _figure("images/s", "images_per_s"),
    _text("workspace", "workspace"),
    _text("calibration", "calibration"),
    _text("TensorRT", "tensorrt_version"),
    _text("GPU", "gpu"),
)
# Of table.csv.
FIELDS = tuple(
    Column(name, str, attrgetter(name))
    for name in ("name", "status", "model", "precision", "calibration", "batch", "n", "mean_ms", "p50_ms", "p90_ms",
                 "p95_ms", "p99_ms", "p999_ms", "throughput_qps", "images_per_s", "workspace", "build_s",
                 "engine_bytes", "tensorrt_version", "gpu", "cuda_graph", "data_transfers")
)  # fmt: skip
_LAYERS = (
    Column("layer", attrgetter("name")),
    Column("average ms", lambda layer: _show(layer.average_ms), attrgetter("average_ms"), align="right"),
    Column("share", lambda layer: format_share(layer.share), attrgetter("share"), align="right"),
)


def draw_cases(cases: Sequence[TrtexecCase]) -> dict[str, list[Chart]]:
    """Run -> its pictures; with several runs in the folder their names begin with the run's."""
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
    """The whole report."""
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
    rows = list_drift(case.drift)
    drift = [make_table(columns, rows, file=f"{slug(case.name)}.drift", title="Differences of outputs")] if rows else []
    notes = Notes(lines=tuple(_list_notes(case)), kind="list")
    parts: list[Table | Notes | Chart] = [notes, *charts, *layers, *make_notes(list_shares(case)), *drift]
    return Section(title=case.name, name=f"case-{slug(case.name)}", parts=tuple(parts))


def _list_notes(case: Metrics) -> Iterator[tuple[str, str]]:
    """Contradictions first."""
    yield from (("contradiction", text) for text in case.contradictions)
    if case.contradictions:
        yield "", "the log and the timing file are not of one run; the figures are those of the timing file"
    yield from (("not readable", text) for text in case.unreadable)
    if case.status and case.status != "passed":
        yield case.status, case.status_reason or ""
    yield from (("error", text.strip()) for text in case.errors)
    yield from (("warning", text.strip()) for text in case.warnings)
    yield from (("", text) for text in (*list_facts(case), *case.notes))


def _show(value: float | None) -> str:
    return "" if value is None else format_significant(value, _DIGITS)
