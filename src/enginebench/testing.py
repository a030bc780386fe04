"""Checks of the promises of every engine, for authors of engines: `check_backend("my-engine")`.

A small network with fixed weights goes through the engine, as ONNX or as a PyTorch module; the truth is computed with
NumPy in double precision. Each check names a promise of `core/protocols.py`. Whether `run` does the work is decided by
ratios of times on a deeper network, within one process and repeatedly; on a disturbed machine they are inconclusive.
"""

from __future__ import annotations

import tempfile
import time
import timeit
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from enginebench.core.entry import Entry
from enginebench.core.errors import ArtifactError, BackendUnavailable, EngineBenchError, FeedError, UsageError
from enginebench.core.feeds import random_feeds
from enginebench.core.protocols import Backend, Engine, Loadable
from enginebench.core.records import Artifact, ArtifactKind, Availability, EngineSpec, FileHash, TensorSpec
from enginebench.core.store import encode, hash_files
from enginebench.engines.registry import find_entry, open_backend
from enginebench.measure.honesty import find_short_ns, find_skipped_work
from enginebench.measure.loop import measure_left
from enginebench.measure.topology import read_allowed_cpus, read_system_file
from enginebench.measure.watch import FOREIGN_CPU_CORES, BlockWatch

if TYPE_CHECKING:
    from enginebench.core.protocols import Array, Feeds

__all__ = ["CHECKS", "Case", "check_backend", "expect_scores", "make_module", "make_weights", "save_network"]

CLASSES, CHANNELS, SIZE = 5, 4, 8
INPUT = TensorSpec(name="image", dtype="float32", shape=("batch", 3, SIZE, SIZE))
OUTPUT = TensorSpec(name="scores", dtype="float32", shape=("batch", CLASSES))
# FP32 engines against a double-precision truth: sums of 256 products of values near 1, each rounded at 6e-8.
RTOL, ATOL = 1e-4, 1e-5
DEEP_ATOL = 1e-2  # of the deeper network, whose two outputs are 0.1 and more apart

# The same network with hidden layers before its head, about a hundred times the work, and a second output of one shape.
DEEP, LAYERS, WIDE = "deep", 16, 64
TWIN = replace(OUTPUT, name="twin")
# A promise is broken if this many of the rounds say so. Half of the work in the wrong place is far from what an honest
# engine does, and from what the clock can blur.
ROUNDS, AGREEING = 5, 4
HALF = 0.5
# What the busiest of two threads takes of the CPU time: half of it where they share the work, all of it where they do
# not. On layers that are long beside waking a thread.
THREADS_RATIO, WINDOW_S, SHARED = 0.9, 0.05, 512
# To catch an engine that stops computing after some calls: so many calls, or as many as fit into so long.
MANY_CALLS, MANY_S = 2000, 3.0

Expect = Callable[["Feeds"], Mapping[str, "Array"]]


class Inconclusive(Exception):
    """The machine was disturbed, or cannot show it: neither kept nor broken."""


def check_backend(
    engine: str | Backend, *, entry: Entry | None = None, expect: Expect | None = None, cache_dir: Path | None = None
) -> None:
    """Check that an engine keeps every promise of its interface; warn of those that a disturbed machine cannot show.

    Args:
        engine: its name, of an engine that is installed, or a backend.
        entry: what is true of the engine; by default that of its name.
        expect: the outputs of the engine, if they are not those of the network.
        cache_dir: a folder for what the engine makes; by default a temporary one.

    Raises:
        AssertionError: it breaks promises; lists all of them.
    """
    with open_case(engine, entry=entry, expect=expect, cache_dir=cache_dir) as case:
        faults = {name_check(check): fault for check in CHECKS if (fault := _try(check, case))}
    broken = []
    for name, fault in faults.items():
        if isinstance(fault, Inconclusive):
            warnings.warn(f"engine {case.name}, {name}: inconclusive: {fault}", stacklevel=2)
        else:
            broken.append(f"- {name}: {fault}")
    if broken:
        listed = "\n".join(broken)
        raise AssertionError(f"engine {case.name} breaks {len(broken)} of {len(CHECKS)} promises:\n{listed}")


