import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from enginebench.core.errors import ArtifactError, EngineBenchError, ParseError
from enginebench.core.records import Artifact, TensorSpec
from enginebench.core.store import hash_file, refuse_pointer
from enginebench.models.onnx import source as onnx_source
from enginebench.models.onnx.source import read_onnx, read_packaged_onnx, read_precision
from enginebench.models.zoo import DATA_DIR

WEIGHTS = np.arange(12, dtype=np.float32).reshape(3, 4)


def _value(name: str, shape: list[Any] | None, elem: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem, shape)


def _make_model(
    nodes: list[onnx.NodeProto] | None = None,
    inputs: list[onnx.ValueInfoProto] | None = None,
    outputs: list[onnx.ValueInfoProto] | None = None,
    initializers: list[onnx.TensorProto] | None = None,
    **said: str,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes or [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        inputs or [_value("x", ["batch", 3])],
        outputs or [_value("y", ["batch", 4])],
        initializers if initializers is not None else [numpy_helper.from_array(WEIGHTS, "w")],
    )
    opsets = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, producer_name="tests", producer_version="1.2", opset_imports=opsets)
    helper.set_model_props(model, {f"enginebench.{key}": value for key, value in said.items()})
    return model


def _save(model: onnx.ModelProto, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def _save_external(path: Path, **entries: str) -> Path:
    """A model whose weights are said to lie where `entries` say."""
    model = _make_model()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return _save(model, path)


def test_a_small_file_is_described(tmp_path: Path) -> None:
    path = _save(_make_model(), tmp_path / "ein Modell ü.onnx")
    artifact = read_onnx(path)
    assert artifact.inputs == (TensorSpec(name="x", dtype="float32", shape=("batch", 3)),)
    assert artifact.outputs == (TensorSpec(name="y", dtype="float32", shape=("batch", 4)),)
    assert (artifact.kind, artifact.model, artifact.path) == ("onnx", str(path), str(path))
    assert (artifact.precision, artifact.recipe, artifact.weights, artifact.opset) == ("fp32", None, "in-graph", 20)
    assert artifact.sha256 == hash_file(path)
    assert artifact.made_by == {"tests": "1.2"}


def test_initializers_are_no_inputs_and_axes_without_names_get_some(tmp_path: Path) -> None:
    inputs = [_value("x", [None, -1, 3, 0]), _value("w", [3, 4]), _value("ids", [], TensorProto.INT64)]
    artifact = read_onnx(_save(_make_model(inputs=inputs), tmp_path / "a.onnx"))
    assert [(s.name, s.shape) for s in artifact.inputs] == [("x", ("batch", "x_axis1", 3, "x_axis3")), ("ids", ())]
    assert artifact.inputs[1].dtype == "int64"


def test_outputs_of_unknown_rank_are_allowed(tmp_path: Path) -> None:
    artifact = read_onnx(_save(_make_model(outputs=[_value("y", None)]), tmp_path / "a.onnx"))
    assert artifact.outputs[0].shape == ("unknown_rank",)


def _chain(*ends: str) -> list[onnx.NodeProto]:
    return [helper.make_node("Relu", [name], [made]) for name, made in ends]


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"inputs": [_value("x", None)]}, ArtifactError, "input 'x': no shape"),
        (
            {"inputs": [helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [3])]},
            *(ArtifactError, "sequence type; expected a tensor"),
        ),
        ({"inputs": [_value("x", [3], 99)]}, ParseError, "element type 99"),
        ({"outputs": [_value("z", [1])]}, ParseError, "output 'z'"),  # from nowhere
        ({"nodes": _chain("yb", "by")}, ParseError, "computed from itself; expected a graph without a cycle"),
        ({"nodes": _chain("by", "yb")}, ParseError, "computed from itself; expected a graph without a cycle"),
    ],
)
def test_graphs_that_no_engine_takes_are_refused(tmp_path: Path, changes, error, words) -> None:
    with pytest.raises(error, match=words):
        read_onnx(_save(_make_model(**changes), tmp_path / "a.onnx"))


@pytest.mark.parametrize("order", ["ax ba yb", "ba ax yb", "yb ba ax"])
def test_a_graph_without_a_cycle_is_read_in_any_order(tmp_path: Path, order: str) -> None:
    nodes = [helper.make_node("Relu", [name], [made]) for made, name in order.split()]
    assert read_onnx(_save(_make_model(nodes=nodes), tmp_path / "a.onnx")).outputs[0].name == "y"


@pytest.mark.parametrize(("dtype", "precision"), [(np.float32, "fp32"), (np.float16, "fp16"), (np.int64, "fp32")])
def test_precision_is_that_of_most_weights(dtype: type, precision: str) -> None:
    model = _make_model(
        initializers=[
            numpy_helper.from_array(WEIGHTS.astype(dtype), "w"),
            numpy_helper.from_array(np.float32([1.0]), "small"),
        ]
    )
    assert read_precision(model) == (precision, None)


