"""A greedy line of graphs in mixed precision, by the noise that each group of nodes adds and the time that it saves."""

import math
import re
from collections.abc import Mapping, Sequence, Set

from msgspec import Struct

from enginebench.core.records import LayerTime

# What ONNX Runtime adds to the names of nodes and tensors when it rewrites a graph, as to the layout NCHWc.
# Source: names seen in its profiles, 1.20 to 1.31.
_NUMBERED = re.compile(r"(_token_\d+|_nchwc)+$")
_PAIRED = re.compile(r"_(Quantize|Dequantize)Linear(_\d+|_token_\d+)*$")


class Part(Struct, frozen=True, kw_only=True):
    """One group of nodes: noise that it adds where it is quantized, and the time that this saves."""

    name: str
    noise: float | None  # over signal; None: not measured
    saved_ns: float | None = None  # negative: 8 bits are slower; None: no layer of it was timed


class Cut(Struct, frozen=True, kw_only=True):
    """One graph of the line: the groups that stay in FP32, and what is to be expected of the others."""

    excluded: tuple[str, ...]
    noise: float
    saved_ns: float


def fill_parts(parts: Sequence[Part], allowed_noise: float) -> list[Part]:
    """The groups to be quantized: those that save most time for their noise, as long as it fits; in their order.

    A group that does not fit is passed over, and the next is tried. Groups that lose time, and those whose noise was
    not measured, are never among them. Noise of independent roundings adds up by its power, so that this is the greedy
    solution of a knapsack.

    Source: G. B. Dantzig, "Discrete-variable extremum problems", Operations Research 5 (1957).
    """
    chosen, noise = set[str](), 0.0
    gains = [part for part in parts if part.noise is not None and (part.saved_ns is None or part.saved_ns > 0)]
    for part in sorted(gains, key=_rank):
        assert part.noise is not None
        if noise + part.noise <= allowed_noise:
            chosen.add(part.name)
            noise += part.noise
    return [part for part in parts if part.name in chosen]


def _rank(part: Part) -> float:
    """Noise for each nanosecond saved; where no time is known, the noise alone."""
    assert part.noise is not None
    return part.noise / part.saved_ns if part.saved_ns else part.noise


def cut_line(parts: Sequence[Part], allowed_noise: float, most: int) -> list[Cut]:
    """Graphs along the line, at most `most` of them, the noisiest first.

    Each is filled up to a part of the allowed noise: four times, twice, once, half, ... of it, since noise that was
    measured alone is not exactly what it adds among others. Then the same of all groups, whatever their times: a
    profile by layer sees no cost at the borders between precisions. Neither the graph with all groups quantized nor
    that with none is among them: those are known already.

    Args:
        allowed_noise: by the limits; infinite: then the noise of all groups is halved again and again.
    """
    total = sum_noise(parts)
    start = 4 * allowed_noise if math.isfinite(allowed_noise) else total
    bare = [Part(name=part.name, noise=part.noise) for part in parts]
    found: dict[frozenset[str], Cut] = {}
    for step in range(most):
        for line in (parts, bare):
            kept = {part.name for part in fill_parts(line, start / 2**step)}
            if 0 < len(kept) < len(parts):
                found.setdefault(frozenset(kept), _cut(parts, kept))
    ordered = sorted(found.values(), key=lambda cut: abs(math.log(max(cut.noise, _TINY) / max(start / 8, _TINY))))
    return sorted(ordered[:most], key=lambda cut: -cut.noise)


# Stands for no noise at all in a logarithm.
_TINY = 1e-300


def _cut(parts: Sequence[Part], kept: Set[str]) -> Cut:
    quantized = [part for part in parts if part.name in kept]
    return Cut(
        excluded=tuple(part.name for part in parts if part.name not in kept),
        noise=sum_noise(quantized),
        saved_ns=math.fsum(part.saved_ns or 0.0 for part in quantized),
    )


def sum_noise(parts: Sequence[Part]) -> float:
    """The noise of several groups together, as if their roundings were independent."""
    return math.fsum(part.noise for part in parts if part.noise is not None and math.isfinite(part.noise))


def time_groups(layers: Sequence[LayerTime], homes: Mapping[str, str]) -> tuple[dict[str, float], float]:
    """(group -> nanoseconds of its layers in one run, the share of all time that belongs to no group).

    A pair that an engine could not fuse belongs to the group that makes the value.

    Args:
        layers: of an engine's profile, named after nodes, or after tensors with what the engine adds.
    """
    times: dict[str, float] = {}
    lost = total = 0.0
    for layer in layers:
        total += layer.mean_ns
        home = find_home(layer.name, homes)
        if home is None:
            lost += layer.mean_ns
        else:
            times[home] = times.get(home, 0.0) + layer.mean_ns
    return times, lost / total if total else 0.0


def find_home(layer: str, homes: Mapping[str, str]) -> str | None:
    """The group of a layer by its name; None if it belongs to none."""
    bare = _NUMBERED.sub("", layer)
    tried = (layer, bare, _PAIRED.sub("", bare), bare.partition("/")[0])
    return next((homes[name] for name in tried if name in homes), None)