def name_check(check: Callable[[Case], None]) -> str:
    """The promise that a check is named after."""
    return check.__name__.removeprefix("check_").replace("_", " ")


def _try(check: Callable[[Case], None], case: Case) -> str | Inconclusive | None:
    """Run a check and return what is wrong, in one paragraph; None if nothing is."""
    try:
        check(case)
    except Inconclusive as error:
        return error
    except AssertionError as error:
        return str(error).strip() or "it does not hold"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


class Case:
    """One engine on the small network.

    Args:
        source: the network in the form that the engine takes.
        expect: the outputs of the engine.
        folder: for what it makes.
    """

    def __init__(
        self, backend: Backend, entry: Entry, source: Artifact, expect: Expect, folder: Path, opened: ExitStack
    ) -> None:
        self.backend: Any = backend
        self._opened = opened
        self.name, self.entry, self.source, self.expect, self.folder = entry.name, entry, source, expect, folder
        self.deep_source = make_network_source(entry, folder, LAYERS)
        self._built: dict[tuple[str, bytes], Artifact] = {}
        # One with a rule of its own need not take longer for more layers.
        self.computes = expect is expect_network

    def load(self, source: Artifact | None = None, **spec: Any) -> Engine:
        """A new engine, built and loaded with these fields of an `EngineSpec`."""
        wanted = EngineSpec(backend=self.name, **{"device": self.entry.device or "cpu", **spec})
        source = source or self.source
        key = source.sha256, encode(wanted)
        if key not in self._built:  # once, as a run does for all of its processes: compiling takes seconds
            self._built[key] = self.backend.build(source, wanted, self.folder)
        engine: Engine = self.backend.load(self._built[key], wanted)
        return engine

    @cached_property
    def shared(self) -> Engine:
        """One engine for the checks that leave it as it was: compiling takes seconds."""
        engine = self.load()
        self._opened.callback(engine.close)
        return engine

    @cached_property
    def deep(self) -> Engine:
        """One engine on the deeper network, with its inputs."""
        engine = self.load(self.deep_source, batch=WIDE)
        self._opened.callback(engine.close)
        engine.bind(_make_feeds(WIDE))
        return engine

    def check_output(self, engine: Engine, feeds: Feeds, words: str) -> None:
        """Check that the engine now holds the right outputs for `feeds`."""
        for name, right in self.expect(feeds).items():
            got = engine.fetch()[name]
            assert got.shape == right.shape, f"{words}: {name} has shape {got.shape}, not {right.shape}"
            worst = float(np.max(np.abs(got.astype(np.float64) - right.astype(np.float64))))
            close = np.allclose(got, right, rtol=RTOL, atol=ATOL)
            assert close, f"{words}: {name} is off by up to {worst:.3g}"


@contextmanager
def open_case(
    engine: str | Backend, *, entry: Entry | None = None, expect: Expect | None = None, cache_dir: Path | None = None
) -> Iterator[Case]:
    """The engine with the network before it; what was made is gone afterwards."""
    entry = entry or find_entry(engine if isinstance(engine, str) else engine.name)
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as opened:
        folder = cache_dir or Path(scratch)
        backend = open_backend(engine, make_module, folder) if isinstance(engine, str) else engine
        yield Case(backend, entry, make_network_source(entry, Path(scratch)), expect or expect_network, folder, opened)


def make_network_source(entry: Entry, folder: Path, layers: int = 0) -> Artifact:
    """The network in the form that an engine takes."""
    if entry.takes == "torch":
        return make_artifact("torch", "", f"{layers:064}", (), layers)
    path = folder / "modèle été" / f"small net {layers}.onnx"  # a space, and no ASCII: files of users are called so
    path.parent.mkdir(exist_ok=True)
    return save_network(path, layers=layers)


