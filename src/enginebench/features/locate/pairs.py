"""Compare two graphs, each computed as it is written: the first node that differs, or the noise that each node adds."""

import math
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
from msgspec.structs import replace
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

from enginebench.core.errors import EngineBenchError
from enginebench.core.names import format_options
from enginebench.core.protocols import Array
from enginebench.core.records import Precision
from enginebench.core.text import add_article, count_of, list_some
from enginebench.features.locate.changed import keep_long, save_changed
from enginebench.features.locate.graph_program import GraphProgram
from enginebench.features.locate.graphs import Graph
from enginebench.features.locate.jobs import PairJob, PairResponse
from enginebench.features.locate.judging import Deviation, measure_deviation, measure_ratio
from enginebench.features.locate.matching import COMMUTES, SAME, Matching, to_floats
from enginebench.features.locate.nonfinite import describe_beginning
from enginebench.features.locate.shrink import Case
from enginebench.features.locate.timing import compare_times
from enginebench.models.onnx.source import read_tensor_values
from enginebench.report.located import FoundFault, NodeNoise, WayAround
from enginebench.runs.child.arrays import load_arrays
from enginebench.runs.child.jobs import NoteCall
from enginebench.stats.drift import FULL, default_limits, find_coarsest, measure_drift

# Nodes whose part of the noise is measured, and that are listed.
MOST_MEASURED, MOST_LISTED = 20, 10
# Nodes behind the first difference that are named.
MOST_FURTHER = 3
MB = 1_000_000
# Of the noise, that the nodes make together which are proposed to stay in the longer precision.
WORTH_EXCLUDING = 0.9

# Attributes of a node Constant that hold numbers, beside the one that holds a tensor.
CONSTANT_TYPES = {"value_float": "float32", "value_floats": "float32", "value_int": "int64", "value_ints": "int64"}

Constants: TypeAlias = Mapping[str, TensorProto]
AGREE = "The outputs of both graphs agree all the same: it fades, or what follows makes up for it."


