"""The work on a graph grows with its nodes, not with their square."""

import sys
from types import FrameType
from typing import Any

import onnx
from onnx import TensorProto, helper

from enginebench.models.precision.cast import cast_to_fp16
from enginebench.models.precision.graph import FreeNames, name_nodes


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


def count_lines(nodes: int) -> int:
    """How many lines of ours ran to name the nodes of a chain and to cast it."""
    chain, lines = make_chain(nodes), 0

    def count(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count if "enginebench" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(count)
    try:
        cast_to_fp16(chain, (), keep_io=True)
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
    assert count_lines(400) < 2.5 * count_lines(200)


def test_twice_the_nodes_are_twice_the_look_ups(monkeypatch):
    once, twice = (count_set_work(nodes, monkeypatch) for nodes in (200, 400))
    assert 0 < twice < 2.5 * once


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
