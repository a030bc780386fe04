"""Measures `parse times` on a timing file of a million queries against json + pandas.

    python benchmarks/parse_times.py [--queries 1000000] [--pandas PYTHON]

Each side is a process of its own: CPU seconds (user + system) and peak memory are those that the kernel counts. All
read the same file (about 280 MB, made here) and write their figures and the three series as CSV; `pandas_whole` also
writes the whole frame. Ours alone computes intervals. pandas is no dependency of EngineBench; PYTHON is an interpreter
that has it, for example after `python -m venv /tmp/pandas-venv && /tmp/pandas-venv/bin/pip install pandas`. Without it
only our side is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

OURS = """
import sys
from pathlib import Path
from enginebench.features.trtexec.times import summarize_trace
from enginebench.features.trtexec.trace import read_trace
from enginebench.features.trtexec.files import write_times
path, out = Path(sys.argv[1]), Path(sys.argv[2])
trace = read_trace(path)
document, timed = summarize_trace(trace, path, warmup_ms=0)
write_times(document, timed, out)
"""

# What a script around trtexec does today: everything into memory, a frame, quantiles, CSV.
PANDAS = """
import json, sys
from pathlib import Path
import pandas
path, out = Path(sys.argv[1]), Path(sys.argv[2])
out.mkdir(parents=True, exist_ok=True)
frame = pandas.DataFrame(json.loads(path.read_text()))
frame["enqueueMs"] = frame["endEnqMs"] - frame["startEnqMs"]
percentiles = [0.5, 0.75, 0.9, 0.95, 0.99, 0.999]
frame[["latencyMs", "computeMs", "h2dMs", "d2hMs", "enqueueMs"]].describe(percentiles).to_csv(out / "summary.csv")
frame["latencyMs"].quantile([0.01, 0.05, 0.1, 0.25, *percentiles, 0.9999, 1.0]).to_csv(out / "latency_percentiles.csv")
frame["latencyMs"].to_csv(out / "latency_series.csv")
frame["enqueueMs"].to_csv(out / "enqueue_series.csv")
frame["computeMs"].to_csv(out / "compute_series.csv")
"""

PANDAS_WHOLE = PANDAS + 'frame.to_csv(out / "times.csv")\n'


def write_trace(path: Path, queries: int) -> None:
    """A timing file in trtexec's layout: 1 ms queries with a slow tail, six digits as C++ prints them."""
    random = np.random.default_rng(0)
    start = 0.4
    with path.open("w") as file:
        file.write("[\n")
        for first in range(0, queries, 10_000):
            n = min(10_000, queries - first)
            h2d, compute = random.gamma(40, 0.001, n), 0.9 + random.gamma(2, 0.02, n)
            d2h, enqueue = random.gamma(10, 0.001, n), random.gamma(20, 0.002, n)
            lines = []
            for i in range(n):
                a, b = start + h2d[i], start + h2d[i] + compute[i]
                lines.append(
                    f'{{ "startEnqMs" : {start:g}, "endEnqMs" : {start + enqueue[i]:g}, "startH2dMs" : {start:g}, '
                    f'"endH2dMs" : {a:g}, "startComputeMs" : {a:g}, "endComputeMs" : {b:g}, "startD2hMs" : {b:g}, '
                    f'"endD2hMs" : {b + d2h[i]:g}, "h2dMs" : {h2d[i]:g}, "computeMs" : {compute[i]:g}, '
                    f'"d2hMs" : {d2h[i]:g}, "latencyMs" : {h2d[i] + compute[i] + d2h[i]:g} }}\n'
                )
                start = b + d2h[i]
            file.write(("  " if first == 0 else ", ") + ", ".join(lines))
        file.write("]\n")


def measure_child(python: str, code: str, *arguments: Path) -> dict[str, float]:
    """CPU seconds, wall seconds and peak MB of one process, as wait4 reports them for this child alone."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    begin = time.monotonic()
    child = subprocess.Popen([python, "-c", code, *map(str, arguments)], env=environment)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{python} ended with {child.returncode}")
    return {
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 2),
        "wall_s": round(time.monotonic() - begin, 2),
        "peak_mb": round(usage.ru_maxrss / 1024, 0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=1_000_000)
    interpreter = os.environ.get("PANDAS_PYTHON")
    parser.add_argument("--pandas", metavar="PYTHON", default=interpreter, help="it has pandas [$PANDAS_PYTHON]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "times.json"
        write_trace(path, options.queries)
        figures: dict[str, object] = {"queries": options.queries, "file_mb": round(path.stat().st_size / 1e6, 1)}
        figures["enginebench"] = ours = measure_child(sys.executable, OURS, path, Path(folder) / "ours")
        if options.pandas:
            for name, code in (("pandas", PANDAS), ("pandas_whole", PANDAS_WHOLE)):
                figures[name] = theirs = measure_child(options.pandas, code, path, Path(folder) / name)
                figures[f"cpu_ratio_{name}"] = round(theirs["cpu_s"] / ours["cpu_s"], 1)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