class Pair:
    """Two graphs with their tensors, and which tensor of one is which of the other."""

    def __init__(self, first: GraphProgram, second: GraphProgram) -> None:
        self.first, self.second = first, second
        self._matching = Matching(first, second)
        self.matches, self.reshaped = self._matching.matches, self._matching.reshaped

    def measure(self, tensor: str, precision: Precision | None) -> Deviation:
        expected = self.first.values[self.matches[tensor]]
        actual = self.second.values[tensor]
        return measure_deviation(expected, actual.astype(expected.dtype), precision)

    def find_difference(self, precision: Precision | None) -> FoundFault | None:
        """Find the first node of the second graph whose output is another than that of the same node in the first."""
        for name in self.second.outputs:  # behind what is computed in another way, names may be all that is alike
            if name in self.matches and self.measure(name, precision).leaves:
                self._matching.match_backward(name)
        for index, step in enumerate(self.second.steps):
            for tensor in step.outputs:
                if tensor in self.reshaped:
                    return self._describe(index, tensor, Deviation(leaves=True))
                if tensor in self.matches and (deviation := self.measure(tensor, precision)).leaves:
                    return self._describe(index, tensor, deviation)
        return None

    def _describe(self, index: int, tensor: str, deviation: Deviation) -> FoundFault:
        step = self.second.steps[index]
        return FoundFault(
            node=step.name,
            kind=step.kind,
            tensor=tensor,
            nodes=(step.name,),
            snr_db=deviation.snr_db,
            largest=deviation.largest if tensor in self.matches else None,
            nonfinite=deviation.nonfinite,
            tamed=deviation.tamed,
            overflowed=self._explain_overflow(tensor) if deviation.nonfinite else "",
            unlike=" ".join(
                filter(None, (self._explain_cause(index), self._explain_alone(index), self._explain_ranges(index)))
            ),
        )

    def _explain_ranges(self, index: int) -> str:
        """Explain which quantizer before this node already leaves what it reads, and that its range does not fit."""
        texts = list[str]()
        for name in self.second.steps[index].inputs:
            steps = [self.second.steps[i] for i in self._list_same(name)]
            dequantize = next((step for step in steps if step.kind == "DequantizeLinear"), None)
            quantize = next((step for step in steps if step.kind == "QuantizeLinear"), None)
            if dequantize is None or quantize is None:
                continue
            tensors = quantize.inputs[0], quantize.outputs[0], dequantize.outputs[0]
            if not set(tensors) <= set(self.second.values):
                continue
            source, steps_of, held = (self.second.values[name] for name in tensors)
            if steps_of.dtype.kind not in "iu":
                continue
            deviation = measure_deviation(source.astype(held.dtype), held, "int8")
            if not deviation.leaves:
                continue
            ends: Any = np.iinfo(cast(Any, steps_of.dtype))
            lost = np.isin(steps_of, (ends.min, ends.max)).mean()
            texts.append(
                f"{quantize.name} (QuantizeLinear), which it reads, keeps {deviation.snr_db:.1f} dB of its values: "
                f"they are {source.min():.3g} to {source.max():.3g}; it makes {len(np.unique(steps_of))} values of "
                f"them, {held.min():.3g} to {held.max():.3g}, {lost:.0%} at an end of its range."
            )
        return " ".join(texts)

    def _list_same(self, name: str) -> Iterator[int]:
        """Yield the nodes that hand a tensor on in another type, the last first."""
        while (index := self.second.producers.get(name)) is not None and self.second.steps[index].kind in SAME:
            yield index
            name = self.second.steps[index].inputs[0]

    def _explain_cause(self, index: int) -> str:
        return self._explain_unlike(index) or self._explain_before(index)

    def _explain_alone(self, index: int) -> str:
        """Explain which nodes lie between this one and what is the same, and have no counterpart."""
        near, waiting, alone = {**self.matches, **self.reshaped}, list(self.second.steps[index].inputs), set[int]()
        while waiting:
            name = waiting.pop()
            before = self.second.producers.get(name)
            if before is None or name in near or before in alone or before in self.second.folded:
                continue
            alone.add(before)
            waiting += self.second.steps[before].inputs
        names = [self.second.steps[i].name for i in sorted(alone) if self.second.steps[i].kind not in SAME]
        if not names:
            return ""
        return f"It may also be in what it reads, which has no counterpart in the first graph: {list_some(names, 4)}."

    def agrees(self, precision: Precision | None) -> bool:
        """Whether every output of the second graph is that of the first."""
        outputs = [name for name in self.second.outputs if name in self.second.producers]
        if not set(outputs) <= set(self.matches) or any(self.measure(name, precision).leaves for name in outputs):
            return False
        expected = {name: self.first.values[self.matches[name]] for name in outputs}
        actual = {name: self.second.values[name].astype(array.dtype) for name, array in expected.items()}
        return measure_drift(expected, actual, default_limits(precision)).passed  # as `drift` judges them

    def list_further(self, fault: FoundFault, precision: Precision | None) -> list[FoundFault]:
        """List the nodes behind a fault, or beside it, that are not the same, and differ fed with tensors of the first
        graph."""
        further, tried = list[FoundFault](), 0
        for index in range(self.second.producers[fault.tensor] + 1, len(self.second.steps)):
            if len(further) == MOST_FURTHER or tried == MOST_MEASURED:
                break
            if not self._explain_unlike(index):
                continue
            tried += 1
            tensor = next((name for name in self.second.steps[index].outputs if name in self.matches), None)
            local = self._compute_alone(tensor) if tensor is not None else None
            if tensor is None or local is None:
                continue
            expected = self.first.values[self.matches[tensor]]
            deviation = measure_deviation(expected, local.astype(expected.dtype), precision)
            if deviation.leaves:
                further.append(self._describe(index, tensor, deviation))
        return further

    def _explain_overflow(self, tensor: str) -> str:
        if not self._is_beyond(tensor, self.matches[tensor]):
            return describe_beginning(self.second, self.second.producers[tensor])
        expected = to_floats(self.first.values[self.matches[tensor]])
        lost = ~np.isfinite(np.atleast_1d(self.second.values[tensor]))
        largest = float(np.abs(expected[lost]).max(initial=0.0))
        return f"There the values of the first graph are up to {largest:.6g}."

    def _explain_unlike(self, index: int) -> str:
        """Explain how a node is not the same as its counterpart: by shape, attributes, weights, or what it reads."""
        step, near = self.second.steps[index], {**self.matches, **self.reshaped}
        mine = next((name for name in step.outputs if name in near), None)
        if mine is None:
            return ""
        nodes = self.second.model.graph.node[index], self.first.model.graph.node[self.first.producers[near[mine]]]
        if (
            text := self._compare_nodes(*nodes, (list_constants(self.second), list_constants(self.first)))
        ) or mine not in self.reshaped:
            return text
        shapes = [list(p.values[n].shape) for p, n in ((self.second, mine), (self.first, near[mine]))]
        return f"Its output has the shape {shapes[0]}, in the first graph {shapes[1]}."

    def _compare_nodes(self, node: NodeProto, other: NodeProto, constants: tuple[Constants, Constants]) -> str:
        """Explain how a node of the second graph is not the same as one of the first; "" if it is.

        Args:
            constants: those that each of both can read.
        """
        if node.op_type != other.op_type:
            return f"It is {add_article(node.op_type)} in place of {add_article(other.op_type)}."
        for graphs in zip(list_named_graphs(node), list_named_graphs(other), strict=False):
            if text := self._compare_bodies(*graphs, constants):
                return text
        attributes = [{a.name: a.SerializeToString() for a in one.attribute} for one in (node, other)]
        names = sorted(n for n in {**attributes[0], **attributes[1]} if attributes[0].get(n) != attributes[1].get(n))
        if names and not any(True for _ in list_named_graphs(node)):
            return f"In the first graph it has another {' and another '.join(names)}."
        inputs, others = list(node.input), list(other.input)
        alike = {**dict(zip(self.second.inputs, self.first.inputs, strict=False)), **self.matches}
        if node.op_type in COMMUTES:
            inputs.sort(key=lambda name: (name not in constants[0], alike.get(name, name)))
            others.sort(key=lambda name: (name not in constants[1], name))
        for a, b in zip(inputs, others, strict=False):
            if a in constants[0] and b in constants[1]:
                tensors = (constants[0][a], self.second.path), (constants[1][b], self.first.path)
                arrays = [read_tensor_values(tensor, path) for tensor, path in tensors]
                if arrays[0] is None or arrays[1] is None or is_same(arrays[0], arrays[1]):
                    continue
                if arrays[0].size == arrays[1].size == 1:
                    values = [one.reshape(-1)[0] for one in arrays if one is not None]
                    return f"In the first graph its constant {b} is {values[1]:.6g}, here {values[0]:.6g}."
                return f"In the first graph its constant {b} has other values."
        read = [alike.get(name, "") for name in inputs]
        if any(name and name != b for name, b in zip(read, others, strict=False)):
            return f"In the first graph it reads {list_some(list(other.input), 4)}."
        return ""

    def _compare_bodies(
        self, named: tuple[str, GraphProto], other: tuple[str, GraphProto], constants: tuple[Constants, Constants]
    ) -> str:
        """Explain which node inside of two nodes is not the same."""
        name, graph = named
        own, others = ({t.name: t for t in each.initializer} for each in (graph, other[1]))
        constants = {**constants[0], **own}, {**constants[1], **others}
        if len(graph.node) != len(other[1].node):
            return f"In the first graph its {name} has {count_of(len(other[1].node), 'nodes')}."
        for node, counterpart in zip(graph.node, other[1].node, strict=True):
            if text := self._compare_nodes(node, counterpart, constants):
                return f"In its {name}, at {node.name or node.output[0]} ({node.op_type}): {text}"
        return ""

    def _explain_before(self, index: int) -> str:
        """Explain which node before this one is not the same, where its own output keeps to the limits."""
        steps, names, seen = self.second.steps, list(self.second.steps[index].inputs), set[int]()
        while names:
            before = self.second.producers.get(names.pop())
            if before is not None and before not in seen:
                seen.add(before)
                names += steps[before].inputs
        for before in sorted(seen, reverse=True):
            if text := self._explain_unlike(before):
                return f"Before it, {steps[before].name} ({steps[before].kind}) is not the same. {text}"
        return ""

    def rank_noise(self, note: NoteCall) -> tuple[list[NodeNoise], tuple[str, ...], float | None]:
        """Return the nodes that add the most noise, those worth keeping, and the ratio that would leave, in dB."""
        added = sorted(self._list_added(), key=lambda item: -item[1])[:MOST_MEASURED]
        total = self._measure_outputs(self.second.values, self.matches)
        noises = []
        for i, (tensor, _) in enumerate(added):
            note(f"noise of node {i + 1} of {len(added)}")
            step = self.second.steps[self.second.producers[tensor]]
            share = self._measure_share(tensor)
            before = [self.ratio(name) for name in self._list_before(tensor)]
            noises.append(
                NodeNoise(
                    node=self.first.steps[self.first.producers[self.matches[tensor]]].name,
                    kind=step.kind,
                    snr_in_db=min(before, default=None),
                    snr_out_db=self.ratio(tensor),
                    share=share / total if share is not None and total else None,
                )
            )
        noises.sort(key=lambda noise: -(noise.share or 0.0))
        kept, part = list[str](), 0.0
        for noise in noises:
            if part < WORTH_EXCLUDING and (noise.share or 0.0) > 0.01:
                kept.append(noise.node)
                part += noise.share or 0.0
        left = total * max(1 - part, 1e-3)
        return noises[:MOST_LISTED], tuple(kept), -10 * math.log10(left) if total and kept else None

    def list_beyond(self, tensor: str) -> list[int]:
        """List the nodes of the second graph that make or read values which are finite in the first graph alone."""
        lost = {
            name
            for name, other in self.matches.items()
            if np.isfinite(np.atleast_1d(self.first.values[other])).all() and self._is_beyond(name, other)
        }
        lost.add(tensor)
        steps = enumerate(self.second.steps)
        return [i for i, step in steps if step.kind not in SAME and lost.intersection((*step.inputs, *step.outputs))]

    def _is_beyond(self, name: str, other: str) -> bool:
        """Whether values of the first graph are beyond the type that the tensor has in the second."""
        values = self.second.values[name]
        if values.dtype.kind != "f":
            return False
        with np.errstate(over="ignore"):
            shortened = self.first.values[other].astype(values.dtype)
        return not np.isfinite(np.atleast_1d(shortened)).all()

    def name_first(self, indices: Sequence[int]) -> tuple[str, ...]:
        """Return the names that nodes of the second graph have in the first."""
        tensors = [name for i in indices for name in self.second.steps[i].outputs if name in self.matches]
        steps = [self.first.steps[self.first.producers[self.matches[name]]] for name in tensors]
        return tuple(dict.fromkeys(step.name for step in steps))

    def find_second(self, names: Collection[str]) -> list[int]:
        """Return the places in the second graph of nodes with these names in the first."""
        return [i for i in range(len(self.second.steps)) if set(self.name_first([i])) & set(names)]

    def ratio(self, tensor: str) -> float:
        return measure_ratio(to_floats(self.first.values[self.matches[tensor]]), to_floats(self.second.values[tensor]))

    def _list_added(self) -> Iterator[tuple[str, float]]:
        """Yield each tensor with the noise that its node adds to that of its inputs, relative to the signal."""
        for step in self.second.steps:
            for tensor in step.outputs:
                if tensor in self.matches and step.kind not in SAME:
                    before = [10 ** (-self.ratio(name) / 10) for name in self._list_before(tensor)]
                    yield tensor, 10 ** (-self.ratio(tensor) / 10) - max(before, default=0.0)

    def _list_before(self, tensor: str) -> list[str]:
        """List the nearest tensors before this one that have a counterpart."""
        near, names, seen = list[str](), [tensor], set[str]()
        while names:
            index = self.second.producers.get(names.pop())
            for name in self.second.steps[index].inputs if index is not None else ():
                if name in seen:
                    continue
                seen.add(name)
                if name in self.matches:
                    near.append(name)
                else:
                    names.append(name)
        return near

    def _measure_share(self, tensor: str) -> float | None:
        """Measure the noise of the outputs, relative to the signal, if this node alone were in the second graph.

        It computes from tensors of the first graph, and the rest of the first graph goes on from what it makes.
        """
        first, local = self.first, self._compute_alone(tensor)
        if local is None:
            return None
        try:
            name = self.matches[tensor]
            changed = ChainMap({name: local.astype(first.values[name].dtype)}, cast(Any, first.values))
            later = list_later(first, name)
            wanted = [n for n in first.outputs if n in first.values and (n == name or first.producers[n] in later)]
            outputs = {name: changed[name]} if wanted == [name] else first.expect(later, wanted, changed)
        except EngineBenchError:
            return None
        return self._measure_outputs(outputs, {n: n for n in wanted})

    def _compute_alone(self, tensor: str) -> "Array | None":
        """Compute a tensor of the second graph from tensors of the first; None if that cannot be computed."""
        first, second = self.first, self.second
        fed = {
            name: first.values[self.matches[name]].astype(second.values[name].dtype)
            for name in self._list_before(tensor)
        }
        own = {name: second.values[name] for name in second.inputs if name not in fed}
        try:
            return second.expect([second.producers[tensor]], [tensor], {**own, **fed})[tensor]
        except EngineBenchError:
            return None

    def _measure_outputs(self, outputs: Mapping[str, Array], matches: Mapping[str, str]) -> float:
        """Return the noise of the outputs over their signal, as a ratio of powers: the worst of all outputs."""
        ratios = [
            measure_ratio(to_floats(self.first.values[name]), to_floats(outputs[other]))
            for other, name in matches.items()
            if name in self.first.outputs and other in outputs
        ]
        return max((10 ** (-ratio / 10) for ratio in ratios), default=0.0)


