"""How far rows and layers are from what their machine can do: its ceilings against the work of their graph."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from enginebench.core.ceilings import Ceilings
from enginebench.core.errors import ArtifactError, EngineBenchError
from enginebench.core.records import Artifact, Bound, EngineSpec, LayerTime, Result
from enginebench.core.store import encode, write_atomic
from enginebench.core.text import count_of
from enginebench.features.roofline.bounds import BoundModel, bound_layers, bound_whole, choose_limits
from enginebench.features.roofline.jobs import WorkJob
from enginebench.features.roofline.joining import join_layers
from enginebench.features.roofline.work import GraphWork
from enginebench.measure.machine import describe_machine
from enginebench.runs.ceilings import FILE, find_ceilings
from enginebench.runs.child.isolate import run_child
from enginebench.runs.child.jobs import SourceJob
from enginebench.runs.folder import RunFolder, RunRecord, RunRequest
from enginebench.runs.progress import Reporter
from enginebench.runs.targets.sources import make_sources
from enginebench.stats.profile import LimitedLayers

# Inferring the shapes of the largest graphs that were tried took 10 s; ten times that is a hang.
WORK_TIMEOUT_S = 100.0


class Works:
    """The work of graphs, each counted once, in a child: the parent imports no ONNX."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], GraphWork | EngineBenchError] = {}

    def count(self, graph: Artifact, engine: EngineSpec, shapes: dict[str, tuple[int, ...]]) -> GraphWork:
        key = graph.path, repr((engine.batch, sorted(shapes.items())))
        if key not in self._known:
            job = WorkJob(path=graph.path, shapes=shapes, batch=engine.batch)
            try:
                self._known[key] = run_child(job, timeout_s=WORK_TIMEOUT_S).work
            except EngineBenchError as error:
                self._known[key] = error
        found = self._known[key]
        if isinstance(found, EngineBenchError):
            raise found
        return found


def bound_engine(
    ceilings: Ceilings, engine: EngineSpec, work: GraphWork, layers: Sequence[LayerTime]
) -> BoundModel | None:
    """The least time of an engine on a graph, by its layers where it has any; None without ceilings for its device."""
    limits = choose_limits(ceilings.ceilings, engine.device, engine.threads)
    if limits is None:
        return None
    if not layers:
        return bound_whole(work, limits, engine.precision)
    return bound_layers(join_layers(layers, work), work, limits, engine.precision)


def limit_layers(
    request: RunRequest,
    place: Path,
    ran: tuple[EngineSpec, Artifact, dict[str, tuple[int, ...]]],
    layers: Sequence[LayerTime],
    reporter: Reporter,
) -> LimitedLayers:
    """The layers of a profile, joined to the graph and bounded.

    Args:
        ran: the engine, what it started from, and the shapes of its inputs.
    """
    engine, source, shapes = ran
    found = find_ceilings(describe_machine())
    if found.ceilings is None and source.kind != "onnx":
        return LimitedLayers(layers=tuple(layers), notes=(f'no column "of limit": {found.reason}',))
    try:
        graph = source if source.kind == "onnx" else _export(request, place, reporter)
        work = Works().count(graph, engine, shapes)
    except EngineBenchError as error:
        why = f"layers could not be joined to nodes of an ONNX graph: {error}"
        return LimitedLayers(layers=tuple(layers), notes=(why,))
    bounded = bound_engine(found.ceilings, engine, work, layers) if found.ceilings else None
    if bounded is not None:
        missing = f"the shapes of {count_of(work.unknown, 'nodes')} cannot be inferred; their work is not counted"
        notes = (missing,) if work.unknown else ()
        return LimitedLayers(layers=bounded.layers or tuple(layers), bound=bounded.bound, notes=notes)
    joined = tuple(replace(one.layer, onnx_nodes=one.nodes) for one in join_layers(layers, work).layers)
    reason = found.reason or f"the stored roofline has no peaks of {engine.device} with {engine.threads} threads"
    return LimitedLayers(layers=joined, notes=(f'no column "of limit": {reason}',))


