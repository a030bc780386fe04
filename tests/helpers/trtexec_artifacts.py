"""Artifacts in the layouts of trtexec, made here; tests hold the layouts against real files where those are at hand."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

STAMP = "[11/21/2026-01:37:39]"
COMMAND = "trtexec --loadEngine=small.plan --iterations=50 --warmUp=0 --duration=0 --exportTimes=times.json"
LAYERS = ("/stem/Conv + /stem/Relu", "/block/Conv + /block/Relu", "/pool/GlobalAveragePool", "/Flatten", "/fc/Gemm")
STAMPS = tuple(f"{end}{part}Ms" for part in ("Enq", "H2d", "Compute", "D2h") for end in ("start", "end"))
# As TensorRT names a kernel that multiplies in FP32.
FP32_KERNEL = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4"
TIMES_KEYS = (*STAMPS, "h2dMs", "computeMs", "d2hMs", "latencyMs")
OLD_STAMPS = ("startInMs", "endInMs", "startComputeMs", "endComputeMs", "startOutMs", "endOutMs")
OLD_KEYS = (*OLD_STAMPS, "inMs", "computeMs", "outMs", "latencyMs", "endToEndMs")


def find_real_artifacts() -> Path:
    """The folder of real artifacts; skips the test, with the reason, where it is absent."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "artifacts"
    folder = Path(os.environ.get("ENGINEBENCH_ARTIFACTS") or beside)
    if not folder.is_dir():
        pytest.skip(f"no real artifacts at {folder}; set ENGINEBENCH_ARTIFACTS to their folder")
    return folder


