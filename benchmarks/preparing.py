"""How long a run prepares its rows, and how long it takes in all: this checkout and another, in turns.

python benchmarks/preparing.py --before CHECKOUT [--times 2] [-- ARGUMENTS OF run]

Without ARGUMENTS a quick run of digits-cnn in fp32 and int8. On a GPU, for instance:

python benchmarks/preparing.py --before ../before -- resnet50 --device cuda:0 --quick --precisions fp32,fp16,int8
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
ARGUMENTS = ["digits-cnn", "--precisions", "fp32,int8", "--quick", "--time-limit", "1"]
# The line with which the first timing of a run begins.
TIMING = ": process 1 of "


def time_run(checkout: Path, arguments: list[str]) -> tuple[float, float]:
    """(seconds until the first row is timed, seconds in all) of one run.

    Raises:
        SystemExit: the run failed, or timed nothing.
    """
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    with tempfile.TemporaryDirectory(prefix="enginebench-") as folder:
        command = [sys.executable, "-m", "enginebench", "run", *arguments, "--out", f"{folder}/run"]
        start, prepared, said = time.monotonic(), None, []
        with subprocess.Popen(
            command, cwd=folder, env=environment, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as process:
            for line in process.stderr or ():
                said.append(line)
                if prepared is None and TIMING in line:
                    prepared = time.monotonic() - start
        if process.returncode != 0 or prepared is None:
            raise SystemExit(f"{checkout}: the run ended with {process.returncode}:\n{''.join(said[-20:])}")
        return prepared, time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="the checkout to compare with")
    parser.add_argument("--times", type=int, default=2, help="runs of each")
    parser.add_argument("arguments", nargs="*", help="of run")
    given = parser.parse_args()
    for _ in range(given.times):
        for name, checkout in (("before", given.before.resolve()), ("after", HERE)):
            prepared, whole = time_run(checkout, given.arguments or ARGUMENTS)
            print(f"{name:6}  until the first timing {prepared:6.1f} s, in all {whole:6.1f} s", flush=True)


if __name__ == "__main__":
    main()