def _export(request: RunRequest, place: Path, reporter: Reporter) -> Artifact:
    """The ONNX graph of a model whose engine needs none."""
    job = SourceJob(
        source=request.source,
        out_dir=str(place.absolute()),
        batch=request.batches[0],
        dynamic_axes=request.dynamic_axes,
        data=request.data,
    )
    made = make_sources(job, threads=request.threads, timeout_s=request.timeout_s, reporter=reporter)
    for artifact in made:
        if artifact.kind == "onnx":
            return artifact
    raise ArtifactError(f"{request.source.model} holds no ONNX graph")


def bound_results(folder: RunFolder, record: RunRecord, results: dict[str, Result], reporter: Reporter) -> None:
    """Gives every row that was measured its bound, where this machine's ceilings are stored, and stores it.

    The ceilings are kept beside the rows. What cannot be bounded is told, and stays without.
    """
    measured = [result for result in results.values() if any(m.latency_ns for m in result.measurements)]
    if not measured:
        return
    found = find_ceilings(record.machine)
    if found.ceilings is None:
        reporter.say(f'no column "of limit": {found.reason}')
        return
    write_atomic(folder.root / FILE, encode(found.ceilings, indent=2))
    works, told = Works(), set[str]()
    with TemporaryDirectory() as place:
        graphs = _Graphs(folder, record, Path(place), reporter)
        for result in measured:
            try:
                work = works.count(graphs.find(result), result.engine, result.shapes)
            except EngineBenchError as error:
                told.add(f"{result.model} has no bound: {error}")
                continue
            bounded = bound_engine(found.ceilings, result.engine, work, result.layers)
            if bounded is not None:
                results[result.id] = replace(result, bound=bounded.bound, layers=bounded.layers or result.layers)
                folder.write_result(results[result.id])
    for text in sorted(told):
        reporter.say(text)


def bound_model(
    folder: RunFolder, record: RunRecord, result: Result, timeout_s: float, reporter: Reporter
) -> tuple[Bound | None, str]:
    """The least time of a row's model, as if it were one kernel, in the best of the run's precisions: the same for all
    settings. Or None, and why nobody knows it."""
    found, request = find_ceilings(record.machine), replace(record.request, timeout_s=timeout_s)
    known = found.ceilings.ceilings if found.ceilings else ()
    limits = choose_limits(known, result.engine.device, result.engine.threads)
    if limits is None:
        return None, found.reason or "the stored roofline has no peaks of this device with so many threads"
    try:
        with TemporaryDirectory() as place:
            graphs = _Graphs(folder, replace(record, request=request), Path(place), reporter)
            work = Works().count(graphs.find(replace(result, artifacts=())), result.engine, result.shapes)
    except EngineBenchError as error:
        return None, str(error)
    bounds = (bound_whole(work, limits, precision).bound for precision, _ in request.precisions)
    return min(bounds, key=lambda bound: bound.bound_ms), ""


class _Graphs:
    """The ONNX graph whose work a row did. Of a run whose engines needed none, one is exported to be counted."""

    def __init__(self, folder: RunFolder, record: RunRecord, place: Path, reporter: Reporter) -> None:
        self._sources = [folder.absolute(source) for source in record.sources]
        self._request, self._place, self._reporter = record.request, place, reporter
        self._exported: Artifact | EngineBenchError | None = None

    def find(self, result: Result) -> Artifact:
        found = find_graph(result, self._sources)
        if found is not None:
            return found
        if self._exported is None:
            try:
                self._exported = _export(self._request, self._place, self._reporter)
            except EngineBenchError as error:
                self._exported = ArtifactError(f"no engine needed an ONNX graph, and none can be exported: {error}")
        if isinstance(self._exported, EngineBenchError):
            raise self._exported
        return self._exported


def find_graph(result: Result, sources: Sequence[Artifact]) -> Artifact | None:
    """The ONNX graph that a row's engine was made of; for an engine that takes none, the run's own in FP32."""
    own = [artifact for artifact in result.artifacts if artifact.kind == "onnx"]
    plain = [artifact for artifact in sources if artifact.kind == "onnx" and artifact.precision == "fp32"]
    chosen = next(reversed(own), None) or next(iter(plain), None)
    return chosen if chosen is not None and Path(chosen.path).is_file() else None
