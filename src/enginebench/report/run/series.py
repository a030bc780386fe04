"""Turn stored configurations into what charts draw: labels, bins, curves; thinned, so that a page stays small. Times in
ms."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from enginebench.core.records import Measurement, Result
from enginebench.core.text import clean_text
from enginebench.report.charts import Point, shorten_name
from enginebench.report.numbers import format_verdict
from enginebench.report.run.columns import format_speedup, is_disturbed
from enginebench.report.run.head import name_configurations
from enginebench.report.run.remarks import name_measured_configurations
from enginebench.report.run.rows import Row, RunDocument
from enginebench.stats.metrics.scores import find_metric, find_value
from enginebench.stats.metrics.tasks import name_metric
from enginebench.stats.quantiles import Floats, median, nearest_rank
from enginebench.stats.stages import StagesDocument

# Bars between the fastest call and p99.9; more of them are narrower than three pixels of the picture.
_BINS = 48
# Points of a curve up to p99.9: of a row, and of one of its trials, which is drawn thinner.
_CURVE, _THIN_CURVE = 60, 24
# Trials that are drawn; beyond it lines lie on each other. The subtitle says so.
MAX_TRIALS = 20
# Medians of neighbours along one trial.
_CHUNKS = 16
# Where the tail axis ends: one call in a thousand.
_DEEPEST = 3.0
_DIGITS = 5


def label_rows(document: RunDocument) -> dict[str, str]:
    """Return row id -> its name with the settings in which rows differ, short and different for every row.

    `~`: its absolute times were disturbed.
    """
    names = name_measured_configurations(document.rows)
    labels = number_names([names[row.id] + _mark_row(row) for row in document.rows])
    return {row.id: label for row, label in zip(document.rows, labels, strict=True)}


def _mark_row(row: Row) -> str:
    modelled = " (modelled)" if row.modelled else ""
    return f"{modelled} ~" if is_disturbed(row) else modelled


def number_names(names: Sequence[str]) -> list[str]:
    """Shorten long names in the middle; those that look alike are numbered."""
    labels, taken = [], Counter[str]()
    for label in map(shorten_name, names):
        taken[label] += 1
        labels.append(label if taken[label] == 1 else f"{label} #{taken[label]}")
    return labels


def list_speedups(document: RunDocument, labels: Mapping[str, str]) -> list[Point]:
    return [
        {
            "row": labels[row.id],
            "speedup": _round(row.speedup.value),
            "low": _round(row.speedup.low),
            "high": _round(row.speedup.high),
            "precision": row.precision,
            "text": format_speedup(row),
            "verdict": "baseline" if row.id == row.baseline else format_verdict(row.verdict),
        }
        for row in document.rows
        if row.speedup
    ]


def bin_rows(results: Iterable[Result], labels: Mapping[str, str]) -> tuple[list[Point], list[Point]]:
    """Return (bars of each row up to its p99.9, evenly wide in the logarithm; the median of each trial)."""
    bars: list[Point] = []
    medians: list[Point] = []
    for result in results:
        kept = [m for m in result.measurements if m.latency_ns]
        if kept:
            bars += bin_calls(np.concatenate([read_ms(m) for m in kept]), labels[result.id])
            own = [(_round(median(m.latency_ns) / 1e6), m.trial) for m in kept[:MAX_TRIALS]]
            medians += [{"row": labels[result.id], "ms": ms, "trial": number} for ms, number in own]
    return bars, medians


def bin_calls(values: Floats, label: str) -> list[Point]:
    """Return bars of the times of a row in ms, up to their p99.9."""
    shown = values[(values > 0) & (values <= nearest_rank(np.sort(values), 0.999))]
    if not len(shown):
        return []
    # No more bars than different times: a coarse clock gives gaps that mean nothing.
    bins = min(_BINS, len(np.unique(shown)))
    counts, edges = np.histogram(np.log(shown), bins=bins)
    ends = np.exp(edges)
    if bins == 1:
        ends = np.array([shown[0] * 0.995, shown[0] * 1.005])
    return [
        {"row": label, "from": _round(low), "to": _round(high), "calls": int(count)}
        for low, high, count in zip(ends[:-1], ends[1:], counts, strict=True)
        if count
    ]


def follow_rows(results: Iterable[Result], labels: Mapping[str, str]) -> tuple[list[Point], list[Point]]:
    """Return (curve of each row, curve of each of its trials): latency by the fraction of calls that are no slower."""
    curves: list[Point] = []
    thin: list[Point] = []
    for result in results:
        kept = [m for m in result.measurements if m.latency_ns]
        if kept:
            label = labels[result.id]
            curves += follow_calls(np.concatenate([read_ms(m) for m in kept]), label)
            # Counted, not by their own numbers: two processes that carry the same number are two lines.
            for line, m in enumerate(kept[:MAX_TRIALS]):
                thin += follow_calls(read_ms(m), label, _THIN_CURVE, line=line)
    return curves, thin


def follow_calls(values: Floats, label: str, points: int = _CURVE, **fields: Any) -> list[Point]:
    """Return the curve of the times of a row in ms."""
    ascending = np.sort(values)
    # Beyond one call in n there is nothing to follow.
    deepest = min(_DEEPEST, max(math.log10(len(ascending)), 0.3))
    # The first is the fastest call; rounded: 1 - 10 ** -3 is a little more or less than 0.999.
    shares = {r: round(1 - 10.0**-r, 12) or 1e-12 for r in np.linspace(0.0, deepest, points)}
    curve = [{"rarity": _round(r), "ms": _round(nearest_rank(ascending, q))} for r, q in shares.items()]
    return [{"row": label, **fields, **point} for point in curve]


def trace_rows(results: Iterable[Result], labels: Mapping[str, str]) -> tuple[list[Point], bool]:
    """Return (medians of neighbours along each trial, relative to the row's; whether the reference kernel is among
    them).

    Trials of all rows are interleaved, so that the same position on the axis is nearly the same time.
    """
    points: list[Point] = []
    for result in results:
        kept = [m for m in result.measurements if m.latency_ns]
        centre = median([median(m.latency_ns) for m in kept]) if kept else 0.0
        if centre > 0:
            for index, measurement in enumerate(kept):
                points += _trace(measurement, index, centre, labels[result.id])
            points += _trace_reference(kept, labels[result.id])
    return points, any(point["line"] < 0 for point in points)


def _trace(measurement: Measurement, index: int, centre: float, label: str) -> list[Point]:
    values = np.asarray(measurement.latency_ns, dtype=np.float64)
    parts = np.array_split(np.arange(len(values)), min(_CHUNKS, len(values)))
    points = []
    for i, part in enumerate(parts):
        value = median(values[part])
        blocks = [b for b in measurement.blocks if b.start <= part[-1] and part[0] < b.stop]
        marks = sorted({mark for block in blocks for mark in block.marks})
        at = _round(index + 0.5 + (i + 0.5) / len(parts))  # trial k lies around k: its tick
        point: Point = {"row": label, "at": at, "line": index, "what": "latency", "relative": _round(value / centre)}
        seen = {"marks": ", ".join(marks).replace("_", " ")} if marks else {}
        points.append(point | {"ms": _round(value / 1e6)} | seen)
    return points


def _trace_reference(kept: Sequence[Measurement], label: str) -> list[Point]:
    medians = [(index, median(m.reference_ns)) for index, m in enumerate(kept) if m.reference_ns]
    centre = median([value for _, value in medians]) if len(medians) > 1 else 0.0
    fields = {"row": label, "line": -1, "what": "reference kernel"}
    return [
        fields | {"at": index + 1, "relative": _round(value / centre), "ms": _round(value / 1e6)}
        for index, value in medians
        if centre > 0
    ]


def place_quality(document: RunDocument, labels: Mapping[str, str]) -> tuple[list[Point], str]:
    """Return (each ok row with its speed and its quality, the name of that quality)."""
    metric = find_metric(document.rows)
    if metric is not None:
        score = next(row.scores[0] for row in document.rows if row.scores)
        name = name_metric(metric) + ("" if score.higher_is_better else ", lower is better")
    else:
        centred = any(row.agreement.centred_cosine is not None for row in document.rows)
        name = "centred cosine to the reference" if centred else "fraction of the reference's decisions"
    points = [
        {
            "row": labels[row.id],
            "per_s": _round(1000 * row.batch / row.p50_ms.value),
            "quality": quality,
            "low": row.scores[0].value.low if metric and row.scores else None,
            "high": row.scores[0].value.high if metric and row.scores else None,
            "precision": row.precision,
            "pareto": row.pareto,
            "front": f"{row.batch} {row.setup.bucket} {row.scope} {row.cache} {row.clock}",
        }
        for row in document.rows
        if row.status == "ok" and row.p50_ms and (quality := _find_quality(row, metric)) is not None
    ]
    return points, name


def _find_quality(row: Row, metric: str | None) -> float | None:
    if metric is not None:
        value = find_value(row.scores, metric)
        return value.value if value else None
    if row.is_reference and row.agreement.outputs_agree is None:
        return 1.0
    return row.agreement.centred_cosine if row.agreement.centred_cosine is not None else row.agreement.shared_decisions


def list_proofs(document: RunDocument, labels: Mapping[str, str]) -> list[Point]:
    """List the fraction of time by precision, for each row whose runtime has a record of it."""
    return [
        {
            "row": labels[row.id],
            "precision": clean_text(name),
            "share": _round(share),
            "requested": row.requested_precision,
        }
        for row in document.rows
        for name, share in (row.effective_precision or {}).items()
    ]


def list_stage_medians(results: Iterable[Result], labels: Mapping[str, str]) -> list[Point]:
    """List p50 of each stage of each row that was measured in stages, in the order of the stages."""
    points = []
    for result in results:
        stages = [(s.name, median(s.latency_ns)) for s in result.stages if s.latency_ns] or _find_copies(result)
        total = sum(value for _, value in stages)
        parts = [(name, value / 1e6, value / total if total else 0.0) for name, value in stages]
        points += _place_stages(labels[result.id], parts)
    return points


def _place_stages(label: str, stages: Iterable[tuple[str, float, float]]) -> list[Point]:
    """Return points of (name, ms, share)."""
    texts = [(clean_text(name).replace("_", " "), _round(ms), _round(share)) for name, ms, share in stages]
    return [
        {"row": label, "stage": name, "order": order, "ms": ms, "share": share}
        for order, (name, ms, share) in enumerate(texts)
    ]


def list_file_stages(documents: Sequence[StagesDocument]) -> list[Point]:
    """List p50 of each stage from file to label, as the verb `stages` measured it."""
    documents = [one for document in documents for one in (document, *document.others)]
    labels = number_names([f"{d.engine} {d.precision}, batch {d.batch}, file to label" for d in documents])
    return [
        point
        for label, document in zip(labels, documents, strict=True)
        for point in _place_stages(label, ((stage.name, stage.p50_ms, stage.share) for stage in document.stages))
    ]


def _find_copies(result: Result) -> list[tuple[str, float]]:
    """List copy in, compute, copy out of a row whose device timed them, and the host's part where that is known."""
    fields = {"copy in": "h2d_ns", "compute": "device_ns", "copy out": "d2h_ns", "staging on the host": "staging_ns"}
    stages: dict[str, float] = {}
    for name, field in fields.items():
        pooled = [median(values) for m in result.measurements if (values := getattr(m, field))]
        if pooled and len(pooled) == len(result.measurements):
            stages[name] = median(pooled)
    return list(stages.items()) if {"copy in", "compute", "copy out"} <= stages.keys() else []


