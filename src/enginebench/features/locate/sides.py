"""Search one side of a comparison, in a child process: the fault, its cause, its smallest form, the ways around it."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from msgspec.structs import replace
from onnx import ModelProto

from enginebench.core.errors import EngineBenchError
from enginebench.core.names import format_options, require_precision
from enginebench.core.protocols import LayerProfiler
from enginebench.core.records import Artifact, EngineSpec, Estimate
from enginebench.core.store import encode, write_atomic
from enginebench.core.text import list_some
from enginebench.engines.abilities import RecordsLayers
from enginebench.engines.openvino_settings import HINTS
from enginebench.engines.registry import find_entry, find_installed, list_names, list_precisions
from enginebench.features.locate.bodies import cut_body
from enginebench.features.locate.changed import keep_long, mark_outputs, save_changed
from enginebench.features.locate.cures import disable, find_level, find_optimizers
from enginebench.features.locate.describing import describe_fault, make_located_side, start_timer
from enginebench.features.locate.graph_program import GraphProgram
from enginebench.features.locate.jobs import KNOWN, SideJob
from enginebench.features.locate.judging import find_leaving
from enginebench.features.locate.nonfinite import explain_beginning
from enginebench.features.locate.openvino_passes import find_passes
from enginebench.features.locate.program import Arrays
from enginebench.features.locate.repro import rename, write_reproduction
from enginebench.features.locate.search import Fault, Search
from enginebench.features.locate.shrink import Case, drop_steps, shrink_case
from enginebench.features.locate.timing import compare_times
from enginebench.models.onnx.source import LARGEST_PROTOBUF_BYTES
from enginebench.report.located import FoundFault, LocatedSide, Reproduction, WayAround
from enginebench.runs.child.arrays import load_arrays
from enginebench.runs.child.jobs import NoteCall
from enginebench.stats.drift import FULL, find_coarsest

MB = 1_000_000
# Faults behind the first that are named.
MOST_FURTHER = 3
# Tensors that hide a fault, of which each is tried as an output.
MOST_MARKED = 3
# Seconds for making what shows a fault smaller: a builder of plans takes seconds for each try.
REDUCING_S = 60.0


class GraphSide:
    """A side that runs a graph: everything that is asked of it once its tensors are recorded."""

    def __init__(self, job: SideJob, artifact: Artifact, feeds: Arrays, scratch: Path, note: NoteCall) -> None:
        self.job, self.note, self.scratch = job, note, scratch
        self.program = GraphProgram(artifact, job.engine, scratch, note)
        self.precision = find_coarsest((job.artifact.precision, job.engine.precision))
        self.program.record(feeds, job.slice_mb * MB)
        self.search = Search(self.program, self.precision, note)

    def describe(self, fault: Fault) -> FoundFault:
        return describe_fault(self.search, fault)

    def make_located_side(self) -> LocatedSide:
        return make_located_side(self.search, self.job.text)

    def open_body(self, fault: Fault) -> tuple[str, "GraphSide"] | None:
        """Return the graph inside of the one node that shows a fault as a side of its own, and where that is."""
        if len(fault.indices) != 1 or (taken := cut_body(self.program, fault.indices[0], self.program.values)) is None:
            return None
        name, model, feeds = taken
        folder = self.scratch / "body"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "body.onnx"
        onnx.save_model(model, str(path), save_as_external_data=model.ByteSize() > LARGEST_PROTOBUF_BYTES)
        artifact = replace(self.program.artifact, path=str(path), sha256="", files=())
        step = self.program.steps[fault.indices[0]]
        return f"{name} of {step.name} ({step.kind})", GraphSide(self.job, artifact, feeds, folder, self.note)

    def list_further(self, fault: Fault) -> Iterator[Fault]:
        """Yield the faults behind one, each fed with tensors of the reference."""
        for _ in range(MOST_FURTHER):
            self.note("further faults")
            later = self.search.find_first(max(fault.indices) + 1)
            if later is None:
                return
            yield later
            fault = later

    def try_case(self, model: ModelProto, feeds: Arrays, *, tamed: bool = False) -> Case | None:
        """Return the case of a graph on these inputs if the engine leaves the reference there.

        Args:
            tamed: the fault is that values which are not finite in the reference are others; of another fault a case
                has finite values alone.
        """
        try:
            expected = self.program.refer(model, feeds)
            actual = self.program.run(model, feeds, expected, self.job.engine)
        except EngineBenchError:
            return None
        finite = all(np.isfinite(array).all() and array.size for array in expected.values() if array.dtype.kind == "f")
        deviations = find_leaving(expected, actual, self.precision)
        if not deviations or (not finite and not tamed):
            return None
        return Case(model=model, feeds=feeds, expected=expected, actual=actual, deviations=deviations)

    def is_right_on(self, case: Case, engine: EngineSpec) -> bool:
        try:
            actual = self.program.run(case.model, case.feeds, case.expected, engine)
        except EngineBenchError:
            return False
        return not find_leaving(case.expected, actual, self.precision)

    def find_layer(self, case: Case, fault: FoundFault) -> str:
        """Find the layer that has this node by the engine's own record: its kind, kernels and precision; "" if none."""
        try:
            with self.program.load(case.model, case.feeds, case.expected, self.job.engine) as engine:
                engine.bind(dict(case.feeds))
                engine.run()
                if isinstance(engine, RecordsLayers):
                    layers = engine.record_layers().layers
                else:
                    layers = engine.profile_layers().layers if isinstance(engine, LayerProfiler) else ()
        except EngineBenchError:  # nodes may be too short for its clock
            return ""
        # A node without a name is called after what it makes.
        names = {fault.node, fault.tensor}
        having = [one for one in layers if names.intersection((one.name, *one.onnx_nodes))]
        texts = (
            " ".join(filter(None, (one.name, one.kind, *one.kernels, one.tactic, one.precision))) for one in having[:1]
        )
        return next(texts, "")

    def make_whole(self) -> Case:
        """The whole graph as a case."""
        program, values, outputs = self.program, self.program.values, self.search.outputs
        feeds = {name: values[name] for name in self.search.fed if name in values}
        indices = [i for i in range(len(program.steps)) if i not in program.drawing]
        model = program.cut(indices, outputs, feeds, values)
        expected = {name: values[name] for name in outputs}
        return Case(model=model, feeds=feeds, expected=expected, actual={}, deviations={})

    def change_graph(self, faults: Sequence[Fault], whole: Case) -> WayAround | None:
        """Change the graph so that it is right on the engine: tensors that hide the faults as outputs, or nodes in
        FP32; and measure it."""
        values, engine = self.program.values, self.job.engine
        for change, marked, model in self._list_changed(faults):
            expected = {**whole.expected, **{name: values[name] for name in marked}}
            case = replace(whole, model=model, expected=expected)
            if not self.is_right_on(case, engine):
                continue
            slowdown = self.measure(whole, (case, engine))
            path = ""
            if self.job.repro_dir is not None:
                folder = Path(self.job.repro_dir)
                path = str(save_changed(case.model, folder.parent / f"{folder.name.replace('repro', 'apart')}.onnx"))
            text = format_options(engine.backend, engine.options)
            return WayAround(engine=text, change=change, graph=path, slowdown=slowdown)
        return None

    def measure(self, whole: Case, way: tuple[Case, EngineSpec]) -> Estimate | None:
        """Measure a way around beside the faulty engine; None if one of both is no engine that is called."""
        try:
            sides = ((whole, self.job.engine), way)
            return compare_times(
                [partial(self.program.load, c.model, c.feeds, c.expected, e) for c, e in sides], whole.feeds
            )
        except EngineBenchError:
            return None

    def _list_changed(self, faults: Sequence[Fault]) -> Iterator[tuple[str, Sequence[str], ModelProto]]:
        """Yield changed graphs, each with what is changed, and the tensors that are outputs now."""
        program = self.program
        for i in range(min(MOST_MARKED, *(len(fault.hidden_by) for fault in faults))):
            marked = [fault.hidden_by[i] for fault in faults]
            are = "is an output" if len(marked) == 1 else "are outputs"
            yield f"{list_some(marked, 3)} {are}", marked, mark_outputs(program, marked, program.values)
        if self.precision not in FULL:
            indices = {index for fault in faults for index in fault.indices}
            names = list_some([program.steps[i].name for i in sorted(indices)], 3)
            yield f"{names} {'is' if len(indices) == 1 else 'are'} in FP32", (), keep_long(program, indices)

    def list_ways(self, whole: Case, first: tuple[str, ...]) -> Iterator[EngineSpec]:
        """Yield settings, and then engines, with which the whole graph is right."""
        is_right, engine = partial(self.is_right_on, whole), self.job.engine
        self.note("the optimizers, one without the other")
        if names := find_optimizers(engine, is_right, first, start_timer(REDUCING_S)):
            yield disable(engine, names)
        self.note("lower levels of the optimizer")
        if (level := find_level(engine, is_right)) is not None:
            yield level
        for name in list_names():
            if self._can_stand_in(name):
                self.note(f"another engine: {name}")
                other = replace(engine, backend=name, options={})
                if not self.program.loads_file(other):
                    continue
                if is_right(other):
                    yield other
                elif (lower := find_level(other, is_right)) is not None:
                    yield lower

    def _can_stand_in(self, name: str) -> bool:
        entry, engine = find_entry(name), self.job.engine
        here = name != engine.backend and entry.describe_on(engine.device).default is not None
        takes = entry.takes == "onnx" and engine.precision in list_precisions(name, engine.device)
        return here and takes and find_installed(name).available


