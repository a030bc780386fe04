"""Who is named, and which ratios hold, beside other programs: simulated runs, no real time.

    python benchmarks/disturbed.py [--runs 40]

Ten trials of ten blocks; process medians differ by 1 %, calls by 2 %. The same engine twice (none may be named), and
two of which one is 2.5 times as fast (that one is to be named, and a ratio that is printed holds 2.5); PyTorch is the
one that starves, and of two that are the same both do, or PyTorch alone. Exit code 1 when one of two that are the same
is named, fewer than nine of ten are named rightly, or fewer than 19 of 20 intervals hold the ratio.

The claims of docs/how-we-measure.md rest on this.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from figures import SAME

from enginebench.core.records import Block, Drift, EngineSpec, Measurement, MeasureSpec, Result
from enginebench.stats.assessment import compare_configurations
from enginebench.stats.ranking import rank_results

TRIALS, BLOCKS, CALLS = 10, 10, 20
RATIO = 2.5
CALL_NS = 400_000.0  # of the faster one: short against a slice of the scheduler
LEAST = 0.8  # CPU time of a call on one thread over two threads, which are 1.6 times as fast as one
# rng, trial, first side? -> (slowdown of each block, whether others are seen beside it, share of calls nobody slows)
Others = Callable[[np.random.Generator, int, bool], tuple[np.ndarray, np.ndarray, float]]


def nobody(rng: np.random.Generator, trial: int, first: bool) -> tuple[np.ndarray, np.ndarray, float]:
    return np.ones(BLOCKS), np.zeros(BLOCKS, dtype=bool), 0.0


def speeds(rng: np.random.Generator, trial: int, first: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """A machine of two speeds, which neighbours share, unseen."""
    return np.full(BLOCKS, 1.5 if trial % 3 == 0 else 1.0), np.zeros(BLOCKS, dtype=bool), 0.0


def bursts(rng: np.random.Generator, trial: int, first: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """Others beside six blocks of ten, who cost the first side up to four times as much."""
    seen = rng.random(BLOCKS) < 0.6
    return np.where(seen, np.exp(rng.uniform(0, 1.4 if first else 0.7, BLOCKS)), 1.0), seen, 0.0


def half(rng: np.random.Generator, trial: int, first: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """Every other trial of the first side starves."""
    starves = first and trial % 2 == 1
    return np.full(BLOCKS, 10 ** rng.uniform(1, 3) if starves else 1.0), np.full(BLOCKS, starves), 0.0


def loops(rng: np.random.Generator, trial: int, first: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """Busy loops all the time: the first side starves, the other waits for turns; a fifth of its calls end before."""
    cost = 10 ** rng.uniform(1.5, 3) if first else np.exp(rng.uniform(1, 2.5))
    return np.full(BLOCKS, cost), np.ones(BLOCKS, dtype=bool), 0.0 if first else 0.2


def starved(rng: np.random.Generator, trial: int, first: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """PyTorch alone starves, by 20 times, in each call of each trial."""
    return np.full(BLOCKS, 20.0 if first else 1.0), np.full(BLOCKS, first), 0.0


def slowed(rng: np.random.Generator, trial: int, first: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """One side alone is five times slower in each call of each trial: of two that are the same the other engine."""
    return np.full(BLOCKS, 5.0 if first else 1.0), np.full(BLOCKS, first), 0.0


def rare(rng: np.random.Generator, trial: int, first: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """Two trials of ten without others, on a machine of two speeds, unseen and of each side by itself."""
    cost = np.exp(rng.uniform(0, 1.4, BLOCKS)) if trial % 5 else np.ones(BLOCKS)
    return cost * rng.choice([1.0, 1.5]), np.full(BLOCKS, trial % 5 > 0), 0.0


def turns(rng: np.random.Generator, trial: int, first: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """Busy loops all the time, which cost both sides turns."""
    return np.exp(rng.uniform(0.5, 1.2, BLOCKS)), np.ones(BLOCKS, dtype=bool), 0.2


def memory(rng: np.random.Generator, trial: int, first: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """Each call is slowed, the first side's by up to a third more."""
    return (
        np.full(BLOCKS, rng.uniform(1.5, 2) * (rng.uniform(1, 1.3) if first else 1)),
        np.ones(BLOCKS, dtype=bool),
        0.0,
    )


