"""A run as one HTML file that opens anywhere: no network, no foreign markup, its scripts named by their hashes."""

from __future__ import annotations

import shlex
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from enginebench.analyze.metrics.scores import find_score
from enginebench.analyze.metrics.tasks import name_metric
from enginebench.core.names import NOT_KNOWN, format_precision
from enginebench.core.records import CaveatCode, Estimate, Machine
from enginebench.core.text import clean_text, count_of
from enginebench.report.html import Html, element, join
from enginebench.report.numbers import (
    UNITS_PER_MS,
    TimeUnit,
    choose_unit,
    format_interval,
    format_significant,
    format_small,
)
from enginebench.report.page_frame import assemble_page, format_chart, wrap_table
from enginebench.report.run.answers import Notes, collect_notes, find_key, list_remarks, name_row, word_notes
from enginebench.report.run.batches import HEADINGS, describe_limit, list_batches, list_cells
from enginebench.report.run.builds import HEADINGS as BUILD_HEADINGS
from enginebench.report.run.builds import list_builds, state_builds
from enginebench.report.run.cells import (
    format_build,
    format_capacity,
    format_limit,
    format_p99,
    format_speedup,
    has_limits,
    name_capacity,
    name_doubt,
    show_shapes,
)
from enginebench.report.run.charts import Chart
from enginebench.report.run.deliveries import format_deliveries
from enginebench.report.run.head import HeadLine, format_head
from enginebench.report.run.rows import Row, RunDocument, sort_rows
from enginebench.report.run.series import label_rows
from enginebench.report.scores import find_metric, format_score

# Headings of the parts in which charts and caveats stand, in the order of the page.
SECTIONS = {
    "speedup": "Speed-up",
    "builds": "Builds",
    "distributions": "Latency distributions",
    "drift": "Latency over time",
    "quality": "Speed against answers",
    "stages": "Stages",
    "layers": "Layers",
    "proof": "Proof of precision",
    "delivery": "Take a row away",
    "machine": "Machine and how to repeat it",
}
# Where a doubt stands: beside the picture of what it is about.
_PLACES: dict[CaveatCode, str] = {
    "builds_differ": "builds",
    "call_overhead": "speedup",
    "cuda_graph_failed": "speedup",
    "enqueue_bound": "speedup",
    "single_process": "speedup",
    "too_few_samples": "distributions",
    "log_disagrees": "distributions",
    "clock_drift": "drift",
    "foreign_cpu": "drift",
    "foreign_gpu": "drift",
    "not_settled": "drift",
    "throttled": "drift",
    "uneven_processes": "drift",
    "constant_answers": "quality",
    "eval_mode": "quality",
    "external_preprocess": "quality",
    "lost_variance": "quality",
    "nonfinite": "quality",
    "outputs_vary": "quality",
    "partly_compared": "quality",
    "random_calibration": "quality",
    "random_inputs": "quality",
    "random_weights": "quality",
    "unread_boxes": "quality",
    "disturbed_profile": "proof",
    "double_precision": "proof",
    "failed_proof": "proof",
    "fallback": "proof",
    "low_coverage": "proof",
    "no_layer_times": "proof",  # the profiler's record is that of the proof
    "low_effective_precision": "proof",
    "packed_weights": "proof",
    "relabelled": "proof",
    "tf32": "proof",
}


_DOUBTFUL = "Absolute times were disturbed; the notes say by what"
_FOOTER = (
    "p50: geometric mean of the process medians; ±: half of the 95 % interval over processes; p99: nearest rank of all "
    "calls. Speed-up: ratio of medians of neighbouring repetitions."
)


class Column(Struct, frozen=True, kw_only=True):
    """A column of the comparison: what stands in a cell, and the number by which it is sorted (None: the text)."""

    title: str
    text: str
    value: float | None = None
    numeric: bool = True
    hint: str = ""
    doubt: str = ""  # what is wrong with the figure, to be read at it


def format_page(
    document: RunDocument,
    charts: Sequence[Chart],
    bundle: str | None,
    *,
    command: Sequence[str] = (),
    started_utc: str = "",
    refusals: Mapping[str, str | None] | None = None,
) -> str:
    """The page of a run.

    Args:
        document: of the run.
        charts: of its rows.
        bundle: JavaScript that defines `vegaEmbed`; None for a page without charts.
        command: words of the command that made the run.
        started_utc: when it began.
        refusals: id of each row -> why it cannot be delivered, or None; nothing for a page that does not say.
    """
    parts = (
        element("a", "Skip to the comparison", class_="skip", href="#comparison"),
        _format_head(document, started_utc),
        element(
            "main",
            _format_comparison(document),
            *_format_sections(document, charts, command, started_utc, refusals or {}),
        ),
    )
    return assemble_page(
        f"{document.model}: engines compared",
        parts,
        specs={chart.name: chart.spec for chart in charts},
        bundle=bundle,
        footer=_FOOTER,
        labels=label_rows(document),
    )


