"""What `enginebench parse` shows, as sections."""

from collections.abc import Sequence

from enginebench.core.caveats import format_caveat
from enginebench.core.text import count_of
from enginebench.features.trtexec.records import ROWS, Joint, LogDocument, LogRun, Stat, TimesDocument
from enginebench.features.trtexec.report import format_bounds
from enginebench.report.layer_table import DIGITS, format_cell, format_remainder, format_share, list_groups
from enginebench.report.numbers import format_significant, read_label
from enginebench.report.table import Section, Table, list_texts, make_notes, make_table
from enginebench.stats.layer_records import LayersDocument, ProfileDocument

# Rows of a layer difference that a screen holds; the JSON and the CSV have all.
_DIFF_ROWS = 20


def list_log(document: LogDocument) -> list[Section]:
    """Every run of a log: verdict, facts, figures; first those of one command together."""
    return [*_list_joint(document.joint), *map(_list_run, document.runs)]


def _list_joint(joint: Joint | None) -> list[Section]:
    if joint is None:
        return []
    facts = [f"medians over them; single medians {format_cell(joint.low_ms)} to {format_cell(joint.high_ms)} ms"]
    facts += [f"throughput {joint.throughput_qps:g} qps"] if joint.throughput_qps is not None else []
    return [Section(title=f"{joint.runs} processes of one command", parts=(*make_notes(facts), *_list_stats(joint)))]


def _list_run(run: LogRun) -> Section:
    version = f"TensorRT {run.version}" if run.version else "unknown version"
    facts: list[tuple[str, object]] = [
        ("precision", run.precision),
        ("batch", run.batch),
        ("device", run.device),
        ("queries", run.queries),
    ]
    if run.throughput_qps is not None:
        images = (
            f" ({run.images_per_second:g} images/s)" if run.images_per_second not in (None, run.throughput_qps) else ""
        )
        facts += [("throughput", f"{run.throughput_qps:g} qps{images}")]
    known = ", ".join(f"{name} {value}" for name, value in facts if value is not None)
    notes = [*(f"warning: {w.strip()}" for w in run.warnings), *(f"error: {e.strip()}" for e in run.errors)]
    title = "  ".join(filter(None, (run.status.upper(), version, run.model)))
    above = make_notes([text for text in (run.status_reason, known) if text])
    return Section(title=title, parts=(*above, *_list_stats(run), *make_notes([*notes, *run.nonfinite, *run.notes])))


def _list_stats(document: object) -> list[Table]:
    """The summary rows as columns, in ms."""
    stats: dict[str, Stat] = {name: stat for name in ROWS if (stat := getattr(document, name)) is not None}
    if not stats:
        return []
    labels = sorted({label for stat in stats.values() for label in stat.percentiles} - {"50"}, key=read_label)
    lines = [(name, *(format_cell(getattr(s, name)) for s in stats.values())) for name in ("min", "mean", "median")]
    lines += [(f"p{label}", *(format_cell(s.percentiles.get(label)) for s in stats.values())) for label in labels]
    lines.append(("max", *(format_cell(stat.max) for stat in stats.values())))
    return [make_table(list_texts(["ms"], [ROWS[name][1] for name in stats]), lines)]


def list_times(document: TimesDocument) -> list[Section]:
    """The figures of a timing file, by our percentile rule."""
    facts = [f"{document.n} queries"]
    facts += [f"{format_significant(document.throughput_qps, DIGITS)} queries/s"] if document.throughput_qps else []
    facts += [f"{format_significant(document.images_per_s, DIGITS)} images/s"] if document.images_per_s else []
    theirs = format_cell(document.trtexec["latency_ms"].percentiles["99"])
    below = [f"percentiles: nearest rank (p99 by trtexec's rule: {theirs} ms)"]
    below.append(f"warm-up dropped: {document.warmup_dropped} queries ({document.warmup_reason})")
    intervals = document.intervals.get("latency_ms", {})
    bounds = [text for label in ("50", "99") if (text := format_bounds(label, intervals.get(label)))]
    below += [f"95 % within this run: {', '.join(bounds)}"] if bounds else []
    below += [*document.notes, *map(format_caveat, document.caveats)]
    return [Section(title=", ".join(facts), parts=(*_list_stats(document), *make_notes(below)))]


