"""How long the main job takes from a warm environment, and the ratios by which a wrong set-up would show.

python benchmarks/main_job.py [--keep DIR]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# (what, arguments, limit in seconds)
TIMED = (
    ("digits-cnn --quick", ["run", "digits-cnn", "--quick"], 60.0),
    ("resnet18, all four engines", ["run", "resnet18"], 360.0),
)
# One thread: on two, virtual CPUs may be two halves of one core. Least speed-up over eager PyTorch in FP32, by engine
# in FP32, and of the fastest row in INT8 (on a CPU with AVX512-VNNI).
RATIOS = ["run", "resnet18", "--engines", "pytorch,ort,openvino", "--precisions", "fp32,int8", "--threads", "1"]
LEAST = {"ort": 1.6, "openvino": 1.8}
LEAST_INT8 = 6.2


def run(arguments: list[str], folder: Path) -> tuple[float, dict[str, object]]:
    """(wall seconds, the JSON document) of one run."""
    command = [sys.executable, "-m", "enginebench", *arguments, "--json", "--out", str(folder)]
    start = time.monotonic()
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return time.monotonic() - start, json.loads(done.stdout)


def time_runs(root: Path) -> int:
    """How many of the timed runs took too long."""
    missed = 0
    for i, (what, arguments, limit) in enumerate(TIMED):
        seconds, _ = run(arguments, root / f"timed-{i}")
        missed += seconds > limit
        print(f"{what}: {seconds:.0f} s; limit {limit:.0f} s: {'met' if seconds <= limit else 'NOT met'}", flush=True)
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
        print(f"resnet18, one thread, {row['engine']} {row['precision']} over eager fp32: {ratio['value']:.2f} "
              f"({ratio['low']:.2f} to {ratio['high']:.2f}), {row['validity']}; at least {least}: "
              f"{'met' if ratio['value'] >= least else 'NOT met'}")  # fmt: skip
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="folder for the runs")
    parser.add_argument("--ratios-only", action="store_true")
    options = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as scratch:
        root = options.keep or Path(scratch)
        if not options.ratios_only:
            missed += time_runs(root)
        _, document = run(RATIOS, root / "ratios")
        missed += check_ratios(document["rows"])  # type: ignore[arg-type]
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
