"""What NVIDIA's own TensorRT 8.6.0 wrote on an H200 (tests/data/tensorrt-8.6), as every reader of it takes it."""

import gzip
import re
from pathlib import Path

import pytest

from enginebench.core.errors import ArtifactError, ParseError
from enginebench.features.trtexec.log import read_log
from enginebench.features.trtexec.process import read_bindings, read_outputs
from enginebench.features.trtexec.tool_files import ToolFiles
from enginebench.features.trtexec.trace import read_trace
from enginebench.stats.plans.layers import read_layer_info
from enginebench.stats.plans.profile import read_layer_profile, read_profile

HOME = Path(__file__).parents[3] / "data" / "tensorrt-8.6"


def test_layers_hold_control_characters_and_are_read() -> None:
    layers, profile = HOME / "resnet50-b32-fp16.layers.json.gz", HOME / "resnet50-b32-fp16.profile.json.gz"
    assert b"\x1e" in gzip.decompress(layers.read_bytes())
    document = read_layer_info(layers, profile=read_layer_profile(profile))
    assert document.layers[1].onnx_nodes == ("node_Conv_753", "node_relu") and document.notes == ()
    shares = ToolFiles().read_precision(layers, profile)
    assert shares and shares["fp16"] > 0.98


def test_plain_fp32_is_proved() -> None:
    layers, profile = HOME / "resnet18-b1-fp32.layers.json.gz", HOME / "resnet18-b1-fp32.profile.json.gz"
    assert (ToolFiles().read_precision(layers, profile) or {}).keys() == {"fp32", "reorder"}


def test_the_inspector_of_the_python_api_writes_the_same() -> None:
    document = read_layer_info(HOME / "digits-int8-qdq.inspector.json")
    assert {name: group.layers for name, group in document.by_precision.items()} == {"int8": 8, "reorder": 2}


def test_a_plan_of_several_shapes_shows_precisions_by_weights_and_kernels() -> None:
    document = read_layer_info(HOME / "digits-dynamic-fp32.layers.json.gz")
    assert all(t.format == "N/A due to dynamic shapes" and t.dtype is None for x in document.layers for t in x.inputs)
    assert {name: group.layers for name, group in document.by_precision.items()} == {"fp32": 7, "reorder": 2}


def test_an_input_in_bytes_is_the_one_without_a_named_format() -> None:
    document = read_layer_info(HOME / "digits-uint8.layers.json")
    assert [(tensor.name, tensor.dtype) for tensor in document.io] == [("input", "uint8"), ("output", "fp32")]


def test_a_transformer_is_one_layer_that_says_nothing_of_what_it_computes_in() -> None:
    document = read_layer_info(HOME / "vit-b16-b32-fp16.layers.json")
    assert [layer.precision for layer in document.layers] == ["fp32", "fp16", None]
    assert document.notes == (
        "1 of 3 layers are regions that TensorRT's own compiler, Myelin, built: their precision is not recorded",
    )


def test_no_reader_of_its_json_stumbles_over_a_control_character(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    outputs = '[ { "name" : "a\x1eb", "dimensions" : "1", "values" : [ 1 ] } ]'
    file.write_text(outputs)
    assert list(read_outputs(file, ())) == ["a\x1eb"]
    profile = '[{"count": 1}, {"name": "a\x1eb", "timeMs": 1, "averageMs": nan, "percentage": 100}]'
    assert [layer.name for layer in read_profile(profile, file).layers] == ["a\x1eb"]
    file.write_bytes((HOME / "digits-int8-qdq.inspector.json").read_bytes())
    with pytest.raises(ParseError, match=r"no iteration times.*Is it a profile, a layer file"):
        read_trace(file)


LOG = gzip.decompress((HOME / "resnet18-fp16-timing-cache.log.gz").read_bytes()).decode()


@pytest.mark.parametrize(
    ("changed", "graph"),
    [
        (LOG, True),
        (LOG.replace("] [I] Engine", "] [W] The CUDA graph capture on the stream has failed.\n[", 1), False),
        ("".join(line for line in LOG.splitlines(keepends=True) if not re.search(r"\] \[[WE]\]|^\$ ", line)), None),
        (LOG.partition("=== Performance summary")[0], None),
        (LOG.replace("TensorRT v8600", "TensorRT v101600"), None),
    ],
    ids=["as it is", "failed", "without the pipe of errors", "cut", "of a version that says so"],
)
def test_8_6_says_nothing_of_a_graph_that_was_captured(changed: str, graph: bool | None) -> None:
    assert "CUDA Graph: Enabled" in LOG and "captured" not in LOG
    assert read_log(changed, HOME).runs[0].cuda_graph is graph


def test_bindings_are_found_where_8_6_names_them() -> None:
    log = LOG
    inputs, outputs = read_bindings(log)
    assert [(s.name, s.shape) for s in (*inputs, *outputs)] == [("input", (1, 3, 224, 224)), ("output", (1, 1000))]
    with pytest.raises(ArtifactError, match="names no input and its shape"):
        read_bindings(log.replace("binding for", "binding of"))
