"""What changed with another version beside the time, in sentences: answers, memory, build, size, layers."""

from collections.abc import Iterator

from enginebench.core.text import count_of
from enginebench.report.numbers import format_significant, format_small
from enginebench.stats.diff import Change, DiffDocument, Pair
from enginebench.stats.layer_records import LayerDelta

# Layers that are named beside a row: enough to see where a change lies; the JSON document has all.
SHOWN = 3


def state_changes(document: DiffDocument) -> list[str]:
    """A sentence on the versions of all rows, then one or two on each row; none where nothing was upgraded."""
    changes = [(row.id, row.change) for row in document.rows if row.change is not None]
    versions = dict.fromkeys(
        ", ".join(f"{name} {old or 'none'} -> {new or 'none'}" for name, (old, new) in change.versions.items())
        for _, change in changes
    )
    told = [f"Versions: {text}." for text in versions if text]
    return told + [f"{name}: {'; '.join(state_change(change))}." for name, change in changes]


def state_change(change: Change) -> list[str]:
    """What is otherwise in one row: its outputs, its figures, its layers."""
    answers = "outputs not compared"
    if change.max_abs_diff is not None:
        over = count_of(change.samples, "samples")
        answers = f"outputs differ by at most {format_small(change.max_abs_diff)} over {over}"
    return [answers, *_state_figures(change), *_state_layers(change)]


def _state_figures(change: Change) -> Iterator[str]:
    for name, pair, factor, unit in (
        ("memory", change.peak_memory_bytes, 1e-6, "MB"),
        ("build", change.build_s, 1.0, "s"),
        ("size", change.size_bytes, 1e-6, "MB"),
    ):
        if text := _state_pair(pair, factor, unit):
            yield f"{name} {text}"


def _state_pair(pair: Pair, factor: float, unit: str) -> str:
    if pair.before is None or pair.after is None:
        return ""
    before, after = (format_significant(value * factor) for value in (pair.before, pair.after))
    if before == after:
        return f"{after} {unit}"
    share = f" ({pair.after / pair.before - 1:+.0%})" if pair.before else ""
    return f"{before} -> {after} {unit}{share}"


def _state_layers(change: Change) -> list[str]:
    if not change.layers:
        return []
    totals = [_sum(change.layers, side) for side in ("base", "candidate")]
    named = [_state_layer(delta) for delta in change.layers[:SHOWN] if delta.delta_ms]
    if not named:
        return []
    whole = f"layers {format_significant(totals[0])} -> {format_significant(totals[1])} ms in one profile of each"
    return [f"{whole}, most in {', '.join(named)}"]


def _state_layer(delta: LayerDelta) -> str:
    side = delta.candidate or delta.base
    names = delta.onnx_nodes or (side.layers if side else ())
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    came = "" if delta.base and delta.candidate else " (new)" if delta.candidate else " (gone)"
    return f"{names[0] if names else 'a layer'}{more}{came} {delta.delta_ms or 0.0:+.3g} ms"


def _sum(layers: tuple[LayerDelta, ...], side: str) -> float:
    sides = (getattr(delta, side) for delta in layers)
    return sum(one.average_ms or 0.0 for one in sides if one is not None)
