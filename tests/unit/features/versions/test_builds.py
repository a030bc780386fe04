"""Several builds of one engine: deviations apart, the best of them told honestly, and the build as the unit."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from enginebench.core.records import Measurement
from enginebench.stats.builds import estimate_between, find_best_build
from enginebench.stats.compare import compare, compare_apart
from enginebench.stats.summary import estimate_p50


def draw(rng: np.random.Generator, builds: int, processes: int, between: float, within: float) -> list[list[float]]:
    """Logs of process medians of each build."""
    effects = between * rng.standard_normal(builds)
    return [list(effect + within * rng.standard_normal(processes)) for effect in effects]


def measure(groups: Sequence[Sequence[float]], scale: float = 1.0) -> list[Measurement]:
    """Process i times build i modulo K, as a run does."""
    turns = [(build, log) for logs in zip(*groups, strict=True) for build, log in enumerate(logs)]
    several, known = len(groups) > 1, {"clock": "host", "blocks": (), "stop_rule": "settled"}
    times = [[round(1e8 * scale * math.exp(log))] * 3 for _, log in turns]
    return [
        Measurement(**known, latency_ns=times[i], repetition=i, build=build if several else None)  # type: ignore[arg-type]
        for i, (build, _) in enumerate(turns)
    ]


def test_deviations_are_those_of_the_textbook() -> None:
    """One-way ANOVA by SciPy; the F of the interval's ends gives back the chance that they were made for."""
    groups = draw(np.random.default_rng(3), 5, 4, 0.05, 0.01)
    found, within = estimate_between(groups)
    assert found is not None and within is not None
    f = stats.f_oneway(*groups).statistic
    assert within == pytest.approx(math.sqrt(np.mean([np.var(group, ddof=1) for group in groups])))
    assert found.value == pytest.approx(within * math.sqrt((f - 1) / 4))
    for end, p in ((found.low, 0.975), (found.high, 0.025)):
        expected = within**2 * 4 * (f - stats.f.ppf(p, 4, 15)) / (4 * stats.chi2.ppf(p, 4))
        assert end == pytest.approx(math.sqrt(expected))


def test_the_best_of_builds_that_are_alike_gains_nothing() -> None:
    """Who told by the processes that chose would find 1 % here; half of them tells, and finds none."""
    rng = np.random.default_rng(4)
    drawn = [draw(rng, 8, 4, 0.0, 0.01) for _ in range(300)]
    gains = [find_best_build(groups, [10.0] * 8) for groups in drawn]
    naive = [np.mean(groups) - min(np.mean(group) for group in groups) for groups in drawn]
    assert abs(np.mean([g.gain.value for g in gains if g])) < 0.001 < 0.006 < np.mean(naive)
    assert np.mean([(g.gain.low or 0) <= 0 <= (g.gain.high or 0) for g in gains if g]) >= 0.93


def test_the_best_of_builds_that_differ_gains_and_pays() -> None:
    groups = [[-0.05, -0.05], [0.0, 0.0], [0.05, 0.05]]
    best = find_best_build(groups, [10.0, 10.0, 10.0])
    assert best is not None and best.cost_s == pytest.approx(20)
    assert best.gain.value == pytest.approx(1 - math.exp(-0.05))
    assert best.pays_after == math.ceil(20 / (best.gain.value * 1e-9))
    worse = find_best_build([[0.05, -0.1], [0.0, 0.0], [-0.05, 0.1]], [None, 1.0, 1.0])
    assert worse is not None and worse.cost_s is None and worse.pays_after is None


def test_the_build_is_the_unit_of_a_comparison() -> None:
    """Five processes of each of three builds are three values: no verdict, whatever the processes would say."""
    rng = np.random.default_rng(7)
    base, cand = draw(rng, 3, 5, 0.03, 0.001), draw(rng, 3, 5, 0.03, 0.001)
    found = compare(measure(base), measure(cand, 0.5))
    assert (found.verdict, found.unit) == ("not_shown", "build")
    assert found.ratio is not None and found.ratio.n == 3 and "3 of the 6 builds" in found.reasons[0]
    assert "3 builds of 15 neighbouring trials" in found.ratio.method
    values = [np.mean(b) - np.mean(c) for b, c in zip(base, cand, strict=True)]
    assert found.ratio.value == pytest.approx(2 * math.exp(np.mean(values)), rel=1e-6)
    apart = compare_apart(measure(base), measure(cand, 0.5))
    assert apart.unit == "build" and apart.ratio is not None and apart.ratio.n == 3
    assert estimate_p50(measure(base)).n == 3


def test_one_side_without_builds_is_held_against_the_builds_of_the_other() -> None:
    rng = np.random.default_rng(8)
    built = measure(draw(rng, 6, 2, 0.02, 0.001))
    plain = measure([list(0.001 * rng.standard_normal(12))], 0.5)
    for base, cand in ((built, plain), (plain, built)):
        found = compare(base, cand)
        assert found.ratio is not None and (found.ratio.n, found.unit) == (6, "build")
    assert compare(built, plain).verdict == "faster"
