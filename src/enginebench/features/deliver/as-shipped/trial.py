"""The command line of predict.py: `--check` compares with the measured outputs, `--bench` times the calls here."""

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import facts
import numpy as np
from measured.core.engine_api import EngineBenchError

Arrays = dict[str, np.ndarray[Any, Any]]
WARMUP_S = 0.5
# The reference of the measured outputs, if that is the unchanged graph.
REFERENCES = {
    "ort_unoptimized": "ONNX Runtime without graph optimizations",
    "onnx_evaluator": "onnx's reference evaluator",
}


def main(load: Callable[[bool], Any]) -> int:
    """0, or 1 where outputs differ or the bundle refuses to run here."""
    inputs = facts.BUNDLE["artifact"]["inputs"]
    feeds = ", ".join(f'"{one["name"]}": {one["dtype"]}[{"x".join(map(str, one["shape"]))}]' for one in inputs)
    parser = argparse.ArgumentParser(
        description=f"{facts.BUNDLE['model']} as measured: {facts.BUNDLE['row']}.",
        epilog="in a program: from predict import load; outputs = load()({" + feeds.replace("%", "%%") + "})",
    )
    parser.add_argument("--check", action="store_true", help="compare with the stored outputs; exit code 0 or 1")
    parser.add_argument("--bench", action="store_true", help="print the median of calls here, beside the measured one")
    parser.add_argument("--calls", type=int, default=200, metavar="N", help="timed by --bench [200]")
    parser.add_argument("--pin", action="store_true", help="run on the CPUs that were measured")
    parser.add_argument("--force", action="store_true", help="go on where files, versions or machine differ")
    arguments = parser.parse_args()
    if not (arguments.check or arguments.bench):
        parser.print_help()
        return 0
    try:
        if arguments.pin:
            facts.pin()
        predictor = load(arguments.force)
    except (facts.Refused, EngineBenchError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1
    passed = check(predictor) if arguments.check else True
    if arguments.bench:
        bench(predictor, arguments.calls)
    return 0 if passed else 1


def list_checks() -> list[str]:
    """List the files of inputs and measured outputs: one for each shape that was measured."""
    shapes = len(facts.BUNDLE["engine"].get("traffic") or [None])
    return ["check.npz", *(f"check-{index}.npz" for index in range(2, shapes + 1))]


def read_check(file: str = "check.npz") -> tuple[list[Arrays], Arrays]:
    """Read (inputs of each call, measured outputs with an entry for each call)."""
    with np.load(facts.HERE / file, allow_pickle=False) as stored:
        sides: dict[str, Arrays] = {"inputs": {}, "outputs": {}}
        for key in stored.files:
            side, _, name = key.partition(".")
            sides[side][name] = stored[key]
    count = len(next(iter(sides["inputs"].values())))
    feeds = [{name: array[i] for name, array in sides["inputs"].items()} for i in range(count)]
    return feeds, sides["outputs"]


def join(arrays: Iterable[np.ndarray[Any, Any]], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Join the outputs of all calls, each padded with zeros to `shape`, as the measured ones are."""
    filled = []
    for array in map(np.atleast_1d, arrays):
        short = [want - have for want, have in zip(shape, array.shape, strict=False)]
        fits = array.ndim == len(shape) and min(short) >= 0
        filled.append(np.pad(array, [(0, n) for n in short]) if fits else np.zeros((0, *shape[1:]), array.dtype))
    return np.concatenate(filled)


def check(predictor: Any) -> bool:
    """Return whether every output is within the limits of the measured outputs; print one line for each.

    Of a bundle for several shapes the outputs of each are checked.
    """
    passed, calls, names = True, 0, set[str]()
    for file in list_checks():
        feeds, expected = read_check(file)
        agrees = check_calls(predictor, feeds, expected)
        passed, calls, names = passed and agrees, calls + len(feeds), names | expected.keys()
    if verdict := format_run_verdict(facts.BUNDLE):
        print(verdict)
    of_calls = f"{calls} call{'s' if calls > 1 else ''}"
    of_calls += f" in {len(list_checks())} shapes" if len(list_checks()) > 1 else ""
    count = f"{len(names)} output{'s' if len(names) > 1 else ''} of {of_calls}"
    print(f"OK: outputs agree ({count})" if passed else f"FAILED: outputs differ from the measured ones ({count})")
    return passed


def check_calls(predictor: Any, feeds: list[Arrays], expected: Arrays) -> bool:
    """Return whether the outputs of calls of one shape are within the limits; print one line for each output."""
    outputs = [predictor(feed) for feed in feeds]
    passed = True
    for name, reference in expected.items():
        shape = reference.shape[1:]
        joined = join((output[name] for output in outputs), shape)
        figures, kept = compare(join(reference, shape), joined, facts.BUNDLE["limits"])
        texts = ", ".join(f"{key} {value:.6g}" for key, value in figures.items())
        limits = ", ".join(f"{key} {value:g}" for key, value in facts.BUNDLE["limits"].items())
        print(f"{name}: {texts}: {'within' if kept else 'NOT within'} the limits ({limits})")
        passed = passed and kept
    return passed


def format_run_verdict(bundle: Mapping[str, Any]) -> str:
    """Format the run's verdict on the measured outputs; "" if the bundle has none."""
    outputs, why = bundle["figures"].get("outputs"), bundle["figures"].get("outputs_reason")
    if outputs is None:
        return ""
    drift = bundle["drift"] or {}
    reference = REFERENCES.get(drift.get("reference_kind", ""), drift.get("reference"))
    against = f" against {reference}" if reference and reference != bundle["row"] else ""
    return f"the run's verdict on its outputs{against}: {outputs.replace('_', ' ')}{f' ({why})' if why else ''}"


def compare(
    reference: np.ndarray[Any, Any], outputs: np.ndarray[Any, Any], limits: dict[str, float]
) -> tuple[dict[str, float], bool]:
    """(largest difference, SNR in dB, mean centred cosine; whether the limits are kept). No number never passes, nor
    does an infinity that only one side has."""
    if reference.dtype.kind == outputs.dtype.kind == "U" and reference.shape == outputs.shape:  # text, of any width
        return {"equal": float(np.mean(reference == outputs))}, bool(np.all(reference == outputs))
    if reference.shape != outputs.shape or reference.dtype != outputs.dtype:
        return {"max_abs_diff": float("inf")}, False
    ref = reference.reshape(len(reference), -1).astype(np.float64)
    cand = outputs.reshape(len(outputs), -1).astype(np.float64)
    infinite = (ref == cand) & np.isinf(ref)  # as in masked logits: equal values
    ref[infinite] = cand[infinite] = 0
    if not (np.isfinite(ref).all() and np.isfinite(cand).all()):
        return {"max_abs_diff": float("nan")}, False
    noise, signal = float(np.sum((ref - cand) ** 2)), float(np.sum(ref**2))
    figures = {"max_abs_diff": float(np.max(np.abs(ref - cand), initial=0.0))}
    figures["snr"] = 20 * float(np.log10(2.0**52)) if noise == 0 else 10 * float(np.log10(max(signal, 1e-300) / noise))
    if len(ref) > 1:
        a, b = ref - ref.mean(axis=0), cand - ref.mean(axis=0)
        sizes = np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)
        product = sizes[0] * sizes[1]
        cosines = np.where(product > 0, np.einsum("ij,ij->i", a, b) / np.where(product > 0, product, 1), 0)
        figures["centred_cosine"] = float(np.mean(np.where((sizes[0] == 0) & (sizes[1] == 0), 1.0, cosines)))
    return figures, all(figures[name] >= limit for name, limit in limits.items() if name in figures)


def time_calls(predictor: Any, calls: int, file: str = "check.npz") -> list[int]:
    """Time so many calls, in nanoseconds, in the measured scope: `run` alone, or in scope io with its copies."""
    feeds, engine = read_check(file)[0][0], predictor.engine  # as it was timed: without the lock of calls

    def call_whole() -> object:
        engine.bind(feeds)
        engine.run()
        return engine.fetch()

    engine.bind(feeds)
    call: Callable[[], object] = engine.run if facts.BUNDLE["scope"] == "compute" else call_whole
    warm = time.perf_counter() + WARMUP_S
    while time.perf_counter() < warm:
        call()
    times = []
    for _ in range(calls):
        begin = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - begin)
    return times


def bench(predictor: Any, calls: int) -> None:
    """Print the median here and the measured one, with its interval and where it was measured."""
    row = facts.BUNDLE
    weights = [cell["weight"] for cell in row["engine"].get("traffic") or [{"weight": 1.0}]]
    medians = [float(np.median(time_calls(predictor, calls, file))) for file in list_checks()]
    median_ms = sum(weight * median for weight, median in zip(weights, medians, strict=True)) / 1e6
    p50 = row["figures"]["p50_ms"]
    batch, processes, machine = row["engine"]["batch"], row["figures"]["processes"], row["machine_name"]
    interval = "" if p50["low"] is None else f" ({p50['low']:.4g} to {p50['high']:.4g})"
    shape = f"batch {batch}" if len(weights) == 1 else f"mean request of {len(weights)} shapes"
    print(f"here: median {median_ms:.4g} ms of {calls} calls in one process, {row['scope']}, {shape}")
    several = "process" if processes == 1 else "processes"
    print(f"measured: p50 {p50['value']:.4g} ms{interval}, {processes} {several}, on {machine}")
    print("one process is no verdict: enginebench bench BUNDLE --against RUN measures both, interleaved")
