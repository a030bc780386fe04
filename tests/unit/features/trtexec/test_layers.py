"""Engine layers: types, precisions, operators, times; and two engines against each other."""

import json
from pathlib import Path

import pytest

import trtexec_artifacts as made
from enginebench.core.errors import ParseError
from enginebench.stats.layer_diff import compare_layers, number_operators
from enginebench.stats.layer_records import LayersDocument, read_layer_metadata, split_name, strip_reformat
from enginebench.stats.plans.layers import read_dtype, read_engine_document, summarize_inspection
from enginebench.stats.plans.profile import read_profile, summarize_profile

FILE = Path("layers.json")


def summarize(data: bytes | str, profile: bytes | None = None) -> LayersDocument:
    text = data.decode() if isinstance(data, bytes) else data
    timed = summarize_profile(read_profile(profile.decode(), FILE), FILE) if profile else None
    return summarize_inspection(read_engine_document(text, FILE), FILE, timed)


def test_names_only_with_the_default_verbosity_and_what_11_calls_the_bindings() -> None:
    document = summarize(made.make_layers(detailed=False))
    assert document.layers[0].type is None and document.layers[0].onnx_nodes == ("/stem/Conv", "/stem/Relu")
    assert "profilingVerbosity" in document.notes[0]
    assert [tensor.mode for tensor in document.io] == [None, None]
    document = summarize(made.make_layers(version=11, detailed=False))
    assert [(t.name, t.shape) for t in document.io] == [("input", (1, 3, 8, 8)), ("logits", (1, 1000))]


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("Row major linear FP32", "fp32"),
        ("Channel major FP16 format where channel % 8 == 0", "fp16"),
        ("Thirty-two wide channel vectorized row major Int8 format", "int8"),
        ("Half", "fp16"),
        ("Float", "fp32"),
        ("Row major linear BF16 format", "bf16"),
        ("Row major linear FP8 format", "fp8"),
        ("Int64", "int64"),
        ("Bool", "bool"),
        ("N/A due to dynamic shapes", None),
        (None, None),
    ],
)
def test_data_types_of_all_inspectors(text: str | None, dtype: str | None) -> None:
    assert read_dtype(text) == dtype


def test_precision_is_that_of_the_weights() -> None:
    layer = made.describe_layer("/c/Conv", "x", "y") | {"Weights": {"Type": "Int8", "Count": 864}}
    document = summarize(json.dumps({"Layers": [layer]}))
    assert (document.layers[0].precision, document.layers[0].precision_in) == ("int8", "fp32")
    layer["Weights"] = {"Type": "Float", "Count": 0}
    layer["Inputs"] = []
    assert summarize(json.dumps({"Layers": [layer]})).layers[0].precision == "fp16"


TF32_KERNEL = "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8"
HALF_KERNEL = "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x32_stage4_warpsize2x2x1_tensor16x8x16"


@pytest.mark.parametrize(
    ("kind", "tactic", "source", "precision"),
    [
        ("CaskConvolution", TF32_KERNEL, "Row major linear FP32", "tf32"),
        ("CaskConvolution", made.FP32_KERNEL, "Row major linear FP32", "fp32"),
        # A product in FP32 whose kernel has no name, or one that says nothing, may be a TF32 one.
        ("CaskConvolution", "something_new", "Row major linear FP32", None),
        ("CaskConvolution", None, "Row major linear FP32", None),
        ("gemm", None, "Row major linear FP32", None),
        ("Matrix Multiply", "0x0000000000000001", "Float", None),
        ("PluginV2", None, "Row major linear FP32", None),
        # Other layers multiply nothing that a matrix unit could shorten.
        ("CudaPooling", None, "Row major linear FP32", "fp32"),
        ("Cast", None, "Row major linear FP32", "fp32"),
        ("SoftMax", "something_new", "Row major linear FP32", "fp32"),
        # What lies in fewer bits is multiplied so, and kernels name other types beside it.
        ("CaskConvolution", "turing_fp16_i8816cudnn_int8_128x128_ldg16_relu_small_nt_v1", "Int8", "int8"),
        ("CaskConvolution", "turing_fp32_i8816cudnn_int8_128x128_ldg16_relu_small_nt_v1", "Int8", "int8"),
        ("CaskConvolution", "turing_fp16_s1688cudnn_fp16_128x128_ldg8_relu", "Half", "fp16"),
        ("CaskConvolution", None, "Half", "fp16"),
        ("CaskConvolution", "something_new", "N/A due to dynamic shapes", None),
        ("CaskConvolution", HALF_KERNEL, "Row major linear FP32", "fp16"),
    ],
)
def test_the_kernel_says_what_became_of_fp32(kind: str, tactic: str | None, source: str, precision: str | None) -> None:
    layer = made.describe_layer("/c/X", "x", "y") | {"LayerType": kind, "TacticName": tactic}
    layer["Inputs"] = [{"Name": "x", "Dimensions": [1], "Format/Datatype": source}]
    layer["Outputs"] = []
    assert summarize(json.dumps({"Layers": [layer]})).layers[0].precision == precision