def is_same(array: Array, original: Array) -> bool:
    """Whether a constant has the values of the original, rounded to its type.

    What was made shorter twice, or cut instead of rounded, differs by a step of the shorter type.
    """
    if array.shape != original.shape:
        return False
    with np.errstate(over="ignore"):
        rounded = original.astype(array.dtype)
    if array.dtype == original.dtype or array.dtype.kind != "f":
        return np.array_equal(array, rounded, equal_nan=False)
    limits: Any = np.finfo(cast(Any, array.dtype))
    return np.allclose(array, rounded, rtol=float(limits.eps), atol=float(limits.smallest_subnormal))


def list_constants(graph: Graph) -> Constants:
    """Return the constants of a graph by name, also those that a node Constant makes."""
    made = {}
    for node in graph.model.graph.node:
        if node.op_type == "Constant" and (array := read_constant(node)) is not None:
            made[node.output[0]] = numpy_helper.from_array(array, node.output[0])
    return {**graph.constants, **made}


def read_constant(node: NodeProto) -> "Array | None":
    """Return the value of a node Constant; None if it is no array of numbers."""
    for attribute in node.attribute:
        if attribute.name == "value":
            array: Array = numpy_helper.to_array(attribute.t)
            return array
        if attribute.name in CONSTANT_TYPES:
            return np.asarray(helper.get_attribute_value(attribute), CONSTANT_TYPES[attribute.name])
    return None


