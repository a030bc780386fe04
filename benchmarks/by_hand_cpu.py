"""What a person reaches by hand on one CPU: ONNX Runtime and OpenVINO with the settings that their guides name.

    python benchmarks/by_hand_cpu.py model.onnx [--rounds 5] [--seconds 1] [--floats bf16]

It imports nothing of EngineBench, so that what `tune` finds has an independent figure beside it. Ways take turns; one
JSON line for each: the median of the medians of its turns in milliseconds, from NumPy inputs to NumPy outputs, and
what OpenVINO's own `benchmark_app -hint latency` says where it is installed.

The claims of docs/tune.md rest on this.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort
import openvino as ov

Call = Callable[[], Any]


def make_inputs(path: str) -> dict[str, Any]:
    """Seeded inputs of batch 1; an open axis is 1, of a sequence 128."""
    rng = np.random.default_rng(0)
    found = {}
    for spec in ort.InferenceSession(path, providers=["CPUExecutionProvider"]).get_inputs():
        shape = [axis if isinstance(axis, int) else (1, 128)[min(i, 1)] for i, axis in enumerate(spec.shape)]
        if "int64" in spec.type:
            found[spec.name] = np.ones(shape, np.int64)
        elif "uint8" in spec.type:
            found[spec.name] = rng.integers(0, 256, shape, np.uint8)
        else:
            found[spec.name] = rng.standard_normal(shape).astype(np.float32)
    return found


def with_ort(path: str, inputs: dict[str, Any], threads: int, spinning: bool) -> Call:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, inputs)


def with_openvino(path: str, inputs: dict[str, Any], config: dict[str, Any]) -> Call:
    core = ov.Core()
    model = core.read_model(path)
    model.reshape({name: list(value.shape) for name, value in inputs.items()})
    request = core.compile_model(model, "CPU", {"PERFORMANCE_HINT": "LATENCY", **config}).create_infer_request()
    return lambda: request.infer(inputs, share_inputs=True)


def time_calls(call: Call, seconds: float) -> float:
    """The median milliseconds of a call."""
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        begin = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begin) / 1e6)
    return statistics.median(times)


def ask_benchmark_app(path: str, inputs: dict[str, Any]) -> float | None:
    """The median milliseconds that OpenVINO's own tool reports; None where it is not there."""
    if shutil.which("benchmark_app") is None:
        return None
    shapes = ",".join(f"{name}{list(value.shape)}" for name, value in inputs.items()).replace(" ", "")
    command = ["benchmark_app", "-m", path, "-hint", "latency", "-t", "5", "-shape", shapes]
    said = subprocess.run(command, check=False, capture_output=True, text=True).stdout
    found = re.search(r"Median:\s+([\d.]+) (ms|us)", said)
    return float(found[1]) / (1000 if found[2] == "us" else 1) if found else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--floats", help="also OpenVINO with INFERENCE_PRECISION_HINT of this, such as bf16")
    given = parser.parse_args()
    inputs = make_inputs(given.model)
    cores = len(os.sched_getaffinity(0))
    ways: dict[str, Call] = {}
    for threads in sorted({1, cores}):
        for spinning in (True, False):
            ways[f"ort threads={threads} spinning={spinning}"] = with_ort(given.model, inputs, threads, spinning)
        ways[f"openvino threads={threads}"] = with_openvino(given.model, inputs, {"INFERENCE_NUM_THREADS": threads})
    if given.floats:
        ways[f"openvino {given.floats}"] = with_openvino(
            given.model, inputs, {"INFERENCE_PRECISION_HINT": given.floats}
        )
    for call in ways.values():
        time_calls(call, 0.3)
    rounds = [{way: time_calls(call, given.seconds) for way, call in ways.items()} for _ in range(given.rounds)]
    for way in ways:
        turns = [found[way] for found in rounds]
        print(json.dumps({"way": way, "ms": round(statistics.median(turns), 4), "least_ms": round(min(turns), 4)}))
    print(json.dumps({"way": "benchmark_app -hint latency", "ms": ask_benchmark_app(given.model, inputs)}))


if __name__ == "__main__":
    main()
