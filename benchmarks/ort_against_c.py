"""What our loop and Python add to ONNX Runtime: `--engine ort` against a bare loop in C, alternating.

Both sides hold a session of the same release of the library with the same settings on the same graph and input, in
one process on one pinned core: ours through the `ort` engine and `measure_engine`, the other through a C loop around
RunWithBinding, compiled now (`bare_ort_loop.c`). Their outputs must be equal bit for bit.

A pair is a block of 100 ms of each side, interleaved. Two equal sessions differ by some percent, each for as long
as it lives, by where their memory came to lie and by which was opened first. So rounds are the unit:
each opens new sessions, in changing order, and gives one mean logarithm of the ratio and one mean difference; the
intervals are Student's t over rounds.

    python benchmarks/ort_against_c.py [--rounds 40] [--pairs 3] [--onnx NAME=FILE.onnx ...] [--json]

The claims of benchmarks/README.md rest on this.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime
from msgspec import Struct, to_builtins
from scipy import stats

from enginebench.core.feeds import concrete_shape, random_feeds
from enginebench.core.protocols import Engine
from enginebench.core.records import Artifact, EngineSpec, MeasureSpec, TensorSpec
from enginebench.engines.backends.onnxruntime.ort import DTYPES, OrtBackend
from enginebench.engines.ort import SPINNING
from enginebench.measure.loop import measure_engine, paused_gc
from enginebench.measure.machine import describe_machine
from enginebench.measure.pin import pin_process
from enginebench.measure.watch import BlockWatch

if TYPE_CHECKING:
    from enginebench.core.protocols import Array, Feeds

# A block of 100 ms is run in two slices, interleaved with those of the other side, so that a machine that changes its
# speed within a pair changes it for both.
SLICE_S = 0.05
ORDERS = (("ours", "bare", "bare", "ours"), ("bare", "ours", "ours", "bare"))
WARM_CALLS = 5  # untimed calls at the head of each slice, after the other side has had the caches
SPINNING_CHOICE = "run"

# (model, limit of the upper end of the ratio's 95 % interval, limit of the upper end of the difference in us)
CASES: dict[str, tuple[float | None, float | None]] = {"mobilenet_v3_small": (1.01, None), "digits-mlp": (None, 6.0)}


class Interval(Struct, frozen=True):
    """A mean with its paired 95 % Student-t interval."""

    value: float
    low: float
    high: float


class Comparison(Struct, frozen=True):
    """Ours against C over the rounds of one model."""

    model: str
    rounds: int
    pairs_per_round: int
    ours_us: float
    bare_us: float
    ratio: Interval
    added_us: Interval
    ratio_limit: float | None
    added_us_limit: float | None
    within_limits: bool
    foreign_cpu_cores: float | None  # mean over all pairs


class Pair(Struct, frozen=True):
    """Medians of two interleaved blocks, and what others used of the CPU meanwhile."""

    ours_ns: float
    bare_ns: float
    foreign_cores: float | None


class BareLoop:
    """The C side: a session of its own, bound to NumPy buffers."""

    def __init__(self, code: Path, model: Path, threads: int, feeds: Feeds, outputs: Feeds):
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
    start = "import sys; from enginebench.door import main; sys.exit(main())"
    subprocess.run(
        [sys.executable, "-c", start, "export", name, "--out", str(path)], check=True, stdout=subprocess.DEVNULL
    )
    return path


def describe_graph(path: Path, batch: int = 1) -> Artifact:
    """An artifact of static shape for the graph at `path`."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs, outputs = (_describe_nodes(nodes, batch) for nodes in (session.get_inputs(), session.get_outputs()))
    return Artifact(kind="onnx", model=path.stem, path=str(path), sha256="", files=(), inputs=inputs, outputs=outputs)


def _describe_nodes(nodes: list[onnxruntime.NodeArg], batch: int) -> tuple[TensorSpec, ...]:
    if any(node.type != "tensor(float)" for node in nodes):
        raise SystemExit("the C side binds float32 only; this graph has other inputs or outputs")
    specs = (TensorSpec(name=n.name, dtype=DTYPES[n.type], shape=tuple(n.shape)) for n in nodes)
    return tuple(TensorSpec(name=s.name, dtype=s.dtype, shape=concrete_shape(s, batch)) for s in specs)


@contextmanager
def open_sides(code: Path, path: Path, threads: int, bare_first: bool) -> Iterator[tuple[Engine, Feeds, BareLoop]]:
    """Both sides on the same input, after their outputs were found equal."""
    artifact = describe_graph(path)
    feeds = random_feeds(artifact.inputs, 1, seed=0)
    found = {s.name: np.zeros(concrete_shape(s, 1), s.dtype) for s in artifact.outputs}
    with ExitStack() as stack:

        def open_ours() -> Engine:
            spec = EngineSpec(backend="ort", threads=threads, options={"spinning": SPINNING_CHOICE})
            return stack.enter_context(OrtBackend().load(artifact, spec))

        def open_bare() -> BareLoop:
            return stack.enter_context(closing(BareLoop(code, path, threads, feeds, found)))

        if bare_first:
            bare, engine = open_bare(), open_ours()
        else:
            engine, bare = open_ours(), open_bare()
        check_equal(engine, feeds, bare, found)
        yield engine, feeds, bare


