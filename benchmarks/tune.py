"""How often a search finds what is best, and what it costs: the code of the race on simulated processes, no real time.

    python benchmarks/tune.py [--searches 200] [--json]
    python benchmarks/tune.py --cpu --out DIR [--time-budget 20m] [--models resnet18,...] [--precisions fp32,int8]

24 candidates, eight settings of each of three engines; the costs of processes have a deviation of 2 %. A search ends
with the final against the default of each engine. The full grid measures every candidate in ten processes. Exit code 1
when a figure misses its limit.

With --cpu: models are tuned for real, each within its budget, and the table shows the winner of the race over the best
default, as the final found it. A model whose folder is there already goes on where it was. Exit code 1 unless one of
them is at least 1.15 times as fast, and none slower than its default by more than its interval.

The claims of docs/tune.md rest on this.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from figures import Figure, at_least, at_most

from enginebench.features.tune.race import Final, Race

CANDIDATES = [f"{engine}:{setting}" for setting in range(8) for engine in ("a", "b", "c")]
DEFAULTS = CANDIDATES[:3]
PROCESS_SD = 0.02
AHEAD = 1.05
LENGTH = 10
GRID = LENGTH * len(CANDIDATES)
MODELS = ("resnet18", "mobilenet_v3_small", "efficientnet_b0", "timm:vit_tiny_patch16_224")


class Found(NamedTuple):
    """What one search came to."""

    winner: str
    beaten: bool
    processes: int


def search(rng: np.random.Generator, costs: dict[str, float], sd: float = PROCESS_SD) -> Found:
    """One search among candidates of these true costs."""
    processes = 0

    def measure(names: Sequence[str]) -> dict[str, float]:
        nonlocal processes
        processes += len(names)
        return {name: costs[name] * math.exp(sd * rng.standard_normal()) for name in names}

    race = Race(list(costs))
    while not race.over:
        race.add_round(measure(race.list_turns()))
    final = Final(str(race.leader), DEFAULTS, length=LENGTH)
    while not final.over:
        final.add_round(measure(final.alive))
    return Found(str(final.winner), final.beaten, processes)


def simulate(searches: int, best: str | None, *, seed: int) -> list[Found]:
    """Searches where `best` is truly ahead of all others, which are equal."""
    rng = np.random.default_rng(seed)
    costs = {name: 1 / AHEAD if name == best else 1.0 for name in CANDIDATES}
    return [search(rng, costs) for _ in range(searches)]


def judge_searches(searches: int) -> Iterator[Figure]:
    """The figures that the search is held to."""
    best = CANDIDATES[13]
    ahead, equal = simulate(searches, best, seed=1), simulate(searches, None, seed=2)
    yield at_least("best 5 % ahead: found", _share(found.winner == best for found in ahead), 0.95)
    yield at_least("all equal: default not beaten", _share(not found.beaten for found in equal), 0.95)
    for name, outcome in (("best 5 % ahead", ahead), ("all equal", equal)):
        spent = np.array([found.processes for found in outcome]) / GRID
        yield at_most(f"{name}: processes over the full grid, mean", float(spent.mean()), 0.5)


def _share(hits: Iterator[bool]) -> float:
    found = list(hits)
    return sum(found) / len(found)


class Tuned(NamedTuple):
    """What tuning one model came to: the speed of the challenger over the best default, with its interval."""

    model: str
    ratio: float
    low: float
    high: float
    verdict: str
    challenger: str
    default: str
    settings: int
    measurements: int


def tune_all(models: Sequence[str], budget: str, precisions: str, out: Path) -> Iterator[Tuned]:
    """Tunes each model in a folder of its own."""
    import enginebench

    for model in models:
        folder = out / model.replace(":", "-")
        resume = (folder / "search.json").exists()
        found = enginebench.tune(
            model, precisions=precisions, time_budget=budget, out=folder, resume=resume, progress=True
        )
        ratio, default = found.ratio, found.default
        yield Tuned(
            model,
            ratio.value if ratio else 1.0,  # without one the default won the race itself
            (ratio.low if ratio else None) or 1.0,
            (ratio.high if ratio else None) or 1.0,
            found.verdict or "the default won the race",
            found.challenger.candidate if found.challenger else "",
            default.candidate if default else "",
            len(found.candidates),
            found.processes,
        )


def judge_tuned(found: Sequence[Tuned]) -> Iterator[Figure]:
    """The figures that tuning on a CPU is held to."""
    yield at_least("fastest of the winners over its default", max(one.ratio for one in found), 1.15)
    yield at_least("upper end of the slowest winner's interval", min(one.high for one in found), 1.0)


def print_tuned(found: Sequence[Tuned]) -> None:
    for one in found:
        print(f"{one.model:30}{one.ratio:7.3f}x  ({one.low:.3f} to {one.high:.3f})  {one.verdict}")
        print(f"    {one.challenger}  over  {one.default}; {one.settings} settings, {one.measurements} measurements")


def print_figures(figures: Sequence[Figure]) -> None:
    print(f"{'':50}{'value':>8}  limit")
    for figure in figures:
        print(f"{figure.name:50}{figure.value:8.4f}  {figure.limit}{'' if figure.passed else '  MISSED'}")


def main() -> int:
    """Prints the table; 1 if a figure missed its limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--searches", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--time-budget", default="20m")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--precisions", default="fp32,int8")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.cpu:
        if options.out is None:
            parser.error("--cpu needs --out DIR, where the searches are kept")
        found = list(tune_all(options.models.split(","), options.time_budget, options.precisions, options.out))
        figures = list(judge_tuned(found))
        if options.json:
            print(json.dumps([one._asdict() for one in found], indent=1))
        else:
            print_tuned(found)
            print_figures(figures)
        return 0 if all(figure.passed for figure in figures) else 1
    figures = list(judge_searches(options.searches))
    if options.json:
        print(json.dumps([figure._asdict() for figure in figures], indent=1))
    else:
        print(f"{options.searches} searches of {len(CANDIDATES)} candidates")
        print_figures(figures)
    return 0 if all(figure.passed for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
