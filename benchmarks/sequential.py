"""Trials that end early: how often a verdict is wrong, how often an interval covers, and what the stored runs say.

    python benchmarks/sequential.py [--runs 2000] [--json]

Simulated runs of 2 to 8 configurations, of which some are equal and some exactly the margin apart; process medians
scatter by 0.3 to 10 %. Then every stored run of ten trials again, as it was and with its trials in other orders: what
would have been said, had it ended early. Exit code 1 when a figure misses its limit.

The claims of docs/how-we-measure.md rest on this.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from figures import SAME, is_wrong
from msgspec.structs import replace

from enginebench.core.limits import LEVELS, MARGIN, MOST
from enginebench.core.records import Drift, EngineSpec, Estimate, Measurement, MeasureSpec, Result
from enginebench.core.store import read_result
from enginebench.stats.assessment import compare_configurations, find_setting
from enginebench.stats.compare import compare_apart, find_level, list_open, reduce_to_median
from enginebench.stats.intervals import measure_spread
from enginebench.stats.ranking import list_relevant_pairs

M = math.log1p(MARGIN)
STORED = Path(__file__).parents[1] / "results"
ORDERS = 40  # of the trials of each stored run, the first one as it was
# Figure -> (limit, whether it is an upper one).
LIMITS = {
    "wrong verdict against the baseline": (0.05, True),
    "runs that name the wrong USE": (0.05, True),
    "ratio covered": (0.94, False),
    "ratio covered, bench --against": (0.94, False),
    "wrong verdict, bench --against": (0.05, True),
    "ratio covered, diff": (0.94, False),
    "wrong verdict, diff": (0.05, True),
    "gate fails an equal side": (0.05, True),
    "p50 covered": (0.94, False),
}


class Truth(NamedTuple):
    """The logs of the times of a run's configurations, and by how much their processes scatter."""

    logs: list[float]
    deviations: list[float]


def draw_truth(rng: np.random.Generator, rows: int) -> Truth:
    """Equal to an earlier one in 3 of 10, a margin beside it in 2 of 10, else up to 7 times as fast as the first."""
    logs = [0.0]
    for _ in range(rows - 1):
        kind, near = rng.random(), logs[rng.integers(len(logs))]
        logs.append(near if kind < 0.3 else near + rng.choice((-M, M)) if kind < 0.5 else rng.uniform(-2, 0.3))
    return Truth(logs, [float(np.exp(rng.uniform(math.log(0.003), math.log(0.1)))) for _ in range(rows)])


def measure(rng: np.random.Generator, truth: Truth) -> list[Result]:
    """Ten trials of each configuration; the machine's own speed moves by 5 % between them, alike for all."""
    shared = rng.normal(0, 0.05, MOST)
    rows = []
    for i, (log, deviation) in enumerate(zip(*truth, strict=True)):
        times = 1e6 * np.exp(log + shared + rng.normal(0, deviation, MOST))
        rows.append(make_row(f"row-{i}", times.tolist()))
    return rows


def make_row(name: str, times: Sequence[float]) -> Result:
    """A row of trials of one sample each."""
    return Result(
        id=name,
        model="simulated",
        engine=EngineSpec(backend="fake"),
        measure=MeasureSpec(settle=MARGIN),
        requested_precision="fp32",
        status="ok",
        drift=Drift(n=32, outputs=(SAME,), reference="row-0"),
        measurements=tuple(
            Measurement(clock="host", latency_ns=[time], blocks=(), stop_rule="settled", trial=i)  # type: ignore[list-item]
            for i, time in enumerate(times)
        ),
    )


def end_early(rows: Sequence[Result]) -> list[Result]:
    """The rows as a run would have left them."""
    rows = list(rows)
    for look in LEVELS:
        seen = [cut(row, look) for row in rows]
        still = list_open(seen, look, MARGIN, list_relevant_pairs(seen, look))
        rows = [row if row.look or row.id in still else replace(cut(row, look), look=look) for row in rows]
    return rows


def cut(row: Result, trials: int) -> Result:
    """The row after so many trials."""
    return replace(row, measurements=tuple(m for m in row.measurements if m.trial < trials))


def covers(found: Estimate | None, log: float) -> bool:
    """Whether an interval holds the true ratio."""
    return found is not None and (found.low or 0) <= math.exp(log) <= (found.high or math.inf)


def name_fastest(rows: Sequence[Result]) -> str | None:
    """The configuration that is shown to be faster than each of the others; None: there is a tie."""
    means = {row.id: [] if row.id != rows[0].id else [0.0] for row in rows}
    for row in rows[1:]:
        ratio = compare_configurations(rows[0], row, MARGIN).ratio
        means[row.id] = [-math.log(ratio.value)] if ratio else [math.inf]
    best = min(rows, key=lambda row: means[row.id])
    others = [row for row in rows if row.id != best.id]
    return best.id if all(compare_configurations(row, best, MARGIN).verdict == "faster" for row in others) else None


def count_run(rng: np.random.Generator, rows: int, early: bool) -> Iterator[tuple[str, bool | float]]:
    """(figure, whether it happened) of one simulated run."""
    truth = draw_truth(rng, rows)
    first, again = (end(measure(rng, truth)) for end in [end_early if early else list] * 2)
    any_wrong = False
    for i, row in enumerate(first[1:], 1):
        log, found = truth.logs[0] - truth.logs[i], compare_configurations(first[0], row, MARGIN)
        any_wrong |= is_wrong(found.verdict, log, M)
        yield "wrong verdict against the baseline", is_wrong(found.verdict, log, M)
        yield "ratio covered", covers(found.ratio, log)
    yield "runs with any wrong verdict", any_wrong
    named = name_fastest(first)
    yield "runs that name the wrong USE", bool(named) and truth.logs[int(str(named)[4:])] > min(truth.logs) + 1e-9
    yield "runs that name a USE", named is not None
    for row, later in zip(first, again, strict=True):
        found = compare_apart(row.measurements, later.measurements, margin=MARGIN, level=find_level(row, later))
        yield "ratio covered, diff", covers(found.ratio, 0.0)
        yield "wrong verdict, diff", is_wrong(found.verdict, 0.0, M)
        yield "trials of a configuration", len(row.measurements)
        spread = measure_spread([math.log(m.latency_ns[0] / 1e6) for m in row.measurements]).interval(find_level(row))
        yield "p50 covered", spread is not None and spread[0] <= truth.logs[int(row.id[4:])] <= spread[1]