def list_profile(document: ProfileDocument, topk: int) -> list[Section]:
    """The slowest layers."""
    lines = [
        (layer.name, *map(format_cell, (layer.total_ms, layer.average_ms, layer.median_ms)), format_share(layer.share))
        for layer in document.layers[:topk]
    ]
    hidden = len(document.layers) - topk
    count = f"profiled {count_of(document.count, 'times')}, " if document.count is not None else ""
    total = f"{count}{count_of(len(document.layers), 'layers')}, {format_cell(document.average_ms)} ms in one iteration"
    texts = [total + (f"; {count_of(hidden, 'layers')} not shown" if hidden > 0 else "")]
    if document.remainder_ms is not None:
        whole = f"GPU time without the profiler {format_cell(document.end_to_end_ms)} ms"
        texts.append(f"{whole}: {format_remainder(document.remainder_ms, document.end_to_end_ms)}")
    table = make_table(list_texts(["layer"], ["total ms", "average", "median", "share"]), lines)
    return [Section(parts=(table, *make_notes([*texts, *document.notes])))]


def list_layers(document: LayersDocument, topk: int) -> list[Section]:
    """The layers of an engine, groups of them, and the difference to another engine."""
    overhead = document.overhead
    text = f"reformats, casts and copies: {count_of(overhead.layers, 'layers')}, {format_share(overhead.share)}"
    text += f" of the {'time' if document.shares_of == 'time' else 'layers'}"
    groups = [list_groups("precision", document.by_precision), list_groups("type", document.by_type)]
    table, notes = (_list_slowest(document, topk), []) if document.diff is None else _list_differences(document)
    return [Section(parts=(*groups, *make_notes([text]), table, *make_notes([*notes, *document.notes])))]


def _list_slowest(document: LayersDocument, topk: int) -> Table:
    """The slowest layers, or the first where there are no times."""
    lines = [
        (
            *(text or "-" for text in (layer.name, layer.type, layer.precision_in, layer.precision_out)),
            format_cell(layer.average_ms),
            format_share(layer.share),
        )
        for layer in sorted(document.layers, key=lambda layer: -(layer.average_ms or 0.0))[:topk]
    ]
    return make_table(list_texts(["layer", "type", "in", "out"], ["ms", "share"]), lines)


def _list_differences(document: LayersDocument) -> tuple[Table, list[str]]:
    """The rows with the largest change of time, and the totals."""
    rows = document.diff or ()
    lines: list[Sequence[str]] = []
    for row in rows[:_DIFF_ROWS]:
        sides = [row.base, row.candidate]
        name = " + ".join(row.onnx_nodes) or ", ".join(next((s.layers for s in sides if s), ()))
        precisions = [(side.precision or "-") if side else "" for side in sides]
        times = ["" if side is None else format_cell(side.average_ms, 4) for side in sides]
        lines.append((name, *precisions, *times, "-" if row.delta_ms is None else f"{row.delta_ms:+.4f}"))
    how = "their names" if document.diff_matched_by == "name" else "their rank among operators of their type"
    hidden = len(rows) - _DIFF_ROWS
    texts = [f"operators met by {how}" + (f"; {hidden} more lines" if hidden > 0 else "")]
    if (totals := document.diff_totals) is not None:
        text = f"base {format_cell(totals.base_ms)} ms, this {format_cell(totals.candidate_ms)} ms; of that reformats, "
        overhead = f"{format_cell(totals.base_overhead_ms)} and {format_cell(totals.candidate_overhead_ms)} ms"
        texts.append(f"{text}casts and copies {overhead}")
    return make_table(list_texts(["ONNX operators", "base", "this"], ["base ms", "this ms", "delta"]), lines), texts
