"""Time and memory of calibrating and quantizing, and what INT8 costs the digits, against the limits below.

Every case runs in a process of its own, so that its peak memory is its own.

    python benchmarks/quantize.py [--quick] [--json]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODEL = "resnet50"
# The limits that quantizing must keep: 256 images within 3 minutes on 2 cores, 512 images within 2 GB by every method.
MOST_SECONDS = 180.0
MOST_BYTES = 2_000_000_000
# INT8 on the held-out digits: top-1 within half a point of FP32, centred cosine of the CNN at least this.
MOST_TOP1_DROP = 0.005
LEAST_CENTRED_COSINE = 0.998
METHODS = ("minmax", "entropy", "percentile")


def main() -> None:
    options = parse_arguments()
    if options.case:
        print(json.dumps(run_case(options.case, Path(options.model_path), options.n, Path(options.scratch))))
        return
    with tempfile.TemporaryDirectory(prefix="enginebench-") as scratch:
        missed = compare_digits(Path(scratch))
        missed += compare_resources(Path(scratch), quick=options.quick)
    for line in missed:
        print(f"MISSED: {line}")
    sys.exit(1 if missed else 0)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="16 and 32 images in place of 256 and 512")
    for hidden in ("--case", "--model-path", "--scratch"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--n", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def compare_digits(scratch: Path) -> list[str]:
    """Prints what INT8 costs on the held-out digits; the limits that were missed."""
    missed = []
    print(f"{'model':11} {'recipe':9} {'method':11} {'top-1':>7} {'FP32':>7} {'centred cosine':>15}")
    for model in ("digits-cnn", "digits-mlp"):
        for recipe in ("tensorrt", "cpu", "nncf"):
            for method in METHODS if recipe != "nncf" else ("minmax",):
                top1, base, cosine = quantize_digits(model, recipe, method, scratch)
                shown = method if recipe != "nncf" else "its own"
                print(f"{model:11} {recipe:9} {shown:11} {top1:7.2%} {base:7.2%} {cosine:15.5f}")
                if base - top1 > MOST_TOP1_DROP or (model == "digits-cnn" and cosine < LEAST_CENTRED_COSINE):
                    missed.append(f"{model} int8@{recipe} {shown}: top-1 {top1:.2%} of {base:.2%}, cosine {cosine:.5f}")
    return missed


def quantize_digits(model: str, recipe: str, method: str, scratch: Path) -> tuple[float, float, float]:
    """(top-1 of INT8, top-1 of FP32, centred cosine) on the held-out digits, in ONNX Runtime."""
    from enginebench.analyze.accuracy import measure_accuracy
    from enginebench.analyze.drift import measure_drift
    from enginebench.models.onnx_source import read_onnx
    from enginebench.models.precision.calibrate import calibrate
    from enginebench.models.precision.calibration_data import open_data
    from enginebench.models.precision.quantize import quantize
    from enginebench.models.zoo import packaged_onnx

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
    found = measure_accuracy(after, labels, before)
    assert found.delta is not None and drift.centred_cosine_mean is not None
    return found.top1.value, found.top1.value - found.delta.value, drift.centred_cosine_mean


def run_graph(path: str, feeds: dict) -> object:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)[0]


def compare_resources(scratch: Path, *, quick: bool) -> list[str]:
    """Prints time and peak memory of every case; the limits that were missed."""
    path = export_model(scratch)
    few, many = (16, 32) if quick else (256, 512)
    missed = []
    print(f"{MODEL:11} {'n':>4} {'seconds':>8} {'peak GB':>8}")
    for case in (*METHODS, "nncf"):
        for n in (few, many):
            figures = spawn_case(case, path, n, scratch)
            print(f"{case:11} {n:4} {figures['seconds']:8.1f} {figures['peak_bytes'] / 1e9:8.2f}", flush=True)
            if n == few and figures["seconds"] > MOST_SECONDS:
                missed.append(f"{case}, {n} images: {figures['seconds']:.0f} s; the limit is {MOST_SECONDS:.0f}")
            if figures["peak_bytes"] > MOST_BYTES:
                missed.append(f"{case}, {n} images: {figures['peak_bytes'] / 1e9:.2f} GB; the limit is 2 GB")
    return missed


def export_model(scratch: Path) -> Path:
    from enginebench.models.export import export_onnx
    from enginebench.models.torch_source import make_torch_artifact

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
    from enginebench.models.onnx_source import read_onnx
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
    # Linux counts in units of 1024 bytes. Source: getrusage(2).
    return {"seconds": seconds, "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


if __name__ == "__main__":
    main()