def make_artifact(kind: ArtifactKind, path: str, sha256: str, files: tuple[FileHash, ...], layers: int) -> Artifact:
    """Describe the network as an artifact: the deeper one has a second output, the first without its bias."""
    name, outputs = (DEEP, (OUTPUT, TWIN)) if layers else ("small", (OUTPUT,))
    return Artifact(kind=kind, model=name, path=path, sha256=sha256, files=files, inputs=(INPUT,), outputs=outputs)


def make_weights(layers: int = 0) -> dict[str, np.ndarray]:
    """The weights of the network, by name, always the same; all hidden layers share theirs."""
    rng = np.random.default_rng(7)
    shapes = {"conv.weight": (CHANNELS, 3, 3, 3), "conv.bias": (CHANNELS,)}
    shapes |= {"head.weight": (CLASSES, CHANNELS * SIZE * SIZE), "head.bias": (CLASSES,)}
    weights = {name: (rng.standard_normal(shape) * 0.2).astype(np.float32) for name, shape in shapes.items()}
    if layers:
        n = CHANNELS * SIZE * SIZE  # scaled so that values keep their size from layer to layer
        weights["deep.weight"] = (rng.standard_normal((n, n)) * np.sqrt(2 / n)).astype(np.float32)
    return weights


def expect_scores(image: Array, layers: int = 0) -> np.ndarray:
    """The network in NumPy, in double precision: scores float64 [n, 5] of images [n, 3, 8, 8]."""
    weights = make_weights(layers)
    padded = np.pad(image.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    hidden = np.einsum("nchwij,ocij->nohw", windows, weights["conv.weight"].astype(np.float64))
    hidden = np.maximum(hidden + weights["conv.bias"][:, None, None], 0).reshape(len(image), -1)
    for _ in range(layers):
        hidden = np.maximum(hidden @ weights["deep.weight"].astype(np.float64), 0)
    scores: np.ndarray = hidden @ weights["head.weight"].T.astype(np.float64) + weights["head.bias"]
    return scores


def expect_network(feeds: Feeds) -> Mapping[str, Array]:
    """The right outputs of the network."""
    return {OUTPUT.name: expect_scores(feeds[INPUT.name])}


def save_network(
    path: Path,
    input_shape: tuple[int | str, ...] = INPUT.shape,
    output_shape: tuple[int | str, ...] = OUTPUT.shape,
    layers: int = 0,
) -> Artifact:
    """Write the network as ONNX, with these outer shapes in the file."""
    from onnx import TensorProto, helper, numpy_helper, save

    flat = ["flat", *(f"flat.{i}" for i in range(layers))]
    outputs = ("scores", "twin") if layers else ("scores",)
    nodes = [
        helper.make_node("Conv", ["image", "conv.weight", "conv.bias"], ["conv"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["hidden"]),
        helper.make_node("Flatten", ["hidden"], ["flat"]),
    ]
    for before, after in pairwise(flat):
        nodes.append(helper.make_node("MatMul", [before, "deep.weight"], [f"{after}.sum"]))
        nodes.append(helper.make_node("Relu", [f"{after}.sum"], [after]))
    nodes.append(helper.make_node("Gemm", [flat[-1], "head.weight", "head.bias"], ["scores"], transB=1))
    if layers:
        nodes.append(helper.make_node("Sub", ["scores", "head.bias"], ["twin"]))
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, input_shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, output_shape) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in make_weights(layers).items()],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(path))
    sha256, files = hash_files([path], path.parent)
    return make_artifact("onnx", str(path), sha256, files, layers)


