"""How far the hardware still is from the winner of a search, where its time goes, and what more search could gain."""

from collections.abc import Iterator

from enginebench.core.precisions import REORDER
from enginebench.core.records import Bound, Result
from enginebench.report.numbers import format_significant
from enginebench.stats.quantiles import median


def state_remains(result: Result, bound: Bound | None, why: str) -> Iterator[str]:
    """Sentences on the winner. `bound`: of the model, for all settings; None: unknown, for the reason `why`."""
    host = median([ns for one in result.measurements for ns in one.latency_ns])
    device = median([ns for one in result.measurements for ns in one.device_ns or one.latency_ns])
    if bound is None:
        yield f"What the hardware could do is not known: {why}."
    else:
        left = host / 1e6 / bound.bound_ms
        gain = "more search can gain little" if left < 1.4 else "more search, or another kernel, may pay"
        yield (
            f"It reaches {1 / left:.0%} of the model's roofline, {format_significant(bound.bound_ms)} ms "
            f"({bound.bound_by}): no setting can be more than {format_significant(left, 2)}x as fast; {gain}."
        )
    parts = {"launch and wait": 1 - device / host, "copies": (result.effective_precision or {}).get(REORDER, 0.0)}
    total = sum(layer.mean_ns for layer in result.layers)
    for layer in sorted(result.layers, key=lambda layer: -layer.mean_ns)[:3]:
        parts[layer.name] = layer.mean_ns / total
    if told := [f"{name} {share:.0%}" for name, share in parts.items() if share >= 0.005]:
        yield f"Its time goes to: {', '.join(told)}."