def _format_head(document: RunDocument, started_utc: str) -> Html:
    others = list_remarks(document)
    limit = document.spec.get("p99_limit_ms")
    others += describe_limit(list_batches(document.rows, limit), limit)
    counts = f"{count_of(len(document.rows), 'rows')}, {sum(row.n for row in document.rows):,} calls"
    shapes = dict.fromkeys(show_shapes(row.shapes) for row in document.rows if row.shapes)
    facts = [counts, "; ".join(shapes), document.machine.cpu_model if document.machine else "", started_utc]
    return element(
        "header",
        element("p", "EngineBench", class_="brand"),
        element("h1", document.model),
        element("dl", *(_format_line_of_head(line) for line in format_head(document)), class_="head"),
        element("ul", *(element("li", sentence) for sentence in others), class_="also") if others else None,
        element("p", " · ".join(fact for fact in facts if fact), class_="facts"),
    )


def _format_line_of_head(line: HeadLine) -> Html:
    texts = [
        element("dd", text, class_="answer" if line.label in ("FASTEST", "MEASURED") else None) for text in line.lines
    ]
    return join(element("dt", line.label), *texts)


def _format_comparison(document: RunDocument) -> Html:
    document = replace(document, rows=sort_rows(document.rows))
    notes = collect_notes(document.rows)
    return element(
        "section",
        element("h2", "Comparison", id="comparison-title"),
        _format_filters(document),
        _format_table(document, notes),
        *_format_notes(notes),
        id="comparison",
        aria_labelledby="comparison-title",
    )


def _format_filters(document: RunDocument) -> Html:
    """A group of boxes for each of engine, precision and batch in which rows differ."""
    groups: dict[str, list[str]] = {
        "engine": list(dict.fromkeys(row.engine.partition(":")[0] for row in document.rows)),
        "precision": list(dict.fromkeys(str(row.precision) for row in document.rows)),
        "batch": list(dict.fromkeys(str(row.batch) for row in document.rows)),
    }
    fields = [_format_group(name, values) for name, values in groups.items() if len(values) > 1]
    count = element("p", f"{count_of(len(document.rows), 'rows')}", id="count", role="status")
    return element("form", *fields, count, class_="filters", id="filters", aria_label="Filter rows and charts")


def _format_group(name: str, values: Sequence[str]) -> Html:
    boxes = [
        element(
            "label", element("input", type="checkbox", name=name, value=value, checked=True), element("span", value)
        )
        for value in values
    ]
    return element("fieldset", element("legend", name), *boxes)


def _format_table(document: RunDocument, notes: Notes) -> Html:
    unit = choose_unit(row.p50_ms.value for row in document.rows if row.p50_ms)
    labels = label_rows(document)
    lines = [
        (row, list(_list_columns(row, unit, numbers, document)))
        for row, numbers in zip(document.rows, notes.numbers, strict=True)
    ]
    heads = [
        element(
            "th",
            element("button", column.title, type="button", title=column.hint or None),
            scope="col",
            class_="number" if column.numeric else None,
            aria_sort="none",
        )
        for column in (lines[0][1] if lines else [])
    ]
    body = [_format_line(row, columns, labels[row.id]) for row, columns in lines]
    table = element(
        "table",
        element("caption", "Every row of the run; a button in a heading sorts by it."),
        element("thead", element("tr", *heads)),
        element("tbody", *body),
        id="rows",
        data_file="table",
    )
    return wrap_table(table, "Comparison of all rows")


def _format_line(row: Row, columns: Sequence[Column], label: str) -> Html:
    cells = [
        element(
            "th" if i == 0 else "td",
            *(_stack_engine(column.text) if i == 0 else [column.text]),
            element("span", column.doubt, class_="doubt", title=_DOUBTFUL) if column.doubt else None,
            scope="row" if i == 0 else None,
            class_="number" if column.numeric else None,
            data_value=None if column.value is None else repr(column.value),
        )
        for i, column in enumerate(columns)
    ]
    return element(
        "tr",
        *cells,
        class_=" ".join(filter(None, ("" if row.status == "ok" else row.status, name_doubt(row)))) or None,
        data_engine=row.engine.partition(":")[0],
        data_precision=row.precision,
        data_batch=row.batch,
        data_label=label,
    )


def _stack_engine(engine: str) -> list[str]:
    """The engine's name, and its options beneath it in smaller letters."""
    name, colon, options = engine.partition(":")
    return [name, *([element("span", f"{colon}{options}", class_="options")] if options else [])]