def make_module(artifact: Artifact) -> Any:
    """The network as a PyTorch module, as the loader that an engine is handed would rebuild it."""
    import torch

    layers = {"conv": torch.nn.Conv2d(3, CHANNELS, 3, padding=1), "relu": torch.nn.ReLU()}
    layers |= {"flat": torch.nn.Flatten(), "head": torch.nn.Linear(CHANNELS * SIZE * SIZE, CLASSES)}
    module = torch.nn.Sequential(OrderedDict(layers))
    module.load_state_dict({name: torch.tensor(array) for name, array in make_weights().items()})
    if artifact.model != DEEP:
        return module

    class Deep(torch.nn.Module):  # type: ignore[misc]  # PyTorch has no types here
        def forward(self, image: Any) -> Any:
            flat = self.small[:3](image)
            for _ in range(LAYERS):
                flat = torch.relu(flat @ self.hidden)
            scores = self.small.head(flat)
            return scores, scores - self.small.head.bias

    deep = Deep()
    deep.small = module
    deep.register_buffer("hidden", torch.tensor(make_weights(LAYERS)["deep.weight"]))
    return deep


def _make_feeds(batch: int = 1, seed: int = 0) -> dict[str, Array]:
    return random_feeds([INPUT], batch, seed)


def _infer(engine: Engine, feeds: Feeds) -> Array:
    engine.bind(feeds)
    engine.run()
    return engine.fetch()[OUTPUT.name]


def _expect_error(kind: type[EngineBenchError], words: str, what: str, call: Callable[[], object]) -> None:
    """Check that `call` raises an error of this kind whose message has these words."""
    try:
        call()
    except kind as error:
        assert words in str(error), f"{what} raises {kind.__name__} without the words {words!r}: {error}"
    except Exception as error:
        raise AssertionError(f"{what} raises {type(error).__name__} ({error}); expected {kind.__name__}") from error
    else:
        raise AssertionError(f"{what} is accepted; expected {kind.__name__}")


def check_backend_follows_the_seam(case: Case) -> None:
    assert isinstance(case.backend, Backend), "it has not all of name, probe and build"
    assert isinstance(case.backend, Loadable), "it has no load"
    assert case.backend.name == case.name, f"its name is {case.backend.name!r}, its entry's {case.name!r}"


def check_probe_says_that_it_is_there(case: Case) -> None:
    availability = case.backend.probe()
    assert isinstance(availability, Availability), f"probe gives a {type(availability).__name__}"
    assert availability.available, f"probe reports that it is not available: {availability.reason}"
    assert availability.engine == case.name, f"probe reports engine {availability.engine!r}"


def check_outputs_are_complete_when_run_returns(case: Case) -> None:
    run = None
    for seed in range(5):
        feeds = _make_feeds(seed=seed)
        case.shared.bind(feeds)
        run = run or case.shared.run  # fetched once, as the loop does
        run()
        case.check_output(case.shared, feeds, f"run {seed + 1}")


def check_outputs_belong_to_the_caller(case: Case) -> None:
    first, second = _make_feeds(seed=1), _make_feeds(seed=2)
    output = _infer(case.shared, first)
    kept = output.copy()
    _infer(case.shared, second)
    assert np.array_equal(output, kept), "an array from fetch changed in a later run"
    output[...] = 0
    again = case.shared.fetch()[OUTPUT.name]
    again[...] = 0
    case.check_output(case.shared, second, "after the caller wrote into what fetch gave")


def check_inputs_are_copied_by_bind(case: Case) -> None:
    feeds = _make_feeds(seed=3)
    copies = {name: array.copy() for name, array in feeds.items()}
    case.shared.bind(feeds)
    feeds[INPUT.name][...] = 1e6
    case.shared.run()
    case.check_output(case.shared, copies, "after the caller wrote into what bind took")


def check_run_leaves_its_inputs_as_they_are(case: Case) -> None:
    first = _infer(case.shared, _make_feeds(seed=4))
    case.shared.run()
    again = case.shared.fetch()[OUTPUT.name]
    assert np.array_equal(again, first), "a second run on the same inputs gives other outputs"


