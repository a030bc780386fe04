"""Tables of `enginebench parse` for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from enginebench.analyze.trtexec.records import (
    LayerGroup,
    LayersDocument,
    LogDocument,
    LogRun,
    ProfileDocument,
    Stat,
    TimesDocument,
)
from enginebench.core.caveats import format_caveat
from enginebench.core.text import clean_text, count_of
from enginebench.report.numbers import format_significant, read_label

_ROWS = {
    "latency_ms": "latency",
    "end_to_end_ms": "end to end",
    "gpu_compute_ms": "GPU compute",
    "h2d_ms": "H2D",
    "d2h_ms": "D2H",
    "enqueue_ms": "enqueue",
}
_DIGITS = 5
# Rows of a layer difference that a screen holds; the JSON and the CSV have all.
_DIFF_ROWS = 20


def render_log(document: LogDocument) -> RenderableType:
    """Every run of a log: verdict, facts, figures."""
    return Group(*(part for run in document.runs for part in render_run(run)))


def render_run(run: LogRun) -> list[RenderableType]:
    """One run of a log."""
    style = {"passed": "bold green", "failed": "bold red"}.get(run.status, "bold yellow")
    version = f"TensorRT {run.version}" if run.version else "unknown version"
    title = Text.assemble((run.status.upper(), style), f"  {version}", f"  {clean_text(run.model or '')}")
    parts: list[RenderableType] = [title]
    parts += [say(run.status_reason)] if run.status_reason else []
    facts = [("precision", run.precision), ("batch", run.batch), ("device", run.device), ("queries", run.queries)]
    facts += [("throughput", f"{run.throughput_qps:g} qps" if run.throughput_qps is not None else None)]
    known = [f"{name} {value}" for name, value in facts if value is not None]
    parts += [say(", ".join(known))] if known else []
    stats = {name: stat for name in _ROWS if (stat := getattr(run, name)) is not None}
    parts += [build_stats(stats)] if stats else []
    notes = [*(f"warning: {w.strip()}" for w in run.warnings), *(f"error: {e.strip()}" for e in run.errors)]
    return [*parts, *(say(note) for note in [*notes, *run.nonfinite, *run.notes]), Text("")]


def say(text: str) -> Text:
    """Foreign or own text as one safe line."""
    return Text(clean_text(text))


def build_stats(stats: dict[str, Stat]) -> Table:
    """The summary rows as columns, in ms."""
    table = make_table(["ms"], [_ROWS[name] for name in stats])
    for label in ("min", "mean", "median"):
        table.add_row(label, *(format_cell(getattr(stat, label)) for stat in stats.values()))
    labels = sorted({label for stat in stats.values() for label in stat.percentiles} - {"50"}, key=read_label)
    for label in labels:
        table.add_row(f"p{label}", *(format_cell(stat.percentiles.get(label)) for stat in stats.values()))
    table.add_row("max", *(format_cell(stat.max) for stat in stats.values()))
    return table


def make_table(left: Sequence[str], right: Sequence[str]) -> Table:
    """An empty table with text columns, then number columns."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    for heading in left:
        table.add_column(heading, overflow="fold", ratio=None)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def format_cell(value: float | None) -> str:
    """A number, or a hyphen."""
    return "-" if value is None else format_significant(value, _DIGITS)


def format_share(share: float | None) -> str:
    """A share in percent, or a hyphen."""
    return "-" if share is None else f"{100 * share:.1f} %"


def render_times(document: TimesDocument) -> RenderableType:
    """The figures of a timing file, by our percentile rule."""
    facts = [f"{document.n} queries"]
    facts += [f"{format_significant(document.throughput_qps, _DIGITS)} queries/s"] if document.throughput_qps else []
    facts += [f"{format_significant(document.images_per_s, _DIGITS)} images/s"] if document.images_per_s else []
    stats = {name: stat for name in _ROWS if (stat := getattr(document, name)) is not None}
    parts: list[RenderableType] = [say(", ".join(facts)), build_stats(stats)]
    parts.append(say("percentiles: nearest rank (p99 by trtexec's rule: " + format_trtexec(document) + " ms)"))
    parts.append(say(f"warm-up dropped: {document.warmup_dropped} queries ({document.warmup_reason})"))
    bounds = [text for label in ("50", "99") if (text := format_bounds(document, label))]
    parts += [say(f"95 % within this run: {', '.join(bounds)}")] if bounds else []
    notes = [*document.notes, *map(format_caveat, document.caveats)]
    return Group(*parts, *(say(note) for note in notes))


