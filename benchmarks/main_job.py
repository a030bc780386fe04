"""How long the main job takes from a warm environment, and the ratios by which a wrong set-up would show.

python benchmarks/main_job.py [--keep DIR] [--only TEXT]

The claims of benchmarks/README.md rest on this.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

# (what, arguments, limit in seconds on two idle cores; None: for comparison)
EIGHT = ["--precisions", "fp32,int8"]
INT8 = ["run", "resnet18", *EIGHT]
MAKE_RUN = ["run", "efficientnet-lite0", *EIGHT, "--time-limit", "1"]
TIMED = (
    ("digits-cnn --quick, four engines", ["run", "digits-cnn", "--quick"], 30.0),
    ("digits-cnn --quick, three", ["run", "digits-cnn", "--quick", "--engines", "pytorch,ort,openvino"], 20.0),
    ("efficientnet-lite0 --quick", ["run", "efficientnet-lite0", "--quick"], 45.0),
    ("efficientnet-lite0 --quick, FP32 and INT8", ["run", "efficientnet-lite0", "--quick", *EIGHT], 45.0),
    ("efficientnet-lite0, what `make run` does", MAKE_RUN, 120.0),
    ("efficientnet-lite0, FP32", ["run", "efficientnet-lite0"], None),
    ("resnet18, four engines", ["run", "resnet18"], 180.0),
    ("resnet18, FP32 and INT8", INT8, 300.0),
    ("the same, ten trials each", [*INT8, "--processes", "10"], None),
)
# One thread: on two, virtual CPUs may be two halves of one core. Least speed-up over eager PyTorch in FP32, by engine
# in FP32, and of the fastest row in INT8 (on a CPU with AVX512-VNNI).
RATIOS = ["run", "resnet18", "--engines", "pytorch,ort,openvino", "--precisions", "fp32,int8", "--threads", "1"]
LEAST = {"ort": 1.6, "openvino": 1.8}
LEAST_INT8 = 6.2


class Cost(NamedTuple):
    """What one run took; `cpu_s` with all processes that it started, which a busy machine changes less."""

    wall_s: float
    cpu_s: float
    trials: int


def run(arguments: list[str], folder: Path) -> tuple[Cost, dict[str, Any]]:
    """(cost, the JSON document) of one run."""
    command = [sys.executable, "-m", "enginebench", *arguments, "--json", "--out", str(folder)]
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    wall_s, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    document: dict[str, Any] = json.loads(done.stdout)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall_s, cpu_s, sum(row["processes"] for row in document["rows"])), document


def time_runs(root: Path, names: Sequence[str]) -> int:
    """How many of the timed runs took too long."""
    missed = 0
    for i, (what, arguments, limit) in enumerate(TIMED):
        if names and not any(name in what for name in names):
            continue
        cost, _ = run(arguments, root / f"timed-{i}")
        missed += limit is not None and cost.wall_s > limit
        held = "" if limit is None else f"; limit {limit:.0f} s: {'met' if cost.wall_s <= limit else 'NOT met'}"
        print(f"{what}: {cost.wall_s:.0f} s, {cost.cpu_s:.0f} CPU s, {cost.trials} trials{held}", flush=True)
    return missed


def check_ratios(rows: list[dict[str, Any]]) -> int:
    """How many engines are slower than they should be."""
    measured = [row for row in rows if row["speedup"] and row["engine"] in LEAST]
    fastest = max((row["speedup"]["value"] for row in measured if row["precision"] == "int8"), default=None)
    missed = int(fastest is None)
    for row in measured:
        ratio = row["speedup"]
        if row["precision"] == "int8" and ratio["value"] < fastest:
            continue
        least = LEAST_INT8 if row["precision"] == "int8" else LEAST[row["engine"]]
        missed += ratio["value"] < least
        print(
            f"resnet18, one thread, {row['engine']} {row['precision']} over eager fp32: {ratio['value']:.2f} "
            f"({ratio['low']:.2f} to {ratio['high']:.2f}), {row['validity']}; at least {least}: "
            f"{'met' if ratio['value'] >= least else 'NOT met'}"
        )
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="folder for the runs")
    parser.add_argument("--ratios-only", action="store_true")
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="time the runs with this name alone"
    )
    options = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as scratch:
        root = options.keep or Path(scratch)
        if not options.ratios_only:
            missed += time_runs(root, options.only)
        if not options.only:
            _, document = run(RATIOS, root / "ratios")
            missed += check_ratios(document["rows"])
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