def check_outputs_are_right_after_many_calls(case: Case) -> None:
    """Check outputs after many calls: they are not those of an earlier call, nor of a part of the batch."""
    with case.load(batch=2) as engine:
        engine.bind(_make_feeds(2, seed=1))
        _run_often(engine, MANY_CALLS)
        for seed in (2, 1, 2):  # an engine that computes in every second call is wrong in one of them
            feeds = _make_feeds(2, seed=seed)
            engine.bind(feeds)
            engine.run()
            case.check_output(engine, feeds, f"after {MANY_CALLS} calls")


def _run_often(engine: Engine, calls: int) -> list[int]:
    """Run up to so many times, for no longer than `MANY_S`; return the nanoseconds of each call."""
    run, end, times = engine.run, time.monotonic() + MANY_S, list[int]()
    while len(times) < calls and time.monotonic() < end:
        begin = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - begin)
    return times


def check_outputs_are_made_by_run(case: Case) -> None:
    """Not by `bind`, and not by `fetch`: until `run` is called there are those of the call before, or an error."""
    first, second = _make_feeds(seed=1), _make_feeds(seed=2)
    _infer(case.shared, first)
    case.shared.bind(second)
    try:
        fetched = case.shared.fetch()[OUTPUT.name]
    except EngineBenchError:
        return
    finally:
        case.shared.run()
    right = case.expect(second)[OUTPUT.name]
    early = fetched.shape == right.shape and np.allclose(fetched, right, rtol=RTOL, atol=ATOL)
    constant = np.allclose(case.expect(first)[OUTPUT.name], right, rtol=RTOL, atol=ATOL)
    assert constant or not early, "the outputs for new inputs are there before run is called"


def check_odd_arrays_are_taken(case: Case) -> None:
    """Read-only, strided and Fortran-ordered arrays are arrays, too."""
    feeds = _make_feeds(seed=5)
    fortran = np.asfortranarray(feeds[INPUT.name])
    strided = np.repeat(feeds[INPUT.name], 2, axis=3)[..., ::2]
    fortran.flags.writeable = False
    for words, image in (("a read-only array in Fortran's order", fortran), ("a strided array", strided)):
        _infer(case.shared, {INPUT.name: image})
        case.check_output(case.shared, feeds, words)


def check_outputs_are_as_the_artifact_says(case: Case) -> None:
    output = _infer(case.shared, _make_feeds())
    inputs, outputs = ([s.name for s in specs] for specs in (case.shared.inputs, case.shared.outputs))
    assert inputs == [INPUT.name], f"its inputs are {inputs}, the artifact's {[INPUT.name]}"
    assert outputs == [OUTPUT.name], f"its outputs are {outputs}, the artifact's {[OUTPUT.name]}"
    declared = case.shared.outputs[0].dtype
    assert output.dtype == np.dtype(declared), f"fetch gives {output.dtype}, and outputs says {declared}"
    assert output.shape == (1, CLASSES), f"fetch gives the shape {output.shape}, not {(1, CLASSES)}"
    assert output.flags.c_contiguous and output.flags.writeable, "fetch gives no writeable array in C's order"


def check_batch_may_change(case: Case) -> None:
    with case.load(batch=2) as engine:
        run = None
        for batch in (2, 3, 2):
            feeds = _make_feeds(batch, seed=batch)
            engine.bind(feeds)
            run = run or engine.run
            run()
            case.check_output(engine, feeds, f"batch {batch}")


def check_two_engines_do_not_meet(case: Case) -> None:
    first, second = _make_feeds(seed=1), _make_feeds(seed=2)
    with case.load() as other:
        case.shared.bind(first)
        other.bind(second)
        case.shared.run()
        other.run()
        case.check_output(case.shared, first, "the first of two")
        case.check_output(other, second, "the second of two")
    _infer(case.shared, second)
    case.check_output(case.shared, second, "the first after the second was closed")


