"""Our rules for quantized graphs against what the parser of TensorRT 8.6.0 said of the same graphs, on a GPU."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from onnx import ModelProto

from refusal_graphs import make_broken, make_left_to_parser, make_sound

DATA = Path(__file__).resolve().parents[3] / "data" / "tensorrt-8.6" / "parser-verdicts.json"
RECORDED: dict[str, dict[str, Any]] = json.loads(DATA.read_bytes())["graphs"]
GRAPHS = {
    **{f"sound/{name}": model for name, model in make_sound().items()},
    **{f"broken/{name}": model for name, (model, _) in make_broken().items()},
    **{f"left/{name}": model for name, (model, _) in make_left_to_parser().items()},
}


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
