"""`openvino`: OpenVINO on the CPU, in the requested precision, compiled for the shapes that are bound."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, TypeAlias

import openvino
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, MeasurementError, UsageError
from enginebench.core.feeds import check_feeds, choose_buckets, drop_filling, fill_batch, random_feeds, sum_entries
from enginebench.core.protocols import Array, Feeds
from enginebench.core.records import Artifact, ArtifactKind, Availability, EngineSpec, LayerProfile, ResultWarning
from enginebench.core.store import derive
from enginebench.core.streams import Clock, Ended, StreamsSpec, collect_ended, fail_request
from enginebench.core.text import count_of
from enginebench.core.warnings import make_warning
from enginebench.engines import openvino as engine
from enginebench.engines.backends.openvino.entries import OPENVINO
from enginebench.engines.backends.openvino.graphs import UNCOMPILED, GraphSource, save_model
from enginebench.engines.backends.openvino.settings import (
    CUT_NS,
    choose_calm_window,
    choose_longest,
    find_node_dtype,
    note_clock,
)
from enginebench.engines.openvino import (
    OpenvinoEngine,
    check_declared,
    compile_model,
    copy_outputs,
    find_ports,
    has_lost_bf16,
    make_settings,
)
from enginebench.engines.proof import (
    Operator,
    count_watched_runs,
    prove_precision,
    relabel_moves,
    relabel_weights,
    summarize_layers,
)
from enginebench.engines.refusals import explaining_refusal
from enginebench.engines.request import (
    check_graph_precision,
    check_instructions,
    check_request,
    make_availability,
    read_options,
)

# Shapes and values that a graph was compiled for.
StreamKey: TypeAlias = "tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]"

NAME, OPTIONS = OPENVINO.name, OPENVINO.options
KINDS: tuple[ArtifactKind, ...] = ("onnx", "openvino")

# How it ends for eight bits, whatever they hold.
BYTE = "I8"

# Makes a compiled graph count the time of its nodes; never in the graph that is timed, since counting costs time.
COUNT = {"PERF_COUNT": True}
PROFILER = "OpenVINO's performance counters"


class OpenvinoBackend:
    """ONNX artifacts, or OpenVINO's own, on the CPU plugin."""

    name = NAME

    def probe(self) -> Availability:
        """Available if the CPU plugin loads; with the runtime's version."""
        devices = openvino.Core().available_devices
        reason = f"OpenVINO's CPU plugin did not load; devices: {', '.join(devices) or 'none'}"
        return make_availability(NAME, ("cpu",) if "CPU" in devices else (), openvino.__version__, reason)

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        """The graph in OpenVINO's own form (`.xml` and `.bin`, weights not shortened), written to `out_dir`.

        A graph that OpenVINO reads only rewritten stays as it is: `load` rewrites it, for the shapes of each call.
        """
        options = check_openvino_request(artifact, spec)
        if artifact.kind == "openvino":
            return artifact
        graph = GraphSource(artifact, static=options["shapes"] == "static")
        if graph.whole is None:
            return replace(artifact, warnings=tuple(dict.fromkeys((*artifact.warnings, *graph.warnings))))
        target = out_dir / f"{Path(artifact.path).stem}.xml"
        save_model(graph.whole, target)
        files, made_by = [target, target.with_suffix(".bin")], {"openvino": openvino.__version__}
        return derive(artifact, files, out_dir, kind="openvino", made_by=made_by)

    def load(self, artifact: Artifact, spec: EngineSpec) -> WatchedOpenvinoEngine:
        """An engine on `spec.threads` threads, compiled for `spec.batch`."""
        options = check_openvino_request(artifact, spec)
        graph = GraphSource(artifact, static=options["shapes"] == "static")
        return WatchedOpenvinoEngine(graph, artifact, settings=make_settings(spec, options), batch=spec.batch)

    def load_several(self, artifact: Artifact, specs: Sequence[EngineSpec]) -> list[WatchedOpenvinoEngine]:
        """An engine for each spec; with `shapes=dynamic` all are requests of the first one's compiled graph."""
        first = self.load(artifact, specs[0])
        shares = check_openvino_request(artifact, specs[0])["shapes"] == "dynamic" and first.is_compiled
        return [first, *(first.share() if shares else self.load(artifact, spec) for spec in specs[1:])]

    def open_streams(self, artifact: Artifact, spec: EngineSpec, wanted: StreamsSpec, clock: Clock) -> OpenvinoStreams:
        """Infer requests of one compiled graph, or of one for each shape; raises as `load` does."""
        options = check_openvino_request(artifact, spec)
        graph = GraphSource(artifact, static=options["shapes"] == "static")
        settings = make_settings(spec, options, wanted.streams, options["hint"])
        return OpenvinoStreams(graph, artifact, settings, wanted, clock)