def check_wrong_feeds_are_refused(case: Case) -> None:
    before = _infer(case.shared, _make_feeds())
    image: Any = _make_feeds(seed=9)[INPUT.name]
    wrong: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("an input with other channels", {"image": image[:, :2]}, "has shape"),
        ("an input without a batch axis", {"image": image[0]}, "has shape"),
        ("an input in float64", {"image": image.astype(np.float64)}, "has dtype float64"),
        ("an input that is a list", {"image": image.tolist()}, "is a list"),
        ("bind without its input", {}, "missing input 'image'"),
        ("an input that is none", {"image": image, "mask": image}, "unknown input 'mask'"),
    )
    for what, feeds, words in wrong:
        _expect_error(FeedError, words, what, lambda feeds=feeds: case.shared.bind(feeds))  # type: ignore[misc]
        case.shared.run()
        same = np.array_equal(case.shared.fetch()[OUTPUT.name], before)
        assert same, f"{what} is refused, and the engine then gives other outputs than before"


def check_run_and_fetch_want_inputs_first(case: Case) -> None:
    with case.load() as engine:
        _expect_error(UsageError, "call bind first", "run before the first bind", lambda: engine.run)
        _expect_error(UsageError, "call bind first", "fetch before the first bind", engine.fetch)


def check_close_is_final_and_may_be_repeated(case: Case) -> None:
    engine = case.load()
    _infer(engine, _make_feeds())
    engine.close()
    engine.close()
    _expect_error(UsageError, "is closed", "run after close", lambda: engine.run)
    _expect_error(UsageError, "is closed", "fetch after close", engine.fetch)
    _expect_error(UsageError, "is closed", "bind after close", lambda: engine.bind(_make_feeds()))


def check_context_manager_closes(case: Case) -> None:
    with case.load() as engine:
        _infer(engine, _make_feeds())
    _expect_error(UsageError, "is closed", "fetch after the block", engine.fetch)


def check_threads_are_those_of_the_spec(case: Case) -> None:
    """Check that an engine that counts its threads (`threads`) has the requested number."""
    for threads in (2, 1):
        with case.load(threads=threads) as engine:
            _infer(engine, _make_feeds())
            actual = getattr(engine, "threads", threads)
            assert actual == threads, f"asked for {threads} threads, it has {actual}"


def check_outputs_of_one_shape_keep_their_names(case: Case) -> None:
    if case.computes:
        case.deep.run()
        scores, outputs = expect_scores(_make_feeds(WIDE)[INPUT.name], LAYERS), case.deep.fetch()
        for name, right in ((OUTPUT.name, scores), (TWIN.name, scores - make_weights()["head.bias"])):
            worst = float(np.max(np.abs(outputs[name] - right)))
            assert worst < DEEP_ATOL, f"of two outputs of one shape {name} is off by up to {worst:.3g}"


def assert_ratios(ratios: Sequence[float], limit: float, words: str, *, disturbed: bool = False) -> None:
    """Fail if nearly all ratios are beyond the limit; raise Inconclusive if they disagree or were disturbed."""
    wrong = sum(ratio > limit for ratio in ratios)
    sentence = f"{words.format(median(ratios))} (beyond {limit:.0%} in {wrong} of {len(ratios)} rounds)"
    if len(ratios) - AGREEING < wrong < AGREEING or (wrong >= AGREEING and disturbed):
        raise Inconclusive(sentence)
    assert wrong < AGREEING, sentence


def check_run_leaves_no_work_to_fetch(case: Case) -> None:
    ratios = [measure_left(case.deep) for _ in range(ROUNDS)]
    assert_ratios(ratios, HALF, "the first fetch after a run does {:.0%} of the work")


def check_run_takes_longer_on_a_larger_graph(case: Case) -> None:
    if not case.computes:
        return
    with case.load(batch=WIDE) as small:
        small.bind(_make_feeds(WIDE))
        ratios = [_time_run(small) / _time_run(case.deep) for _ in range(ROUNDS)]
    assert_ratios(ratios, HALF, "with a hundredth of the work run takes {:.0%} of the time: the work is done elsewhere")


