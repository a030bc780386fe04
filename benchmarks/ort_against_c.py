"""What our loop and Python add to ONNX Runtime: `--engine ort` against a bare loop in C, alternating.

Both sides hold a session of the same release of the library with the same settings on the same graph and input, in
one process on one pinned core: ours through the `ort` engine and `measure_engine`, the other through a C loop around
RunWithBinding, compiled now (`bare_ort_loop.c`). Their outputs must be equal bit for bit. Blocks of 100 ms alternate
(ours first in every other pair) and each pair gives one logarithm of a ratio and one difference of medians.

    python benchmarks/ort_against_c.py [--pairs 60] [--onnx NAME=FILE.onnx ...] [--json]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
from msgspec import Struct, to_builtins
from scipy import stats

from enginebench.backends.ort import DTYPES, SPINNING, OrtBackend
from enginebench.core.feeds import concrete_shape, random_feeds
from enginebench.core.protocols import Engine
from enginebench.core.records import Artifact, EngineSpec, MeasureSpec, TensorSpec
from enginebench.measure.loop import measure_engine
from enginebench.measure.machine import describe_machine
from enginebench.measure.pin import pin_process
from enginebench.measure.watch import FOREIGN_CPU_CORES, BlockWatch

if TYPE_CHECKING:
    from enginebench.core.protocols import Array

BLOCK_S = 0.1
WARM_CALLS = 3  # untimed calls at the head of each block, after the other side has had the caches
SPINNING_CHOICE = "run"

# (model, limit of the upper end of the ratio's 95 % interval, limit of the upper end of the difference in us)
CASES: dict[str, tuple[float | None, float | None]] = {
    "mobilenet_v3_small": (1.01, None),
    "digits-mlp": (None, 6.0),
}


class Interval(Struct, frozen=True):
    """A mean with its paired 95 % Student-t interval."""

    value: float
    low: float
    high: float


class Comparison(Struct, frozen=True):
    """Ours against C over the pairs of one model."""

    model: str
    pairs: int
    pairs_quiet: int
    ours_us: float
    bare_us: float
    ratio: Interval
    ratio_quiet: Interval | None
    added_us: Interval
    added_us_quiet: Interval | None
    ratio_limit: float | None
    added_us_limit: float | None
    within_limits: bool


class Pair(Struct, frozen=True):
    """Medians of two neighbouring blocks, and the most that others used of the CPU in either."""

    ours_ns: float
    bare_ns: float
    foreign_cores: float | None


class BareLoop:
    """The C side: a session of its own, bound to NumPy buffers."""

    def __init__(self, code: Path, model: Path, threads: int, feeds: dict[str, Array], outputs: dict[str, Array]):
        self._code = _declare(ctypes.CDLL(str(code)))
        self._bare = ctypes.c_void_p(self._code.bare_new())
        self._buffers = (feeds, outputs)  # the session reads and writes them in place
        self._check(self._code.bare_prepare(self._bare, str(find_library()).encode(), threads))
        for key, value in SPINNING[SPINNING_CHOICE].items():
            self._check(self._code.bare_configure(self._bare, key.encode(), value.encode()))
        self._check(self._code.bare_load(self._bare, str(model).encode()))
        for is_output, arrays in enumerate(self._buffers):
            for name, array in arrays.items():
                self._bind(is_output, name, array)

    def time_calls(self, calls: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Nanoseconds of each call."""
        latency_ns = np.zeros(calls, np.int64)
        self._check(self._code.bare_time(self._bare, calls, latency_ns.ctypes.data_as(ctypes.c_void_p)))
        return latency_ns

    def close(self) -> None:
        self._code.bare_free(self._bare)

    def _bind(self, is_output: int, name: str, array: Array) -> None:
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        data = array.ctypes.data_as(ctypes.c_void_p)
        self._check(self._code.bare_bind(self._bare, is_output, name.encode(), data, array.nbytes, shape, array.ndim))

    def _check(self, failed: int) -> None:
        if failed:
            raise RuntimeError(f"the C side failed: {self._code.bare_error(self._bare).decode()}")


