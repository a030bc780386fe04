"""Search one side of a comparison, in a child process: the fault, its cause, its smallest form, the ways around it."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from onnx import ModelProto

from enginebench.core.errors import EngineBenchError
from enginebench.core.names import format_options
from enginebench.core.protocols import LayerProfiler
from enginebench.core.records import EngineSpec
from enginebench.core.store import encode, write_atomic
from enginebench.engines.registry import find_entry, find_installed, list_names, list_precisions
from enginebench.features.locate.cures import disable, find_level, find_optimizers
from enginebench.features.locate.graph_program import GraphProgram
from enginebench.features.locate.jobs import KNOWN, SideJob
from enginebench.features.locate.judging import find_leaving
from enginebench.features.locate.nonfinite import explain_beginning
from enginebench.features.locate.program import Arrays
from enginebench.features.locate.repro import write_reproduction
from enginebench.features.locate.search import Fault, Search
from enginebench.features.locate.shrink import Case, drop_steps, shrink_case
from enginebench.features.locate.timing import compare_times
from enginebench.report.located import FoundFault, LocatedSide, Reproduction, WayAround
from enginebench.runs.child.arrays import load_arrays
from enginebench.runs.child.jobs import NoteCall
from enginebench.stats.drift import find_coarsest

MB = 1_000_000


class GraphSide:
    """A side that runs a graph: everything that is asked of it once its tensors are recorded."""

    def __init__(self, job: SideJob, call: str, note: NoteCall) -> None:
        self.job, self.note = job, note
        self.program = GraphProgram(job.artifact, job.engine, Path(job.out_dir), note)
        self.precision = find_coarsest((job.artifact.precision, job.engine.precision))
        self.program.record(load_arrays(Path(call)), job.slice_mb * MB)
        self.search = Search(self.program, self.precision, note)

    def describe(self, fault: Fault) -> FoundFault:
        steps = self.program.steps
        tensor, deviation = min(fault.deviations.items(), key=lambda item: item[1].snr_db or 0.0)
        step = steps[self.search.producers[tensor]]
        return FoundFault(
            node=step.name,
            kind=step.kind,
            tensor=tensor,
            nodes=tuple(steps[i].name for i in fault.places),
            hidden_by=fault.hidden_by,
            snr_db=deviation.snr_db,
            largest=deviation.largest,
            nonfinite=deviation.nonfinite,
        )

    def try_case(self, model: ModelProto, feeds: Arrays) -> Case | None:
        """Return the case of a graph on these inputs if the engine leaves the reference there."""
        try:
            expected = self.program.refer(model, feeds)
            actual = self.program.run(model, feeds, expected, self.job.engine)
        except EngineBenchError:
            return None
        finite = all(np.isfinite(array).all() and array.size for array in expected.values() if array.dtype.kind == "f")
        deviations = find_leaving(expected, actual, self.precision)
        if not deviations or not finite:
            return None
        return Case(model=model, feeds=feeds, expected=expected, actual=actual, deviations=deviations)

    def is_right_on(self, case: Case, engine: EngineSpec) -> bool:
        try:
            actual = self.program.run(case.model, case.feeds, case.expected, engine)
        except EngineBenchError:
            return False
        return not find_leaving(case.expected, actual, self.precision)

    def find_layer(self, case: Case, node: str) -> str:
        """Find the layer that has this node by the engine's own record: its kind, kernels and precision; "" if none."""
        try:
            with self.program.load(case.model, case.feeds, case.expected, self.job.engine) as engine:
                if not isinstance(engine, LayerProfiler):
                    return ""
                engine.bind(dict(case.feeds))
                engine.run()
                layers = engine.profile_layers().layers
        except EngineBenchError:  # nodes may be too short for its clock
            return ""
        having = [one for one in layers if node in one.onnx_nodes or one.name == node]
        texts = (" ".join(filter(None, (one.name, one.kind, *one.kernels, one.precision))) for one in having[:1])
        return next(texts, "")

    def make_whole(self) -> Case:
        """The whole graph as a case."""
        program, values = self.program, self.program.values
        outputs = [name for name in program.outputs if name in values and name in program.producers]
        model = program.cut(range(len(program.steps)), outputs, {n: values[n] for n in program.inputs}, values)
        expected = {name: values[name] for name in outputs}
        feeds = {name: values[name] for name in program.inputs}
        return Case(model=model, feeds=feeds, expected=expected, actual={}, deviations={})

    def list_ways(self, whole: Case, first: tuple[str, ...]) -> Iterator[EngineSpec]:
        """Yield settings, and then engines, with which the whole graph is right."""
        is_right, engine = partial(self.is_right_on, whole), self.job.engine
        self.note("the optimizers, one without the other")
        if names := find_optimizers(engine, is_right, first):
            yield disable(engine, names)
        self.note("lower levels of the optimizer")
        if (level := find_level(engine, is_right)) is not None:
            yield level
        for name in list_names():
            if self._can_stand_in(name):
                self.note(f"another engine: {name}")
                other = replace(engine, backend=name, options={})
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
    for call in job.calls:
        side = GraphSide(job, call, note)
        if (fault := side.search.find_first()) is not None:
            return explain_fault(side, fault)
    return LocatedSide(text=job.text, state="keeps", overflowed=explain_beginning(side.program))


def explain_fault(side: GraphSide, fault: Fault) -> LocatedSide:
    """Say all that can be found out about a fault; what is known is stored before each step."""
    job, note = side.job, side.note
    described = side.describe(fault)

    def update(**parts: object) -> LocatedSide:
        nonlocal described
        described = replace(described, **parts)
        located = LocatedSide(text=job.text, state="leaves", fault=described)
        write_atomic(Path(job.out_dir) / KNOWN, encode(located))
        return located

    update()
    note("dropping nodes")
    smallest = drop_steps(side.search, fault)
    cut = side.program.cut(smallest.places, smallest.wanted, side.program.values, side.program.values)
    case = side.try_case(cut, side.program.pick_fed(cut, side.program.values))
    optimizers: tuple[str, ...] = ()
    if case is not None:
        update(layer=side.find_layer(case, described.node))
        optimizers = find_optimizers(job.engine, partial(side.is_right_on, case))
        note("smaller shapes and values")
        case = shrink_case(case, side.try_case)
        reproduction = Reproduction(nodes=len(case.model.graph.node))
        update(optimizations=optimizers, reproduction=reproduction)
        if job.repro_dir is not None:
            note("writing the reproduction")
            update(reproduction=write_reproduction(Path(job.repro_dir), case, job.engine, described))
    whole = side.make_whole()
    ways = list(side.list_ways(whole, optimizers))
    if names := ways and ways[0].options.get("disable", ""):
        update(optimizations=tuple(dict.fromkeys([*optimizers, *names.split("+")])))
    measured = []
    for way in ways:
        note(f"time of {format_options(way.backend, way.options)}")
        slowdown = compare_times(side.program, whole, job.engine, way)
        measured.append(WayAround(engine=format_options(way.backend, way.options), slowdown=slowdown))
        update(ways=tuple(measured))
    return update(ways=tuple(measured))
