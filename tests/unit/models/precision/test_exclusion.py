"""Nodes left out of a precision by name, which every recipe keeps in FP32, and products counted by operator."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.names import configuration_id, format_precision, name_mix
from enginebench.core.records import EngineSpec, MeasureSpec
from enginebench.models.onnx.source import read_onnx
from enginebench.models.precision.calibrate import calibrate
from enginebench.models.precision.calibration_data import open_arrays, open_data
from enginebench.models.precision.exclusion import (
    find_homes,
    find_originals,
    read_exclusion,
    resolve_exclusion,
    write_exclusion,
)
from enginebench.models.precision.graph import load_whole_graph, prepare_graph
from enginebench.models.precision.macs import count_macs, list_quantized_products, measure_coverage
from enginebench.models.precision.quantize import quantize
from enginebench.models.zoo import BUILTIN, packaged_onnx
from graphs import build_graph, build_residual, save

FIRST, LAST = "node_Conv_51", "node_linear_1"


@pytest.fixture(scope="module")
def digits():
    """(artifact, calibration, data) of the small CNN."""
    artifact = replace(read_onnx(packaged_onnx("digits-cnn")), model="digits-cnn", weights="trained")
    data = open_data("digits", model="digits-cnn", inputs=artifact.inputs, n=64)
    artifact = replace(artifact, preprocess_sha256=data.preprocess_sha256)
    return artifact, calibrate(artifact, data, threads=1), data


def test_the_file_says_what_was_excluded_and_is_read_back_with_it(digits, tmp_path):
    artifact, calibration, _ = digits
    path = tmp_path / "mixed.onnx"
    made = quantize(artifact, "int8", "cpu", path, calibration=calibration, exclude=(FIRST, LAST))
    assert made.excluded == (FIRST, LAST) == read_onnx(path).excluded
    told = next(c for c in made.warnings if c.code == "kept_fp32")
    assert told.message == f"nodes that stay in FP32, as they are excluded: 2 ({FIRST}, {LAST})"
    again = quantize(read_onnx(path), "int8", "cpu", tmp_path / "again.onnx")
    assert again.excluded == made.excluded and again.warnings == made.warnings
    with pytest.raises(UsageError, match="holds Q/DQ nodes already, which --exclude cannot take away"):
        quantize(read_onnx(path), "int8", "cpu", tmp_path / "again.onnx", exclude=(FIRST,))


def test_an_unknown_name_is_refused_with_near_ones_and_nothing_is_written(digits, tmp_path):
    artifact, calibration, _ = digits
    with pytest.raises(UsageError, match=r"1 of the graph's nodes.*'node_Conv_5' \(near: node_Conv_5\d, "):
        quantize(artifact, "int8", "cpu", tmp_path / "q.onnx", calibration=calibration, exclude=(FIRST, "node_Conv_5"))
    assert not (tmp_path / "q.onnx").exists()


def test_excluding_every_product_leaves_nothing_to_be_called_int8(digits, tmp_path):
    artifact, calibration, _ = digits
    nodes = [node.name for node in onnx.load(artifact.path).graph.node]
    with pytest.raises(ArtifactError, match=r"nothing in .* could be quantized"):
        quantize(artifact, "int8", "cpu", tmp_path / "q.onnx", calibration=calibration, exclude=nodes)


def test_a_node_that_was_folded_is_found_where_its_work_went(tmp_path):
    """Conv and BatchNorm become one node; who names the BatchNorm means it."""
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        **{name: np.full(4, 0.5, np.float32) for name in ("scale", "shift", "mean", "var")},
    }
    nodes = "[conv] c = Conv (x, w) [norm] b = BatchNormalization (c, scale, shift, mean, var) [relu] y = Relu (b)"
    path = save(build_graph(nodes, constants, ("batch", 3, 8, 8), ("batch", 4, 6, 6)), tmp_path / "f.onnx")
    given = load_whole_graph(path)
    prepared = prepare_graph(given)
    (conv,) = [node.name for node in prepared.graph.node if node.op_type == "Conv"]
    assert find_homes(given, prepared) == {"conv": conv, "norm": conv, "relu": "relu"}
    assert resolve_exclusion(("norm", "conv"), given, prepared) == (conv,)
    assert set(find_originals(given, prepared)[conv]) in ({"conv"}, {"conv", "norm"})


def test_a_list_is_written_and_read(tmp_path):
    path = tmp_path / "exclude.txt"
    write_exclusion(path, ("a", "b/c"), ("made by a test",))
    assert path.read_text() == "# made by a test\na\nb/c\n" and read_exclusion(path) == ("a", "b/c")
    path.write_text("\n # a remark\n  a \n")
    assert read_exclusion(path) == ("a",)


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"# nothing\n", UsageError, "names no node"),
        (b"a\nb\na\n", UsageError, "names 'a' twice"),
        (b"\xff\xfe", ArtifactError, "is not text"),
        (None, ArtifactError, "cannot be read: No such file"),
    ],
)
def test_a_bad_list_is_refused(tmp_path, content, error, message):
    if content is not None:
        (tmp_path / "list").write_bytes(content)
    with pytest.raises(error, match=message):
        read_exclusion(tmp_path / "list")


def test_the_order_of_a_list_does_not_make_another_configuration():
    assert name_mix(("a", "b")) == name_mix(("b", "a")) != name_mix(("a",)) and name_mix(()) == ""
    spec = EngineSpec(backend="ort", precision="int8", recipe="cpu", mix="1a2b3c4d")
    assert format_precision(spec.precision, spec.recipe, spec.mix) == "int8@cpu mix 1a2b3c4d"
    assert "int8.cpu-mix-1a2b3c4d" in configuration_id(spec, "int8", MeasureSpec())
    assert configuration_id(EngineSpec(backend="trtexec"), None, MeasureSpec()).startswith("trtexec-as-built-b1-")


def test_an_excluded_node_reads_floats_where_there_are_any(tmp_path):
    """The first convolution and the sum stay in FP32, the second convolution reads the same tensor in 8 bits."""
    artifact = read_onnx(save(build_residual(), tmp_path / "residual.onnx"))
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((16, 3, 8, 8), dtype=np.float32))
    data = open_arrays(tmp_path / "x.npy", artifact.inputs, 16)
    calibration = calibrate(artifact, data, threads=1)
    given = load_whole_graph(Path(artifact.path))
    (total,) = [node for node in given.graph.node if node.op_type == "Add"]
    makers = {name: node for node in given.graph.node for name in node.output}
    skipping = next(name for name in total.input if makers[name].op_type != "Conv")
    before = [total.name, makers[skipping].name, makers[makers[skipping].input[0]].name]
    path = tmp_path / "mixed.onnx"
    quantize(artifact, "int8", "cpu", path, calibration=calibration, exclude=before)
    made = {node.name: node for node in onnx.load(path).graph.node}
    assert skipping in made[total.name].input
    assert any(node.op_type == "QuantizeLinear" and node.input[0] == skipping for node in made.values())


@pytest.mark.parametrize("name", ["digits-cnn", "digits-mlp"])
def test_counts_what_the_card_says(name):
    assert sum(count_macs(onnx.load(packaged_onnx(name))).values()) == BUILTIN[name].multiply_adds


@pytest.mark.parametrize(
    ("op", "weight", "shape", "out", "attributes", "expected"),
    [
        ("Conv", (6, 2, 3, 3), [1, 4, 5, 5], [1, 6, 3, 3], "<group = 2>", 6 * 9 * 2 * 9),
        ("ConvTranspose", (4, 6, 2, 2), [1, 4, 5, 5], [1, 6, 6, 6], "", 4 * 25 * 6 * 4),
        ("Gemm", (3, 6), [3, 2], [2, 6], "<transA = 1>", 2 * 6 * 3),
        ("MatMul", (4, 6), ["batch", 7, 4], ["batch", 7, 6], "", 7 * 6 * 4),
        ("Add", (4,), [2, 4], [2, 4], "", 0),
    ],
)
def test_counts_by_operator(op, weight, shape, out, attributes, expected):
    model = build_graph(f"y = {op} {attributes} (x, w)", {"w": np.ones(weight, np.float32)}, shape, out)
    assert sum(count_macs(model).values()) == expected


MOVERS = {
    "Pad": (["pads"], ""),
    "MaxPool": ([], "<kernel_shape = [1, 1]>"),
    "Reshape": (["shape"], ""),
    "DepthToSpace": ([], "<blocksize = 1>"),
    "SpaceToDepth": ([], "<blocksize = 1>"),
    "Expand": (["shape"], ""),
    "Tile": (["repeats"], ""),
    "Dropout": ([], ""),
    "Cast": ([], "<to = 1>"),
    "Resize": (["", "repeats_f"], '<mode = "nearest">'),
    "Resize that blends": (["", "repeats_f"], '<mode = "linear">'),
}


@pytest.mark.parametrize("op", MOVERS)
def test_coverage_looks_through_what_only_moves_or_selects_values(op):
    """NNCF puts Q/DQ in front of such operators, and engines carry the 8 bits through them."""
    more, attributes = MOVERS[op]
    nodes = f"""
        q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)
        m = {op.partition(" ")[0]} {attributes} ({", ".join(["d", *more])})
        dw = DequantizeLinear (w, s, z) [conv] y = Conv (m, dw)
    """
    constants = {
        "s": np.float32(0.1),
        "z": np.int8(0),
        "w": np.ones((4, 2, 1, 1), np.int8),
        "pads": np.zeros(8, np.int64),
        "shape": np.array([1, 2, 6, 6]),
        "repeats": np.ones(4, np.int64),
        "repeats_f": np.ones(4, np.float32),
    }
    model = build_graph(nodes, constants, [1, 2, 6, 6], [1, 4, 6, 6])
    moves = "blends" not in op
    assert measure_coverage(model) == moves and list_quantized_products(model) == ["conv"] * moves
