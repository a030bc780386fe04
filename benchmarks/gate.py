"""How often `diff --gate` is right, as a whole process on stored runs: the figures of verdicts.py once more.

    python benchmarks/gate.py [--runs 2000] [--rows 100]

Each process compares two stored runs of so many rows, made apart; a row is ten repetitions with a deviation of 1 %.
Exit code 1 when a figure misses its limit, or when an exit code of the gate does not follow from its verdicts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "helpers"), str(ROOT / "tests"), str(ROOT / "src")]

import numpy as np  # noqa: E402
from msgspec.structs import replace  # noqa: E402
from verdicts import MEDIAN_NS, Figure, at_least, at_most, below, make_side, print_table  # noqa: E402

from enginebench.core.records import Result  # noqa: E402
from samples import make_machine, make_result  # noqa: E402
from stored_run import write_run  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = {speedup: judge(Path(scratch), speedup, options) for speedup in (1.05, 1.0, 1.02, 1 / 1.05)}
    figures = list_figures({speedup: verdicts for speedup, (verdicts, _) in found.items()})
    print_table(f"`diff --gate` as a process, {options.runs} rows each", figures)
    wrong = sum(count for _, count in found.values())
    print(f"exit codes that do not follow from the verdicts: {wrong}")
    return int(wrong > 0 or not all(figure.passed for figure in figures))


def judge(scratch: Path, speedup: float, options: argparse.Namespace) -> tuple[Counter[str], int]:
    """(verdicts over all rows, exit codes that are wrong) for rows whose true ratio is `speedup`."""
    rng = np.random.default_rng(round(1000 * speedup))
    verdicts: Counter[str] = Counter()
    wrong = 0
    for i in range(options.runs // options.rows):
        sides = [make_run(scratch / f"{speedup:.3f}-{i}-{side}", rng, options.rows, side, speedup) for side in (0, 1)]
        done = subprocess.run(
            [sys.executable, "-m", "enginebench", "diff", *map(str, sides), "--gate", "--json"],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            check=False,
        )
        rows = Counter(row["verdict"] for row in json.loads(done.stdout)["rows"])
        verdicts += rows
        wrong += done.returncode != (4 if rows["slower"] or rows["not_comparable"] else 0)
    return verdicts, wrong


def make_run(root: Path, rng: np.random.Generator, rows: int, side: int, speedup: float) -> Path:
    results: list[Result] = []
    for number in range(rows):
        measured = make_side(rng, MEDIAN_NS / speedup if side else MEDIAN_NS)
        known = tuple(replace(m, reference_ns=[1_000_000]) for m in measured)
        row = make_result("ort", identity=f"row-{number}", status="skipped")
        results.append(replace(row, status="ok", measurements=known, machine=make_machine()))
    return write_run(root, results)


def list_figures(found: dict[float, Counter[str]]) -> list[Figure]:
    runs = sum(found[1.0].values())
    return [
        at_least("5 % faster: faster", found[1.05]["faster"] / runs, 0.95),
        at_least("the same: equivalent", found[1.0]["equivalent"] / runs, 0.90),
        at_most("2 % faster: faster", found[1.02]["faster"] / runs, 0.04),
        below("5 % faster: slower", found[1.05]["slower"] / runs, 0.001),
        at_least("5 % slower: slower", found[1 / 1.05]["slower"] / runs, 0.95),
        below("the same: slower", found[1.0]["slower"] / runs, 0.001),
    ]


if __name__ == "__main__":
    sys.exit(main())