def _declare(code: ctypes.CDLL) -> ctypes.CDLL:
    pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    code.bare_new.restype = pointer
    code.bare_error.argtypes, code.bare_error.restype = [pointer], text
    code.bare_prepare.argtypes = [pointer, text, ctypes.c_int]
    code.bare_configure.argtypes = [pointer, text, text]
    code.bare_load.argtypes = [pointer, text]
    code.bare_bind.argtypes = [pointer, ctypes.c_int, text, pointer, size, pointer, size]
    code.bare_time.argtypes = [pointer, ctypes.c_int64, pointer]
    code.bare_free.argtypes, code.bare_free.restype = [pointer], None
    return code


def find_library() -> Path:
    """The wheel's own shared library: what the Python extension was built from, at the same version."""
    folder = Path(onnxruntime.__file__).parent / "capi"
    found = sorted(folder.glob("libonnxruntime.so.*")) + sorted(folder.glob("libonnxruntime.*.dylib"))
    if not found:
        raise SystemExit(f"no libonnxruntime in {folder}; this benchmark needs the wheel of onnxruntime >= 1.20")
    return found[0]


def compile_bare_loop(folder: Path) -> Path:
    """The C loop as a shared library in `folder`."""
    code = folder / "bare_ort_loop.so"
    source = Path(__file__).with_name("bare_ort_loop.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(source), "-o", str(code), "-ldl"], check=True)
    return code


def export_model(name: str, folder: Path) -> Path:
    """The ONNX of a built-in model, by the `export` verb."""
    path = folder / f"{name}.onnx"
    start = "import sys; from enginebench.cli import main; sys.exit(main())"
    subprocess.run([sys.executable, "-c", start, "export", name, "--out", str(path)], check=True)
    return path


def describe_graph(path: Path, batch: int = 1) -> Artifact:
    """An artefact of static shape for the graph at `path`."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs, outputs = (_describe_nodes(nodes, batch) for nodes in (session.get_inputs(), session.get_outputs()))
    return Artifact(kind="onnx", model=path.stem, path=str(path), sha256="", files=(), inputs=inputs, outputs=outputs)


def _describe_nodes(nodes: list[onnxruntime.NodeArg], batch: int) -> tuple[TensorSpec, ...]:
    if any(node.type != "tensor(float)" for node in nodes):
        raise SystemExit("the C side binds float32 only; this graph has other inputs or outputs")
    specs = (TensorSpec(name=n.name, dtype=DTYPES[n.type], shape=tuple(n.shape)) for n in nodes)
    return tuple(TensorSpec(name=s.name, dtype=s.dtype, shape=concrete_shape(s, batch)) for s in specs)


@contextmanager
def open_sides(code: Path, path: Path, threads: int) -> Iterator[tuple[Engine, dict[str, Array], BareLoop]]:
    """Both sides on the same input, after their outputs were found equal."""
    artifact = describe_graph(path)
    spec = EngineSpec(backend="ort", threads=threads, options={"spinning": SPINNING_CHOICE})
    feeds = random_feeds(artifact.inputs, 1, seed=0)
    with OrtBackend().load(artifact, spec) as engine:
        engine.bind(feeds)
        engine.run()
        expected = engine.fetch()
        found = {name: np.zeros_like(array) for name, array in expected.items()}
        bare = BareLoop(code, path, threads, feeds, found)
        try:
            bare.time_calls(WARM_CALLS)
            for name, array in expected.items():
                np.testing.assert_array_equal(found[name], array)
            yield engine, feeds, bare
        finally:
            bare.close()


def measure_pairs(engine: Engine, feeds: dict[str, Array], bare: BareLoop, pairs: int) -> list[Pair]:
    """`pairs` pairs of neighbouring blocks, the side that goes first changing each time."""
    calls = max(10, math.ceil(BLOCK_S * 1e9 / float(np.median(bare.time_calls(20)))))
    watch = BlockWatch()

    def time_ours() -> float:
        spec = MeasureSpec(warmup=WARM_CALLS, iters=calls)
        return float(np.median(measure_engine(engine, [feeds], spec).latency_ns))

    def time_bare() -> float:
        return float(np.median(bare.time_calls(WARM_CALLS + calls)[WARM_CALLS:]))

    found = []
    for number in range(pairs):
        watch.begin()
        if number % 2:
            bare_ns, ours_ns = time_bare(), time_ours()
        else:
            ours_ns, bare_ns = time_ours(), time_bare()
        found.append(Pair(ours_ns, bare_ns, watch.end().foreign_cpu_cores))
    return found


def compare_pairs(model: str, pairs: list[Pair]) -> Comparison:
    """The comparison of all pairs, and of those in which nobody else used the CPU."""
    ratio_limit, added_limit = CASES.get(model, (None, None))
    quiet = [p for p in pairs if p.foreign_cores is not None and p.foreign_cores <= FOREIGN_CPU_CORES]
    ratio, added = _estimate_ratio(pairs), _estimate_added(pairs)
    within = (ratio_limit is None or ratio.high <= ratio_limit) and (added_limit is None or added.high <= added_limit)
    enough = len(quiet) >= 2
    return Comparison(
        model=model,
        pairs=len(pairs),
        pairs_quiet=len(quiet),
        ours_us=float(np.median([p.ours_ns for p in pairs])) / 1000,
        bare_us=float(np.median([p.bare_ns for p in pairs])) / 1000,
        ratio=ratio,
        ratio_quiet=_estimate_ratio(quiet) if enough else None,
        added_us=added,
        added_us_quiet=_estimate_added(quiet) if enough else None,
        ratio_limit=ratio_limit,
        added_us_limit=added_limit,
        within_limits=within,
    )


def _estimate_ratio(pairs: list[Pair]) -> Interval:
    logs = _estimate_mean([math.log(p.ours_ns / p.bare_ns) for p in pairs])
    return Interval(math.exp(logs.value), math.exp(logs.low), math.exp(logs.high))


def _estimate_added(pairs: list[Pair]) -> Interval:
    return _estimate_mean([(p.ours_ns - p.bare_ns) / 1000 for p in pairs])


def _estimate_mean(values: list[float]) -> Interval:
    mean, half = float(np.mean(values)), float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return Interval(mean, mean - half, mean + half)


def format_comparison(c: Comparison) -> str:
    """A few lines of text."""
    lines = [
        f"{c.model}: ours {c.ours_us:.2f} us, C {c.bare_us:.2f} us, {c.pairs} pairs, {c.pairs_quiet} of them quiet",
        f"  ratio      {_show(c.ratio, 4)}  limit {c.ratio_limit or 'none'}",
        f"  added (us) {_show(c.added_us, 2)}  limit {c.added_us_limit or 'none'}",
    ]
    if c.ratio_quiet and c.added_us_quiet:
        lines.append(f"  quiet pairs: ratio {_show(c.ratio_quiet, 4)}, added (us) {_show(c.added_us_quiet, 2)}")
    return "\n".join([*lines, f"  {'within' if c.within_limits else 'NOT within'} the limits"])


def _show(interval: Interval, digits: int) -> str:
    return f"{interval.value:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=60, help="pairs of blocks for each model")
    parser.add_argument("--threads", type=int, default=1, help="threads of both sides")
    parser.add_argument("--onnx", action="append", default=[], metavar="NAME=FILE", help="graph of a model, ready made")
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of text")
    options = parser.parse_args()
    ready = dict(pair.split("=", 1) for pair in options.onnx)
    pin_process(options.threads)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        code = compile_bare_loop(Path(folder))
        for model in ready or CASES:
            path = Path(ready[model]) if model in ready else export_model(model, Path(folder))
            with open_sides(code, path, options.threads) as (engine, feeds, bare):
                found.append(compare_pairs(model, measure_pairs(engine, feeds, bare, options.pairs)))
            if not options.json:
                print(format_comparison(found[-1]), flush=True)
    if options.json:
        cpu = describe_machine().cpu_model
        line = {"benchmark": "ort_against_c", "onnxruntime": onnxruntime.__version__, "cpu_model": cpu}
        print(json.dumps({**line, "comparisons": [to_builtins(c) for c in found]}))
    return 0 if all(c.within_limits for c in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