def sample_latencies(n: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Columns of n queries in ms, rounded to six digits as the file has them."""
    random = np.random.default_rng(seed)
    compute = np.array([float(f"{v:.6g}") for v in 0.13 + random.gamma(2, 0.002, n)])
    h2d = np.array([float(f"{v:.6g}") for v in 0.015 + random.gamma(2, 0.0005, n)])
    d2h = np.array([float(f"{v:.6g}") for v in 0.003 + random.gamma(2, 0.0002, n)])
    latency = np.array([float(f"{v:.6g}") for v in h2d + compute + d2h])
    return {"h2d": h2d, "compute": compute, "d2h": d2h, "latency": latency, "enqueue": random.gamma(4, 0.005, n)}


def make_times(n: int = 50, start_ms: float = 0.5, seed: int = 0, keys: Sequence[str] = TIMES_KEYS) -> bytes:
    """What --exportTimes writes: one query a line, six digits."""
    columns = sample_latencies(n, seed)
    lines, start = [], start_ms
    for i in range(n):
        a = start + columns["h2d"][i]
        b = a + columns["compute"][i]
        c = b + columns["d2h"][i]
        stamps = [start, start + columns["enqueue"][i], start, a, a, b, b, c]
        if len(keys) == len(OLD_KEYS):
            stamps = stamps[2:]
        values = [*stamps, *(columns[name][i] for name in ("h2d", "compute", "d2h", "latency"))]
        values += [c - start] if len(keys) == len(OLD_KEYS) else []
        body = ", ".join(f'"{key}" : {value:g}' for key, value in zip(keys, values, strict=True))
        lines.append(f"{{ {body} }}")
        start = c
    return ("[\n  " + "\n, ".join(lines) + "\n]\n").encode()


def make_profile(names: Sequence[str] = LAYERS, count: int = 51, median: bool = True) -> bytes:
    """What --exportProfile writes: names as they are, without escapes."""
    totals = [0.8 + 0.3 * i for i in range(len(names))]
    lines = [f'  {{ "count" : {count} }}']
    for name, total in zip(names, totals, strict=True):
        middle = f', "medianMs" : {total / count:g}' if median else ""
        share = 100 * total / sum(totals)
        figures = f'"timeMs" : {total:g}, "averageMs" : {total / count:g}{middle}, "percentage" : {share:g}'
        lines.append(f'{{ "name" : "{name}", {figures} }}')
    return ("[\n" + "\n, ".join(lines) + "\n]\n").encode()


def make_layers(names: Sequence[str] = LAYERS, version: int = 10, detailed: bool = True) -> bytes:
    """What --exportLayerInfo writes; TensorRT 11 has other words for the bindings."""
    tensors = ["input", *(f"t{i}" for i in range(1, len(names))), "logits"]
    if detailed:
        items = [json.dumps(describe_layer(name, *tensors[i : i + 2])) for i, name in enumerate(names)]
    else:
        items = [json.dumps(name) for name in names]
    body = '{"Layers": [' + ",\n".join(items) + "],\n"
    if version >= 11:
        body += '"I/O Tensors": [{"Name": "input", "Dimensions": [1,3,8,8]},\n'
        body += '{"Name": "logits", "Dimensions": [1,1000]}]}\n'
    else:
        body += '"Bindings": ["input",\n"logits"]}\n'
    return body.encode()


def describe_layer(name: str, source: str, target: str) -> dict[str, object]:
    """One layer of detailed layer information, FP32 in and FP16 out."""
    return {
        "Name": name,
        "LayerType": name.rsplit("/", 1)[-1],
        "Inputs": [{"Name": source, "Dimensions": [1, 3, 8, 8], "Format/Datatype": "Row major linear FP32 format"}],
        "Outputs": [{"Name": target, "Dimensions": [1, 3, 8, 8], "Format/Datatype": "Row major linear FP16 format"}],
        "TacticName": FP32_KERNEL,
        "StreamId": 0,
        "Metadata": "\x1f".join(f"[ONNX Layer: {node}]" for node in name.split(" + ")),
    }


def fill(folder: Path, stem: str = "", n: int = 60, log_n: int | None = None) -> Path:
    """A folder with all four artifacts of one run."""
    folder.mkdir(parents=True, exist_ok=True)
    prefix = f"{stem}." if stem else ""
    (folder / f"{prefix}times.json").write_bytes(make_times(n))
    (folder / f"{prefix}profile.json").write_bytes(make_profile())
    (folder / f"{prefix}layers.json").write_bytes(make_layers())
    (folder / f"{stem or 'run'}.log").write_text(make_log(n=log_n or n))
    return folder


def format_row(values: np.ndarray, percentiles: Sequence[int] = (90, 95, 99)) -> str:
    """A row of the summary: six digits, trtexec's percentile rule."""
    rising = np.sort(values)
    n = len(rising)
    figures = [("min", rising[0]), ("max", rising[-1]), ("mean", rising.mean()), ("median", np.median(rising))]
    for p in percentiles:
        # (1 - p / 100) * n in 32 bits, as trtexec counts what to leave out.
        left = int((np.float32(1) - np.float32(p) / np.float32(100)) * np.float32(n))
        figures.append((f"percentile({p}%)", rising[max(n - 1 - left, 0)]))
    return ", ".join(f"{name} = {value:g} ms" for name, value in figures)


def make_summary(n: int = 50, seed: int = 0) -> list[str]:
    """The performance summary of the queries of `make_times`."""
    columns = sample_latencies(n, seed)
    walltime = columns["latency"].sum() / 1e3
    return [
        "=== Performance summary ===",
        f"Throughput: {n / walltime:g} qps",
        f"Latency: {format_row(columns['latency'])}",
        f"Enqueue Time: {format_row(columns['enqueue'])}",
        f"H2D Latency: {format_row(columns['h2d'])}",
        f"GPU Compute Time: {format_row(columns['compute'])}",
        f"D2H Latency: {format_row(columns['d2h'])}",
        f"Total Host Walltime: {walltime:g} s",
        f"Total GPU Compute Time: {columns['compute'].sum() / 1e3:g} s",
        "Explanations of the performance metrics are printed in the verbose logs.",
        "",
    ]


def make_log(
    version: int = 101600,
    build: int | None = 72,
    n: int = 50,
    verdict: str | None = "PASSED",
    command: str = COMMAND,
    seed: int = 0,
) -> str:
    """The stdout of a run that loads an engine and times n queries, as trtexec 10 and 11 print it."""
    tag = f"[TensorRT v{version}]" + (f" [b{build}]" if build is not None else "")
    dotted = f"{version // 10000}.{version % 10000 // 100}.{version % 100}"
    # Switches that 11 turned round.
    new = version >= 110000
    messages = [
        "=== Model Options ===", "Format: *", "Model: ", "Output:", "",
        "=== System Options ===", "Device: 0", "DLACore: ", "setPluginsToSerialize:", "dynamicPlugins:",
        "ignoreParsedPluginLibs: 0", "",
        "=== Inference Options ===", "Batch: Explicit", "Input inference shapes: model", f"Iterations: {n}",
        "Duration: 0s (+ 0ms warm up)", "Sleep time: 0ms", "Idle time: 0ms", "Inference Streams: 1",
        "ExposeDMA: Disabled",
        f"Data transfers: {'Disabled' if new else 'Enabled'}", f"Spin-wait: {'Enabled' if new else 'Disabled'}",
        "Multithreading: Disabled", f"CUDA Graph: {'Enabled' if new else 'Disabled'}",
        "Time Deserialize: Disabled", "Time Refit: Disabled", "NVTX verbosity: 0", "Persistent Cache Ratio: 0",
        "Optimization Profile Index: 0", "Inputs:", "Debug Tensor Save Destinations:",
        "=== Reporting Options ===", "Verbose: Disabled", "Averages: 10 inferences", "Percentiles: 90,95,99",
        "Dump refittable layers:Disabled", "Dump output: Disabled", "Profile: Disabled",
        "Export timing to JSON file: times.json", "Export output to JSON file: ", "Export profile to JSON file: ", "",
        "=== Device Information ===", "Available Devices: ",
        '  Device 0: "NVIDIA H200" UUID: GPU-11111111-2222-3333-4444-555555555555', "Selected Device: NVIDIA H200",
        "Selected Device ID: 0", "Selected Device UUID: GPU-11111111-2222-3333-4444-555555555555",
        "Compute Capability: 9.0", "SMs: 132", "Device Global Memory: 143155 MiB", "Shared Memory per SM: 228 KiB",
        "Memory Bus Width: 6016 bits (ECC enabled)", "Application Compute Clock Rate: 1.98 GHz",
        "Application Memory Clock Rate: 3.201 GHz", "",
        "Note: The application clock rates do not reflect the actual clock rates that the GPU is currently running at.",
        "", f"TensorRT version: {dotted}", "Loading standard plugins", "Engine deserialized in 0.000146357 sec.",
        "Setting persistentCacheLimit to 0 bytes.", "Created execution context with device memory size: 1 MiB",
        "Using random values for input input",
        "Input binding for input with dimensions 1x3x224x224 and type fp32 is created.",
        "Output binding for logits with dimensions 1x1000 and type fp32 is created.", "Starting inference",
        *(["Capturing CUDA graph for the current execution context",
           'Successfully captured CUDA graph for the current execution context. When profiling with Nsight Systems, '
           'add "--cuda-graph-trace=node" to the nsys command to see per-kernel execution times.'] if new else []),
        "Warmup completed 0 queries over 0 ms",
        f"Timing trace has {n} queries over {sample_latencies(n, seed)['latency'].sum() / 1e3:g} s", "",
        "=== Trace details ===", "Trace averages of 10 runs:",
        "Average on 10 runs - GPU latency: 0.131242 ms - Host latency: 0.131242 ms (enqueue 0.00315599 ms)", "",
        *make_summary(n, seed),
    ]  # fmt: skip
    lines = [f"&&&& RUNNING TensorRT.trtexec {tag} # {command}"]
    lines += [f"{STAMP} [I] {message}" for message in messages]
    lines += [f"&&&& {verdict} TensorRT.trtexec {tag} # {command}"] if verdict else []
    return "\n".join(lines) + "\n"


def make_log7(verdict: str = "PASSED") -> str:
    """The end of a run of trtexec 7, whose summary is in blocks and whose banners have no version."""
    blocks = [
        "=== Inference Options ===", "Batch: 1", "Iterations: 10", "Duration: 3s (+ 200ms warm up)", "Streams: 1", "",
        "Warmup completed 0 queries over 200 ms", "Timing trace has 0 queries over 3.00956 s",
        "Trace averages of 10 runs:",
        "Average on 10 runs - GPU latency: 4.42 ms - Host latency: 4.52 ms (end to end 4.53 ms, enqueue 2.6 ms)",
        "Host Latency", "min: 4.25 ms (end to end 4.5 ms)", "max: 7.125 ms (end to end 7.25 ms)",
        "mean: 4.5 ms (end to end 4.75 ms)", "median: 4.375 ms (end to end 4.625 ms)",
        "percentile: 5.5 ms at 99% (end to end 6.125 ms at 99%)", "throughput: 0 qps", "walltime: 3.00956 s",
        "Enqueue Time", "min: 2.375 ms", "max: 4.875 ms", "median: 2.625 ms",
        "GPU Compute", "min: 4.125 ms", "max: 7 ms", "mean: 4.4375 ms", "median: 4.3125 ms",
        "percentile: 5.375 ms at 99%", "total compute time: 2.93372 s",
    ]  # fmt: skip
    command = "trtexec --onnx=model with space.onnx --explicitBatch"
    lines = [f"&&&& RUNNING TensorRT.trtexec # {command}", *(f"{STAMP} [I] {message}" for message in blocks)]
    return "\n".join([*lines, f"&&&& {verdict} TensorRT.trtexec # {command}"]) + "\n"