def check_equal(engine: Engine, feeds: Feeds, bare: BareLoop, found: dict[str, Array]) -> None:
    """Returns if both sides answer the same, bit for bit."""
    engine.bind(feeds)
    engine.run()
    bare.time_calls(1)
    for name, array in engine.fetch().items():
        np.testing.assert_array_equal(found[name], array)


def measure_rounds(code: Path, path: Path, options: argparse.Namespace) -> list[list[Pair]]:
    """The pairs of each round; every round has sessions of its own."""
    rounds = []
    # What exists now is frozen, so that the collection before each measurement does not sweep the caches.
    with paused_gc():
        for number in range(options.rounds):
            with open_sides(code, path, options.threads, bare_first=number % 2 == 1) as (engine, feeds, bare):
                rounds.append(measure_pairs(engine, feeds, bare, options.pairs))
    return rounds


def measure_pairs(engine: Engine, feeds: Feeds, bare: BareLoop, pairs: int) -> list[Pair]:
    """`pairs` pairs of blocks, their slices interleaved; the side that goes first changes from pair to pair."""
    calls = max(5, math.ceil(SLICE_S * 1e9 / float(np.median(bare.time_calls(20)))))
    spec = MeasureSpec(warmup=WARM_CALLS, iters=calls)
    sides: dict[str, Callable[[], Sequence[int]]] = {
        "ours": lambda: measure_engine(engine, [feeds], spec).latency_ns,
        "bare": lambda: bare.time_calls(WARM_CALLS + calls)[WARM_CALLS:].tolist(),
    }
    return [_measure_pair(sides, ORDERS[number % 2]) for number in range(pairs)]


def _measure_pair(sides: dict[str, Callable[[], Sequence[int]]], order: Sequence[str]) -> Pair:
    watch, latency_ns = BlockWatch(), {side: list[int]() for side in sides}
    watch.begin()
    for side in order:
        latency_ns[side] += sides[side]()
    medians = {side: float(np.median(samples)) for side, samples in latency_ns.items()}
    return Pair(medians["ours"], medians["bare"], watch.end().foreign_cpu_cores)


def compare_rounds(model: str, rounds: list[list[Pair]]) -> Comparison:
    """The comparison of all rounds."""
    ratio_limit, added_limit = CASES.get(model, (None, None))
    logs = _estimate_mean([float(np.mean([math.log(p.ours_ns / p.bare_ns) for p in pairs])) for pairs in rounds])
    ratio = Interval(math.exp(logs.value), math.exp(logs.low), math.exp(logs.high))
    added = _estimate_mean([float(np.mean([p.ours_ns - p.bare_ns for p in pairs])) / 1000 for pairs in rounds])
    pairs = [pair for pairs in rounds for pair in pairs]
    foreign = [p.foreign_cores for p in pairs if p.foreign_cores is not None]
    return Comparison(
        model=model,
        rounds=len(rounds),
        pairs_per_round=len(rounds[0]),
        ours_us=float(np.median([p.ours_ns for p in pairs])) / 1000,
        bare_us=float(np.median([p.bare_ns for p in pairs])) / 1000,
        ratio=ratio,
        added_us=added,
        ratio_limit=ratio_limit,
        added_us_limit=added_limit,
        within_limits=ratio.high <= (ratio_limit or math.inf) and added.high <= (added_limit or math.inf),
        foreign_cpu_cores=float(np.mean(foreign)) if foreign else None,
    )


def _estimate_mean(values: list[float]) -> Interval:
    mean, half = float(np.mean(values)), float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return Interval(mean, mean - half, mean + half)


def format_comparison(c: Comparison) -> str:
    """A few lines of text."""
    foreign = "unknown" if c.foreign_cpu_cores is None else f"{c.foreign_cpu_cores:.2f} cores"
    return "\n".join(
        [
            f"{c.model}: ours {c.ours_us:.2f} us, C {c.bare_us:.2f} us; {c.rounds} rounds of {c.pairs_per_round} pairs",
            f"  ratio      {_show(c.ratio, 4)}  limit {c.ratio_limit or 'none'}",
            f"  added (us) {_show(c.added_us, 2)}  limit {c.added_us_limit or 'none'}",
            f"  {'within' if c.within_limits else 'NOT within'} the limits; CPU used by others: {foreign}",
        ]
    )


def _show(interval: Interval, digits: int) -> str:
    return f"{interval.value:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40, help="rounds for each model, at least 2")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of blocks in a round")
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
            found.append(compare_rounds(model, measure_rounds(code, path, options)))
            if not options.json:
                print(format_comparison(found[-1]), flush=True)
    if options.json:
        cpu = describe_machine().cpu_model
        line = {"benchmark": "ort_against_c", "onnxruntime": onnxruntime.__version__, "cpu_model": cpu}
        print(json.dumps({**line, "comparisons": [to_builtins(c) for c in found]}))
    return 0 if all(c.within_limits for c in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