def list_later(graph: Graph, tensor: str) -> list[int]:
    """List the steps that depend on a tensor."""
    made, indices = {tensor}, list[int]()
    for i, step in enumerate(graph.steps):
        if not made.isdisjoint(step.inputs):
            made.update(step.outputs)
            indices.append(i)
    return indices


def compare_graphs(job: PairJob, note: NoteCall) -> PairResponse:
    scratch, feeds = Path(job.out_dir), dict(load_arrays(Path(job.call)))
    first, second = (
        GraphProgram(artifact, job.engine, scratch / str(i), note) for i, artifact in enumerate(job.artifacts)
    )
    first.record(feeds, job.slice_mb * MB)
    # What the first graph drew, the second is given: else they differ by chance.
    for mine, others in zip(sorted(second.drawing), sorted(first.drawing), strict=False):
        outputs = zip(second.steps[mine].outputs, first.steps[others].outputs, strict=False)
        feeds |= {name: first.values[other] for name, other in outputs if other in first.values}
    second.record(feeds, job.slice_mb * MB)
    pair = Pair(first, second)
    precision = find_coarsest(artifact.precision for artifact in job.artifacts)
    between = pair.find_difference(precision)
    if between is not None and pair.agrees(precision):
        between = replace(between, unlike=f"{between.unlike} {AGREE}".strip())
    if precision in FULL:
        further = pair.list_further(between, precision) if between is not None else ()
        return PairResponse(between=between, further=tuple(further))
    if between is not None and between.nonfinite:
        indices = pair.list_beyond(between.tensor)
        response = PairResponse(between=between, excluded=pair.name_first(indices))
    else:
        noise, excluded, left = pair.rank_noise(note)
        indices = pair.find_second(excluded)
        response = PairResponse(between=between, noise=tuple(noise), excluded=excluded, excluded_snr_db=left)
    if between is None or not indices:
        return response
    note("nodes in FP32")
    way = measure_long(pair, indices, precision, job)
    return response if way is None else replace(response, between=replace(between, ways=(way,)))