@pytest.mark.parametrize(
    ("name", "nodes", "precision"),
    [
        ("{ForeignNode[/a/MatMul.../b/Add]}", (), None),
        ("__myl_AddMulMean_myl0_3", (), None),
        ("__myl_AddMulMean_myl0_3", ("/a/Add", "/a/ReduceMean", "/a/DequantizeLinear"), "fp32"),
        ("__myl_FcAdd_myl0_3", ("/a/Add", "/a/MatMul_1"), None),
        ("__myl_FcAdd_myl0_3", ("node_linear_7",), None),
    ],
)
def test_layers_that_a_compiler_generated_are_known_by_their_operators(name, nodes, precision) -> None:
    layer = made.describe_layer(name, "x", "y") | {"LayerType": "kgen", "TacticName": name}
    layer["Metadata"] = "\x1f".join(f"[ONNX Layer: {node}]" for node in nodes)
    assert summarize(json.dumps({"Layers": [layer]})).layers[0].precision == precision


def test_kernels_that_shorten_fp32_are_noted() -> None:
    layers = [
        made.describe_layer(f"/c/Conv_{i}", f"t{i}", f"t{i + 1}") | {"TacticName": tactic, "LayerType": "Convolution"}
        for i, tactic in enumerate((TF32_KERNEL, TF32_KERNEL, "something_new", made.FP32_KERNEL))
    ]
    document = summarize(json.dumps({"Layers": layers}))
    assert {name: group.layers for name, group in document.by_precision.items()} == {"tf32": 2, "unknown": 1, "fp32": 1}
    assert any("2 of 4 layers multiply FP32 values in TF32" in note for note in document.notes)
    assert any(note.startswith("1 of 4 layers multiply FP32 values in kernels whose") for note in document.notes)


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("Conv_0 + Relu_1", ("Conv_0", "Relu_1")),
        ("a || b", ("a", "b")),
        ("PWN(PWN(Sigmoid_3), Mul_4)", ("Sigmoid_3", "Mul_4")),
        ("{ForeignNode[/a/MatMul.../b/Add]}", ("/a/MatMul", "/b/Add")),
        ("Reformatting CopyNode for Input Tensor 0 to Conv_0", ()),
        ("conv1.weight + Q_7 + Conv_9", ("Q_7", "Conv_9")),
        ("Gemm_1 + (Unnamed Layer* 306) [Shuffle]", ("Gemm_1",)),
        ("__myl_Fuse_0", ()),
    ],
)
def test_operators_in_a_fused_name(name: str, nodes: tuple[str, ...]) -> None:
    assert split_name(name) == nodes


def test_operators_in_metadata_and_their_numbers() -> None:
    assert read_layer_metadata("[ONNX Layer: /a/Conv]\x1f[ONNX Layer: /b[0]/Relu]\x1e[ONNX Layer: /a/Conv]") == (
        "/a/Conv",
        "/b[0]/Relu",
    )
    assert read_layer_metadata("[ONNX Layer: a][ONNX Layer: b + c]") == ("a", "b", "c")
    assert read_layer_metadata(None) == ()
    assert strip_reformat("Reformatting CopyNode for Output Tensor 1 to X") == "X" and strip_reformat("X") is None
    places = number_operators({"Conv_10", "Conv_9", "/x/Relu", "Conv_100"})
    assert [places[name] for name in ("Conv_9", "Conv_10", "Conv_100")] == [("Conv", 0), ("Conv", 1), ("Conv", 2)]


