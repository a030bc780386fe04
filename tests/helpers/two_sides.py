"""The two results of a `bench` with --against, made up: their times and what the comparison of their outputs found."""

from typing import Any

from msgspec.structs import replace

import samples
from enginebench.core.records import Drift, Result
from enginebench.stats.drift import limits_between
from samples import make_result

SAME = {"snr": 140.0, "centred": 1.0}
WRONG = {"snr": 12.5, "centred": 0.25}


def make_drift(*, snr: float | None, centred: float | None, largest: float = 0.5, n: int = 32) -> Drift:
    limits = limits_between("fp32", "fp32")
    made = samples.make_drift(largest)
    output = replace(made.outputs[0], cosine_mean=centred, centred_cosine_mean=centred, snr_db=snr)
    passed = (snr is None or snr >= limits["snr"]) and (centred is None or centred >= limits["centred_cosine"])
    return replace(made, n=n, outputs=(output,), limits=limits, passed=passed, reference="base")


def make_sides(median_ms: float, drift: Drift | None, processes: int = 10, **fields: Any) -> list[Result]:
    """A base that takes 20 ms, and a candidate."""
    own = make_drift(**SAME, largest=0)
    base = replace(make_result(median_ms=20.0, processes=processes), id="base", drift=own)
    return [
        base,
        replace(make_result(median_ms=median_ms, seed=1, processes=processes, **fields), id="cand", drift=drift),
    ]


def disturb(side: Result, processes: int = 3) -> Result:
    """The side as if other programs had used most of a core during so many of its trials."""
    noisy = [
        replace(m, blocks=tuple(replace(b, foreign_cpu_cores=0.9, marks=("foreign_cpu",)) for b in m.blocks))
        for m in side.measurements[:processes]
    ]
    return replace(side, measurements=(*noisy, *side.measurements[processes:]))