create_backend = OpenvinoBackend


def check_openvino_request(artifact: Artifact, spec: EngineSpec) -> dict[str, str]:
    check_request(artifact, spec, KINDS, OPENVINO.precisions)
    check_graph_precision(artifact, spec)
    options = read_options(spec, OPTIONS)
    if options["floats"] == "bf16" and spec.precision != "int8":
        raise UsageError(f"{NAME}:floats=bf16 is for INT8 graphs; for all of this one ask for the precision bf16")
    if "bf16" in (options["floats"], spec.precision):
        supported = "BF16" in engine.read_capabilities()
        check_instructions(replace(spec, precision="bf16"), supported, options["force"] == "1")
    return options


def record_counters(compiled: Any, feeds: Mapping[Any, Array]) -> list[list[Any]]:
    """The counters of every node after each of a few runs on these arrays."""
    request = compiled.create_infer_request()
    start = time.perf_counter()
    request.infer(dict(feeds))
    runs: list[list[Any]] = [request.get_profiling_info()]
    for _ in range(count_watched_runs(time.perf_counter() - start)):
        request.infer(dict(feeds))
        runs.append(request.get_profiling_info())
    return runs


def list_originals(compiled: Any) -> dict[str, tuple[str, ...]]:
    """Node of a compiled graph -> the nodes of the graph that it was compiled from, which it does the work of.

    Source: `originalLayersNames`, which OpenVINO keeps in the run-time information of its execution graph.
    """
    originals, key = {}, "originalLayersNames"
    for node in compiled.get_runtime_model().get_ordered_ops():
        if key in (info := node.get_rt_info()):
            originals[node.get_friendly_name()] = tuple(filter(None, str(info[key].astype(str)).split(",")))
    return originals


