"""`compare_layers`: compare two engines of one model, layer by layer, by the ONNX operators that the layers compute.

Fusion and renaming make layer names useless across engines: "Conv_0 + Relu_1" of one is "Conv_0" and "Relu_1" of the
other. Layers that share an operator, directly or through a third, form one row.
"""

import re
from collections import Counter
from typing import Literal

import msgspec

from enginebench.stats.layer_records import (
    DiffSide,
    DiffTotals,
    EngineLayer,
    LayerDelta,
    LayersDocument,
    strip_reformat,
    sum_times,
)

# Two graphs of one model share nearly all operator names; renumbered ones share a few by accident. Half lies far from
# both.
_NAMES_SHARED = 0.5
_NUMBER = re.compile(r"_(\d{1,9})$")
_QUANTIZE = re.compile(r"QuantizeLinear", re.IGNORECASE)

Key = str | tuple[str, int]
Member = tuple[int, int]  # (side: 0 base, 1 candidate; index of the layer)


def compare_layers(base: LayersDocument, candidate: LayersDocument) -> LayersDocument:
    """`candidate` with its difference to `base`: rows of the same operators, the largest change of time first."""
    keys, matched_by = choose_keys(base.layers, candidate.layers)
    groups = join_members(keys, (base.layers, candidate.layers))
    deltas = [make_delta(group, (base.layers, candidate.layers)) for group in groups]
    deltas.sort(key=lambda row: -abs(row.delta_ms or 0.0))
    totals = None
    if base.shares_of == candidate.shares_of == "time":
        before, after = (sum_times(side.layers) for side in (base, candidate))
        overhead = [sum_times(layer for layer in side.layers if layer.overhead) for side in (base, candidate)]
        totals = DiffTotals(
            base_ms=before,
            candidate_ms=after,
            delta_ms=after - before,
            base_overhead_ms=overhead[0],
            candidate_overhead_ms=overhead[1],
        )
    return msgspec.structs.replace(candidate, diff=tuple(deltas), diff_matched_by=matched_by, diff_totals=totals)


def choose_keys(
    base: tuple[EngineLayer, ...], candidate: tuple[EngineLayer, ...]
) -> tuple[list[list[list[Key]]], Literal["name", "order"]]:
    """Return the keys of every layer of each side, by which layers are matched, and the kind of key.

    Keys are operator names if the graphs share them, else the position of an operator among those of its type:
    exporters that number operators rename all of them when Q/DQ nodes are inserted, but the third convolution is still
    the third. Types that occur in different numbers are not used.
    """
    # Q/DQ nodes exist in one of the graphs only.
    names = [[[n for n in x.onnx_nodes if not _QUANTIZE.search(n)] for x in side] for side in (base, candidate)]
    distinct = [{name for layer in side for name in layer} for side in names]
    smaller = min(len(side) for side in distinct)
    if smaller and len(distinct[0] & distinct[1]) >= _NAMES_SHARED * smaller:
        return names, "name"  # type: ignore[return-value]
    numbered = [number_operators(side) for side in distinct]
    counts = [Counter(kind for kind, _ in side.values()) for side in numbered]
    usable = {kind for kind in counts[0] if counts[0][kind] == counts[1][kind]}
    sides: list[list[list[Key]]] = [
        [[numbered[i][name] for name in layer if numbered[i][name][0] in usable] for layer in names[i]] for i in (0, 1)
    ]
    return sides, "order"


def number_operators(names: set[str]) -> dict[str, tuple[str, int]]:
    """Return name -> (operator type, its position among that type), ordered by the number at the end of the name."""
    numbered: dict[str, tuple[str, int]] = {}
    seen: Counter[str] = Counter()
    for name in sorted(names, key=lambda name: (int(match[1]) if (match := _NUMBER.search(name)) else -1, name)):
        kind = _NUMBER.sub("", name.rsplit("/", 1)[-1])
        numbered[name] = (kind, seen[kind])
        seen[kind] += 1
    return numbered


def join_members(
    keys: list[list[list[Key]]], layers: tuple[tuple[EngineLayer, ...], tuple[EngineLayer, ...]]
) -> list[list[Member]]:
    """Group layers of both engines that share a key, directly or through others; a reformat joins the layer it
    serves."""
    parent: dict[Member | Key, Member | Key] = {}

    def find(item: Member | Key) -> Member | Key:
        while (above := parent.setdefault(item, item)) != item:
            parent[item] = parent.setdefault(above, above)
            item = above
        return item

    for side in (0, 1):
        by_name = {layer.name: index for index, layer in enumerate(layers[side])}
        for index, layer in enumerate(layers[side]):
            links: list[Member | Key] = list(keys[side][index])
            target = by_name.get(strip_reformat(layer.name) or "")
            if target is not None:
                links.append((side, target))
            for link in links:
                parent[find(link)] = find((side, index))
    groups: dict[Member | Key, list[Member]] = {}
    for side in (0, 1):
        for index in range(len(layers[side])):
            groups.setdefault(find((side, index)), []).append((side, index))
    return list(groups.values())


def make_delta(members: list[Member], layers: tuple[tuple[EngineLayer, ...], tuple[EngineLayer, ...]]) -> LayerDelta:
    """Make one row of the difference. A side without layers takes no time: the other's time is the change."""
    sides = [[layers[side][index] for s, index in members if s == side] for side in (0, 1)]
    base, candidate = (make_side(side) for side in sides)
    times = [side.average_ms if side else 0.0 for side in (base, candidate)]
    measured = [time for time in times if time is not None]
    named = sides[0] if any(layer.onnx_nodes for layer in sides[0]) else sides[1]
    return LayerDelta(
        onnx_nodes=tuple(dict.fromkeys(node for layer in named for node in layer.onnx_nodes)),
        base=base,
        candidate=candidate,
        delta_ms=measured[1] - measured[0] if len(measured) == 2 else None,
    )


def make_side(layers: list[EngineLayer]) -> DiffSide | None:
    """Join the layers of one engine in a row; the precision is that of the layer that takes longest."""
    if not layers:
        return None
    computing = [layer for layer in layers if not layer.overhead] or layers
    timed = any(layer.average_ms is not None for layer in layers)
    return DiffSide(
        layers=tuple(layer.name for layer in layers),
        precision=max(computing, key=lambda layer: layer.average_ms or 0.0).precision,
        average_ms=sum_times(layers) if timed else None,
        overhead_ms=sum_times(layer for layer in layers if layer.overhead) if timed else None,
    )