def follow_batches(document: RunDocument, labels: Mapping[str, str]) -> list[Point]:
    """List latency and throughput of each engine that was measured at two batches or more."""
    names, groups = name_configurations(document.rows), dict[str, list[Row]]()
    for row in document.rows:
        if row.p50_ms and row.throughput_per_s:
            groups.setdefault(names[row.id], []).append(row)
    engines = number_names(list(groups))
    return [
        {
            "row": labels[row.id],
            "engine": engine,
            "batch": row.batch,
            "text": str(row.batch) if row.validity == "valid" else f"{row.batch} {row.validity}",
            "per_s": _round(row.throughput_per_s),
            "p50_ms": _round(row.p50_ms.value if row.p50_ms else None),
            "p99_ms": _round(row.p99_ms.value if row.p99_ms else None),
        }
        for engine, rows in zip(engines, groups.values(), strict=True)
        if len({row.batch for row in rows}) > 1
        for row in sorted(rows, key=lambda row: row.batch)
    ]


def read_ms(measurement: Measurement) -> Floats:
    return np.asarray(measurement.latency_ns, dtype=np.float64) / 1e6


def _round(value: float | None) -> float | None:
    """Round to five digits, which is what a picture and a tooltip can show."""
    return None if value is None else float(f"{value:.{_DIGITS}g}")
