"""What another version of a runtime changed beside the time: answers, memory, build, size, and which layers."""

import re
from collections.abc import Sequence

from enginebench.core.records import LayerTime, Result
from enginebench.stats.diff import Change, Pair
from enginebench.stats.layer_diff import choose_keys, join_members, make_delta
from enginebench.stats.layer_records import EngineLayer, LayerDelta, split_name

# What runtimes put behind the name of an ONNX node: ONNX Runtime's layouts and fusions, OpenVINO's fused additions.
_SUFFIX = re.compile(r"(?:_nchwc|_token_\d+|/WithoutBiases|/fq_\w+|_quant|/Reorder)+$")
# Layers that move data and compute nothing, by the kinds that ONNX Runtime and OpenVINO call them.
MOVES = frozenset({"Reorder", "ReorderInput", "ReorderOutput", "Transpose", "Convert", "Reformat"})


def describe_change(model: str, base: Result, cand: Result) -> Change:
    """What changed from `base` to `cand`, whose drift is against `base`."""
    drift = cand.drift
    known = [o.max_abs_diff for o in drift.outputs if o.max_abs_diff is not None] if drift else []
    return Change(
        model=model,
        versions=list_changed(*({**(r.machine.versions if r.machine else {})} for r in (base, cand))),
        max_abs_diff=max(known, default=None),
        samples=drift.n if drift else 0,
        peak_memory_bytes=Pair(before=_find_peak(base), after=_find_peak(cand)),
        build_s=Pair(before=base.build_s, after=cand.build_s),
        size_bytes=Pair(before=base.size_bytes, after=cand.size_bytes),
        layers=tuple(join_layers(base.layers, cand.layers)),
    )


def list_changed(before: dict[str, str], after: dict[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """The packages whose versions differ."""
    names = sorted({*before, *after})
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


def join_layers(base: Sequence[LayerTime], cand: Sequence[LayerTime]) -> list[LayerDelta]:
    """The layers of both sides by the ONNX nodes that they compute, the largest change of time first."""
    if not base or not cand:
        return []
    sides = tuple(map(_read_layer, base)), tuple(map(_read_layer, cand))
    groups = join_members(choose_keys(*sides)[0], sides)
    return sorted((make_delta(group, sides) for group in groups), key=lambda delta: -abs(delta.delta_ms or 0.0))


def _read_layer(layer: LayerTime) -> EngineLayer:
    moves = layer.kind in MOVES
    nodes = () if moves else tuple(_SUFFIX.sub("", name) for name in split_name(layer.name))
    return EngineLayer(
        name=layer.name,
        type=layer.kind,
        precision=layer.precision,
        onnx_nodes=nodes,
        overhead=moves,
        average_ms=layer.mean_ns / 1e6,
    )


def _find_peak(result: Result) -> float | None:
    return max((m.peak_memory_bytes for m in result.measurements if m.peak_memory_bytes), default=None)