def read_node_times(
    counters: list[Any],
    boolean: frozenset[str] = frozenset(),
    originals: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> Iterator[Operator]:
    """Every node that ran, with the mean of its times so far.

    Source: the CPU plugin of OpenVINO 2026.4 ends a node's `exec_type` with the type it computes in
    (`brgconv_avx512_1x1_f32`, `jit_avx512_I8`).
    """
    for counter in counters:
        if counter.status == openvino.ProfilingInfo.Status.EXECUTED:
            dtype = find_node_dtype(counter.node_type, counter.exec_type)
            dtype = "boolean" if dtype == BYTE and counter.node_name in boolean else dtype
            time_ns = counter.real_time.total_seconds() * 1e9
            yield Operator(dtype, time_ns, counter.node_name, counter.node_type, originals.get(counter.node_name, ()))


class WatchedOpenvinoEngine(OpenvinoEngine):
    """The engine, and what the plugin's counters say of it."""

    _averaged = 0  # how many runs were counted
    _proven: list[list[Operator]]  # the record, or what there is of it where all nodes are too short

    def effective_precision(self) -> dict[str, float]:
        """Shares of node time by precision, from the performance counters of a compiled graph of its own."""
        self._watch()
        return prove_precision(self._proven)

    def list_warnings(self) -> tuple[ResultWarning, ...]:
        """Warn that the graph does not compile in BF16 although it was requested, and name the precision that ran."""
        if self._compiled is None or not has_lost_bf16(self._compiled, self._settings):
            return ()
        record = "Requested floats in bf16; OpenVINO has no BF16 kernel for a node of this graph, and ran them in fp32."
        return (make_warning("low_effective_precision", record=record, asked="bf16"),)

    def profile_layers(self) -> LayerProfile:
        watched = self._watch()
        if watched[0] and not any(node.time_ns for node in watched[0]):
            layers = count_of(len(watched[0]), "layers")
            raise MeasurementError(
                f"{PROFILER} recorded {layers}, all shorter than the resolution of its clock; try a larger --batch"
            )
        return self.record_layers()

    def record_layers(self) -> LayerProfile:
        watched = self._watch()
        profile = summarize_layers(watched, PROFILER, note_clock(watched[0]))
        return replace(profile, runs=self._averaged, tick_ns=CUT_NS)

    def _watch(self) -> list[list[Operator]]:
        """A few runs of a compiled graph that counts; the one that is timed is not touched."""
        self._check_bound()
        if not self._watched:
            shapes = {name: view.shape for name, view in self._views.items()}
            model = self._check_open().open(shapes, self._values)
            with explaining_refusal(UNCOMPILED):
                compiled = compile_model(model, self._settings | COUNT)
            ports = find_ports(compiled, self.inputs)
            runs = record_counters(compiled, {port: self._views[name].copy() for name, port in ports.items()})
            # Those whose first input holds truth values: in counters these are eight bits, as INT8 is.
            boolean = frozenset(
                node.get_friendly_name()
                for node in model.get_ordered_ops()
                if node.get_input_size() and node.input(0).get_element_type() == openvino.Type.boolean
            )
            originals = list_originals(compiled)
            read = (list(read_node_times(counters, boolean, originals)) for counters in runs)
            named = [relabel_weights(run, self._artifact) for run in read]
            calm, self._averaged = choose_calm_window(named)
            self._watched = [relabel_moves(calm)]
            timed = any(node.time_ns for node in calm)
            self._proven = self._watched if timed else [relabel_moves(choose_longest(named))]
        return self._watched


class OpenvinoStreams:
    """The infer requests of compiled graphs, which give themselves back by a call from a thread of the plugin."""

    polled = False

    def __init__(
        self, graph: GraphSource, artifact: Artifact, settings: dict[str, Any], wanted: StreamsSpec, clock: Clock
    ) -> None:
        self._graph, self._artifact, self._settings, self._clock = graph, artifact, settings, clock
        self._buckets = choose_buckets(wanted.max_batch)
        self._queues: dict[StreamKey, Any] = {}  # with the ports of the inputs that its graph takes
        self._ended: SimpleQueue[Ended] = SimpleQueue()
        self._compiled: dict[StreamKey, Any] = {}
        self.depth = wanted.streams
        if "NUM_STREAMS" not in settings:
            _, compiled = self._compile(random_feeds(artifact.inputs, self._buckets[-1], seed=0))
            self.depth = int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))

    def submit(self, ticket: int, samples: Sequence[Feeds]) -> None:
        """Copy the samples into the tensors of an idle request and begin it."""
        started_ns = self._clock()
        try:
            entries = sum_entries(samples)
            size = next((b for b in self._buckets if b >= entries), entries) if self._graph.static else entries
            feeds = fill_batch(samples, size)
            check_feeds(self._artifact.inputs, feeds)
            key, compiled = self._compile(feeds)
            if key not in self._queues:
                queue = openvino.AsyncInferQueue(compiled, self.depth)
                queue.set_callback(self._finish)
                self._queues[key] = queue, find_ports(compiled, self._artifact.inputs)
            queue, ports = self._queues[key]
            taken = {port: feeds[name] for name, port in ports.items()}
            queue.start_async(taken, (ticket, started_ns, entries, size))
        except Exception as error:  # each runtime has its own
            self._ended.put(fail_request(ticket, started_ns, self._clock(), error))

    def collect(self, wait: bool) -> list[Ended]:
        return collect_ended(self._ended, wait)

    def close(self) -> None:
        self._queues, self._compiled = {}, {}
        self._graph.close()

    def _finish(self, request: Any, begun: tuple[int, int, int, int]) -> None:
        ticket, started_ns, entries, size = begun
        computed_ns = self._clock()
        try:
            arrays = copy_outputs(request, self._artifact.outputs)
            check_declared(self._artifact.inputs, self._artifact.outputs, arrays)
        except (RuntimeError, ArtifactError) as error:
            self._ended.put(fail_request(ticket, started_ns, self._clock(), error))
        else:
            self._ended.put(Ended(ticket, started_ns, computed_ns, self._clock(), drop_filling(arrays, entries, size)))

    def _compile(self, feeds: Feeds) -> tuple[StreamKey, Any]:
        """(shapes and values that it is for, the graph compiled for arrays like these)."""
        shapes, values = {name: array.shape for name, array in feeds.items()}, self._graph.read_values(feeds)
        key: StreamKey = (tuple(shapes.values()), tuple(values.values())) if self._graph.static else ((), ())
        if key not in self._compiled:
            self._compiled[key] = self._graph.compile(shapes, values, self._settings)
        return key, self._compiled[key]
