"""Time and memory of calibrating and quantizing, and what INT8 costs the digits, against the limits below.

Every case runs in a process of its own, so that its peak memory is its own.

    python benchmarks/quantize.py [--quick] [--only digits/resources] [--json]

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
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODEL = "resnet50"
# The limits that quantizing must keep: 256 images within 3 minutes on 2 cores, 512 images within 2 GB by every method.
MOST_SECONDS = 180.0
MOST_BYTES = 2_000_000_000
# INT8 on the held-out digits: top-1 within half a point of FP32, centred cosine of the CNN at least this.
MOST_TOP1_DROP = 0.005
LEAST_CENTRED_COSINE = 0.998
Row = dict[str, Any]
Say = Callable[[str], None]
METHODS = ("minmax", "entropy", "percentile")


def main() -> None:
    options = parse_arguments()
    if options.case:
        print(json.dumps(run_case(options.case, Path(options.model_path), options.n, Path(options.scratch))))
        return
    say = print_to_stderr if options.json else print
    with tempfile.TemporaryDirectory(prefix="enginebench-") as scratch:
        digits = compare_digits(Path(scratch), say) if options.only != "resources" else []
        if not options.only:
            say("")
        resources = compare_resources(Path(scratch), say, quick=options.quick) if options.only != "digits" else []
    missed = find_missed(digits, resources)
    for line in missed:
        say(f"MISSED: {line}")
    if options.json:
        print(json.dumps({"digits": digits, "resources": resources, "missed": missed}))
    sys.exit(1 if missed else 0)


def print_to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="16 and 32 images in place of 256 and 512")
    parser.add_argument("--only", choices=["digits", "resources"], help="one of the two tables")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    for hidden in ("--case", "--model-path", "--scratch"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--n", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def compare_digits(scratch: Path, say: Say) -> list[Row]:
    """What INT8 costs on the held-out digits, by model, recipe and method."""
    rows = []
    say(f"{'model':11} {'recipe':9} {'method':11} {'top-1':>7} {'FP32':>7} {'centred cosine':>15}")
    for model in ("digits-cnn", "digits-mlp"):
        for recipe in ("tensorrt", "cpu", "nncf"):
            for method in METHODS if recipe != "nncf" else ("minmax",):
                top1, base, cosine = quantize_digits(model, recipe, method, scratch)
                shown = method if recipe != "nncf" else "its own"
                say(f"{model:11} {recipe:9} {shown:11} {top1:7.2%} {base:7.2%} {cosine:15.5f}")
                case = {"model": model, "recipe": recipe, "method": shown}
                rows.append({**case, "top1": top1, "top1_fp32": base, "centred_cosine": cosine})
    return rows


def quantize_digits(model: str, recipe: str, method: str, scratch: Path) -> tuple[float, float, float]:
    """(top-1 of INT8, top-1 of FP32, centred cosine) on the held-out digits, in ONNX Runtime."""
    from enginebench.models.onnx.source import read_onnx
    from enginebench.models.precision.calibrate import calibrate
    from enginebench.models.precision.calibration_data import open_data
    from enginebench.models.precision.quantize import quantize
    from enginebench.models.zoo import packaged_onnx
    from enginebench.stats.drift import measure_drift
    from enginebench.stats.metrics.metric import Targets
    from enginebench.stats.metrics.scores import score_counts
    from enginebench.stats.metrics.tasks import BUILTIN

    path = packaged_onnx(model)
    assert path is not None
    artifact = read_onnx(path)
    data = open_data("digits", model=model, inputs=artifact.inputs, n=256)
    held_out = open_data("digits", model=model, inputs=artifact.inputs, n=450, split="evaluate")
    calibration = calibrate(artifact, data, method=method)
    made = quantize(artifact, "int8", recipe, scratch / "digits.onnx", calibration=calibration, data=data)
    feeds, labels = held_out.read(0, held_out.n), held_out.read_labels()
    before, after = run_graph(artifact.path, feeds), run_graph(made.path, feeds)
    drift = measure_drift({"y": before}, {"y": after}, {}).outputs[0]
    targets = Targets(values=labels)
    top1 = BUILTIN["top1"](targets)
    assert top1.count is not None
    found = score_counts(top1, *(top1.count({"y": side}, targets) for side in (after, before)))
    assert found.delta is not None and drift.centred_cosine_mean is not None
    return found.value.value, found.value.value - found.delta.value, drift.centred_cosine_mean


def run_graph(path: str, feeds: dict) -> object:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # exact sums, as the engine has them
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def compare_resources(scratch: Path, say: Say, *, quick: bool) -> list[Row]:
    """CPU seconds, wall seconds and peak memory of calibrating and quantizing, by method and number of images."""
    path = export_model(scratch)
    rows = []
    say(f"{MODEL:11} {'images':>6} {'CPU s':>7} {'wall s':>7} {'peak RSS GB':>12}")
    for n in (16, 32) if quick else (256, 512):
        for case in (*METHODS, "nncf"):
            found = spawn_case(case, path, n, scratch)
            gigabytes = found["peak_bytes"] / 1e9
            say(f"{case:11} {n:6} {found['cpu_seconds']:7.1f} {found['seconds']:7.1f} {gigabytes:12.2f}")
            rows.append({"case": case, "n": n, **found})
    return rows


def find_missed(digits: list[Row], resources: list[Row]) -> list[str]:
    """The limits that were not kept."""
    missed = []
    for row in digits:
        name = f"{row['model']} int8@{row['recipe']} {row['method']}"
        if row["top1_fp32"] - row["top1"] > MOST_TOP1_DROP:
            missed.append(f"{name}: top-1 {row['top1']:.2%}, FP32 {row['top1_fp32']:.2%}")
        if row["model"] == "digits-cnn" and row["centred_cosine"] < LEAST_CENTRED_COSINE:
            missed.append(f"{name}: centred cosine {row['centred_cosine']:.5f}; the limit is {LEAST_CENTRED_COSINE}")
    for row in resources:
        name = f"{row['case']}, {row['n']} images"
        if row["n"] <= 256 and row["seconds"] > MOST_SECONDS:
            missed.append(f"{name}: {row['seconds']:.0f} s; the limit is {MOST_SECONDS:.0f} s")
        if row["peak_bytes"] > MOST_BYTES:
            missed.append(f"{name}: {row['peak_bytes'] / 1e9:.2f} GB; the limit is 2 GB")
    return missed


def export_model(scratch: Path) -> Path:
    from enginebench.models.torch.export import export_onnx
    from enginebench.models.torch.source import make_torch_artifact

    source = make_torch_artifact(MODEL, scratch, weights="random")
    export_onnx(source, scratch / "model.onnx", dynamic_batch=True)
    return scratch / "model.onnx"


def spawn_case(case: str, path: Path, n: int, scratch: Path) -> dict[str, float]:
    command = [
        sys.executable,
        __file__,
        "--case",
        case,
        "--model-path",
        str(path),
        "--n",
        str(n),
        "--scratch",
        str(scratch),
    ]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return figures


def run_case(case: str, path: Path, n: int, scratch: Path) -> dict[str, float]:
    """Calibrates and quantizes once: seconds, and the largest memory that this process ever held."""
    from enginebench.measure.memory import peak_memory_bytes
    from enginebench.models.onnx.source import read_onnx
    from enginebench.models.precision.calibrate import calibrate
    from enginebench.models.precision.calibration_data import open_data
    from enginebench.models.precision.quantize import quantize

    start = time.perf_counter()
    artifact = read_onnx(path)
    data = open_data("fake", model=MODEL, inputs=artifact.inputs, n=n)
    if case == "nncf":
        quantize(artifact, "int8", "nncf", scratch / "q.onnx", data=data)
    else:
        calibration = calibrate(artifact, data, method=case)
        quantize(artifact, "int8", "tensorrt", scratch / "q.onnx", calibration=calibration)
    seconds = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_SELF)
    peak = peak_memory_bytes()
    if peak is None:
        sys.exit("this system does not say how much memory a process held at most; the limit cannot be checked")
    return {"seconds": seconds, "cpu_seconds": used.ru_utime + used.ru_stime, "peak_bytes": peak}


if __name__ == "__main__":
    main()