def count_gate(rng: np.random.Generator, early: bool) -> Iterator[tuple[str, bool]]:
    """(figure, whether it happened) of one `bench --against`: an equal side, and one that may be anything."""
    for name, truth in (("equal", Truth([0.0, 0.0], draw_truth(rng, 2).deviations)), ("any", draw_truth(rng, 2))):
        rows = measure(rng, truth)
        base, cand = end_early(rows) if early else rows
        found, log = compare_configurations(base, cand, MARGIN), truth.logs[0] - truth.logs[1]
        if name == "equal":
            yield "gate fails an equal side", found.verdict == "slower"
        yield "ratio covered, bench --against", covers(found.ratio, log)
        yield "wrong verdict, bench --against", is_wrong(found.verdict, log, M)


def simulate(runs: int, *, early: bool, seed: int = 0) -> dict[str, float]:
    """Figure -> its mean over the runs."""
    rng = np.random.default_rng(seed)
    sums: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for i in range(runs):
        for name, value in (*count_run(rng, 2 + i % 7, early), *count_gate(rng, early)):
            sums[name] += value  # type: ignore[assignment]
            counts[name] += 1
    return {name: sums[name] / counts[name] for name in counts}


def list_missed(figures: dict[str, float]) -> list[str]:
    """The figures that miss their limits."""
    return [
        name for name, (limit, upper) in LIMITS.items() if (figures[name] > limit if upper else figures[name] < limit)
    ]


def list_stored() -> Iterator[tuple[str, list[Result]]]:
    """(name, configurations of one setting) of every stored run whose rows have ten trials."""
    for path in sorted(STORED.glob("*/*.tar.xz")):
        with tarfile.open(path) as archive, tempfile.TemporaryDirectory() as place:
            archive.extractall(place, filter="data")
            rows = [read_result(file) for file in sorted(Path(place).glob("*/rows/*.json"))]
        groups: dict[object, list[Result]] = {}
        for row in rows:
            if row.status == "ok" and len(row.measurements) == MOST:
                groups.setdefault(find_setting(row), []).append(row)
        yield from ((path.name.split(".")[0], group) for group in groups.values() if len(group) > 1)


def replay(rng: np.random.Generator, orders: int = ORDERS) -> Counter[str]:
    """What the stored runs would have said, had they ended early."""
    found: Counter[str] = Counter()
    for _, rows in list_stored():
        brief = [make_brief(row) for row in rows]
        base = next((row for row in brief if row.id.startswith("pytorch-fp32")), brief[0])
        brief = [base, *(row for row in brief if row is not base)]
        for order in [list(range(MOST)), *(rng.permutation(MOST).tolist() for _ in range(orders - 1))]:
            full = [replace(row, measurements=tuple(shuffle(row, order))) for row in brief]
            early = end_early(full)
            found["replayed runs"] += 1
            found["trials"] += sum(len(row.measurements) for row in early)
            found["trials of ten each"] += MOST * len(early)
            before, now = name_fastest(full), name_fastest(early)
            found["USE named by ten trials"] += before is not None
            found["the same named early"] += before is not None and before == now
            found["another named early"] += now is not None and now != before
            for i, row in enumerate(early[1:], 1):
                verdicts = {
                    compare_configurations(full[0], full[i], MARGIN).verdict,
                    compare_configurations(early[0], row, MARGIN).verdict,
                }
                found["verdicts"] += 1
                found["opposite verdicts"] += verdicts == {"faster", "slower"}
                found["other verdicts"] += len(verdicts) > 1
    return found


def make_brief(row: Result) -> Result:
    """The row with one sample for each trial, its median."""
    ordered = sorted(row.measurements, key=lambda m: m.trial)
    return replace(row, look=None, measurements=tuple(reduce_to_median(m) for m in ordered))


def shuffle(row: Result, order: Sequence[int]) -> Iterator[Measurement]:
    """The trials in another order, each with its neighbours."""
    return (replace(row.measurements[old], trial=new) for new, old in enumerate(order))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    early, fixed = simulate(options.runs, early=True), simulate(options.runs, early=False)
    found = replay(np.random.default_rng(0))
    missed = list_missed(early)
    missed += ["opposite verdicts"] * bool(found["opposite verdicts"])
    missed += ["the same USE"] * (found["the same named early"] < found["USE named by ten trials"])
    if options.json:
        print(json.dumps({"early": early, "ten": fixed, "stored": found, "missed": missed}))
        return 1 if missed else 0
    print(f"{options.runs} simulated runs{'':32} 6 to 10 trials   ten trials   limit")
    for name, value in early.items():
        limit, upper = LIMITS.get(name, (None, True))
        told = "" if limit is None else f"at {'most' if upper else 'least'} {limit:g}"
        print(f"  {name:50} {value:14.4f} {fixed[name]:12.4f}   {told}")
    print(f"stored runs of ten trials, each in {ORDERS} orders")
    for name, count in found.items():
        print(f"  {name:50} {count:14d}")
    print(f"missed: {', '.join(missed) or 'nothing'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