def search_side(job: SideJob, note: NoteCall) -> LocatedSide:
    if job.artifact.kind == "torch":
        from enginebench.features.locate.torch_sides import search_module

        return search_module(job, note)
    for call in job.calls:
        side = GraphSide(job, job.artifact, load_arrays(Path(call)), Path(job.out_dir), note)
        if (fault := side.search.find_first()) is not None:
            return explain_fault(side, fault)
    if not side.search.outputs:
        return replace(side.make_located_side(), why="none of its outputs can be compared")
    overflowed = explain_beginning(side.program, side.program.outputs)
    return replace(side.make_located_side(), state="keeps", overflowed=overflowed)


def find_inside(side: GraphSide, fault: Fault) -> tuple[GraphSide, Fault, tuple[str, ...]]:
    """Find the fault inside of the node that shows it, as deep as it can be shown there."""
    within: tuple[str, ...] = ()
    try:
        while (opened := side.open_body(fault)) is not None:
            node, inner = opened
            inner_fault = inner.search.find_first()
            if inner_fault is None:
                break
            side, fault, within = inner, inner_fault, (node, *within)
    except EngineBenchError:  # an engine may not take what is inside as a graph of its own
        pass
    return side, fault, within


def explain_fault(side: GraphSide, fault: Fault) -> LocatedSide:
    """Say all that can be found out about a fault; what is known is stored before each step."""
    job, note, described = side.job, side.note, side.describe(fault)
    located = replace(side.make_located_side(), state="leaves", fault=described)

    def store(**parts: object) -> LocatedSide:
        nonlocal located
        located = replace(located, **parts)
        write_atomic(Path(job.out_dir) / KNOWN, encode(located))
        return located

    def update(**parts: object) -> FoundFault:
        nonlocal described
        described = replace(described, **parts)
        store(fault=described)
        return described

    store()
    again = side.program.expect(fault.indices, fault.wanted, side.program.values)
    if find_leaving(side.program.values, again, side.precision):
        why = f"computed twice as it is written, {described.node} ({described.kind}) gives other values: it is random"
        return replace(side.make_located_side(), why=why)
    inner, inner_fault, within = find_inside(side, fault)
    if within:
        described = inner.describe(inner_fault)
        update(within=within)
    optimizers = reduce_fault(inner, inner_fault, update)
    faults = [fault]
    for later in side.list_further(fault):
        faults.append(later)
        store(further=tuple(map(side.describe, faults[1:])))
    whole, measured = side.make_whole(), list[WayAround]()
    for engine in side.list_ways(whole, optimizers):
        if names := () if measured else engine.options.get("disable", "").split("+"):
            update(optimizations=tuple(dict.fromkeys([*optimizers, *filter(None, names)])))
        text = format_options(engine.backend, engine.options)
        note(f"time of {text}")
        slowdown = side.measure(whole, (whole, engine))
        measured.append(WayAround(engine=text, slowdown=slowdown))
        update(ways=tuple(measured))
    note("a graph that goes around it")
    if not within and (changed := side.change_graph(faults, whole)) is not None:
        update(ways=(*measured, changed))
    return located


