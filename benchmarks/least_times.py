"""How far engines stay above the least time of each model: none may be taken for one that skips its work.

The models are the built-in ones, those of zoo.py, and networks of torchvision with seeded weights; each in ONNX Runtime
and in OpenVINO, with one entry and, where its batch is open, with eight; those of --short in INT8 and BF16, too. A time
below the bound of `stats/least_time.py` would be implausible; the nearest one is printed.

    python benchmarks/least_times.py [--only NAME,...] [--cache DIR] [--no-wheels] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from zoo import CACHE, ZOO, find_model

from enginebench.core.errors import EngineBenchError
from enginebench.measure.machine import describe_machine
from enginebench.models.onnx.source import load_graph, read_onnx
from enginebench.models.onnx.work import count_least_work
from enginebench.models.task import sample_feeds
from enginebench.stats.least_time import bound_call_ms

BUILT_IN = (
    *("efficientnet-lite0", "digits-cnn", "digits-mlp", "resnet18", "resnet50", "mobilenet_v3_small"),
    "efficientnet_b0",
)
NETWORKS = (
    *("alexnet", "convnext_tiny", "densenet121", "efficientnet_v2_s", "googlenet", "mnasnet0_5", "mobilenet_v2"),
    *("regnet_x_400mf", "regnet_y_400mf", "resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_0", "squeezenet1_1"),
    *("swin_t", "vgg11", "vit_b_32", "wide_resnet50_2", "shufflenet_v2_x1_0", "mobilenet_v3_large"),
)
# Also quantized and cast: convolutions, depthwise ones, attention, tiny ones.
SHORT = ("efficientnet-lite0", "digits-cnn", "digits-mlp", "resnet18", "mobilenet_v2", "vit_b_32", "convnext_tiny")
# A call is timed so often, or for so long.
CALLS, SECONDS = 30, 1.0


class Timed(NamedTuple):
    """One model in one engine: the ratios of its median and of its shortest call to the least time."""

    name: str
    precision: str
    batch: int
    engine: str
    median_ms: float
    shortest_ms: float
    least_ms: float

    @property
    def ratio(self) -> float:
        return self.shortest_ms / self.least_ms if self.least_ms else np.inf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names, separated by commas")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where models are kept")
    parser.add_argument("--no-wheels", action="store_true", help="without the models that are downloaded")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args()
    wheels = [name for name in ZOO if not (options.no_wheels and ZOO[name].wheel)]
    names = options.only.split(",") if options.only else [*BUILT_IN, *wheels, *NETWORKS]
    rows: list[Timed] = []
    refused: dict[str, str] = {}
    for name in names:
        try:
            for row in time_model(name, options.cache):
                rows.append(row)
                print(format_row(row), file=sys.stderr if options.json else sys.stdout, flush=True)
        except (EngineBenchError, subprocess.CalledProcessError, OSError, RuntimeError, ValueError) as error:
            refused[name] = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
    bounded = [row for row in rows if row.least_ms]
    nearest = min(bounded, key=lambda row: row.ratio, default=None)
    implausible = [row for row in bounded if row.median_ms < row.least_ms]
    if options.json:
        print(json.dumps({"rows": [row._asdict() for row in rows], "refused": refused}))
    else:
        for name, why in refused.items():
            print(f"{name:24} not measured: {why}")
        models = {row.name for row in rows}
        print(f"{len(models)} models, {len(rows)} configurations, {len(rows) - len(bounded)} of them without a bound")
        print(f"below their least time: {len(implausible)}")
        if nearest:
            print(f"nearest: {format_row(nearest)}")
    sys.exit(1 if implausible else 0)


def format_row(row: Timed) -> str:
    return (
        f"{row.name:24} {row.precision:5} batch {row.batch}  {row.engine:8}  median {row.median_ms:10.4f} ms  "
        f"least {row.least_ms:10.6f} ms  shortest call / least {row.ratio:8.1f}"
    )


def time_model(name: str, cache: Path) -> Iterator[Timed]:
    path = make_graph(name, cache)
    for batch in (1, 8):
        yield from time_graph(name, path, "", batch)
    for precision in ("int8", "bf16") if name in SHORT else ():
        short = shorten(path, precision)
        for batch in (1, 8):
            yield from time_graph(name, short, precision, batch)


def make_graph(name: str, cache: Path) -> Path:
    """The model's graph, exported in a process of its own where it is no file: PyTorch is large."""
    if name in ZOO and not (model := find_model(name, ZOO[name], cache)).startswith("zoo_models:"):
        return Path(model)
    model = find_model(name, ZOO[name], cache) if name in ZOO else name
    path = cache / "least" / f"{name}.onnx"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        if name in NETWORKS:
            model = f"least_times_models:{name}"
        command = [sys.executable, "-m", "enginebench", "export", model, "--out", str(path), "--dynamic-batch"]
        here = Path(__file__).resolve().parent
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(here)}
        )
        if not path.exists():
            raise RuntimeError(next(iter(done.stderr.strip().splitlines()[-1:]), f"{model} was not exported"))
    return path


def shorten(path: Path, precision: str) -> Path:
    """The graph quantized to INT8, by made-up inputs, or cast to BF16."""
    import enginebench

    short, ranges = path.with_name(f"{path.stem}.{precision}.onnx"), path.with_suffix(".npz")
    artifact = read_onnx(path)
    np.savez(ranges, **sample_feeds(artifact.inputs, artifact.model, 1, 0, 1, None)[0])
    if not short.exists():
        more = {"calib": ranges} if precision == "int8" else {}
        enginebench.quantize(path, to=precision, out=short, **more)
    return short


def time_graph(name: str, path: Path, precision: str, batch: int) -> Iterator[Timed]:
    artifact = read_onnx(path)
    open_batch = any(isinstance(axis, str) for spec in artifact.inputs for axis in (spec.shape or ())[:1])
    if batch > 1 and not open_batch:
        return
    feeds = sample_feeds(artifact.inputs, artifact.model, batch, 0, 1, None)[0]
    shapes = {key: array.shape for key, array in feeds.items()}
    work = count_least_work(load_graph(path), shapes, batch, path)
    machine = describe_machine()
    own = precision or artifact.precision or "fp32"
    least_ms = bound_call_ms(work, [own], "cpu", machine, None, machine.cores_logical)
    for engine, call in open_engines(path, feeds):
        times = time_calls(call)
        yield Timed(name, own, batch, engine, float(np.median(times)) / 1e6, min(times) / 1e6, least_ms)


def open_engines(path: Path, feeds: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield (engine, a call of it) of those that take the graph."""
    import onnxruntime
    import openvino

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
        session.run(None, feeds)
        yield "ort", lambda: session.run(None, feeds)
    except Exception as error:  # of the graph, or of its inputs: each runtime has kinds of its own
        print(f"ort: {path.name}: {str(error)[:120]}", file=sys.stderr)
    try:
        core = openvino.Core()
        compiled = core.compile_model(str(path), "CPU", {"PERFORMANCE_HINT": "LATENCY"})
        request = compiled.create_infer_request()
        request.infer(feeds)
        yield "openvino", request.infer
    except Exception as error:
        print(f"openvino: {path.name}: {str(error)[:120]}", file=sys.stderr)


def time_calls(call: Any) -> list[int]:
    call()
    times: list[int] = []
    end = time.perf_counter() + SECONDS
    while len(times) < CALLS and (len(times) < 3 or time.perf_counter() < end):
        begin = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - begin)
    return times


if __name__ == "__main__":
    main()
