"""How often the verdicts are right, and how often the intervals cover: simulated measurements, no real time.

    python benchmarks/verdicts.py [--runs 2000] [--json]

Ten repetitions, process medians with a deviation of 1 %, samples within a process with 2 %, margin 2 %. Exit code 1
when a figure misses its limit.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from enginebench.core.records import Measurement
from enginebench.stats.compare import compare, compare_apart
from enginebench.stats.quantiles import estimate_tails
from enginebench.stats.summary import estimate_p50

MEDIAN_NS = 1e7
PROCESS_SD = 0.01
SAMPLE_SD = 0.02
SAMPLES = 41
MARGIN = 0.02


class Figure(NamedTuple):
    """One share of runs, held against its limit."""

    name: str
    share: float
    limit: str
    passed: bool


def make_side(
    rng: np.random.Generator, median_ns: float, *, processes: int = 10, samples: int = SAMPLES, sd: float = PROCESS_SD
) -> list[Measurement]:
    """The measurements of one row: lognormal process medians around `median_ns`, lognormal samples around them."""
    centres = median_ns * np.exp(rng.normal(0, sd, (processes, 1)))
    latencies = np.rint(centres * np.exp(rng.normal(0, SAMPLE_SD, (processes, samples)))).astype(np.int64)
    return [
        Measurement(clock="host", latency_ns=row, blocks=(), stop_rule="settled", repetition=i)
        for i, row in enumerate(latencies.tolist())
    ]


def count_verdicts(runs: int, speedup: float, *, seed: int, paired: bool = True) -> Counter[str]:
    """Verdicts over `runs` pairs of rows whose true ratio of medians is `speedup`."""
    rng = np.random.default_rng(seed)
    method = compare if paired else compare_apart
    return Counter(
        method(make_side(rng, MEDIAN_NS), make_side(rng, MEDIAN_NS / speedup), margin=MARGIN).verdict
        for _ in range(runs)
    )


def judge_verdicts(runs: int, *, paired: bool = True) -> Iterator[Figure]:
    """The shares that the verdicts are held to."""
    much = count_verdicts(runs, 1.05, seed=1, paired=paired)
    none = count_verdicts(runs, 1.0, seed=2, paired=paired)
    edge = count_verdicts(runs, 1.02, seed=3, paired=paired)
    yield at_least("5 % faster: faster", much["faster"] / runs, 0.95)
    yield at_least("the same: equivalent", none["equivalent"] / runs, 0.90)
    yield at_most("2 % faster: faster", edge["faster"] / runs, 0.04)
    yield below("5 % faster: slower", much["slower"] / runs, 0.001)
    yield below("2 % faster: slower", edge["slower"] / runs, 0.001)
    yield below("the same: faster or slower", (none["faster"] + none["slower"]) / runs, 0.001)


def at_least(name: str, share: float, limit: float) -> Figure:
    return Figure(name, share, f">= {limit:g}", share >= limit)


def at_most(name: str, share: float, limit: float) -> Figure:
    return Figure(name, share, f"<= {limit:g}", share <= limit)


def below(name: str, share: float, limit: float) -> Figure:
    return Figure(name, share, f"< {limit:g}", share < limit)


def cover_p50(runs: int, processes: int, *, seed: int = 4) -> float:
    """How often the 95 % interval of p50 holds the true median."""
    rng = np.random.default_rng(seed)
    hits = 0
    for _ in range(runs):
        found = estimate_p50(make_side(rng, MEDIAN_NS, processes=processes))
        hits += (found.low or 0) <= MEDIAN_NS / 1e6 <= (found.high or 0)
    return hits / runs


def cover_p99(runs: int, *, correlation: float, processes: int = 10, samples: int = 400, seed: int = 5) -> float:
    """How often the 95 % interval of p99 holds the true one, for samples with this correlation from one to the next."""
    rng = np.random.default_rng(seed)
    truth = MEDIAN_NS * math.exp(SAMPLE_SD * 2.3263478740408408) / 1e6  # the 99 % point of a normal distribution
    hits = 0
    for _ in range(runs):
        noise = make_correlated(rng, processes, samples, correlation)
        rows = np.rint(MEDIAN_NS * np.exp(SAMPLE_SD * noise)).astype(np.int64).tolist()
        side = [
            Measurement(clock="host", latency_ns=row, blocks=(), stop_rule="settled", repetition=i)
            for i, row in enumerate(rows)
        ]
        found = estimate_tails([np.array(m.latency_ns) / 1e6 for m in side], [0.99])[0]
        hits += (found.low or 0) <= truth <= (found.high or 0)
    return hits / runs


def make_correlated(
    rng: np.random.Generator, processes: int, samples: int, correlation: float
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Standard normal series of shape (processes, samples), each an autoregression of order one."""
    steps = rng.normal(0, math.sqrt(1 - correlation**2), (processes, samples))
    series = np.empty_like(steps)
    series[:, 0] = rng.normal(0, 1, processes)
    for i in range(1, samples):
        series[:, i] = correlation * series[:, i - 1] + steps[:, i]
    return series


def judge_coverage(runs: int) -> Iterator[Figure]:
    """Coverage of the intervals that say 95 %, held to three standard errors of the simulation below that."""
    floor = 0.95 - 3 * math.sqrt(0.95 * 0.05 / runs)
    for processes in (3, 6, 10):
        yield at_least(f"p50 interval, {processes} processes, covers", cover_p50(runs, processes), round(floor, 4))
    # The bootstrap is approximate: it is held to 0.90, and to 0.85 where a process is only about twenty
    # autocorrelation times long, so that few blocks carry it.
    fewer = max(100, runs // 5)
    for correlation, samples, limit in ((0.0, 400, 0.90), (0.9, 2000, 0.90), (0.9, 400, 0.85)):
        name = f"p99 interval, correlation {correlation:g}, 10 x {samples}, covers"
        yield at_least(name, cover_p99(fewer, correlation=correlation, samples=samples), limit)


def print_table(title: str, figures: Sequence[Figure]) -> None:
    print(f"{title}\n{'':50}{'share':>8}  limit")
    for figure in figures:
        print(f"{figure.name:50}{figure.share:8.4f}  {figure.limit}{'' if figure.passed else '  MISSED'}")
    print()


def main() -> int:
    """Prints the tables; 1 if a figure missed its limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tables = {
        f"Verdicts, paired, {options.runs} runs each": list(judge_verdicts(options.runs)),
        f"Verdicts, runs made apart, {options.runs} runs each": list(judge_verdicts(options.runs, paired=False)),
        "Intervals that say 95 %": list(judge_coverage(options.runs)),
    }
    if options.json:
        print(json.dumps({title: [figure._asdict() for figure in rows] for title, rows in tables.items()}, indent=1))
    else:
        for title, figures in tables.items():
            print_table(title, figures)
    return 0 if all(figure.passed for figures in tables.values() for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
