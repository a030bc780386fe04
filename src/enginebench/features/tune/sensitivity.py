"""Measure how much each group of nodes alone harms the outputs: the Q/DQ pairs of one group, put into the FP32 graph.

The pairs are those that a recipe made, so that ranges, placement and rounding are those of the graph that will run.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto

from enginebench.core.errors import MeasurementError, UsageError
from enginebench.features.tune.jobs import GroupHarm, NodeGroup, SensitivityJob, SensitivityResponse
from enginebench.models.precision.calibration_data import open_data, use_samples
from enginebench.models.precision.exclusion import find_originals
from enginebench.models.precision.graph import (
    load_whole_graph,
    make_consumers,
    make_producers,
    prepare_graph,
    run_graph,
    sort_nodes,
)
from enginebench.models.precision.macs import count_macs
from enginebench.models.precision.qdq import WEIGHTED
from enginebench.models.samples import read_samples
from enginebench.runs.child.jobs import NoteCall

# Groups after which progress is reported.
NOTE_EVERY = 20
# The harm of outputs that are not finite: worse than any, and still a number that JSON has.
WORST = 1e30


def measure_sensitivity(job: SensitivityJob, note: NoteCall) -> SensitivityResponse:
    """Measure the harm of each group, those with the most multiply-accumulates first: they can save the most time."""
    start_s = time.monotonic()
    libraries = job.artifact.operator_libraries
    exported = load_whole_graph(Path(job.artifact.path))
    prepared, quantized = (
        prepare_graph(exported, libraries, job.artifact.inputs),
        load_whole_graph(Path(job.quantized.path)),
    )
    # The first of the entries that the ranges were taken from: what is held out stays so.
    if job.inputs is not None:
        data = use_samples(read_samples(job.inputs, job.samples), job.artifact.inputs)
    else:
        data = open_data(
            job.data,
            model=job.model,
            inputs=job.artifact.inputs,
            n=job.samples,
            seed=job.seed,
            input_size=job.input_size,
        )
    if data.apart:
        raise UsageError("its samples have no common batch axis, and are not compared group by group")
    feeds = data.read(0, data.n)
    groups = find_groups(exported, prepared, quantized)
    reference = run_graph(prepared, feeds, job.threads, libraries)

    noises: dict[str, float] = {}
    for i, group in enumerate(sorted(groups, key=lambda group: -group.macs)):
        if time.monotonic() - start_s > job.time_limit_s:
            note(f"time ran out after {i} of {len(groups)} groups")
            break
        if i % NOTE_EVERY == 0:
            note(f"sensitivity: group {i + 1} of {len(groups)}")
        alone = quantize_only(prepared, quantized, group.nodes)
        noises[group.name] = measure_harm(reference, run_graph(alone, feeds, job.threads, libraries))
    return SensitivityResponse(
        groups=tuple(GroupHarm(group=group, noise=noises.get(group.name)) for group in groups),
        samples=data.n,
        seconds=time.monotonic() - start_s,
    )


PAIR = ("QuantizeLinear", "DequantizeLinear")


def find_groups(exported: ModelProto, prepared: ModelProto, quantized: ModelProto) -> tuple[NodeGroup, ...]:
    """Group the nodes that the recipe quantized, in the order of the graph.

    A node that is no product joins the group of the last node before it that is in one.
    """
    touched, theirs = _find_touched(prepared, quantized), {node.name for node in quantized.graph.node}
    originals = find_originals(exported, prepared)
    macs = count_macs(prepared)
    producers = make_producers(prepared)
    order = {node.name: i for i, node in enumerate(prepared.graph.node)}
    home: dict[str, str] = {}
    members: defaultdict[str, list[str]] = defaultdict(list)
    for node in prepared.graph.node:
        before = [producers[name].name for name in node.input if name in producers]
        joined = [name for name in before if name in home]
        if node.name not in touched and (node.name in theirs or not joined):  # the range of what it cuts stands for it
            continue
        alone = node.op_type in WEIGHTED or not joined
        home[node.name] = node.name if alone else home[max(joined, key=lambda name: order[name])]
        members[home[node.name]].append(node.name)
    kinds = {node.name: node.op_type for node in prepared.graph.node}
    return tuple(
        NodeGroup(
            name=originals[first][0],
            kind=kinds[first],
            nodes=tuple(nodes),
            originals=tuple(original for name in nodes for original in originals[name]),
            macs=sum(macs.get(name, 0) for name in nodes),
        )
        for first, nodes in members.items()
        if originals[first]
    )


def _find_touched(prepared: ModelProto, quantized: ModelProto) -> set[str]:
    """Return the names of the nodes that read a dequantized value, or whose result is quantized."""
    producers, consumers = make_producers(quantized), make_consumers(quantized)
    names = {node.name for node in prepared.graph.node}
    return {
        node.name
        for node in quantized.graph.node
        if node.name in names
        and (
            any(name in producers and producers[name].op_type == PAIR[1] for name in node.input)
            or any(reader.op_type == PAIR[0] for name in node.output for reader in consumers.get(name, ()))
        )
    }


def quantize_only(prepared: ModelProto, quantized: ModelProto, names: Iterable[str]) -> ModelProto:
    """Make the FP32 graph with the Q/DQ pairs of some nodes: on their inputs, their weights, and their results."""
    made = ModelProto()
    made.CopyFrom(prepared)
    chosen = set(names)
    copier = _PairCopier(made, quantized, chosen)
    for node in made.graph.node:
        if node.name in chosen:
            copier.quantize_inputs(node)
    for node in [n for n in made.graph.node if n.name in chosen]:
        copier.quantize_outputs(node)
    copier.finish()
    return made


class _PairCopier:
    """Copies pairs from a quantized graph into another one."""

    def __init__(self, made: ModelProto, quantized: ModelProto, chosen: set[str]) -> None:
        self._made, self._chosen = made, chosen
        self._theirs = {node.name: node for node in quantized.graph.node}
        self._producers, self._consumers = make_producers(quantized), make_consumers(quantized)
        self._constants = {tensor.name: tensor for tensor in quantized.graph.initializer}
        self._outputs = {value.name for value in made.graph.output}
        self._readers = make_consumers(made)
        self._taken: dict[str, NodeProto] = {}  # name of their node -> the copy
        self._nodes: list[NodeProto] = []
        self._tensors: set[str] = set()
        # Of a ReLU that the recipe took out, as the range of the pair cuts what it cut: its result -> what it read.
        self._cut = {
            node.output[0]: node.input[0]
            for node in made.graph.node
            if node.name in chosen and node.name not in self._theirs
        }

    def quantize_inputs(self, node: NodeProto) -> None:
        theirs = self._theirs.get(node.name)
        if theirs is None:
            return
        for i, name in enumerate(theirs.input):
            if name in self._producers and self._producers[name].op_type == PAIR[1]:
                node.input[i] = self._copy(name, node.input[i])

    def quantize_outputs(self, node: NodeProto) -> None:
        """Give readers outside of the chosen nodes the rounded value, too, as behind an 8-bit kernel."""
        theirs = self._theirs.get(node.name)
        for i, mine in enumerate(node.output):
            names = [theirs.output[i]] if theirs else [*node.output, *node.input]  # it may have either name now
            end = next(filter(None, map(self._find_pair_behind, names)), None)
            if end is None or mine in self._outputs:
                continue
            rounded = self._copy(end, mine)
            for reader in self._readers.get(mine, ()):
                if reader.name not in self._chosen:
                    for i, read in enumerate(reader.input):
                        if read == mine:
                            reader.input[i] = rounded

    def _find_pair_behind(self, tensor: str) -> str | None:
        """Return the dequantized form of a tensor of the quantized graph."""
        for quantizer in self._consumers.get(tensor, ()):
            if quantizer.op_type == PAIR[0]:
                for reader in self._consumers.get(quantizer.output[0], ()):
                    if reader.op_type == PAIR[1]:
                        return str(reader.output[0])
        return None

    def _copy(self, tensor: str, source: str) -> str:
        """Copy the nodes that make their tensor, back to the float value, which here is called `source`."""
        theirs = self._producers[tensor]
        key = theirs.name or tensor
        if key not in self._taken:
            copy = NodeProto()
            copy.CopyFrom(theirs)
            copy.name, copy.output[0] = f"graft_{key}", f"graft_{tensor}"
            self._taken[key] = copy
            first = theirs.input[0]
            if first in self._producers and self._producers[first].op_type in PAIR:
                copy.input[0] = self._copy(first, source)
            elif first in self._constants:
                copy.input[0] = f"graft_{first}"
                self._tensors.add(first)
            else:
                copy.input[0] = self._cut.get(source, source)
            for i, name in enumerate(theirs.input[1:], start=1):
                copy.input[i] = f"graft_{name}"
                self._tensors.add(name)
            self._nodes.append(copy)
        return str(self._taken[key].output[0])

    def finish(self) -> None:
        self._made.graph.node.extend(self._nodes)
        read = {name for node in self._made.graph.node for name in node.input} | self._outputs
        for node in [n for n in self._made.graph.node if n.output[0] in self._cut and n.output[0] not in read]:
            self._made.graph.node.remove(node)  # it would keep its maker and the pair from being one kernel
        for name in sorted(self._tensors):
            tensor = self._made.graph.initializer.add()
            tensor.CopyFrom(self._constants[name])
            tensor.name = f"graft_{name}"
        domains = {opset.domain for opset in self._made.opset_import}  # contributed Q/DQ operators need theirs
        for domain in {node.domain for nodes in self._consumers.values() for node in nodes} - domains - {"ai.onnx"}:
            self._made.opset_import.add(domain=domain, version=1)
        sort_nodes(self._made)


def measure_harm(reference: Mapping[str, Any], candidate: Mapping[str, Any]) -> float:
    """Return the power of the difference from the FP32 reference over that of the reference about its mean, of all
    outputs.

    Both have the same names and shapes, [samples, ...].
    """
    noise, signal = 0.0, 0.0
    for name in reference:
        ref, cand = (
            np.asarray(side[name]).reshape(len(side[name]), -1).astype(np.float64) for side in (reference, candidate)
        )
        if not np.isfinite(cand).all():
            return WORST
        noise += float(np.sum((cand - ref) ** 2))
        signal += float(np.sum((ref - ref.mean(axis=0)) ** 2)) if len(ref) > 1 else float(np.sum(ref**2))
    if not signal:
        raise MeasurementError("the outputs do not depend on the inputs, so that outputs cannot be compared")
    return noise / signal
