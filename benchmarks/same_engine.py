"""A against A and A against B on this machine, alone and beside others: who is named, and do the ratios hold?

    python benchmarks/same_engine.py [--model digits-cnn] [--trials 40] [--beside nobody,loops,memory] [--folder DIR]

Three configurations take turns: PyTorch, ONNX Runtime, and ONNX Runtime with an option that is its default. Every ten
neighbouring trials are judged as the run of ten trials that they are. Beside them runs a program for each CPU: `loops`
count, `memory` copies arrays larger than any cache. The quiet ratio is of the trials of all conditions that nobody
disturbed, where there are such; of two that are the same it is 1. Exit code 1 when one of two that are the same is
named, or when the slower one of two that differ is named, or a printed interval does not hold the quiet ratio, more
than once in ten.

The claims of benchmarks/README.md rest on this.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import geometric_mean

from msgspec.structs import replace

from enginebench.core.records import Measurement, Result
from enginebench.core.store import read_result
from enginebench.stats.assessment import compare_configurations
from enginebench.stats.headline import Headline
from enginebench.stats.quantiles import median
from enginebench.stats.ranking import rank_results
from enginebench.stats.summary import share_marked

GROUP = 10
A, AGAIN, B = "ort", "ort:opt=all", "pytorch"
COPY = "import numpy as np\na = np.ones(1 << 26)\nb = np.empty_like(a)\nwhile True: np.copyto(b, a)"
OTHERS = {"nobody": "", "loops": "while True: pass", "memory": COPY}
QUIET = 0.05  # of the samples of a trial beside others, at most


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="digits-cnn")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--beside", default="nobody,loops,memory")
    parser.add_argument("--folder", type=Path, help="Keeps the runs, and judges those that it holds.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = options.folder or Path(scratch)
        runs = {name: measure(options.model, root / name, options.trials, name) for name in options.beside.split(",")}
    quiet = find_quiet(list(runs.values()))
    told = f"{quiet:.2f}" if quiet else "not known: no trial of both was left alone"
    print(f"{options.model}, {options.trials} trials of each; {A} over {B} undisturbed: {told}")
    print("                        same twice        two that differ        intervals that hold, of    median, ms")
    print("beside   groups       nobody  named       right  nobody  wrong     the same    differ         ort  pytorch")
    return max([show(name, rows, quiet) for name, rows in runs.items()])


@contextmanager
def running(code: str) -> Iterator[None]:
    """A program on every CPU."""
    cpus = len(os.sched_getaffinity(0)) if code else 0
    others = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(cpus)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measure(model: str, folder: Path, trials: int, beside: str) -> dict[str, Result]:
    """ENGINE -> its row; measured where the folder does not hold it."""
    if not any(folder.glob("rows/*.json")):
        command = [sys.executable, "-m", "enginebench", "run", model, "--engines", f"{B},{A},{AGAIN}"]
        command += ["--processes", str(trials), "--time-limit", "1.5", "--out", str(folder)]
        with running(OTHERS[beside]):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    rows = map(read_result, sorted(folder.glob("rows/*.json")))
    return {AGAIN if row.engine.options else row.engine.backend: row for row in rows}


def find_quiet(runs: Sequence[dict[str, Result]]) -> float | None:
    """The ratio of the two that differ, by the trials that nobody disturbed."""
    sides = [[median(m.latency_ns) for rows in runs for m in rows[name].measurements if is_quiet(m)] for name in (B, A)]
    return geometric_mean(sides[0]) / geometric_mean(sides[1]) if all(sides) else None


def is_quiet(measurement: Measurement) -> bool:
    return bool(measurement.latency_ns) and share_marked([measurement]) <= QUIET


def show(name: str, rows: dict[str, Result], quiet: float | None) -> int:
    """A line about a condition; 1 where it misses a limit."""
    groups = range(min(len(row.measurements) for row in rows.values()) - GROUP + 1)
    same = Counter(judge(rows, (A, AGAIN), first).state for first in groups)
    found = [judge(rows, (B, A), first) for first in groups]
    named = Counter("" if h.state == "tie" else rows[A].id == h.id for h in found)
    shown, missed = [], 10 * named[False] > len(groups)
    for sides, true in (((A, AGAIN), 1.0), ((B, A), quiet)):
        ratios = [r for first in groups if (r := compare_configurations(*cut_group(rows, sides, first)).ratio)]
        held = sum((r.low or 0.0) <= (true or 0.0) <= (r.high or 0.0) for r in ratios)
        shown.append(f"{held if true else '?'} of {len(ratios)}")
        missed = missed or (true is not None and 10 * held < 9 * len(ratios))
    times = [geometric_mean([median(m.latency_ns) / 1e6 for m in rows[side].measurements]) for side in (A, B)]
    wrong = len(groups) - same["tie"]
    print(
        f"{name:8} {len(groups):6} {same['tie']:12} {wrong:6} {named[True]:11} {named['']:7} {named[False]:6} "
        f"{shown[0]:>13} {shown[1]:>10} {times[0]:9.3g} {times[1]:8.3g}"
    )
    return int(bool(wrong) or missed)


def judge(rows: dict[str, Result], names: tuple[str, str], first: int) -> Headline:
    """What the head says of two configurations, of whose outputs nothing is asked here."""
    base, cand = cut_group(rows, names, first)
    drift = rows[A].drift
    return rank_results([base, replace(cand, drift=drift and replace(drift, reference=base.id))]).headlines[0]


def cut_group(rows: dict[str, Result], names: tuple[str, str], first: int) -> list[Result]:
    """The rows of two configurations as a run of ten trials has them."""
    turns = range(first, first + GROUP)
    kept = [tuple(m for m in rows[name].measurements if m.trial in turns) for name in names]
    return [replace(rows[name], drift=None, status="ok", measurements=k) for name, k in zip(names, kept, strict=True)]


if __name__ == "__main__":
    sys.exit(main())
