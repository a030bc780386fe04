"""Cast graphs to FP16 and BF16, and compare the outputs of each with those of the FP32 graph.

    python benchmarks/casting.py MODEL.onnx ... [--zoo DIR] [--factory module:function ...] [--json F.json]

`--zoo` casts the graphs of `benchmarks/zoo.py`, whose wheels are kept in DIR; a factory is exported first. FP16 runs in
ONNX Runtime and BF16 in OpenVINO, as `enginebench drift` runs them, within the limits of the precision.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
from zoo import ZOO, find_model

# The engine that runs a cast graph on a CPU: ONNX Runtime has no kernels in BF16 there.
ENGINES = {"fp16": "ort", "bf16": "openvino"}
SAMPLES, TIMEOUT_S = 4, 600
WITHIN, NOT_CAST, BEYOND, NOT_RUN = "within limits", "not cast", "beyond limits", "does not run"
DRIFT_EXIT_CODE = 4


class CastResult(msgspec.Struct, frozen=True):
    """What became of one graph in one precision; `detail` is the reason, or what was reported."""

    model: str
    precision: str
    outcome: str
    detail: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--zoo", type=Path, help="also the graphs of benchmarks/zoo.py, kept here")
    parser.add_argument("--factory", nargs="*", default=[], help="module:function, as `enginebench export` takes it")
    parser.add_argument("--json", type=Path, help="write the results to this file, too")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="enginebench-casting-") as scratch:
        folder = Path(scratch)
        for name, path in list_graphs(options, folder):
            results += [cast_and_compare(name, path, to, folder) for to in ENGINES]
            for one in results[-len(ENGINES) :]:
                print(f"{one.model:24} {one.precision:5} {one.outcome:14} {one.detail}", flush=True)
    for outcome in (WITHIN, NOT_CAST, BEYOND, NOT_RUN):
        print(f"{outcome}: {sum(one.outcome == outcome for one in results)} of {len(results)}")
    if options.json:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))


def list_graphs(options: argparse.Namespace, folder: Path) -> list[tuple[str, Path]]:
    """(name, ONNX file) of all that was asked for; a factory that cannot be exported is reported and left out."""
    found = [(path.stem, path) for path in options.models]
    factories = [(name.partition(":")[2], name) for name in options.factory]
    for name, entry in ZOO.items() if options.zoo else ():
        model = find_model(name, entry, options.zoo)
        if model.endswith(".onnx"):
            found.append((name, Path(model)))
        else:
            factories.append((name, model))
    for name, factory in factories:
        path = folder / f"{name}.onnx"
        done = run_enginebench("export", factory, "--out", str(path))
        if done.returncode:
            print(f"{name:24} not exported: {find_reason(done)}", flush=True)
        else:
            found.append((name, path))
    return found


def cast_and_compare(name: str, path: Path, to: str, folder: Path) -> CastResult:
    made = folder / f"{name}.{to}.onnx"
    done = run_enginebench("quantize", str(path), "--to", to, "--out", str(made), "--json")
    if done.returncode:
        return CastResult(name, to, NOT_CAST, find_reason(done))
    kept = [one["message"] for one in json.loads(done.stdout)["artifact"]["caveats"] if one["code"] == "kept_fp32"]
    sides = (f"ort@{path}", f"{ENGINES[to]}@{made}")
    done = run_enginebench("drift", *sides, "--n", str(SAMPLES), "--precision", to)
    made.unlink()
    if done.returncode == DRIFT_EXIT_CODE:
        return CastResult(name, to, BEYOND, find_reason(done))
    return CastResult(name, to, NOT_RUN, find_reason(done)) if done.returncode else CastResult(name, to, WITHIN, *kept)


def run_enginebench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "enginebench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)


def find_reason(done: subprocess.CompletedProcess[str]) -> str:
    """The last line that was printed."""
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


if __name__ == "__main__":
    main()