def _list_columns(row: Row, unit: TimeUnit, numbers: Sequence[int], document: RunDocument) -> Iterator[Column]:
    """The cells of a row, in the order in which a person reads them."""
    factor = UNITS_PER_MS[unit]
    rows = document.rows
    mark = " ◆" if row.pareto else ""
    yield Column(title="engine", text=row.engine, numeric=False)
    yield Column(
        title="precision",
        text=format_precision(row.precision, row.recipe, row.mix) + mark,
        numeric=False,
        hint="◆: no other row is both faster and better",
    )
    if len({r.batch for r in rows}) > 1:
        yield Column(title="batch", text=str(row.batch), value=row.batch)
    for name in ("bucket", "axes", "scope", "cache", "device", "threads"):
        if len({getattr(r, name) for r in rows}) > 1:
            yield Column(title=name, text=str(getattr(row, name)), numeric=False)
    p50 = format_interval(row.p50_ms, factor, digits=4) if row.p50_ms else row.status
    yield Column(title=f"p50 ({unit})", text=p50, value=_scale(row.p50_ms, factor), doubt=name_doubt(row))
    yield Column(
        title=f"p99 ({unit})",
        text=format_p99(row, factor, missing=""),
        value=_scale(row.p99_ms, factor),
        hint="?: too few calls to carry it",
    )
    yield Column(title="images/s", text=_show(row.throughput_per_s), value=row.throughput_per_s)
    yield Column(title="speed-up", text=format_speedup(row, "±", missing=""), value=_scale(row.speedup, 1.0))
    yield Column(title="verdict", text=(row.verdict or "").replace("_", " "), numeric=False)
    difference = "" if row.max_abs_diff is None else format_small(row.max_abs_diff)
    yield Column(title="max diff", text=difference, value=row.max_abs_diff)
    if metric := find_metric(rows):
        score = find_score(row.scores, metric)
        value = _scale(score.value, 1.0) if score else None
        yield Column(title=name_metric(metric), text=format_score(row, metric), value=value)
    if capacity := name_capacity(rows):
        passes = row.capacity.passes_qps if row.capacity else None
        yield Column(title=capacity, text=format_capacity(row, missing=""), value=passes, hint="?: see its points")
    if has_limits(rows):
        yield Column(
            title="of limit",
            text=format_limit(row, missing=""),
            value=row.of_limit,
            hint="the least time by this machine's best rates, over the median; and what sets it",
        )
    if any(r.effective_precision for r in rows):
        yield Column(title="ran in", text=_format_shares(row), numeric=False, hint="share of time by precision")
    yield Column(title="build (s)", text=format_build(row), value=row.build_s)
    size = None if row.size_bytes is None else row.size_bytes / 1e6
    yield Column(title="size (MB)", text=_show(size), value=size)
    if any(r.peak_memory_bytes for r in rows):
        memory = None if row.peak_memory_bytes is None else row.peak_memory_bytes / 1e6
        yield Column(title="memory (MB)", text=_show(memory), value=memory)
    if any(r.energy_mj for r in rows):
        yield Column(title="energy (mJ)", text=_show(row.energy_mj), value=row.energy_mj)
    if any(name_doubt(r) for r in rows):
        # Also in words of its own: the file of the table holds numbers alone in the columns of numbers.
        yield Column(title="validity", text=row.validity if row.p50_ms else "", numeric=False)
    yield Column(title="notes", text=", ".join(map(str, numbers)), numeric=False)


def _scale(estimate: Estimate | None, factor: float) -> float | None:
    return None if estimate is None else estimate.value * factor


def _show(value: float | None, digits: int = 3) -> str:
    return "" if value is None else format_significant(value, digits)


def _format_shares(row: Row) -> str:
    shares = sorted((row.effective_precision or {}).items(), key=lambda pair: -pair[1])
    return ", ".join(f"{name} {share:.0%}" for name, share in shares)


def _format_notes(notes: Notes) -> list[Html]:
    """What must be known beside the table: of every row first, then by number."""
    common = [element("li", element("b", "all rows: "), text) for text in notes.common]
    numbered = [element("li", element("b", f"{i}: "), text) for i, text in enumerate(notes.numbered, start=1)]
    return [element("ul", *common, *numbered, class_="notes")] if common or numbered else []


def _format_sections(
    document: RunDocument,
    charts: Sequence[Chart],
    command: Sequence[str],
    started_utc: str,
    refusals: Mapping[str, str | None],
) -> Iterator[Html]:
    for name, title in SECTIONS.items():
        parts = [
            format_chart(
                chart.name, chart.title, chart.description, chart.spec, heading=chart.title != title, row=chart.row
            )
            for chart in charts
            if chart.section == name
        ]
        if name == "speedup":
            parts += _format_batches(document)
        if name == "builds":
            parts += _format_builds(document)
        if name == "proof":
            parts += _format_proofs(document)
        if name == "delivery":
            parts += format_deliveries(document, refusals)
        if name == "machine":
            parts += _format_machine(document.machine) + _format_repetition(command, document, started_utc)
        if parts:
            heading = element("h2", title, id=f"{name}-title")
            yield element(
                "section", heading, *_format_caveats(document, name), *parts, id=name, aria_labelledby=f"{name}-title"
            )


