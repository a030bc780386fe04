"""`ort`: ONNX Runtime on the CPU, through an IOBinding whose buffers are allocated once."""

from __future__ import annotations

import json
import re
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import onnxruntime
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.feeds import check_feeds, fill_batch
from enginebench.core.operators import register_operators
from enginebench.core.precisions import REORDER
from enginebench.core.protocols import Array, Feeds
from enginebench.core.records import TEXT, Artifact, Availability, EngineSpec, LayerProfile
from enginebench.core.store import JsonObject, derive, open_temporary
from enginebench.core.streams import Clock, Ended, StreamsSpec, collect_ended, fail_request
from enginebench.engines import ort
from enginebench.engines.backends.onnxruntime.entries import ORT
from enginebench.engines.ort import PROVIDER, LooseOrtEngine, OrtEngine, needs_values
from enginebench.engines.proof import (
    Operator,
    count_watched_runs,
    prove_precision,
    relabel_moves,
    relabel_weights,
    summarize_layers,
)
from enginebench.engines.refusals import explaining_refusal
from enginebench.engines.request import check_graph_precision, check_request, make_availability, read_options

NAME, OPTIONS = ORT.name, ORT.options

# ONNX Runtime's names of element types that NumPy has, too.
DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
    "tensor(string)": TEXT,
    **{f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}

# Kernels that compute in another type than that of their first input.
CONVERSIONS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Cast", "ReorderInput", "ReorderOutput")
INT8_KERNELS = ("DynamicQuantizeMatMul",)
# Kernels that run graphs of their own; the kernels of those stand in the record too, and their time inside of theirs.
CONTAINERS = ("If", "Loop", "Scan")
KERNEL_TIME = "_kernel_time"
# In an artifact's `made_by`: its graph is the one that ONNX Runtime optimised.
AHEAD = "onnxruntime, optimised ahead"
PROFILER = "ONNX Runtime's profiler"


class OrtBackend:
    """ONNX artifacts on ONNX Runtime's CPU provider."""

    name = NAME

    def probe(self) -> Availability:
        return probe_provider(NAME, PROVIDER, "cpu")

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        """The artifact as it is: ONNX Runtime optimises while it loads. Refuses what `load` would refuse.

        With `ahead=1` the graph as it was optimised here, for this processor, as a file of its own.
        """
        check_request(artifact, spec, ("onnx",), ORT.precisions, reasons=ORT.lacks, text=True)
        check_graph_precision(artifact, spec)
        options = read_options(spec, OPTIONS)
        if options["ahead"] == "0" or artifact.made_by.get(AHEAD):
            return artifact
        target = out_dir / f"{Path(artifact.path).stem}.optimised-{options['opt']}.onnx"
        target.parent.mkdir(parents=True, exist_ok=True)
        settings = make_checked_session_options(replace(spec, options={**spec.options, "ahead": "0"}))
        settings.optimized_model_filepath = str(target)
        open_plain_session(artifact, settings)
        return derive(artifact, [target], out_dir, made_by={AHEAD: onnxruntime.__version__})

    def load(self, artifact: Artifact, spec: EngineSpec) -> WatchedOrtEngine:
        check_request(artifact, spec, ("onnx",), ORT.precisions, reasons=ORT.lacks, text=True)
        check_graph_precision(artifact, spec)
        session = open_plain_session(artifact, make_checked_session_options(spec))
        check_interface(artifact, session)
        engine = WatchedLooseOrtEngine if needs_values(session, artifact) else WatchedOrtEngine
        return engine(session, artifact, spec)

    def load_several(self, artifact: Artifact, specs: Sequence[EngineSpec]) -> list[WatchedOrtEngine]:
        """An engine for each spec: over a session of its own or, with `sessions=one`, all over the first one's."""
        first = self.load(artifact, specs[0])
        if read_options(specs[0], OPTIONS)["sessions"] == "each":
            return [first, *(self.load(artifact, spec) for spec in specs[1:])]
        return [first, *(type(first)(first.session, artifact, spec) for spec in specs[1:])]

    def open_streams(
        self, artifact: Artifact, spec: EngineSpec, wanted: StreamsSpec, clock: Clock
    ) -> OrtAsyncStreams | None:
        """With `sessions=async` one session on the threads of all streams, called by `run_async`; else None."""
        if read_options(spec, OPTIONS)["sessions"] != "async":
            return None
        threads = spec.threads * wanted.streams
        if threads < 2:
            raise UsageError(f"{NAME}:sessions=async needs two threads in all; raise --threads or --streams")
        engine = self.load(artifact, replace(spec, threads=threads))
        return OrtAsyncStreams(engine.session, artifact, wanted.streams, clock)


create_backend = OrtBackend


def probe_provider(engine: str, provider: str, device: str) -> Availability:
    devices = (device,) if provider in onnxruntime.get_available_providers() else ()
    reason = f"this build of onnxruntime has no {provider}"
    return make_availability(engine, devices, onnxruntime.__version__, reason)


def make_checked_session_options(spec: EngineSpec) -> Any:
    """Make the options of a session from engine options that were checked."""
    return ort.make_session_options(spec, read_options(spec, OPTIONS))


def open_plain_session(artifact: Artifact, settings: Any) -> Any:
    """Open a session on the CPU provider alone."""
    register_operators(settings, artifact.operator_libraries)
    with explaining_refusal(f"ONNX Runtime cannot load {Path(artifact.path).name}"):
        return ort.open_session(artifact.path, settings)


