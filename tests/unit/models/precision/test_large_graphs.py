"""The work on a graph grows with its nodes, not with their square."""

import sys
from collections.abc import Callable
from itertools import pairwise
from types import FrameType
from typing import Any

import onnx
from onnx import TensorProto, helper

from enginebench.models.precision import qdq
from enginebench.models.precision.calibration import TensorRange
from enginebench.models.precision.cast import cast_to_fp16
from enginebench.models.precision.graph import FreeNames, name_nodes
from enginebench.models.precision.qdq import CPU, insert_quantizers


def make_chain(nodes: int) -> onnx.ModelProto:
    """Nodes of one operator in a row, none of which has a name."""
    names = ["x", *(f"t{i}" for i in range(1, nodes)), "y"]
    chain = [helper.make_node("Relu", [names[i]], [names[i + 1]]) for i in range(nodes)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("x", "y")]
    graph = helper.make_graph(chain, "chain", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class CountingSet(set[str]):
    """Counts the elements that were compared or copied."""

    work = 0

    def __contains__(self, element: object) -> bool:
        CountingSet.work += 1
        return super().__contains__(element)

    def __or__(self, other: Any) -> Any:
        CountingSet.work += len(self)
        return super().__or__(other)

    def __sub__(self, other: Any) -> Any:
        CountingSet.work += len(self)
        return super().__sub__(other)


def count_lines(work: Callable[[], object], part: str = "enginebench") -> int:
    """How many lines of the files with this part of a path run in `work`."""
    lines = 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count if part in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def count_set_work(nodes: int, monkeypatch) -> int:
    from enginebench.models.precision import cast

    found = cast.find_floats
    monkeypatch.setattr(cast, "find_floats", lambda graph: CountingSet(found(graph)))
    CountingSet.work = 0
    cast_to_fp16(make_chain(nodes), (), keep_io=True)
    monkeypatch.setattr(cast, "find_floats", found)
    return CountingSet.work


def test_twice_the_nodes_are_twice_the_lines():
    once, twice = (make_chain(nodes) for nodes in (200, 400))
    assert count_lines(lambda: cast_to_fp16(twice, (), True)) < 2.5 * count_lines(lambda: cast_to_fp16(once, (), True))


def test_twice_the_products_are_twice_the_lines_of_the_quantizer():
    """It would search all constants, and compare them one by one, for every node."""
    counts = []
    for products in (50, 100):
        model = make_products(products)
        ranges = {f"t{i}": TensorRange(low=-1.0, high=1.0) for i in range(products + 1)}
        counts.append(count_lines(lambda m=model, r=ranges: insert_quantizers(m, r, CPU), "quantization"))
    assert 0 < counts[1] < 2.5 * counts[0]


def make_products(products: int) -> onnx.ModelProto:
    """So many products with a constant of their own in a row."""
    floats, names = TensorProto.FLOAT, [f"t{i}" for i in range(products + 1)]
    nodes = [helper.make_node("MatMul", [a, f"{a}.w"], [b], a) for a, b in pairwise(names)]
    first, *inner, last = (helper.make_tensor_value_info(name, floats, [1, 4]) for name in names)
    weights = [helper.make_tensor(f"{name}.w", floats, [4, 4], [0.1] * 16) for name in names[:-1]]
    graph = helper.make_graph(nodes, "products", [first], [last], weights, value_info=inner)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_twice_the_nodes_are_twice_the_look_ups(monkeypatch):
    once, twice = (count_set_work(nodes, monkeypatch) for nodes in (200, 400))
    assert 0 < twice < 2.5 * once


def test_twice_the_scales_are_twice_the_look_ups(monkeypatch):
    """The names of all scales were gone through for each constant: minutes for a graph of 20,000 nodes."""
    monkeypatch.setattr(qdq, "set", CountingSet, raising=False)
    counts = []
    for pairs in (50, 100):
        nodes = [helper.make_node("QuantizeLinear", [f"t{i}", f"s{i}", f"z{i}"], [f"q{i}"]) for i in range(pairs)]
        scales = [helper.make_tensor(f"s{i}", TensorProto.FLOAT, [1], [0.5]) for i in range(pairs)]
        graph = helper.make_graph(nodes, "pairs", [], [], scales)
        model = helper.make_model(graph)
        CountingSet.work = 0
        qdq.write_scalars(model)
        counts.append(CountingSet.work)
        assert not any(tensor.dims for tensor in model.graph.initializer)
    assert 0 < counts[1] < 2.5 * counts[0]


def test_types_are_inferred_once_for_nodes_that_differ_in_names_alone(monkeypatch):
    chain, calls = make_chain(40), []
    # One that reads its input twice, and one with another attribute, are others.
    chain.graph.node[1].CopyFrom(helper.make_node("Add", ["t1", "t1"], ["t2"]))
    chain.graph.node[2].CopyFrom(helper.make_node("LeakyRelu", ["t2"], ["t3"], alpha=0.5))
    chain.graph.node[3].CopyFrom(helper.make_node("LeakyRelu", ["t3"], ["t4"], alpha=0.25))
    infer = onnx.shape_inference.infer_shapes
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", lambda *a, **k: (calls.append(a[0]), infer(*a, **k))[1])
    made, kept = cast_to_fp16(chain, (), keep_io=False)
    alone = [model.graph.node[0].op_type for model in calls if len(model.graph.node) == 1]
    assert sorted(alone) == ["Add", "LeakyRelu", "LeakyRelu", "Relu"]
    assert (len(made.graph.node), kept) == (40, [])
    assert {value.type.tensor_type.elem_type for value in made.graph.value_info} == {TensorProto.FLOAT16}


def test_every_node_gets_a_name_that_nothing_else_has():
    chain = make_chain(4)
    chain.graph.node[2].name = "Relu_2"
    name_nodes(chain)
    assert [node.name for node in chain.graph.node] == ["Relu_1", "Relu_3", "Relu_2", "Relu_4"]


def test_free_names_are_given_once():
    names = FreeNames({"a", "a_2", "b_1"})
    assert [names.take("a"), names.take("a"), names.take("b"), names.take("b")] == ["a_1", "a_3", "b", "b_2"]
