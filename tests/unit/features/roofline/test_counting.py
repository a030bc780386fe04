"""The work of graphs, against counts worked out by hand."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from enginebench.core.errors import ArtifactError
from enginebench.features.roofline.counting import describe_work
from enginebench.features.roofline.jobs import GraphWork, WorkJob


def describe(nodes: list[onnx.NodeProto], shape: list[object], weights: dict[str, tuple[int, ...]]) -> GraphWork:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones(size, np.float32), name) for name, size in weights.items()],
    )
    return describe_work(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), {"x": (2, 8, 10, 10)})


def sum_macs(work: GraphWork) -> int:
    return sum(node.macs for node in work.nodes)


def test_a_convolution_counts_each_product_of_each_output_value() -> None:
    conv = helper.make_node("Conv", ["x", "w"], ["y"], name="c", pads=[1, 1, 1, 1])
    found = describe([conv], ["n", 8, "h", "w"], {"w": (16, 8, 3, 3)})
    assert sum_macs(found) == 2 * 16 * 10 * 10 * 8 * 9
    assert found.nodes[0].unit == "conv" and found.unknown == 0
    assert found.tensors["y"].values == 2 * 16 * 100


def test_a_depthwise_convolution_counts_one_channel_and_a_stride_what_it_looks_at() -> None:
    depthwise = helper.make_node("Conv", ["x", "w"], ["y"], group=8, pads=[1, 1, 1, 1])
    assert sum_macs(describe([depthwise], [2, 8, 10, 10], {"w": (8, 1, 3, 3)})) == 2 * 8 * 100 * 9
    strided = helper.make_node("Conv", ["x", "w"], ["y"], strides=[2, 2])
    (node,) = describe([strided], [2, 8, 10, 10], {"w": (16, 8, 1, 1)}).nodes
    assert node.macs == 2 * 16 * 25 * 8
    assert node.read_shares == {"x": 0.25}


@pytest.mark.parametrize(
    ("op", "weight", "macs"),
    [("MatMul", (10, 5), 2 * 8 * 10 * 5 * 10), ("ConvTranspose", (8, 4, 2, 2), 2 * 8 * 100 * 4 * 4), ("Add", (1,), 0)],
)
def test_products_count_and_additions_do_not(op: str, weight: tuple[int, ...], macs: int) -> None:
    assert sum_macs(describe([helper.make_node(op, ["x", "w"], ["y"])], [2, 8, 10, 10], {"w": weight})) == macs


def test_what_has_no_shape_is_counted_as_unknown() -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["f", "w"], ["y"]),
    ]
    found = describe(nodes, [2, 8, 10, 10], {"w": (3, 4)})
    assert sum_macs(found) == 0
    assert found.unknown >= 1


def test_a_damaged_file_is_refused(tmp_path: pytest.TempPathFactory) -> None:
    path = tmp_path / "damaged.onnx"  # type: ignore[operator]
    path.write_bytes(b"no graph")
    with pytest.raises(ArtifactError, match="damaged"):
        WorkJob(path=str(path), shapes={}).perform(print, print)


def test_a_node_says_which_modules_and_which_operator_it_was_exported_from() -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    relu.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'block', 'block.act', 'relu_1']")
    (node,) = describe([relu], [2, 8], {}).nodes
    assert node.scopes == ("block", "block.act") and node.operator == "relu_1"