def _format_batches(document: RunDocument) -> list[Html]:
    """Latency against throughput as figures, of engines that ran several batches."""
    series = list_batches(document.rows, document.spec.get("p99_limit_ms"))
    if not series:
        return []
    return [_format_figures(HEADINGS, list_cells(series), "batches", "Latency against throughput by batch")]


def _format_builds(document: RunDocument) -> list[Html]:
    """What several builds of an engine show, where a run made them."""
    sentences = [element("p", sentence) for sentence in state_builds(document.rows)]
    cells = list_builds(document.rows)
    return [*sentences, _format_figures(BUILD_HEADINGS, cells, "builds", "Builds of each engine")] if cells else []


def _format_figures(headings: Sequence[str], rows: Iterable[Sequence[str]], name: str, caption: str) -> Html:
    """A table of figures, with the engine and its precision in front."""
    numeric = [None, None] + ["number"] * (len(headings) - 2)
    head = [element("th", text, scope="col", class_=kind) for text, kind in zip(headings, numeric, strict=True)]
    lines = [
        element(
            "tr",
            element("th", *_stack_engine(first), scope="row"),
            *(element("td", text, class_=kind) for text, kind in zip(others, numeric[1:], strict=True)),
        )
        for first, *others in rows
    ]
    table = element("table", element("thead", element("tr", *head)), element("tbody", *lines), data_file=name)
    return wrap_table(table, caption)


def _format_caveats(document: RunDocument, section: str) -> list[Html]:
    """The doubts about what a section shows: each once, with the rows that have it and the range of its figures."""
    found = [(row, c) for row in document.rows for c in row.caveats if _PLACES.get(c.code, "machine") == section]
    having: dict[Hashable, list[Row]] = {}
    for row, caveat in found:
        having.setdefault(find_key(caveat), []).append(row)
    measured = {row.id for row in document.rows if row.n}
    items = [
        element("li", element("b", f"{_name_rows(having[key], measured)}: "), clean_text(text))
        for key, text in word_notes(caveat for _, caveat in found).items()
    ]
    return [element("ul", *items, class_="caveats", aria_label="Caveats")] if items else []


def _name_rows(rows: Sequence[Row], measured: set[str]) -> str:
    if len(measured) > 1 and {row.id for row in rows if row.n} == measured:
        return "all rows"
    return ", ".join(dict.fromkeys(map(name_row, rows)))


def _format_proofs(document: RunDocument) -> list[Html]:
    """Asked for and ran in, of every row that ran."""
    rows = [row for row in document.rows if row.n]
    if not rows:
        return []
    head = [element("th", text, scope="col") for text in ("row", "asked for", "called", "share of time")]
    lines = [
        element(
            "tr",
            element("th", name_row(row), scope="row"),
            element("td", row.requested_precision or NOT_KNOWN),
            element("td", row.precision or NOT_KNOWN),
            element("td", _format_shares(row) or "no record from the runtime"),
        )
        for row in rows
    ]
    table = element("table", element("thead", element("tr", *head)), element("tbody", *lines), data_file="precision")
    return [wrap_table(table, "Precision asked for and run")]


def _format_machine(machine: Machine | None) -> list[Html]:
    if machine is None:
        return []
    facts = {
        "CPU": f"{machine.cpu_model}, {count_of(machine.cores_physical, 'cores')}, {len(machine.cpus_allowed)} usable",
        "flags": ", ".join(machine.cpu_flags),
        "memory": f"{machine.memory_bytes / 2**30:.1f} GiB",
        "GPU": ", ".join(f"{gpu.name} (driver {gpu.driver})" for gpu in machine.gpus),
        "system": f"{machine.os}, {machine.arch}" + (f", {machine.virtual}" if machine.virtual else ""),
        "governor": machine.governor or "",
        "versions": ", ".join(f"{name} {version}" for name, version in sorted(machine.versions.items())),
    }
    pairs = [join(element("dt", name), element("dd", text)) for name, text in facts.items() if text]
    return [element("dl", *pairs, class_="machine")]


def _format_repetition(command: Sequence[str], document: RunDocument, started_utc: str) -> list[Html]:
    """The command that made the run, so that it can be repeated."""
    if not command:
        return []
    when = f" (run on {started_utc})" if started_utc else ""
    return [
        element("h3", f"To repeat it{when}"),
        element("pre", element("code", shlex.join(command)), tabindex=0, role="region", aria_label="Command"),
        element("button", "Copy", type="button", id="copy"),
    ]
