"""How near stored times are to their bounds, and the doubt where one is shorter than its bound."""

from collections.abc import Iterable

from msgspec import Struct

from enginebench.core.caveats import make_caveat
from enginebench.core.records import Bound, Caveat, LayerTime


class LimitedLayers(Struct, frozen=True, kw_only=True):
    """Layers with the nodes that they stand for and their bounds, as far as these are known; notes say what is not."""

    layers: tuple[LayerTime, ...]
    bound: Bound | None = None
    notes: tuple[str, ...] = ()


def share_of_limit(bound: Bound | None, time_ms: float | None) -> float | None:
    """How near a time is to its bound, 0 to 1; above 1 one of the two is wrong. None where either is not known."""
    return bound.bound_ms / time_ms if bound and time_ms and time_ms > 0 else None


def doubt_layers(layers: Iterable[LayerTime], tick_ns: float) -> tuple[Caveat, ...]:
    """The doubt about layers that took less than their bound, by more than `tick_ns`: what the profiler cannot tell."""
    beaten = [
        (layer.bound.bound_ms * 1e6 / max(layer.mean_ns, tick_ns), layer.name)
        for layer in layers
        if layer.bound and layer.bound.bound_ms * 1e6 > layer.mean_ns + tick_ns
    ]
    if not beaten:
        return ()
    share, worst = max(beaten)
    return (make_caveat("beats_bound.layers", count=len(beaten), worst=worst, share=share),)


def doubt_row(bound: Bound | None, time_ms: float | None) -> tuple[Caveat, ...]:
    """The doubt about a row whose median is shorter than its bound."""
    share = share_of_limit(bound, time_ms)
    return (make_caveat("beats_bound.row", share=share),) if share and share > 1 else ()
