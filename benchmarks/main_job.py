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

# (what, arguments, limit in seconds)
TIMED = (
    ("digits-cnn --quick", ["run", "digits-cnn", "--quick"], 60.0),
    ("resnet18, all four engines", ["run", "resnet18"], 360.0),
)
# One thread: on two, virtual CPUs may be two halves of one core. Engine -> least speed-up over eager PyTorch.
RATIOS = ["run", "resnet18", "--engines", "pytorch,ort,openvino", "--threads", "1"]
LEAST = {"ort": 1.6, "openvino": 1.8}


def run(arguments: list[str], folder: Path) -> tuple[float, dict[str, object]]:
    """(wall seconds, the JSON document) of one run."""
    command = [sys.executable, "-m", "enginebench", *arguments, "--json", "--out", str(folder)]
    start = time.monotonic()
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return time.monotonic() - start, json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, help="folder for the runs")
    options = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory() as scratch:
        root = options.keep or Path(scratch)
        for i, (what, arguments, limit) in enumerate(TIMED):
            seconds, _ = run(arguments, root / f"timed-{i}")
            missed += seconds > limit
            print(f"{what}: {seconds:.0f} s; limit {limit:.0f} s: {'met' if seconds <= limit else 'NOT met'}")
        _, document = run(RATIOS, root / "ratios")
        for row in document["rows"]:  # type: ignore[attr-defined]
            least = LEAST.get(row["engine"])
            if least is None:
                continue
            ratio = row["speedup"]
            met = ratio is not None and ratio["value"] >= least
            missed += not met
            shown = f"{ratio['value']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})" if ratio else "none"
            print(f"resnet18, one thread, {row['engine']} over eager: {shown}, {row['validity']}; "
                  f"at least {least}: {'met' if met else 'NOT met'}")  # fmt: skip
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
