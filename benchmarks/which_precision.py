"""Times and outputs of one model in each precision of each engine on the CPU, in one process, interleaved.

    python benchmarks/which_precision.py resnet18 --weights random
    python benchmarks/which_precision.py efficientnet-lite0 --data sample-photos
    python benchmarks/which_precision.py hf:./FOLDER --data sentences.npz
    python benchmarks/which_precision.py model.onnx

Of each lap every engine has a few calls in a row, of which the fastest counts; a row is the median of the laps' ratios
to PyTorch in FP32 (ONNX Runtime where MODEL is a graph) and to its own engine's FP32, with the middle half of the laps.
Needs a quiet machine: other work slows engines whose threads wait for each other more than the rest, and a ratio with
them; with `--threads 1` CPU time is taken, which other work changes least. Outputs are compared on the data, against
FP32, as centred cosine, and by the limits of the precision.

`--hand` adds candidates that no recipe makes: NNCF on the model as OpenVINO reads it. The last lines are then the time
of each row in INT8 over that of the fastest of these, lap by lap: the median, and its 95% interval by the bootstrap.
`--json FILE` keeps the time of
every lap, so that any two rows can be paired; with `ONEDNN_MAX_CPU_ISA=AVX2` OpenVINO and PyTorch compute as on an
older processor (ONNX Runtime has no such setting).

The claims of docs/which-precision.md rest on this.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from enginebench.core.errors import EngineBenchError
from enginebench.core.names import escape_precision, format_precision
from enginebench.core.recipes import RECIPES, find_graph_precision, find_start
from enginebench.core.records import Artifact, EngineSpec
from enginebench.core.store import derive
from enginebench.engines.registry import open_backend, takes
from enginebench.models.onnx.source import read_onnx
from enginebench.models.precision.calibrate import calibrate
from enginebench.models.precision.calibration_data import open_data
from enginebench.models.precision.graph import is_transformer, load_whole_graph
from enginebench.models.precision.quantize import quantize
from enginebench.stats.drift import default_limits, measure_drift

CALLS, CHECKED, RESAMPLES = 4, 64, 4000
BF16 = "openvino:floats=bf16"
ROWS: tuple[tuple[str, Any, Any], ...] = (
    ("pytorch", "fp32", None),
    ("pytorch", "bf16", None),
    ("pytorch:cast=autocast", "bf16", None),
    *((engine, p, None) for engine in ("pytorch-compile", "pytorch-aoti") for p in ("fp32", "bf16")),
    *((f"{engine}:cast=autocast", "bf16", None) for engine in ("pytorch-compile", "pytorch-aoti")),
    ("pytorch-compile", "int8", "pt2e"),
    ("ort", "fp32", None),
    *(("ort", "int8", recipe) for recipe in ("cpu", "tensorrt", "nncf", "dynamic", "w8")),
    ("ort", "int4", "w4"),
    *(("openvino", p, None) for p in ("fp32", "bf16")),
    *(("openvino", "int8", recipe) for recipe in ("nncf", "nncf:mixed", "cpu", "tensorrt", "dynamic", "w8")),
    ("openvino", "int4", "w4"),
    *((BF16, "int8", recipe) for recipe in ("nncf", "nncf:mixed", "cpu", "tensorrt")),
)
# NNCF's presets on the model as OpenVINO reads it, with its bias correction as it comes.
BY_HAND = ("PERFORMANCE", "MIXED")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", default="fake")
    parser.add_argument("--weights", default="default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--laps", type=int, default=9)
    parser.add_argument("--n", type=int, default=32, help="entries of the data that ranges are taken from")
    parser.add_argument("--without", default="^$", help="leave out rows whose name matches, such as 'compile|w8'")
    parser.add_argument("--hand", action="store_true", help="add NNCF on the model as OpenVINO reads it")
    parser.add_argument("--folder", help="where the graphs are kept; they are not made again if they are there")
    parser.add_argument("--json", help="where the times of all laps are kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(options, Path(options.folder or folder))


def measure(options: argparse.Namespace, folder: Path) -> None:
    sources = make_sources(options, folder)
    data = open_data(options.data, model=options.model, inputs=sources[-1].inputs, n=options.n)
    engines: dict[str, Any] = {}
    rows = [
        (f"{engine} {format_precision(precision, recipe)}", engine, precision, recipe)
        for engine, precision, recipe in ROWS
    ]
    rows += [
        (f"{engine} int8 by hand {preset}", engine, "int8", preset)
        for preset in BY_HAND
        for engine in ("openvino", BF16)
    ] * options.hand
    for name, engine, precision, recipe in rows:
        if re.search(options.without, name):
            continue
        try:
            spec = make_spec(engine, precision, None if recipe in BY_HAND else recipe, options.threads)
            if recipe in BY_HAND:
                artifact = quantize_by_hand(sources[-1], recipe, data, folder)
            else:
                artifact = make_artifact(sources, spec, data, folder, options.threads)
            backend = open_backend(spec.backend, load_module, folder)
            engines[name] = backend.load(backend.build(artifact, spec, folder), spec)
            engines[name].bind(data.read(0, 1))
            engines[name].run()
        except (EngineBenchError, StopIteration) as error:
            engines.pop(name, None)
            print(f"{name:34} not run: {str(error)[:400] or 'no such source'}", flush=True)
    _, times = take_turns(engines, options.laps, time.process_time if options.threads == 1 else time.perf_counter)
    answers = {name: list(answer(engine, data)) for name, engine in engines.items()}
    first, kept = next(iter(engines)), {}
    for name, engine in engines.items():
        near = compare(answers[name], answers[first])
        floats = f"{re.split('[ :]', name)[0]} fp32"
        shown = "  ".join(f"to {n} {show_ratio(times[n], times[name])}" for n in (first, floats) if n in times)
        drift = judge(answers[name], answers[first], name)
        shares = engine.effective_precision() if hasattr(engine, "effective_precision") else {}
        ran = ", ".join(f"{share:.0%} {precision}" for precision, share in shares.items() if share >= 0.01)
        limits = "within limits" if drift.passed else "changed"
        print(
            f"{name:34} {statistics.median(times[name]):8.3f} ms  {shown}  cosine {near:.4f} {limits}; {ran}",
            flush=True,
        )
        kept[name] = {"ms": times[name], "cosine": near, "passed": drift.passed, "ran": shares}
        kept[name]["snr_min"] = min(o.snr_db or 0.0 for o in drift.outputs)
    if options.hand:
        print_over_hand(times)
    if options.json:
        Path(options.json).write_text(json.dumps(kept))


def print_over_hand(times: dict[str, list[float]]) -> None:
    by_hand = min((n for n in times if "by hand" in n), key=lambda n: statistics.median(times[n]), default=None)
    for name in times if by_hand else ():
        if " int8" in name and "by hand" not in name:
            middle, low, high = estimate_ratio(times[name], times[by_hand])
            print(f"{name:34} takes {middle:.3f} ({low:.3f} to {high:.3f}) of the time of {by_hand}", flush=True)


def estimate_ratio(own: list[float], other: list[float]) -> tuple[float, float, float]:
    """The median of the laps' ratios, and the ends of its 95% interval."""
    ratios = np.array(own) / np.array(other)
    drawn = np.random.default_rng(0).choice(ratios, (RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(np.median(ratios)), float(low), float(high)


def judge(found: list[Any], wanted: list[Any], name: str) -> Any:
    precision: Any = re.search("fp32|bf16|int8|int4", name.rpartition(" ")[2] if "hand" not in name else "int8")
    limits = default_limits(precision[0])
    return measure_drift({"first": np.array(wanted)}, {"first": np.array(found)}, limits)


def quantize_by_hand(graph: Artifact, preset: str, data: Any, folder: Path) -> Artifact:
    import nncf
    import openvino

    target = folder / f"hand-{preset.lower()}.xml"
    if not target.exists():
        whole = openvino.Core().read_model(graph.path)
        samples = nncf.Dataset([data.read(i, i + 1) for i in range(data.n)])
        named = getattr(nncf.QuantizationPreset, preset)
        model_type = nncf.ModelType.TRANSFORMER if is_transformer(load_whole_graph(Path(graph.path))) else None
        made = nncf.quantize(whole, samples, preset=named, model_type=model_type, subset_size=data.n)
        openvino.save_model(made, str(target), compress_to_fp16=False)
    return derive(graph, [target, target.with_suffix(".bin")], folder, kind="openvino", precision="int8", recipe="qat")


def make_spec(engine: str, precision: Any, recipe: Any, threads: int) -> EngineSpec:
    backend, _, given = engine.partition(":")
    forced = ["force=1"] if precision == "bf16" else []
    chosen = dict(pair.split("=") for pair in (*filter(None, [given]), *forced))
    return EngineSpec(backend=backend, precision=precision, recipe=recipe, threads=threads, options=chosen)


def show_ratio(slow: list[float], fast: list[float]) -> str:
    laps = sorted(a / b for a, b in zip(slow, fast, strict=True))
    cut = len(laps) // 4
    return f"{statistics.median(laps):5.2f}x ({laps[cut]:.2f} to {laps[-1 - cut]:.2f})"


def load_module(artifact: Artifact) -> Any:
    from enginebench.models.torch.source import load_module as load

    return load(artifact)


def make_sources(options: argparse.Namespace, folder: Path) -> list[Artifact]:
    if options.model.endswith(".onnx"):
        from enginebench.models.onnx.inputs import complete_inputs

        return [complete_inputs(read_onnx(Path(options.model)), None)]
    from enginebench.models.torch.export import export_onnx
    from enginebench.models.torch.source import make_torch_artifact

    given = None
    if options.data.endswith(".npz"):
        with np.load(options.data) as stored:
            given = {name: stored[name][:1] for name in stored.files}
    made = make_torch_artifact(options.model, folder, weights=options.weights, user_inputs=given)
    return [made, export_onnx(made, folder / "model.onnx")]


def make_artifact(sources: list[Artifact], spec: EngineSpec, data: Any, folder: Path, threads: int) -> Artifact:
    recipe = find_start(spec.backend, spec.recipe)
    kind = RECIPES[recipe].makes if recipe in RECIPES else takes(spec.backend)
    source = next(s for s in sources if s.kind == kind)
    if find_graph_precision(spec.backend, spec.precision) == "fp32" or (kind == "torch" and recipe is None):
        return source
    out = folder / escape_precision(f"{spec.precision}-{recipe}.{'pt2' if kind == 'torch' else 'onnx'}")
    if out.exists() and kind == "onnx":
        return replace(read_onnx(out), inputs=source.inputs, outputs=source.outputs)
    if kind == "torch":
        from enginebench.models.torch.eight_bits import quantize_module

        return quantize_module(source, "pt2e", data, out, "minmax", threads)
    ranges = calibrate(source, data, threads=threads) if recipe in ("cpu", "tensorrt") else None
    return quantize(source, spec.precision or "int8", recipe, out, calibration=ranges, data=data, threads=threads)


def take_turns(
    engines: dict[str, Any], laps: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[dict[str, float], dict[str, list[float]]]:
    times: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(laps):
        for name, engine in engines.items():
            calls = []
            for _ in range(CALLS):
                start = clock()
                engine.run()
                calls.append(clock() - start)
            times[name].append(min(calls) * 1e3)
    first = times[next(iter(engines))]
    ratios = {n: statistics.median(a / b for a, b in zip(first, t, strict=True)) for n, t in times.items()}
    return ratios, times


def answer(engine: Any, data: Any) -> Iterator[np.ndarray[Any, Any]]:
    for i in range(min(CHECKED, data.n)):
        engine.bind(data.read(i, i + 1))
        engine.run()
        yield next(iter(engine.fetch().values())).astype(np.float64).ravel()


def compare(found: list[Any], wanted: list[Any]) -> float:
    """The mean centred cosine, the mean of the reference's outputs taken out."""
    middle = np.mean(wanted, axis=0)
    pairs = [(f - middle, w - middle) for f, w in zip(found, wanted, strict=True)]
    return float(np.mean([(f * w).sum() / (np.linalg.norm(f) * np.linalg.norm(w)) for f, w in pairs]))


if __name__ == "__main__":
    main()