def measure_long(pair: Pair, indices: Sequence[int], precision: Precision, job: PairJob) -> WayAround | None:
    """Measure the second graph with nodes in FP32 on its engine; None if its outputs leave the first one's as well."""
    first, second = pair.first, pair.second
    outputs = [name for name in second.outputs if name in pair.matches]
    feeds = {name: second.values[name] for name in second.inputs}
    model = second.cut(range(len(second.steps)), second.outputs, feeds, second.values)
    whole = Case(model=model, feeds=feeds, expected=second.values, actual={}, deviations={})
    long = replace(whole, model=keep_long(second, indices))
    try:
        actual = second.run(long.model, feeds, second.values, job.engine)
        for name in outputs:
            expected = first.values[pair.matches[name]]
            if measure_deviation(expected, actual[name].astype(expected.dtype), precision).leaves:
                return None
        loads = [partial(second.load, case.model, feeds, case.expected, job.engine) for case in (whole, long)]
        slowdown = compare_times(loads, feeds)
    except EngineBenchError:
        return None
    path = str(save_changed(long.model, Path(job.graph))) if job.graph is not None else ""
    names = list_some([second.steps[i].name for i in indices], 3)
    engine = format_options(job.engine.backend, job.engine.options)
    change = f"{names} {'is' if len(indices) == 1 else 'are'} in FP32"
    return WayAround(engine=engine, change=change, graph=path, slowdown=slowdown)


def list_named_graphs(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """Yield the graphs inside of a node with the names of their attributes."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.name, attribute.g