def reduce_fault(side: GraphSide, fault: Fault, update: Callable[..., FoundFault]) -> tuple[str, ...]:
    """Find the smallest graph that shows a fault, and the optimizers without which it is right, and return these."""
    job, note, has_time = side.job, side.note, start_timer(REDUCING_S)

    # In a reduced precision an engine may mean it: it keeps a longer format, in which less overflows.
    tamed = side.precision in FULL and any(one.tamed for one in fault.deviations.values())

    def try_in_time(model: ModelProto, feeds: Arrays) -> Case | None:
        return side.try_case(model, feeds, tamed=tamed) if has_time() else None

    note("dropping nodes")
    smallest = drop_steps(side.search, fault, has_time)
    cut = side.program.cut(smallest.indices, smallest.wanted, side.program.values, side.program.values)
    case = side.try_case(cut, side.program.pick_fed(cut, side.program.values), tamed=tamed)
    if case is None:
        return ()
    update(layer=side.find_layer(case, side.describe(fault)))
    optimizers = find_optimizers(job.engine, partial(side.is_right_on, case))
    if job.engine.backend == "openvino":
        note("transformations of OpenVINO")
        hint = HINTS[require_precision(job.engine.precision)]
        update(transformations=find_passes(rename(case.model)[0], hint))
    note("smaller shapes and values")
    case = shrink_case(case, try_in_time)
    reproduction = Reproduction(nodes=len(case.model.graph.node), hurried=not has_time())
    described = update(optimizations=optimizers, reproduction=reproduction)
    if job.repro_dir is not None:
        note("writing the reproduction")
        written = write_reproduction(Path(job.repro_dir), case, job.engine, described)
        update(reproduction=replace(written, hurried=reproduction.hurried))
    return optimizers
