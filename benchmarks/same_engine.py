"""A against A on this machine: the same engine twice, interleaved; what the verdicts make of it.

python benchmarks/same_engine.py [--model digits-cnn] [--pairs 40]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from enginebench.analyze.compare import compare
from enginebench.core.store import read_result

GROUP = 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="digits-cnn")
    parser.add_argument("--pairs", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "enginebench", "bench", options.model, "--engine", "ort", "--against", "ort"]
        command += ["--processes", str(options.pairs), "--time-limit", "1.5"]
        subprocess.run(command, check=True, cwd=scratch, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        a, b = (read_result(path).measurements for path in sorted(Path(scratch).rglob("rows/*.json")))
    print(f"{options.model}, ort against ort, {options.pairs} pairs, margin 2 %")
    print("pairs      ratio (95 % interval)     verdict")
    for start in range(0, options.pairs - GROUP + 1, GROUP):
        show(f"{start + 1}-{start + GROUP}", compare(a[start : start + GROUP], b[start : start + GROUP]))
    whole = compare(a, b)
    show("all", whole)
    counted = Counter(compare(a[i : i + GROUP], b[i : i + GROUP]).verdict for i in range(options.pairs - GROUP + 1))
    print(f"every {GROUP} neighbours ({sum(counted.values())} overlapping groups):",
          ", ".join(f"{verdict} {n}" for verdict, n in counted.most_common()))  # fmt: skip
    return 1 if whole.verdict in ("faster", "slower") else 0


def show(name: str, found: object) -> None:
    ratio = found.ratio  # type: ignore[attr-defined]
    print(f"{name:10} {ratio.value:.4f} ({ratio.low:.4f} to {ratio.high:.4f})  {found.verdict}")  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())
