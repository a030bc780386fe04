"""Layer times of any engine as one document: fractions, groups by precision and type, and time outside of all
layers."""

import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from enginebench.core.names import format_engine, format_precision
from enginebench.core.precisions import UNKNOWN
from enginebench.core.records import Bound, BoundBy, Clock, EngineSpec, LayerProfile, LayerTime, ResultWarning
from enginebench.core.warnings import make_warning
from enginebench.stats.layer_records import LayerGroup, group_layers
from enginebench.stats.profile import list_bound_warnings, share_of_limit, sort_layers, sum_layers_ns

NS_PER_MS = 1e6
# What a profiler adds below this share of a run is no more than the spread of its median.
SMALL_COST = 0.02


class LimitedLayers(Struct, frozen=True, kw_only=True):
    """Layers with their nodes and bounds, as far as these are known; notes list what is not known."""

    layers: tuple[LayerTime, ...]
    bound: Bound | None = None
    notes: tuple[str, ...] = ()


def list_layer_warnings(layers: Iterable[LayerTime], tick_ns: float) -> tuple[ResultWarning, ...]:
    """Return the warning about layers that beat their bound by more than `tick_ns`, which is as fine as it measures."""
    beaten = [
        (layer.bound.bound_ms * 1e6 / max(layer.mean_ns, tick_ns), layer.name)
        for layer in layers
        if layer.bound and layer.bound.bound_ms * 1e6 > layer.mean_ns + tick_ns
    ]
    if not beaten:
        return ()
    share, worst = max(beaten)
    what = f"the time of {len(beaten)} layers, {worst} the worst," if len(beaten) > 1 else f"the time of {worst}"
    return (make_warning("beats_bound", what=what, limit="the machine's best rates", share=share),)


class EngineLayerTime(Struct, frozen=True, kw_only=True):
    """One layer, with the profiler on. `share` is of the sum over all layers, 0 to 1."""

    name: str
    type: str | None
    precision: str | None
    total_ms: float
    average_ms: float
    median_ms: float | None
    share: float | None
    onnx_nodes: tuple[str, ...] = ()  # whose work it does, as far as that is known
    kernels: tuple[str, ...] = ()  # of a GPU that did it, longest first, where they are distinguished
    bound_ms: float | None = None  # the least time by this machine's peaks; None: unknown, or nothing must be done
    of_limit: float | None = None  # bound_ms over average_ms: 1 is the limit
    bound_by: BoundBy | None = None


class EngineProfileDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `profile`, slowest layer first.

    `average_ms` is one run with the profiler on, the sum over its layers; `end_to_end_ms` the median run without it.
    """

    schema: str = "enginebench.profile/1"
    model: str
    engine: str
    precision: str
    device: str
    batch: int
    threads: int
    profiler: str
    count: int
    layers: tuple[EngineLayerTime, ...]
    by_precision: dict[str, LayerGroup]
    by_type: dict[str, LayerGroup]
    average_ms: float
    end_to_end_ms: float
    end_to_end_clock: Clock
    remainder_ms: float  # end_to_end_ms - average_ms: what no layer explains (negative: the profiler's own cost)
    effective_precision: dict[str, float] | None
    engine_version: str | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")
    bound_ms: float | None = None  # of a whole run, against end_to_end_ms
    of_limit: float | None = None
    bound_by: BoundBy | None = None
    unmapped_share: float | None = None  # of the layers' time, in those that stand for no node of the ONNX graph


def describe_profile(
    *,
    model: str,
    engine: EngineSpec,
    profile: LayerProfile,
    end_to_end_ns: float,
    clock: Clock,
    effective_precision: Mapping[str, float] | None = None,
    engine_version: str | None = None,
    warnings: tuple[ResultWarning, ...] = (),
    bound: Bound | None = None,
    notes: tuple[str, ...] = (),
) -> EngineProfileDocument:
    """Make the document of a profile; `end_to_end_ns`: median of a run without the profiler; `bound`: its least
    time."""
    total_ns = sum_layers_ns(profile.layers)
    layers = [_describe_layer(layer, profile.runs, total_ns) for layer in sort_layers(profile.layers)]
    average_ms, end_to_end_ms = total_ns / NS_PER_MS, end_to_end_ns / NS_PER_MS
    return EngineProfileDocument(
        model=model,
        engine=format_engine(engine),
        precision=format_precision(engine.precision, engine.recipe),
        device=engine.device,
        batch=engine.batch,
        threads=engine.threads,
        profiler=profile.profiler,
        count=profile.runs,
        layers=tuple(layers),
        by_precision=group_layers(layers, lambda layer: layer.precision or UNKNOWN, _measure_group),
        by_type=group_layers(layers, lambda layer: layer.type or UNKNOWN, _measure_group),
        average_ms=average_ms,
        end_to_end_ms=end_to_end_ms,
        end_to_end_clock=clock,
        remainder_ms=end_to_end_ms - average_ms,
        effective_precision=dict(effective_precision) if effective_precision else None,
        engine_version=engine_version,
        notes=(*profile.notes, *explain_remainder(average_ms, end_to_end_ms), *notes),
        warnings=(
            *warnings,
            *list_bound_warnings(bound, end_to_end_ms),
            *list_layer_warnings(profile.layers, profile.tick_ns),
        ),
        bound_ms=bound.bound_ms if bound else None,
        of_limit=share_of_limit(bound, end_to_end_ms),
        bound_by=bound.bound_by if bound else None,
        unmapped_share=bound.unmapped_share if bound else None,
    )


def explain_remainder(average_ms: float, end_to_end_ms: float) -> list[str]:
    """Explain the difference between a run with the profiler and one without."""
    if average_ms > (1 + SMALL_COST) * end_to_end_ms:
        factor = average_ms / end_to_end_ms if end_to_end_ms else math.inf
        return [
            f"under the profiler the layers take {factor:.2f} times a run without it, by the profiler's own cost or by "
            "others on the machine: rely on percentages, not times"
        ]
    return []


def _describe_layer(layer: LayerTime, runs: int, total_ns: float) -> EngineLayerTime:
    return EngineLayerTime(
        name=layer.name,
        type=layer.kind,
        precision=layer.precision,
        total_ms=runs * layer.mean_ns / NS_PER_MS,
        average_ms=layer.mean_ns / NS_PER_MS,
        median_ms=None if layer.median_ns is None else layer.median_ns / NS_PER_MS,
        share=layer.mean_ns / total_ns if total_ns else None,
        onnx_nodes=layer.onnx_nodes,
        kernels=layer.kernels,
        bound_ms=layer.bound.bound_ms if layer.bound else None,
        of_limit=share_of_limit(layer.bound, layer.mean_ns / NS_PER_MS),
        bound_by=layer.bound.bound_by if layer.bound else None,
    )


def _measure_group(group: Sequence[EngineLayerTime]) -> LayerGroup:
    shares = [layer.share for layer in group if layer.share is not None]
    return LayerGroup(
        layers=len(group),
        share=math.fsum(shares) if shares else None,
        average_ms=math.fsum(layer.average_ms for layer in group),
    )
