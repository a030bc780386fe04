"""Make what shows a fault smaller while it stays: fewer nodes, then smaller shapes, then values of a seed."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from onnx import ModelProto, numpy_helper

from enginebench.core.errors import EngineBenchError
from enginebench.core.protocols import Array
from enginebench.features.locate.graphs import describe_value
from enginebench.features.locate.judging import Deviation
from enginebench.features.locate.search import Fault, Search

SEED = 0
# Weights of so many values tell nothing of what the model learned; they are what the fault may depend on.
FEW = 64


class Case(Struct, frozen=True, kw_only=True, eq=False):
    """A graph of its own that shows a fault: its inputs, what the reference computes, and what the engine does."""

    model: ModelProto
    feeds: Mapping[str, Array]
    expected: Mapping[str, Array]
    actual: Mapping[str, Array]
    deviations: Mapping[str, Deviation]
    seeded: bool = False  # all of its weights and inputs are drawn from a seed, or few


# Returns the case of a graph on these inputs if it shows the fault, else None.
Try = Callable[[ModelProto, Mapping[str, Array]], Case | None]


def drop_steps(search: Search, fault: Fault, has_time: Callable[[], bool] = lambda: True) -> Fault:
    """Drop steps, by halves and then one by one, while those that are left show a fault of the same kind."""
    program, indices = search.program, list(fault.indices)
    size = len(indices) // 2
    while size >= 1:
        start = 0
        while start < len(indices) and len(indices) > 1:
            left = indices[:start] + indices[start + size :]
            smaller = _show(search, left) if left and has_time() else None
            if smaller is None:
                start += size
            else:
                indices, fault = left, smaller
        size //= 2
    return replace(fault, hidden_by=()) if len(fault.indices) < len(program.steps) else fault


def _show(search: Search, indices: Sequence[int]) -> Fault | None:
    program = search.program
    read = {name for i in indices for name in program.steps[i].inputs}
    ends = [n for i in indices for n in program.steps[i].outputs if n not in read and n in program.values]
    try:
        deviations = search.leaves(indices, ends, program.values)
    except EngineBenchError:  # what is left may be no graph that the engine takes
        return None
    return Fault(indices=tuple(indices), wanted=tuple(ends), deviations=deviations) if deviations else None


def shrink_case(case: Case, attempt: Try) -> Case:
    """Make the shapes of a case smaller, then draw its values from a seed, where the fault stays."""
    for length in sorted({n for array in _list_arrays(case) for n in array.shape if n > 1}, reverse=True):
        for shorter in (1, 2, max(1, length // 2)):
            smaller = attempt(*_cut_axes(case, length, shorter)) if shorter < length else None
            if smaller is not None:
                case = smaller
                break
    drawn = attempt(*_draw_values(case, weights=True, inputs=True))
    if drawn is not None:
        kept = [a for a in _list_arrays(drawn) if (a.dtype.kind != "f" and not is_bytes(a)) or not is_finite(a)]
        return replace(drawn, seeded=all(array.size <= FEW for array in kept))
    for kinds in ({"weights": True, "inputs": False}, {"weights": False, "inputs": True}):
        case = attempt(*_draw_values(case, **kinds)) or case
    few = all(array.size <= FEW for array in _list_arrays(case))
    return replace(case, seeded=few)


def _list_arrays(case: Case) -> Iterator[Array]:
    yield from case.feeds.values()
    yield from (numpy_helper.to_array(tensor) for tensor in case.model.graph.initializer)


def is_finite(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def is_bytes(array: Array) -> bool:
    """Whether these are quantized values, and so many that they are weights or an input."""
    return array.dtype.kind in "iu" and array.dtype.itemsize == 1 and array.size > FEW


def _cut_axes(case: Case, length: int, shorter: int) -> tuple[ModelProto, Mapping[str, Array]]:
    """Cut every axis of this length, of inputs and weights."""

    def cut(array: Array) -> Array:
        return array[tuple(slice(shorter) if n == length else slice(None) for n in array.shape)]

    return _change(case, cut, {name: cut(array) for name, array in case.feeds.items()})


def _draw_values(case: Case, *, weights: bool, inputs: bool) -> tuple[ModelProto, Mapping[str, Array]]:
    rng = np.random.default_rng(SEED)

    def draw(array: Array) -> Array:
        if is_bytes(array):
            low, high = int(array.min()), int(array.max())
            return rng.integers(low, high + 1, array.shape).astype(array.dtype)
        if array.dtype.kind != "f" or array.size < 2 or not is_finite(array):
            return array
        floats = array.astype(np.float64)
        drawn: Array = rng.standard_normal(array.shape) * (float(floats.std()) or 1.0) + float(floats.mean())
        return drawn.astype(array.dtype)

    def keep(array: Array) -> Array:
        return array

    feeds = {name: draw(array) for name, array in case.feeds.items()} if inputs else case.feeds
    return _change(case, draw if weights else keep, feeds)


def _change(
    case: Case, change: Callable[[Array], Array], feeds: Mapping[str, Array]
) -> tuple[ModelProto, Mapping[str, Array]]:
    """The graph with changed weights, for other inputs."""
    model = copy.deepcopy(case.model)
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if (changed := change(array)) is not array:
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(changed), tensor.name))
    del model.graph.input[:]
    model.graph.input.extend(describe_value(name, array) for name, array in feeds.items())
    return model, feeds