OTHERS: tuple[Others, ...] = (nobody, speeds, bursts, half, loops, starved, slowed, rare, turns, memory)


def make_row(rng: np.random.Generator, name: str, call_ns: float, others: Others, first: bool) -> Result:
    found, counts = [], name == "pytorch"  # what its calls take at least
    for trial in range(TRIALS):
        cost, seen, free = others(rng, trial, first)
        times = call_ns * np.exp(rng.normal(0, 0.01)) * np.exp(rng.normal(0, 0.02, (BLOCKS, CALLS)))
        times *= np.where(rng.random(times.shape) < free, 1.0, cost[:, None])
        least_ns = LEAST * call_ns * (cost.mean() if others is memory else 1)
        blocks = [
            Block(
                start=i * CALLS, stop=(i + 1) * CALLS, duration_ns=100_000_000, marks=("foreign_cpu",) if beside else ()
            )
            for i, beside in enumerate(seen)
        ]
        found.append(
            Measurement(
                clock="host",
                latency_ns=np.rint(times).astype(int).ravel().tolist(),
                blocks=tuple(blocks),
                stop_rule="settled",
                trial=trial,
                warmup_settled=True,
                least_ns=least_ns if counts and seen.mean() > 0.5 else None,
            )
        )
    spec = EngineSpec(backend=name, precision="fp32")
    return Result(
        id=name,
        model="m",
        engine=spec,
        measure=MeasureSpec(processes=TRIALS),
        requested_precision="fp32",
        status="ok",
        measurements=tuple(found),
        drift=Drift(n=32, outputs=(SAME,), reference="pytorch"),
    )


class Found(NamedTuple):
    """Of so many runs beside `others`."""

    others: str
    false_winners: int  # of two that are the same
    right: int
    wrong: int
    given: int  # ratios
    held: int  # of these, those whose interval holds the quiet ratio


def simulate(others: Others, runs: int, seed: int = 1) -> Found:
    """What is said of two that are the same, and of two that differ, of which PyTorch is the one that starves."""
    rng = np.random.default_rng(seed)
    winners, named, held = 0, [], []
    for i in range(runs):
        # What costs one side alone by chance may also be seen of two that are the same.
        sides = (False, True) if others in (bursts, half, slowed) else (i % 2 == 0,) * 2
        sides = (True, False) if others is starved else sides
        for ratio, starving in ((1.0, sides), (RATIO, (True, False))):
            pytorch = make_row(rng, "pytorch", CALL_NS * ratio, others, first=starving[0])
            ort = make_row(rng, "ort", CALL_NS, others, first=starving[1])
            headline, found = rank_results([pytorch, ort]).headlines[0], compare_configurations(pytorch, ort).ratio
            held += [(found.low or 0.0) <= ratio <= (found.high or 0.0)] if found else []
            winners += ratio == 1 and headline.state != "tie"
            named += [headline.id] if ratio != 1 and headline.state != "tie" else []
    right = named.count("ort")
    return Found(others.__name__, winners, right, len(named) - right, len(held), sum(held))


def main() -> int:
    """Prints the table; 1 if a figure missed its limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=40)
    options = parser.parse_args()
    print(f"{options.runs} runs of two that are the same, and of two that differ")
    print("           of the same   of two that differ   ratios of both")
    print("beside           named    right  wrong          given    hold")
    table = [simulate(others, options.runs) for others in OTHERS]
    for found in table:
        print(
            f"{found.others:8} {found.false_winners:13} {found.right:8} {found.wrong:6} {found.given:14} {found.held:7}"
        )
    right = all(not f.false_winners and 10 * f.right >= 9 * options.runs for f in table)
    return 0 if right and 20 * sum(f.held for f in table) >= 19 * sum(f.given for f in table) else 1


if __name__ == "__main__":
    sys.exit(main())