def format_trtexec(document: TimesDocument) -> str:
    """p99 of the latency by trtexec's rule."""
    return format_cell(document.trtexec["latency_ms"].percentiles["99"])


def format_bounds(document: TimesDocument, label: str) -> str | None:
    """`p99 0.131 to 0.132 ms`, if there is an interval."""
    estimate = document.intervals.get("latency_ms", {}).get(label)
    if estimate is None or estimate.low is None or estimate.high is None:
        return None
    return f"p{label} {format_cell(estimate.low)} to {format_cell(estimate.high)} ms"


def render_profile(document: ProfileDocument, topk: int) -> RenderableType:
    """The slowest layers."""
    table = make_table(["layer"], ["total ms", "average", "median", "share"])
    for layer in document.layers[:topk]:
        values = [layer.total_ms, layer.average_ms, layer.median_ms]
        table.add_row(say(layer.name), *map(format_cell, values), format_share(layer.share))
    hidden = len(document.layers) - topk
    count = f"profiled {count_of(document.count, 'times')}, " if document.count is not None else ""
    total = f"{count}{count_of(len(document.layers), 'layers')}, {format_cell(document.average_ms)} ms in one iteration"
    parts: list[RenderableType] = [
        table,
        say(total + (f"; {count_of(hidden, 'layers')} not shown" if hidden > 0 else "")),
    ]
    if document.remainder_ms is not None:
        text = f"GPU time without the profiler {format_cell(document.end_to_end_ms)} ms, unexplained "
        text += f"{format_cell(document.remainder_ms)} ms"
        parts.append(say(text))
    return Group(*parts, *(say(note) for note in document.notes))


def render_layers(document: LayersDocument, topk: int) -> RenderableType:
    """The layers of an engine, groups of them, and the difference to another engine."""
    parts: list[RenderableType] = []
    for title, groups in (("precision", document.by_precision), ("type", document.by_type)):
        parts += [build_groups(title, groups), Text("")]
    overhead = document.overhead
    text = f"reformats, casts and copies: {count_of(overhead.layers, 'layers')}, {format_share(overhead.share)}"
    parts.append(say(f"{text} of the {'time' if document.shares_of == 'time' else 'layers'}"))
    if document.diff is None:
        parts += [Text(""), build_layers(document, topk)]
    else:
        parts += [Text(""), *render_diff(document)]
    return Group(*parts, *(say(note) for note in document.notes))


def build_groups(title: str, groups: dict[str, LayerGroup]) -> Table:
    """Number and share of layers by type or precision."""
    table = make_table([title], ["layers", "ms", "share"])
    for name, group in groups.items():
        table.add_row(say(name), str(group.layers), format_cell(group.average_ms), format_share(group.share))
    return table


def build_layers(document: LayersDocument, topk: int) -> Table:
    """The slowest layers, or the first where there are no times."""
    table = make_table(["layer", "type", "in", "out"], ["ms", "share"])
    ordered = sorted(document.layers, key=lambda layer: -(layer.average_ms or 0.0))
    for layer in ordered[:topk]:
        texts = [layer.name, layer.type or "-", layer.precision_in or "-", layer.precision_out or "-"]
        table.add_row(*map(say, texts), format_cell(layer.average_ms), format_share(layer.share))
    return table


def render_diff(document: LayersDocument) -> list[RenderableType]:
    """The rows with the largest change of time, and the totals."""
    rows = document.diff or ()
    table = make_table(["ONNX operators", "base", "this"], ["base ms", "this ms", "delta"])
    for row in rows[:_DIFF_ROWS]:
        sides = [row.base, row.candidate]
        name = " + ".join(row.onnx_nodes) or ", ".join(next((s.layers for s in sides if s), ()))
        precisions = [say((side.precision or "-") if side else "") for side in sides]
        times = ["" if side is None else format_significant(side.average_ms or 0.0, 4) for side in sides]
        delta = "-" if row.delta_ms is None else f"{row.delta_ms:+.4f}"
        table.add_row(say(name), *precisions, *times, delta)
    how = "their names" if document.diff_matched_by == "name" else "their place among operators of their type"
    hidden = len(rows) - _DIFF_ROWS
    parts: list[RenderableType] = [
        table,
        say(f"operators met by {how}" + (f"; {hidden} more rows" if hidden > 0 else "")),
    ]
    if (totals := document.diff_totals) is not None:
        text = f"base {format_cell(totals.base_ms)} ms, this {format_cell(totals.candidate_ms)} ms; of that reformats, "
        overhead = f"{format_cell(totals.base_overhead_ms)} and {format_cell(totals.candidate_overhead_ms)} ms"
        parts.append(say(f"{text}casts and copies {overhead}"))
    return parts
