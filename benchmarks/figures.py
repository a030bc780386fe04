"""What several benchmarks share: figures beside their limits, outputs that are the same, verdicts against the truth."""

from __future__ import annotations

from typing import NamedTuple

from enginebench.core.records import OutputDrift

# Of two sides whose outputs are the same.
SAME = OutputDrift(
    name="y",
    mean_abs_diff=0,
    max_abs_diff=0,
    mean_rel_diff=0,
    cosine_mean=1,
    cosine_min=1,
    centred_cosine_mean=1,
    snr_db=90,
    top1_agreement=1,
    top5_agreement=1,
    nonfinite=0,
)


class Figure(NamedTuple):
    """One figure, or share of runs, held against its limit."""

    name: str
    value: float
    limit: str
    passed: bool


def at_least(name: str, value: float, limit: float) -> Figure:
    return Figure(name, value, f">= {limit:g}", value >= limit)


def at_most(name: str, value: float, limit: float) -> Figure:
    return Figure(name, value, f"<= {limit:g}", value <= limit)


def is_wrong(verdict: str, log: float, m: float) -> bool:
    """Whether a verdict on a margin of `m`, a log ratio, is not that of the true log ratio."""
    near = 1e-9
    wrong = {"faster": log <= m + near, "slower": log >= -m - near, "equivalent": abs(log) >= m - near}
    return wrong.get(verdict, False)
