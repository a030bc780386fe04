"""Match the tensors of two graphs: by what they are computed from, by their values, by their names."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from enginebench.core.protocols import Array
from enginebench.features.locate.graph_program import GraphProgram
from enginebench.features.locate.judging import measure_ratio
from enginebench.stats.metrics.metric import Floats

# Operators that hand their input on in another type: the same tensor where two precisions are compared.
SAME = frozenset({"QuantizeLinear", "DequantizeLinear", "Cast", "Identity"})
# Operators whose inputs one exporter writes in another order than the next.
COMMUTES = frozenset({"Add", "Mul", "Sum", "Max", "Min", "And", "Or", "Equal"})
# Values that are this close are those of one tensor: below the limit of FP16, and far above what chance gives.
EQUAL_DB = 40.0
# Of the norm, by which sums of values that are so close may differ: five times the noise.
NEAR = 5 * 10 ** (-EQUAL_DB / 20)


class Matching:
    """`matches`: tensor of the second graph -> tensor of the first; `reshaped`: those that have another shape there."""

    def __init__(self, first: GraphProgram, second: GraphProgram) -> None:
        self._first, self._second = first, second
        self.matches: dict[str, str] = {}
        self.reshaped: dict[str, str] = {}
        self._keys = {name: f"input {i}" for i, name in enumerate(second.inputs)}
        self._match_forward()

    def _match_forward(self) -> None:
        """Match what is computed alike, from the inputs on; where a match is by values, it goes on from there."""
        own = make_keys(self._first)
        by_key: dict[str, list[str]] = defaultdict(list)
        for name, key in own.items():
            by_key[key].append(name)
        for index, step in enumerate(self._second.steps):
            made = make_step_keys(self._second, index, self._keys)
            self._keys |= made
            for name, key in made.items() if step.kind not in SAME else ():
                alike = self._choose(name, by_key.get(key, []), own)
                if alike is None:
                    continue
                self._keys[name] = own[alike]
                if self._is_like(name, alike):
                    self.matches[name] = alike
                elif alike in by_key[key]:
                    self.reshaped[name] = alike

    def _choose(self, name: str, computed_alike: Sequence[str], own: Mapping[str, str]) -> str | None:
        """Choose the tensor of the first graph that this one is: the only one that is computed alike; one with its
        values; one with its name; the first that is left."""
        if name not in self._second.values:
            return None
        possible = [other for other in computed_alike if self._has_type(name, other)]
        if len(possible) == 1:
            return possible[0]
        equal = self._equal.get(name, [])
        if both := [other for other in equal if other in possible] or equal:
            return name if name in both else both[0]
        if (possible and name in possible) or (not possible and name in own and self._has_type(name, name)):
            return name
        taken = {*self.matches.values(), *(other for others in self._equal.values() for other in others)}
        return next((other for other in possible if other not in taken), None)

    def _has_type(self, name: str, other: str) -> bool:
        if other not in self._first.values:
            return False
        a, b = self._first.values[other].dtype, self._second.values[name].dtype
        return bool(a.kind == b.kind == "f" or a == b)

    @cached_property
    def _equal(self) -> Mapping[str, list[str]]:
        """The tensors of the first graph that have the values of one of the second."""
        first, second = sum_values(self._first), sum_values(self._second)
        by_shape: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for name in first:
            by_shape[self._first.values[name].shape].append(name)
        equal: dict[str, list[str]] = defaultdict(list)
        for name, sums in second.items():
            values = to_floats(self._second.values[name])
            for other in by_shape.get(self._second.values[name].shape, []):
                close = all(abs(a - b) <= NEAR * sums[0] for a, b in zip(sums, first[other], strict=True))
                if close and measure_ratio(to_floats(self._first.values[other]), values) >= EQUAL_DB:
                    equal[name].append(other)
        return equal

    def match_backward(self, name: str) -> None:
        """Match what two tensors that differ are computed from, where nodes of one kind make them."""
        waiting = [name]
        while waiting:
            name = waiting.pop()
            mine, others = self._list_read(self._second, name), self._list_read(self._first, self.matches[name])
            if mine is None or others is None or mine[0] != others[0] or len(mine[1]) != len(others[1]):
                continue
            left = [one for one in mine[1] if one not in self.matches]
            others_left = [one for one in others[1] if one not in self.matches.values()]
            for one in left:
                possible = [other for other in others_left if self._is_like(one, other)]
                alike = [other for other in possible if _find_kind(self._first, other) == _find_kind(self._second, one)]
                if alike or (len(left) == 1 and possible):
                    self.matches[one] = (alike or possible)[0]
                    others_left.remove(self.matches[one])
                    waiting.append(one)

    def _is_like(self, name: str, other: str) -> bool:
        return self._has_type(name, other) and self._first.values[other].shape == self._second.values[name].shape

    @staticmethod
    def _list_read(graph: GraphProgram, name: str) -> tuple[str, list[str]] | None:
        """Return the kind of the node that makes a tensor, and the computed tensors that it reads."""
        index = graph.producers.get(name)
        if index is None:
            return None
        read = [_skip_same(graph, one) for one in graph.steps[index].inputs]
        return _find_kind(graph, name), [one for one in read if one in graph.producers and one in graph.values]


def make_keys(graph: GraphProgram) -> dict[str, str]:
    """Return, for each tensor that a node makes, a text that says what it is computed from; not by which weights."""
    keys = {name: f"input {i}" for i, name in enumerate(graph.inputs)}
    for index in range(len(graph.steps)):
        keys |= make_step_keys(graph, index, keys)
    made = {name for step in graph.steps if step.kind not in SAME for name in step.outputs}
    return {name: key for name, key in keys.items() if name in made}


def make_step_keys(graph: GraphProgram, index: int, keys: Mapping[str, str]) -> dict[str, str]:
    node = graph.model.graph.node[index]
    read = [keys.get(name, "constant") for name in node.input]
    if node.op_type in SAME and read:
        return dict.fromkeys(graph.steps[index].outputs, read[0])
    text = f"{node.domain}.{node.op_type}({', '.join(sorted(read) if node.op_type in COMMUTES else read)})"
    return {name: hashlib.sha256(f"{text}#{i}".encode()).hexdigest() for i, name in enumerate(node.output) if name}


def sum_values(graph: GraphProgram) -> dict[str, tuple[float, float]]:
    """Return, for each tensor of floats that are not all the same, its norm and its sum with signs of a seed."""
    sums, signs = dict[str, tuple[float, float]](), dict[tuple[int, ...], Floats]()
    for step in graph.steps:
        for name in step.outputs if step.kind not in SAME else ():
            array = graph.values.get(name)
            if array is None or array.dtype.kind != "f" or array.size < 2:
                continue
            values = np.where(np.isfinite(array), array, 0).astype(np.float64)
            if values.max() > values.min():
                drawn = signs.setdefault(values.shape, np.random.default_rng(0).choice((-1.0, 1.0), values.shape))
                with np.errstate(over="ignore"):
                    sums[name] = float(np.linalg.norm(values)), float(np.sum(values * drawn))
    return sums


def to_floats(array: Array) -> Floats:
    floats: Floats = np.nan_to_num(np.atleast_1d(array).astype(np.float64))
    return floats


def _find_kind(graph: GraphProgram, name: str) -> str:
    return graph.steps[graph.producers[name]].kind


def _skip_same(graph: GraphProgram, name: str) -> str:
    while name in graph.producers and (step := graph.steps[graph.producers[name]]).kind in SAME and step.inputs:
        name = step.inputs[0]
    return name