def test_constants_and_subgraphs_count() -> None:
    constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(WEIGHTS.astype(np.float16)))
    branch = helper.make_graph([constant], "then", [], [_value("w", None)])
    node = helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)
    assert read_precision(_make_model([node], initializers=[])) == ("fp16", None)


def test_quantized_graphs_are_int8_or_fp8() -> None:
    def quantized(zero: onnx.TensorProto) -> onnx.ModelProto:
        scale = numpy_helper.from_array(np.float32(0.1), "s")
        nodes = [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        ]
        return _make_model(nodes, initializers=[scale, zero])

    assert read_precision(quantized(numpy_helper.from_array(np.int8(0), "z"))) == ("int8", "qat")
    float8 = helper.make_tensor("z", TensorProto.FLOAT8E4M3FN, [], [0.0])
    assert read_precision(quantized(float8)) == ("fp8", "qat")


def test_external_data_is_hashed_with_the_graph(tmp_path: Path) -> None:
    path = tmp_path / "modèle" / "big.onnx"
    path.parent.mkdir()
    onnx.save(_make_model(), path, save_as_external_data=True, location="big weights.bin", size_threshold=0)
    artifact = read_onnx(path)
    assert [f.path for f in artifact.files] == ["big.onnx", "big weights.bin"]
    data = path.parent / "big weights.bin"
    assert artifact.files[1].sha256 == hash_file(data)
    before = artifact.sha256
    data.write_bytes(data.read_bytes()[:-1] + b"\x01")
    assert read_onnx(path).sha256 != before


@pytest.mark.parametrize(
    ("entries", "error", "expected"),
    [
        ({"location": "gone.bin"}, ArtifactError, "gone.bin is missing"),
        ({"location": "../outside.bin"}, ArtifactError, "outside the model's folder"),
        ({"location": "below/../../outside.bin"}, ArtifactError, "outside the model's folder"),
        ({"location": "/etc/passwd"}, ArtifactError, "outside the model's folder"),
        ({"location": "C:\\data.bin"}, ArtifactError, "outside the model's folder"),
        ({"location": "..\\outside.bin"}, ArtifactError, "outside the model's folder"),
        ({"location": "link.bin"}, ArtifactError, "outside the model's folder"),
        ({"location": "loop.bin"}, ArtifactError, "cannot be accessed"),
        ({"location": "n" * 300}, ArtifactError, "cannot be accessed"),
        ({"location": "short.bin"}, ArtifactError, "has 8 bytes; expected at least 48"),
        ({"location": "short.bin", "offset": "4", "length": "8"}, ArtifactError, "expected at least 12"),
        ({"location": "short.bin", "offset": "-1"}, ParseError, "a file and a range"),
        ({"location": "short.bin", "length": "many"}, ParseError, "numbers for offset and length"),
        ({"location": ""}, ParseError, "a file and a range"),
        ({}, ParseError, "a file and a range"),
    ],
)
def test_hostile_or_broken_external_data(entries, error, expected, tmp_path) -> None:
    (tmp_path / "outside.bin").write_bytes(bytes(100))
    path = _save_external(tmp_path / "model" / "m.onnx", **entries)
    (path.parent / "short.bin").write_bytes(bytes(8))
    (path.parent / "link.bin").symlink_to(tmp_path / "outside.bin")
    (path.parent / "loop.bin").symlink_to(path.parent / "loop.bin")
    with pytest.raises(error, match=expected) as caught:
        read_onnx(path)
    assert caught.value.exit_code == 5


