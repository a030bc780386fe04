"""The rules for quantized graphs that every TensorRT has, by their nodes; what the parser of 8.6.0 said, on a GPU."""

import hashlib
import json
from typing import Any

import pytest
from onnx import ModelProto

from enginebench.models.precision.tensorrt_check import find_refusals
from processes import ROOT
from refusal_graphs import Pair, in_branch, in_function, make_broken, make_left_to_parser, make_sound

SOUND, BROKEN, LEFT = make_sound(), make_broken(), make_left_to_parser()
DATA = ROOT / "tests" / "data" / "tensorrt-8.6" / "parser-verdicts.json"
RECORDED: dict[str, dict[str, Any]] = json.loads(DATA.read_bytes())["graphs"]
GRAPHS = {
    **{f"sound/{name}": model for name, model in SOUND.items()},
    **{f"broken/{name}": model for name, (model, _) in BROKEN.items()},
    **{f"left/{name}": model for name, (model, _) in LEFT.items()},
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_graph_has_no_refusals(name: str) -> None:
    assert find_refusals(SOUND[name]) == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_told(name: str) -> None:
    model, words = BROKEN[name]
    assert any(words in refusal.reason for refusal in find_refusals(model))


@pytest.mark.parametrize("name", LEFT)
def test_what_the_parser_says_is_left_to_it(name: str) -> None:
    assert find_refusals(LEFT[name][0]) == []


def list_nodes(name: str) -> list[str]:
    return [refusal.node for refusal in find_refusals(BROKEN[name][0])]


def test_every_node_that_breaks_a_rule_is_named_and_no_other() -> None:
    assert list_nodes("zero point 3") == list_nodes("scale is computed") == ["x_Q", "x_D"]
    assert list_nodes("no zero point") == ["x_Q", "w_Q"]
    assert list_nodes("bias int32") == list_nodes("bias int32 without zero point") == ["b_D"]
    assert list_nodes("dynamic") == ["dynamic", "product"] and list_nodes("QLinearMatMul") == ["product"]


def test_graphs_are_found_where_they_lie() -> None:
    """The node of a branch and of a function is named, so that it can be found."""
    assert [refusal.node for refusal in find_refusals(in_branch(Pair(zero=3)))] == ["x_Q", "x_D"]
    first, second = find_refusals(in_function(Pair(zero=3)))
    assert "inner_Q" in first.node and "inner_D" in second.node


def hash_graph(model: ModelProto) -> str:
    """SHA-256 of a graph without the names of itself and its producer."""
    bare = ModelProto.FromString(model.SerializeToString())
    bare.ClearField("producer_name")
    bare.graph.ClearField("name")
    return hashlib.sha256(bare.SerializeToString()).hexdigest()


@pytest.mark.parametrize("name", RECORDED)
def test_the_verdict_is_that_of_this_graph(name: str) -> None:
    assert hash_graph(GRAPHS[name]) == RECORDED[name]["sha256"], "another graph: ask the parser of 8.6 again"


def test_what_breaks_a_rule_is_refused_by_the_library_too() -> None:
    asked = {name: said["verdict"] for name, said in RECORDED.items() if not name.startswith("sound/")}
    assert len(asked) == 17
    assert set(asked.values()) == {"refused"}


def test_int8_products_of_one_type_are_taken() -> None:
    """But for Conv, whose kernel 8.6 wants as a constant of four axes, and types that came later than 8.6."""
    taken = {name for name, said in RECORDED.items() if said["verdict"] == "taken"}
    forms = ("one scale", "by channel", "stored, by channel")
    products = ("Gemm", "Gemm transB", "MatMul")
    assert {f"sound/{product}: {form}" for product in products for form in forms} <= taken
    assert not any("FP8" in name or "int4" in name for name in taken)