def check_every_call_does_the_work(case: Case) -> None:
    """Not `bind`, and not the calls on new inputs alone."""
    if not case.computes:
        return
    feeds = _make_feeds(WIDE)
    case.deep.bind(feeds)
    times = _run_often(case.deep, MANY_CALLS)
    skipped = find_skipped_work(case.deep, feeds, find_short_ns(times[-100:]), waits=case.entry.device is not None)
    assert not skipped, "; ".join(warning.message for warning in skipped)


def _time_run(engine: Engine) -> float:
    return min(timeit.repeat(engine.run, number=1, repeat=3))


def check_two_threads_share_the_work(case: Case) -> None:
    """Check that two threads are faster than one, for an engine on the CPU that counts its threads."""
    if case.entry.device or not case.computes or not hasattr(case.deep, "threads"):
        return
    watch, shares = BlockWatch(), []
    watch.begin()
    for threads in (1, 2):
        with case.load(case.deep_source, batch=SHARED, threads=threads) as engine:
            engine.bind(_make_feeds(SHARED))
            engine.run()
            shares.append([_measure_busiest(engine) for _ in range(ROUNDS)])
    foreign = watch.end().foreign_cpu_cores  # None if it cannot be known
    ratios = [two / one for one, two in zip(*shares, strict=True)]
    words = "of two threads the busiest takes {:.0%} of what it takes of one: they are ignored"
    alone = len(read_allowed_cpus()) > 1 and foreign is not None and foreign < FOREIGN_CPU_CORES
    assert_ratios(ratios, THREADS_RATIO, words, disturbed=not alone)


def _measure_busiest(engine: Engine) -> float:
    """The part of the CPU time that the busiest thread takes while the engine runs again and again."""
    begin, before = time.process_time(), _read_thread_ns()
    while time.process_time() - begin < WINDOW_S:
        engine.run()
    spent = [ns - before.get(task, 0) for task, ns in _read_thread_ns().items()]
    if not sum(spent):
        raise Inconclusive("this system does not report which thread took the CPU time")
    return max(spent) / sum(spent)


def _read_thread_ns() -> dict[Path, int]:
    """CPU time of each thread of this process. Source: Documentation/scheduler/sched-stats.rst of Linux."""
    texts = {path: read_system_file(path) for path in Path("/proc/self/task").glob("*/schedstat")}
    return {path: int(text.split()[0]) for path, text in texts.items() if text}


def check_unknown_options_are_refused_with_the_known_ones(case: Case) -> None:
    """An engine without options is never given one: they are held to its entry before it is opened."""
    if case.entry.options:
        words = f"engine {case.name} has no option 'colour'; known: {next(iter(case.entry.options))}="
        _expect_error(UsageError, words, "an unknown option", lambda: case.load(options={"colour": "red"}))


def check_other_devices_and_no_threads_are_refused(case: Case) -> None:
    _expect_error(BackendUnavailable, "not on tpu:0", "device tpu:0", lambda: case.load(device="tpu:0"))
    _expect_error(UsageError, "1 or more", "no threads", lambda: case.load(threads=0))


def check_artifact_of_another_kind_is_refused(case: Case) -> None:
    design = replace(case.source, kind="design")
    spec = EngineSpec(backend=case.name, device=case.entry.device or "cpu")
    what = "an artifact of a kind that it does not take"
    _expect_error(ArtifactError, "comes as design", what, lambda: case.backend.load(design, spec))


def check_missing_file_is_refused(case: Case) -> None:
    gone = replace(case.source, path="nowhere/gone.bin")
    spec = EngineSpec(backend=case.name, device=case.entry.device or "cpu")
    _expect_error(ArtifactError, "nowhere/gone.bin", "a file that is not there", lambda: case.backend.load(gone, spec))


# All of the above, in their order.
CHECKS: tuple[Callable[[Case], None], ...] = tuple(
    value for name, value in globals().items() if name.startswith("check_") and value is not check_backend
)