def test_files_that_are_no_models(tmp_path: Path) -> None:
    whole = Path(DATA_DIR / "digits-cnn.onnx").read_bytes()
    for name, data in {
        "empty": b"",
        "text": b"hello, this is no model at all\n",
        "zip": b"PK\x03\x04" + bytes(100),
        "cut": whole[: len(whole) // 2],
        "no end": whole[:-1],
        "zeros": bytes(4096),
        "no operator set": b"\x08\x0a",
    }.items():
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(data)
        with pytest.raises(ParseError) as caught:
            read_onnx(path)
        assert str(path) in str(caught.value) and caught.value.exit_code == 5


def test_missing_and_huge_files_folders_and_pipes(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be read: No such file"):
        read_onnx(tmp_path / "gone.onnx")
    with pytest.raises(ArtifactError, match="not a regular file"):
        read_onnx(tmp_path)
    os.mkfifo(tmp_path / "pipe.onnx")  # reading it would wait for ever
    with pytest.raises(ArtifactError, match="not a regular file"):
        read_onnx(tmp_path / "pipe.onnx")
    refuse_pointer(tmp_path / "pipe.onnx")
    path = tmp_path / "huge.onnx"  # too large for protobuf
    with path.open("wb") as file:
        file.truncate(onnx_source.LARGEST_PROTOBUF_BYTES + 1)  # sparse: takes no space
    with pytest.raises(ParseError, match="at most 2 GiB"):
        read_onnx(path)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "m.onnx"


@settings(max_examples=150)
@given(position=st.integers(0, 20_000), value=st.integers(0, 255), length=st.integers(0, 20_000))
def test_damaged_files_give_our_errors_or_an_artifact(damaged: Path, position: int, value: int, length: int) -> None:
    """Whatever is wrong with the bytes, no other exception comes out."""
    data = bytearray((DATA_DIR / "digits-mlp.onnx").read_bytes())
    data[position % len(data)] = value
    damaged.write_bytes(data[: length or None])
    try:
        read_onnx(damaged)
    except EngineBenchError as error:
        assert error.exit_code == 5


def test_names_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    for found, put in ((b"batch", b"b\xfftch"), (b"tests", b"t\xffsts")):
        path.write_bytes(_make_model().SerializeToString().replace(found, put))
        with pytest.raises(ParseError, match="not UTF-8"):
            read_onnx(path)


def test_only_packaged_models_ship_as_onnx() -> None:
    assert read_packaged_onnx("digits-mlp").inputs[0].shape == ("batch", 64)
    with pytest.raises(ArtifactError, match="does not ship as ONNX"):
        read_packaged_onnx("resnet18")


def test_warnings_that_cannot_be_read_are_not_dropped(tmp_path: Path) -> None:
    said = {"caveats": "[{", "preprocess_sha256": "\x1b[31mred"}
    with pytest.raises(ParseError, match=r"enginebench\.caveats"):
        read_onnx(_save(_make_model(**said), tmp_path / "q.onnx"))
    path = _save(_make_model(**said | {"caveats": "[]"}), tmp_path / "q.onnx")
    assert read_onnx(path).preprocess_sha256 is None, "what is no hash is none"


def _read_single(
    folder: Path, op: str, kinds: tuple[int, int], weights: list[onnx.TensorProto], **said: str
) -> Artifact:
    """A graph of one node, its input and its output of these types."""
    ends = [[_value(name, [4], kind)] for name, kind in zip("xy", kinds, strict=True)]
    return read_onnx(
        _save(_make_model([helper.make_node(op, ["x"], ["y"])], *ends, weights, **said), folder / "g.onnx")
    )


def test_a_graph_without_weights_has_the_precision_of_its_inputs(tmp_path: Path) -> None:
    for kind, other, precision in ((10, 10, "fp16"), (16, 7, "bf16"), (1, 10, "fp32"), (7, 7, "fp32"), (7, 10, "fp16")):
        assert _read_single(tmp_path, "Identity", (kind, other), []).precision == precision, (kind, other)


def test_a_graph_in_fp64_is_warned_about(tmp_path: Path) -> None:
    def has_warning(weight: int, size: int, end: int) -> bool:
        weights = [helper.make_tensor("w", weight, [size], [1.0] * size)] if size else []
        full = _read_single(tmp_path, "Neg", (end, end), weights)
        assert full.precision == "fp32"
        return [warning.code for warning in full.warnings] == ["unnamed_precision"]

    double, single = TensorProto.DOUBLE, TensorProto.FLOAT
    assert has_warning(double, 4, double) and has_warning(double, 4, single) and has_warning(single, 0, double)
    assert not has_warning(single, 4, double) and not has_warning(double, 1, single)
    assert not has_warning(single, 4, single) and not has_warning(single, 0, TensorProto.INT64)


def test_weights_of_few_bits_are_warned_about(tmp_path: Path) -> None:
    """As ONNX Runtime's own quantizer writes them: two weights to a byte, a scale for each block."""
    sizes = {"K": 32, "N": 32, "bits": 4, "block_size": 32}
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **sizes)
    packed = helper.make_tensor("w", TensorProto.UINT8, [32, 1, 16], [0x88] * 512)
    scales = helper.make_tensor("s", TensorProto.FLOAT, [32], [1.0] * 32)
    model = _make_model([node], [_value("x", [1, 32])], [_value("y", [1, 32])], [packed, scales])
    full = read_onnx(_save(model, tmp_path / "g.onnx"))
    assert full.precision == "fp32"
    (warning,) = full.warnings
    assert warning.code == "unnamed_precision" and warning.figures["precision"] == "fp32"
    assert warning.message.startswith("MatMulNBits read weight-only quantized weights")


@pytest.mark.parametrize(
    ("named", "precision"), [("fp16", "fp16"), ("bf16", "bf16"), ("int8@cpu", "fp32"), ("", "fp32")]
)
def test_a_graph_that_does_not_tell_is_what_its_file_says(tmp_path: Path, named: str, precision: str) -> None:
    """A cast graph keeps inputs and outputs in FP32, and may have no weights."""
    for kind, weights, found in (
        (TensorProto.FLOAT, [], precision),
        (TensorProto.FLOAT16, [], "fp16"),
        (TensorProto.FLOAT, [helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])], "fp32"),
    ):
        assert _read_single(tmp_path, "Neg", (kind, kind), weights, precision=named).precision == found