def make_engine(names: list[str], times: list[float], precision: str = "FP16") -> LayersDocument:
    """An engine whose layers take the given times."""
    tensor = {"Name": "t", "Dimensions": [1], "Format/Datatype": precision}
    layers = [{"Name": name, "LayerType": "Conv", "Inputs": [tensor], "Outputs": [tensor]} for name in names]
    profile = [{"name": name, "timeMs": time, "averageMs": time} for name, time in zip(names, times, strict=True)]
    return summarize(json.dumps({"Layers": layers}), json.dumps(profile).encode())


def test_fused_and_split_layers_and_reformats_meet() -> None:
    base = make_engine(["Conv_0 + Relu_1", "Conv_2", "Add_3"], [1.0, 2.0, 0.5])
    candidate = make_engine(["Conv_0", "Relu_1", "Conv_2 + Add_3"], [0.5, 0.25, 1.5], "INT8")
    document = compare_layers(base, candidate)
    assert document.diff_matched_by == "name" and document.diff is not None
    rows = {row.onnx_nodes: row for row in document.diff}
    assert set(rows) == {("Conv_0", "Relu_1"), ("Conv_2", "Add_3")}
    assert rows["Conv_0", "Relu_1"].delta_ms == pytest.approx(-0.25)
    assert rows["Conv_2", "Add_3"].delta_ms == pytest.approx(-1.0)
    assert document.diff[0].onnx_nodes == ("Conv_2", "Add_3")
    side = rows["Conv_2", "Add_3"].candidate
    assert side is not None and (side.layers, side.precision) == (("Conv_2 + Add_3",), "int8")
    assert document.diff_totals is not None and document.diff_totals.delta_ms == pytest.approx(-1.25)
    bare = make_engine(["Conv_0"], [1.0])
    names = ["Reformatting CopyNode for Input Tensor 0 to Conv_0", "Conv_0"]
    document = compare_layers(bare, make_engine(names, [0.75, 0.5]))
    assert document.diff is not None and len(document.diff) == 1
    side = document.diff[0].candidate
    assert side is not None and (side.average_ms, side.overhead_ms) == (1.25, 0.75)


def test_renumbered_operators_meet_by_their_place() -> None:
    base = make_engine(["Conv_0 + Relu_1", "Conv_2 + Relu_3", "Gemm_4"], [1.0, 2.0, 0.5])
    names = ["QuantizeLinear_2", "w.weight + QuantizeLinear_5 + Conv_7", "QuantizeLinear_9", "Conv_12", "Gemm_20"]
    document = compare_layers(base, make_engine(names, [0.25, 0.5, 0.125, 1.0, 0.5], "INT8"))
    assert document.diff_matched_by == "order" and document.diff is not None
    deltas = {row.onnx_nodes: row.delta_ms for row in document.diff}
    assert deltas == {
        ("Conv_0", "Relu_1"): -0.5,
        ("Conv_2", "Relu_3"): -1.0,
        ("Gemm_4",): 0.0,
        ("QuantizeLinear_2",): 0.25,
        ("QuantizeLinear_9",): 0.125,
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "the end of the file|JSON"),
        ("hello", "malformed"),
        ("{}", "no list Layers"),
        ('{"Layers": 3}', "no list Layers"),
        ('{"layers": []}', r"keys there: layers"),
        ('{"Layers": [{"Nme": "x"}]}', r"\$\.Layers\[0\]: found keys Nme"),
        ('{"Layers": [3]}', "found int"),
        (made.make_layers().decode()[:300], "end of the file"),
        (made.make_profile().decode(), "no list Layers"),
        ("[" * 100_000, "found"),
    ],
)
def test_other_files_are_refused(text: str, found: str) -> None:
    with pytest.raises(ParseError, match=found):
        summarize(text)


def test_layers_without_their_sides_name_the_keys_and_no_layers_a_note() -> None:
    text = made.make_layers().decode().replace('"Inputs"', '"Sources"').replace('"Outputs"', '"Targets"')
    with pytest.raises(ParseError, match=r"no key Inputs or Outputs .*Sources, Targets"):
        summarize(text)
    assert summarize('{"Layers": [], "Bindings": []}').notes == ("the file lists no layers",)
