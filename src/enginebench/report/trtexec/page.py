"""The page of a folder that trtexec left: the same frame as that of a run, around what the files hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from enginebench.analyze.trtexec.folder import read_folder
from enginebench.core.names import slug
from enginebench.core.store import write_atomic
from enginebench.report.bundle import load_bundle
from enginebench.report.charts import Spec
from enginebench.report.html import Html, element
from enginebench.report.numbers import format_significant
from enginebench.report.page_frame import assemble_page, format_chart, wrap_table
from enginebench.report.trtexec.report import (
    DRIFT_FIELDS,
    Metrics,
    TrtexecReport,
    describe_cases,
    draw_case,
    format_share,
    list_drift,
    list_facts,
    list_shares,
)

_DIGITS = 5
_TITLES = {
    "latency_hist": "Latencies",
    "percentiles": "Percentiles",
    "latency_series": "Latency over the run",
    "per_layer_time": "Layers",
}


def write_trtexec_page(folder: Path) -> Path:
    """Writes report.html about what trtexec left in `folder`; its path.

    Raises:
        MissingDependency: the extra `report` is not installed.
        UsageError: the folder holds nothing of trtexec.
        ArtifactError: the folder cannot be written.
    """
    bundle = load_bundle()
    cases = read_folder(folder)
    charts = {case.name: draw_case(case) for case in cases}
    path = folder / "report.html"
    write_atomic(path, format_trtexec_page(describe_cases(cases), charts, bundle, folder.name).encode())
    return path


def format_trtexec_page(
    report: TrtexecReport, charts: Mapping[str, Mapping[str, Spec]], bundle: str | None, title: str
) -> str:
    """The page: the table of all runs, then for each what contradicts, what limits, its pictures and layers.

    Args:
        report: of the folder.
        charts: run -> name -> picture.
        bundle: JavaScript that defines `vegaEmbed`.
        title: of the page.
    """
    specs = {_join_name(case, name): spec for case, pictures in charts.items() for name, spec in pictures.items()}
    parts = (
        element("a", "Skip to the table", class_="skip", href="#comparison"),
        element(
            "header",
            element("p", "EngineBench", class_="brand"),
            element("h1", f"trtexec: {title}"),
            element("p", _count(report), class_="answer"),
        ),
        element("main", _format_metrics(report), *(_format_case(c, charts.get(c.name, {})) for c in report.cases)),
    )
    return assemble_page(f"trtexec: {title}", parts, specs=specs, bundle=bundle, footer="Percentiles: nearest rank.")


def _join_name(case: str, picture: str) -> str:
    return f"{slug(case)}.{picture}"


def _count(report: TrtexecReport) -> str:
    count = len(report.cases)
    failed = [case.name for case in report.cases if case.status == "failed"]
    return f"{count} run{'s' if count != 1 else ''}" + (f", failed: {', '.join(failed)}" if failed else "")


def _format_metrics(report: TrtexecReport) -> Html:
    headings = ["run", "status", "model", "precision", "batch", "mean (ms)", "p50 (ms)", "p99 (ms)", "queries/s"]
    headings += ["images/s", "workspace", "TensorRT", "GPU"]
    numeric = set(headings[4:10])
    heads = [
        element(
            "th",
            element("button", text, type="button"),
            scope="col",
            aria_sort="none",
            class_="number" if text in numeric else None,
        )
        for text in headings
    ]
    body = [element("tr", *_list_cells(case)) for case in report.cases if set(case.files) != {"drift"}]
    table = element(
        "table", element("thead", element("tr", *heads)), element("tbody", *body), id="rows", data_file="runs"
    )
    return element(
        "section",
        element("h2", "Runs", id="comparison-title"),
        wrap_table(table, "All runs"),
        *_list_items([("", note) for note in report.notes], "notes"),
        id="comparison",
        aria_labelledby="comparison-title",
    )


def _list_cells(case: Metrics) -> list[Html]:
    """One line of the table: texts, then numbers with the value by which they are sorted."""
    numbers = (case.batch, case.mean_ms, case.p50_ms, case.p99_ms, case.throughput_qps, case.images_per_s)
    cells = [element("th", case.name, scope="row")]
    cells += [element("td", text or "") for text in (case.status, case.model, case.precision)]
    cells += [
        element(
            "td",
            "" if number is None else format_significant(number, _DIGITS),
            class_="number",
            data_value=None if number is None else repr(number),
        )
        for number in numbers
    ]
    return cells + [element("td", text or "") for text in (case.workspace, case.tensorrt_version, case.gpu)]


def _format_case(case: Metrics, pictures: Mapping[str, Spec]) -> Html:
    doubts = [("contradiction: ", text) for text in case.contradictions]
    doubts += [("not readable: ", text) for text in case.unreadable]
    if case.status and case.status != "passed":
        doubts.append((f"{case.status}: ", case.status_reason or ""))
    doubts += [("error: ", text) for text in case.errors] + [("warning: ", text) for text in case.warnings]
    figures = [
        format_chart(
            _join_name(case.name, name), _TITLES.get(name, name), f"{_TITLES.get(name, name)} of {case.name}", spec
        )
        for name, spec in pictures.items()
    ]
    identity = f"case-{slug(case.name)}"
    return element(
        "section",
        element("h2", case.name, id=identity),
        *_list_items(doubts, "caveats"),
        *_list_items([("", text) for text in list_facts(case)], "notes"),
        *figures,
        *_format_layers(case),
        *_list_items([("", text) for text in list_shares(case)], "notes"),
        *_format_drift(case),
        *_list_items([("", note) for note in case.notes], "notes"),
        aria_labelledby=identity,
    )


def _list_items(items: Sequence[tuple[str, str]], kind: str) -> list[Html]:
    lines = [element("li", element("b", lead) if lead else None, text) for lead, text in items]
    return [element("ul", *lines, class_=kind)] if lines else []


def _format_layers(case: Metrics) -> list[Html]:
    if not case.top_layers:
        return []
    rows = [
        (
            layer.name,
            "" if layer.average_ms is None else format_significant(layer.average_ms, _DIGITS),
            format_share(layer.share),
        )
        for layer in case.top_layers
    ]
    return [
        _format_table(("layer", "average (ms)", "share"), rows, f"{slug(case.name)}.layers", f"layers of {case.name}")
    ]


def _format_drift(case: Metrics) -> list[Html]:
    rows = list_drift(case.drift)
    name = f"differences of outputs of {case.name}"
    return [_format_table(DRIFT_FIELDS, rows, f"{slug(case.name)}.drift", name)] if rows else []


def _format_table(headings: Sequence[str], rows: Sequence[Sequence[str]], file: str, name: str) -> Html:
    """A table whose first column names its rows."""
    heads = [element("th", text, scope="col") for text in headings]
    lines = [
        element("tr", element("th", first, scope="row"), *(element("td", text) for text in others))
        for first, *others in rows
    ]
    table = element("table", element("thead", element("tr", *heads)), element("tbody", *lines), data_file=file)
    return wrap_table(table, name)
