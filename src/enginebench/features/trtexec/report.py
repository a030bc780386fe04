"""The report of a folder that trtexec left: figures, sentences and pictures of each run in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.precisions import REORDER
from enginebench.core.records import Estimate, LayerTime
from enginebench.core.store import JsonObject
from enginebench.core.warnings import format_warning
from enginebench.features.trtexec.folder import DRIFT_FIELDS, TrtexecCase
from enginebench.features.trtexec.log import find_images
from enginebench.features.trtexec.records import LogRun, RunStatus, Stat, TimesDocument
from enginebench.features.trtexec.times import note_streams
from enginebench.report.charts import BLUE, Point, Spec, chart_rows, draw_layers, finish, import_altair
from enginebench.report.layer_table import format_remainder, format_share
from enginebench.report.numbers import format_significant
from enginebench.report.run.charts import draw_histogram, draw_percentiles
from enginebench.report.run.series import bin_calls, follow_calls
from enginebench.stats.effective import check_precision
from enginebench.stats.layer_records import LayerGroup, LayersDocument, ProfiledLayer, ProfileDocument

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOP_LAYERS = 30
_DIGITS = 5
# Of one or two pixels on the width of a chart.
_BUCKETS = 340


class Metrics(Struct, frozen=True, kw_only=True):
    """One run in figures; times in ms. `source`: the file that they come from, the timing file, else the log."""

    name: str
    source: str | None
    status: RunStatus | None
    status_reason: str | None = None
    model: str | None = None
    precision: str | None = None
    batch: int | None = None
    n: int | None = None
    mean_ms: float | None = None
    p50_ms: float | None = None
    p90_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None
    latency_ms: Stat | None = None
    gpu_compute_ms: Stat | None = None
    intervals: dict[str, Estimate] = {}
    throughput_qps: float | None = None
    images_per_s: float | None = None
    build_s: float | None = None
    engine_bytes: int | None = None
    workspace: str | None = None
    calibration: str | None = None
    build_options: dict[str, str] = {}
    tensorrt_version: str | None = None
    gpu: str | None = None
    cuda_graph: bool | None = None
    data_transfers: bool | None = None
    top_layers: tuple[ProfiledLayer, ...] = ()
    profile_remainder_ms: float | None = None
    shares_of: Literal["time", "layers"] | None = None  # what the shares by precision and type are of
    by_precision: dict[str, LayerGroup] = {}
    by_type: dict[str, LayerGroup] = {}
    overhead: LayerGroup | None = None
    drift: JsonObject | None = None
    contradictions: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    files: dict[str, str] = {}
    pictures: tuple[str, ...] = ()


class TrtexecReport(Struct, frozen=True, kw_only=True):
    schema: str = "enginebench.report-trtexec/1"
    cases: tuple[Metrics, ...]
    notes: tuple[str, ...] = ()


# Fields that a log and the figures of a run have in common.
_OF_LOG = ("status_reason", "batch", "build_s", "engine_bytes", "cuda_graph", "data_transfers", "warnings", "errors")


def describe_cases(
    cases: Sequence[TrtexecCase],
    pictures: Mapping[str, tuple[str, ...]] | None = None,
    notes: tuple[str, ...] = (),
    overrides: Mapping[str, Any] | None = None,
) -> TrtexecReport:
    """Collect the figures of all runs in a folder; `overrides` replace figures of the files."""
    written = pictures or {}
    metrics = [replace(collect_metrics(case, written.get(case.name, ())), **overrides or {}) for case in cases]
    if overrides and "batch" in overrides:
        metrics = [replace(m, images_per_s=m.throughput_qps and m.throughput_qps * overrides["batch"]) for m in metrics]
    return TrtexecReport(cases=tuple(metrics), notes=notes)


def collect_metrics(case: TrtexecCase, pictures: tuple[str, ...] = ()) -> Metrics:
    """Collect the figures of one run. The timing file comes first: it has every query, the log six digits of a
    summary."""
    log, times, layers = case.log or LogRun(), case.times, case.layers
    source: TimesDocument | LogRun = times or log
    build = {} if log.loads_plan else log.options.get("Build Options", {})
    # What limits the figures.
    notes = [*log.notes]
    if times is not None:
        notes.append(f"{times.warmup_dropped} warm-up queries dropped: {times.warmup_reason}")
        notes += [*times.notes, *map(format_warning, times.warnings)]
    else:
        notes += note_streams(log)
    for document in (case.profile, layers):
        notes += document.notes if document else ()
    fields = {name: getattr(source, name) for name in ("latency_ms", "gpu_compute_ms", "throughput_qps")}
    if (stat := source.latency_ms) is not None:
        tails = {f"p{label.replace('.', '')}_ms": stat.percentiles.get(label) for label in ("90", "95", "99", "99.9")}
        # A log has no p50 of its own, so its median stands for it.
        fields |= {"mean_ms": stat.mean, "p50_ms": stat.percentiles.get("50", stat.median), **tails}
    if layers is not None:
        fields |= {name: getattr(layers, name) for name in ("shares_of", "by_precision", "by_type", "overhead")}
    pools = dict(pool.strip().partition(": ")[::2] for pool in build.get("Memory Pools", "").split(","))
    # The precision of the build; of a plan that was loaded that of its layers.
    shares = {name: group.share or 0.0 for name, group in layers.by_precision.items()} if layers else {}
    return Metrics(
        name=case.name,
        status=log.status if case.log else None,
        source="times" if times else "log" if log.latency_ms else None,
        n=times.n if times else log.queries,
        intervals=times.intervals.get("latency_ms", {}) if times else {},
        images_per_s=times.images_per_s if times else find_images(log),
        **{name: getattr(log, name) for name in _OF_LOG},
        **fields,
        precision=log.precision or check_precision(None, shares)[0],
        model=Path(log.model).name if log.model else None,
        # The limit as the log prints it: "default", "512 MiB".
        workspace=(pools["workspace"] or None) if "workspace" in pools else build.get("Workspace"),
        calibration=build.get("Calibration") or None,
        build_options=build,
        tensorrt_version=log.version,
        gpu=log.device,
        top_layers=case.profile.layers[:TOP_LAYERS] if case.profile else (),
        profile_remainder_ms=case.profile.remainder_ms if case.profile else None,
        drift=case.drift,
        contradictions=case.contradictions,
        unreadable=case.unreadable,
        notes=tuple(notes),
        files={kind: path.name for kind, path in case.files.items()},
        pictures=pictures,
    )


def draw_case(case: TrtexecCase) -> dict[str, Spec]:
    """Return name -> specification of every picture that the files of a run allow."""
    charts: dict[str, Spec] = {}
    if case.timed is not None:
        latency = case.timed.columns["latency"]
        finite = latency[np.isfinite(latency)]
        middle = {"row": case.name, "ms": float(np.median(finite)), "trial": 0}
        charts["latency_hist"] = draw_histogram(bin_calls(finite, case.name), [middle]).spec
        charts["percentiles"] = draw_percentiles(follow_calls(finite, case.name), []).spec
        starts = case.timed.columns.get("start_compute")
        seconds = (starts - starts[0]) / 1e3 if starts is not None and np.isfinite(starts).all() else None
        charts["latency_series"] = draw_series(latency, f"Latency over the run, {case.name}", seconds)
    if case.profile is not None:
        title = f"Where the time goes, {case.name}"
        charts["per_layer_time"] = draw_layers(list_layer_times(case.profile, case.layers), title, TOP_LAYERS)
    return charts


def draw_series(values_ms: NDArray[np.float64], title: str, seconds: NDArray[np.float64] | None = None) -> Spec:
    """Draw the course of a run: median, fastest and slowest of neighbouring queries; without `seconds` they are
    numbered.

    At least one of the times, which are in the order of the run, is finite.
    """
    alt = import_altair()
    positions = np.arange(len(values_ms), dtype=np.float64) if seconds is None else seconds
    parts = np.array_split(np.arange(len(values_ms)), min(_BUCKETS, len(values_ms)))
    buckets: list[Point] = [
        {"at": float(positions[p[0]]), "median": float(np.median(v)), "min": float(v.min()), "max": float(v.max())}
        for p in parts
        if len(v := values_ms[p][np.isfinite(values_ms[p])])
    ]
    each = len(parts[0])  # queries of the largest bucket
    axis = "query" if seconds is None else "seconds since the first query"
    x = alt.X("at:Q", title=axis, scale=alt.Scale(nice=False), axis=alt.Axis(tickCount=10))
    base = chart_rows(buckets).encode(x=x)
    y = {"title": "latency (ms)", "scale": alt.Scale(zero=False)}
    if each == 1:
        line = base.mark_line(color=BLUE, point=alt.OverlayMarkDef(size=12)).encode(y=alt.Y("median:Q", **y))
        return finish(line, title, f"{len(values_ms):,} queries", height=240)
    band = base.mark_area(color=BLUE, opacity=0.25).encode(y=alt.Y("min:Q", **y), y2=alt.Y2("max:Q"))
    line = base.mark_line(color=BLUE, strokeWidth=1.2).encode(y=alt.Y("median:Q"))
    subtitle = f"{len(values_ms):,} queries; line: median, band: fastest to slowest of {each:,} neighbouring queries"
    return finish(alt.layer(band, line), title, subtitle, height=240)


def list_layer_times(profile: ProfileDocument, layers: LayersDocument | None = None) -> list[LayerTime]:
    """Return the layers of a profile as those of any engine, with the precisions of the engine's own record."""
    own_layers = layers.layers if layers else ()
    kinds = {layer.name: REORDER if layer.overhead else layer.precision for layer in own_layers}
    each = profile.average_ms / profile.total_ms if profile.average_ms and profile.total_ms else 1.0
    return [
        LayerTime(name=layer.name, mean_ns=1e6 * each * layer.total_ms, precision=kinds.get(layer.name))
        for layer in profile.layers
        if layer.total_ms is not None
    ]


