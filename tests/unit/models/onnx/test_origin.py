"""What a graph tells of its precision and origin, in its metadata and by its types."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from enginebench.core.errors import ParseError
from enginebench.models.onnx.source import read_onnx
from enginebench.models.zoo import DATA_DIR

FILES = sorted(DATA_DIR.glob("*.onnx"))


def test_what_a_graph_says_of_itself_is_read(tmp_path: Path) -> None:
    hash_ = "a" * 64
    model = onnx.load(FILES[0])
    node = model.graph.node.add(op_type="DequantizeLinear", output=["unused"])
    node.input.extend(["unused_too", "scale"])
    caveats = '[{"code":"random_calibration","message":"m"}]'
    for label, recipe in (("int8@cpu", "cpu"), ("fp8@tensorrt", "qat"), ("int8@weak", "qat"), ("ä", "qat")):
        entries = {"precision": label, "preprocess_sha256": hash_, "caveats": caveats}
        onnx.helper.set_model_props(model, {f"enginebench.{key}": value for key, value in entries.items()})
        path = tmp_path / "q.onnx"
        onnx.save(model, path)
        full = read_onnx(path)
        assert (full.precision, full.recipe, full.preprocess_sha256) == ("int8", recipe, hash_)
        assert [c.code for c in full.caveats] == ["random_calibration"]


def test_doubts_that_cannot_be_read_are_not_dropped(tmp_path: Path) -> None:
    model = onnx.load(FILES[0])
    entries = {"enginebench.caveats": "[{", "enginebench.preprocess_sha256": "\x1b[31mred"}
    onnx.helper.set_model_props(model, entries)
    onnx.save(model, tmp_path / "q.onnx")
    with pytest.raises(ParseError, match=r"enginebench\.caveats"):
        read_onnx(tmp_path / "q.onnx")
    onnx.helper.set_model_props(model, entries | {"enginebench.caveats": "[]"})
    onnx.save(model, tmp_path / "q.onnx")
    assert read_onnx(tmp_path / "q.onnx").preprocess_sha256 is None, "what is no hash is none"


def test_a_graph_without_weights_has_the_precision_of_its_inputs(tmp_path: Path) -> None:
    for kind, other, precision in ((10, 10, "fp16"), (16, 7, "bf16"), (1, 10, "fp32"), (7, 7, "fp32"), (7, 10, "fp16")):
        values = [helper.make_tensor_value_info(name, t, [2]) for name, t in (("x", kind), ("y", other))]
        graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", values[:1], values[1:])
        path = tmp_path / "g.onnx"
        onnx.save(helper.make_model(graph), path)
        assert read_onnx(path).precision == precision, (kind, other)


def test_a_graph_in_fp64_is_doubted(tmp_path: Path) -> None:
    def is_doubted(weight: int, size: int, end: int) -> bool:
        values = [helper.make_tensor_value_info(name, end, [size]) for name in ("x", "y")]
        weights = [helper.make_tensor("w", weight, [size], [1.0] * size)] if size else []
        graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", values[:1], values[1:], weights)
        path = tmp_path / "g.onnx"
        onnx.save(helper.make_model(graph), path)
        full = read_onnx(path)
        assert full.precision == "fp32"
        return [caveat.code for caveat in full.caveats] == ["double_precision"]

    double, single = TensorProto.DOUBLE, TensorProto.FLOAT
    assert is_doubted(double, 4, double) and is_doubted(double, 4, single) and is_doubted(single, 0, double)
    assert not is_doubted(single, 4, double) and not is_doubted(double, 1, single)
    assert not is_doubted(single, 4, single) and not is_doubted(single, 0, TensorProto.INT64)


def test_weights_of_few_bits_are_doubted(tmp_path: Path) -> None:
    """As ONNX Runtime's own quantizer writes them: two weights to a byte, a scale for each block."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 32]) for name in ("x", "y")]
    node = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", K=32, N=32, bits=4, block_size=32
    )
    packed = helper.make_tensor("w", TensorProto.UINT8, [32, 1, 16], [0x88] * 512)
    scales = helper.make_tensor("s", TensorProto.FLOAT, [32], [1.0] * 32)
    graph = helper.make_graph([node], "g", values[:1], values[1:], [packed, scales])
    path = tmp_path / "g.onnx"
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    full = read_onnx(path)
    assert full.precision == "fp32"
    (doubt,) = full.caveats
    assert (doubt.code, doubt.figures) == ("packed_weights", {"operators": "MatMulNBits", "precision": "fp32"})


@pytest.mark.parametrize(
    ("named", "precision"), [("fp16", "fp16"), ("bf16", "bf16"), ("int8@cpu", "fp32"), ("", "fp32")]
)
def test_a_graph_that_does_not_tell_is_what_its_file_says(tmp_path: Path, named: str, precision: str) -> None:
    """A cast graph keeps inputs and outputs in FP32, and may have no weights."""
    path = tmp_path / "g.onnx"
    for kind, weights, found in (
        (TensorProto.FLOAT, [], precision),
        (TensorProto.FLOAT16, [], "fp16"),
        (TensorProto.FLOAT, [helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])], "fp32"),
    ):
        values = [helper.make_tensor_value_info(name, kind, [2]) for name in ("x", "y")]
        graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", values[:1], values[1:], weights)
        model = helper.make_model(graph)
        helper.set_model_props(model, {"enginebench.precision": named})
        onnx.save(model, path)
        assert read_onnx(path).precision == found