def check_interface(artifact: Artifact, session: Any) -> None:
    """Check that the session's inputs and outputs have the artifact's names and dtypes."""
    for specs, nodes in ((artifact.inputs, session.get_inputs()), (artifact.outputs, session.get_outputs())):
        expected = {s.name: s.dtype for s in specs}
        # Of elements, also of those in a sequence or a map.
        kinds = {node.name: re.search(r"tensor\(\w+\)", node.type) for node in nodes}
        actual = {n.name: DTYPES.get(kind[0], n.type) if (kind := kinds[n.name]) else n.type for n in nodes}
        if expected != actual:
            raise ArtifactError(f"{artifact.path} has {actual} where its artifact has {expected}; export it again")


class WatchedOrtEngine(OrtEngine):
    """The engine, and the record of ONNX Runtime's profiler."""

    def effective_precision(self) -> dict[str, float]:
        """Shares of kernel time by precision, from the profiler of a session of its own.

        Its times are inflated by the profiler, so that only their shares are used; this session is not touched.
        """
        return prove_precision(self._watch())

    def profile_layers(self) -> LayerProfile:
        return summarize_layers(self._watch(), PROFILER)

    def _watch(self) -> list[list[Operator]]:
        """A few runs under the profiler; the session that is timed is not touched."""
        self._check_bound()
        self._watched = self._watched or self._record()
        return self._watched

    def _record(self) -> list[list[Operator]]:
        settings = make_checked_session_options(self._spec)
        runs = read_kernel_times(record_events(partial(open_plain_session, self._artifact), settings, self._feeds))
        return [relabel_weights(run, self._artifact) for run in runs]


class WatchedLooseOrtEngine(WatchedOrtEngine, LooseOrtEngine):
    """The same for an engine whose values pass unbound."""


class OrtAsyncStreams:
    """A session whose runs are begun and come back by a call from one of its own threads."""

    polled = False

    def __init__(self, session: Any, artifact: Artifact, depth: int, clock: Clock) -> None:
        self.depth = depth
        self._session, self._inputs, self._clock = session, artifact.inputs, clock
        self._names = [spec.name for spec in artifact.outputs]
        self._ended: SimpleQueue[Ended] = SimpleQueue()

    def submit(self, ticket: int, samples: Sequence[Feeds]) -> None:
        started_ns = self._clock()
        try:
            feeds = fill_batch(samples)
            check_feeds(self._inputs, feeds)
            self._session.run_async(self._names, feeds, self._finish, (ticket, started_ns))
        except Exception as error:  # each runtime has its own
            self._ended.put(fail_request(ticket, started_ns, self._clock(), error))

    def _finish(self, arrays: list[Array], begun: tuple[int, int], error: str) -> None:
        now = self._clock()
        if error:
            self._ended.put(fail_request(*begun, now, RuntimeError(error)))
        else:
            self._ended.put(Ended(*begun, now, now, dict(zip(self._names, arrays, strict=True))))

    def collect(self, wait: bool) -> list[Ended]:
        return collect_ended(self._ended, wait)

    def close(self) -> None:
        self._session = None


def record_events(open_watched: Callable[[Any], Any], settings: Any, feeds: Feeds) -> list[JsonObject]:
    """The events that ONNX Runtime's profiler wrote about one run, and a few more, of a session of its own."""
    settings.enable_profiling = True
    with open_temporary() as folder:
        settings.profile_file_prefix = str(folder / "profile")
        session = open_watched(settings)
        start = time.perf_counter()
        session.run(None, dict(feeds))
        for _ in range(count_watched_runs(time.perf_counter() - start)):
            session.run(None, dict(feeds))
        # Versions up to 1.23 write control characters of names as they are.
        events: list[JsonObject] = json.loads(Path(session.end_profiling()).read_bytes(), strict=False)
    return events


def read_kernel_times(events: list[JsonObject]) -> list[list[Operator]]:
    """Every kernel, for each run but the first.

    Source: the Chrome trace that ONNX Runtime 1.31 writes; kernels are `Node` events that end in `_kernel_time`, and
    a `model_run` lasts as long as its kernels.
    """
    starts = sorted(e["ts"] for e in events if e.get("name") == "model_run")
    runs: list[list[Operator]] = [[] for _ in starts]
    kernels = [e for e in events if e.get("cat") == "Node" and e["name"].endswith(KERNEL_TIME)]
    for event, own_us in zip(kernels, subtract_nested(kernels), strict=True):
        run = bisect_right(starts, event["ts"]) - 1
        if run >= 0:
            kind = event["args"]["op_name"]
            name = event["name"].removesuffix(KERNEL_TIME) or kind  # a node need not have a name
            runs[run].append(Operator(find_kernel_dtype(event["args"]), 1e3 * own_us, name, kind))
    return [relabel_moves(run) for run in runs[1:]]


def subtract_nested(kernels: list[JsonObject]) -> list[float]:
    """The microseconds of each kernel without those of the kernels of its own graph, which are listed themselves."""
    own = [float(kernel["dur"]) for kernel in kernels]
    around: list[int] = []  # containers that are running, the innermost last
    for index in sorted(range(len(kernels)), key=lambda i: (kernels[i]["ts"], -kernels[i]["dur"])):
        kernel = kernels[index]
        while around and kernel["ts"] >= kernels[around[-1]]["ts"] + kernels[around[-1]]["dur"]:
            around.pop()
        if around:
            own[around[-1]] = max(0.0, own[around[-1]] - kernel["dur"])
        if kernel["args"]["op_name"] in CONTAINERS:
            around.append(index)
    return own


def find_kernel_dtype(args: JsonObject) -> str:
    """The element type in which a kernel computes: that of its first input, unless it converts from one to another."""
    if args["op_name"] in CONVERSIONS:
        return REORDER
    if args["op_name"] in INT8_KERNELS:
        return "int8"
    types = [dtype for entry in args["input_type_shape"] for dtype in entry]
    return types[0] if types else "none"