def list_case_facts(case: Metrics) -> list[str]:
    facts = []
    if case.source:
        ranges = [text for label in ("50", "99") if (text := format_bounds(label, case.intervals.get(label)))]
        count = "" if case.n is None else f"{case.n} queries, "
        text = f"{count}figures from the {'timing file' if case.source == 'times' else 'log'}"
        facts.append(f"{text}; 95% within this run: {', '.join(ranges)}" if ranges else text)
    switches = [("CUDA graph", case.cuda_graph), ("data transfers", case.data_transfers)]
    shown = [f"{name} {'on' if value else 'off'}" for name, value in switches if value is not None]
    if shown:
        facts.append(", ".join(shown))
    built = "engine" if case.build_s is None else f"built in {case.build_s:.4g} s"
    if case.engine_bytes is not None:
        built += f", {case.engine_bytes / 2**20:.4g} MiB"
    facts += [built] if built != "engine" else []
    wanted = {name: value for name, value in case.build_options.items() if value and value not in ("Disabled", "-1")}
    if wanted:
        facts.append("build settings: " + "; ".join(f"{name}: {value}" for name, value in wanted.items()))
    return facts


def format_bounds(label: str, estimate: Estimate | None) -> str | None:
    """Format `p99 0.13117 to 0.13123 ms`; None without an interval."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return None
    low, high = (format_significant(bound, _DIGITS) for bound in (estimate.low, estimate.high))
    return f"p{label} {low} to {high} ms" + ("" if estimate.supported else " (too few queries)")


def describe_shares(case: Metrics) -> list[str]:
    """Describe where the time goes: outside of all layers, by precision, by type, and as overhead."""
    texts = []
    if case.profile_remainder_ms is not None and (whole := case.gpu_compute_ms) is not None:
        texts.append(f"GPU time without the profiler: {format_remainder(case.profile_remainder_ms, whole.median)}.")
    of = f"Fraction of the {case.shares_of}"
    for title, groups in (("precision", case.by_precision), ("type", case.by_type)):
        shares = [f"{name} {format_share(group.share)} ({group.layers})" for name, group in groups.items()]
        # The default verbosity of a build has names only: nothing to part.
        named = set(groups) - {"unknown"}
        texts += [f"{of} by {title} (number of layers): {', '.join(shares)}."] if named else []
    if case.overhead is not None and case.overhead.layers:
        share = format_share(case.overhead.share)
        texts.append(f"{of} in reformats, casts and copies: {share} ({case.overhead.layers}).")
    return texts


def list_drift_cells(drift: JsonObject | None) -> list[list[str]]:
    """Return a row of `DRIFT_FIELDS` for each of the first hundred outputs."""

    def format_value(value: object) -> str:  # of foreign JSON
        text = "" if value is None else str(value)[:200]
        return format_significant(value, _DIGITS) if isinstance(value, float) else text

    outputs = [output for output in drift["outputs"][:100] if isinstance(output, dict)] if drift else []
    return [[format_value(output.get(name)) for name in DRIFT_FIELDS] for output in outputs]
