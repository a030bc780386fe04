"""Two figures of the TensorRT engines that need no GPU, as JSON.

1. CPU time of a dry run, from start to printed command, beyond that of a bare Python. Target: under 150 ms.
2. What our Python loop adds to the enqueue of an engine, on the stand-in for TensorRT. Target: under 5 us an iteration.

    python benchmarks/dry_run.py
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GRAPH = ROOT / "src" / "enginebench" / "models" / "data" / "digits-cnn.onnx"
TARGET_MS = 150.0
TARGET_US = 5.0
REPEATS = 15
CALLS = 20_000


def measure_cpu_ms(command: list[str], variables: dict[str, str]) -> float:
    """CPU time, user and system, of one process and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True, env=variables)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def measure_dry_run() -> dict[str, object]:
    """Medians over interleaved repetitions."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    dry = ["-m", "enginebench", "build", str(GRAPH), "--dry-run", "--tensorrt-version", "11.1"]
    commands = {"bare": [sys.executable, "-c", "pass"], "dry_run": [sys.executable, *dry]}
    samples: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(REPEATS):
        for name, command in commands.items():
            samples[name].append(measure_cpu_ms(command, variables))
    bare, run = (statistics.median(samples[name]) for name in ("bare", "dry_run"))
    return {
        "repeats": REPEATS,
        "bare_python_ms": round(bare, 1),
        "dry_run_ms": round(run, 1),
        "beyond_ms": round(run - bare, 1),
        "target_ms": TARGET_MS,
        "met": run - bare < TARGET_MS,
    }


def measure_loop() -> dict[str, object]:
    """Median time of an iteration around an enqueue that does nothing, less the enqueue itself."""
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "fakes" / "modules")]
    from enginebench.engines import cuda

    stream = cuda.Stream()
    timed = cuda.TimedRun(stream, lambda: True)
    clock = time.perf_counter_ns
    samples = []
    for _ in range(CALLS):
        begin = clock()
        timed.call()
        samples.append(clock() - begin - timed.last_enqueue_ns())
    timed.close()
    stream.close()
    median_us = statistics.median(samples) / 1000
    return {"calls": CALLS, "added_us": round(median_us, 3), "target_us": TARGET_US, "met": median_us < TARGET_US}


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        answer = {"dry_run": measure_dry_run(), "loop_on_stand_in": measure_loop()}
    print(json.dumps(answer, indent=2))
    return 0 if all(part["met"] for part in answer.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
