"""Layers of engines joined to the nodes of a graph."""

from pathlib import Path

from msgspec.structs import replace

from enginebench.core.errors import ParseError
from enginebench.core.records import EngineSpec, LayerProfile, LayerTime
from enginebench.core.warnings import make_warning
from enginebench.features.roofline.jobs import GraphWork, NodeWork, Unit
from enginebench.features.roofline.joining import join_layers
from enginebench.report.layer_table import format_times
from enginebench.stats.engine_profile import describe_profile
from enginebench.stats.plans.layers import read_layer_info
from trtexec_artifacts import find_real_artifacts


def node(
    name: str, op: str, inputs: str, output: str, unit: Unit | None = None, scopes: tuple[str, ...] = ()
) -> NodeWork:
    moves = op in ("Reshape", "QuantizeLinear", "DequantizeLinear", "Transpose")
    return NodeWork(
        name=name,
        op=op,
        inputs=tuple(inputs.split()),
        outputs=(output,),
        macs=1000 if unit else 0,
        unit=unit,
        moves=moves,
        scopes=scopes,
    )


# Two convolutions with a residual addition, then attention, then a product: as PyTorch's exporter names them.
GRAPH = GraphWork(
    nodes=(
        node("node_Conv_1", "Conv", "x stem.conv.weight", "getitem", "conv", ("stem", "stem.bn")),
        node("node_relu", "Relu", "getitem", "relu", scopes=("stem", "stem.relu")),
        node("node_Conv_10", "Conv", "relu block.conv.weight", "getitem_3", "conv", ("block", "block.bn")),
        node("node_add", "Add", "getitem_3 relu", "add", scopes=("block",)),
        node("node_MatMul_20", "MatMul", "add q.weight", "q", "gemm"),
        node("node_MatMul_21", "MatMul", "add k.weight", "k", "gemm"),
        node("node_MatMul_22", "MatMul", "q k", "qk", "gemm"),
        node("node_softmax", "Softmax", "qk", "p"),
        node("node_MatMul_23", "MatMul", "p add", "pv", "gemm"),
        node("node_transpose", "Transpose", "pv", "t"),
        node("node_gemm", "Gemm", "t fc.weight", "y", "gemm", ("fc",)),
    ),
    tensors={},
    outputs=("y",),
)


def join(*names: str | LayerTime, graph: GraphWork = GRAPH) -> dict[str, tuple[str, ...]]:
    layers = [n if isinstance(n, LayerTime) else LayerTime(name=n, mean_ns=10, kind="Conv") for n in names]
    return {one.layer.name: one.nodes for one in join_layers(layers, graph).layers}


def test_a_fusion_named_after_its_activation_has_the_convolution() -> None:
    """ONNX Runtime's blocked convolutions are called after the tensor that comes out of the ReLU."""
    assert join("relu_nchwc", "node_Conv_10")["relu_nchwc"] == ("node_Conv_1", "node_relu")
    told = LayerTime(name="relu_nchwc", mean_ns=1, kind="Relu")  # a ReLU of its own did no convolution
    assert join(told, "node_Conv_10")["relu_nchwc"] == ("node_relu",)


def test_a_compilers_region_is_what_lies_between_its_ends() -> None:
    name = "{ForeignNode[node_MatMul_20...node_transpose]}"
    assert join("node_Conv_1", "node_Conv_10", name)[name] == (
        "node_MatMul_20",
        "node_MatMul_22",
        "node_softmax",
        "node_MatMul_23",
        "node_transpose",
    )


def test_the_runtimes_own_word_comes_first() -> None:
    said = LayerTime(name="Multiply_7", mean_ns=1, kind="Subgraph", onnx_nodes=("node_softmax", "Constant_3"))
    assert join("node_MatMul_22", "node_MatMul_23", said)["Multiply_7"] == ("node_softmax",)


def test_what_moves_values_shares_the_node_that_it_moves_them_for() -> None:
    moved = LayerTime(name="x_abcd_acdb_node_Conv_1/WithoutBiases", mean_ns=1, precision="reorder")
    (first, second) = join_layers([moved, LayerTime(name="node_Conv_1", mean_ns=1)], GRAPH).layers
    assert first.shares and first.nodes == ("node_Conv_1",)
    assert not second.shares and second.nodes[0] == "node_Conv_1"


def test_layers_of_real_plans_name_their_operators() -> None:
    """Each layer of a real trtexec's JSON that names nodes is joined to one of them."""
    files = sorted((find_real_artifacts() / "trtexec-gpu").glob("*/*.layers.json"))
    joined = [_join_plan(file) for file in files if '"Metadata"' in file.read_text(errors="replace")]
    assert sum(joined) > 10


def _join_plan(file: Path) -> int:
    """How many layers of a plan were joined to nodes that they name."""
    try:
        layers = read_layer_info(file).layers
    except ParseError:  # a file that trtexec was kept from finishing
        return 0
    names = list(dict.fromkeys(name for layer in layers for name in layer.onnx_nodes))
    nodes = tuple(node(name, "Op", f"t{i}", f"t{i + 1}") for i, name in enumerate(names))
    times = [LayerTime(name=n.name, mean_ns=1, kind=n.type, onnx_nodes=n.onnx_nodes) for n in layers]
    graph = GraphWork(nodes=nodes, tensors={}, outputs=())
    named = [one for one in join_layers(times, graph).layers if one.layer.onnx_nodes]
    assert all(set(one.nodes) & set(one.layer.onnx_nodes) for one in named), file
    return len(named)


def test_a_folded_batch_norm_does_not_get_the_convolution_of_another_layer() -> None:
    """The exporter's node stands in the scope of the BatchNorm; an eager BatchNorm still takes time of its own."""
    found = join("stem.bn", "stem.conv", "stem.relu", "block.bn + block: add", "block.conv")
    assert found["stem.conv"] == ("node_Conv_1",) and found["block.conv"] == ("node_Conv_10",)
    layers = [LayerTime(name=name, mean_ns=10) for name in ("stem.bn", "stem.conv")]
    assert [one.shares for one in join_layers(layers, GRAPH).layers] == [True, False]
    fused = LayerTime(name="block.bn + block: add", mean_ns=10, kind="generated code")
    assert join("stem.conv", "stem.relu", "block.conv", fused)[fused.name] == ("node_add",)


def exported(name: str, op: str, inputs: str, operator: str, unit: Unit | None = None, path: str = "block") -> NodeWork:
    return replace(node(name, op, inputs, name, unit, (path,)), operator=operator)


# A SiLU that the exporter took apart, two products of a module that is called twice, two additions.
EXPORTED = GraphWork(
    nodes=(
        exported("sigmoid", "Sigmoid", "x", "silu"),
        exported("times", "Mul", "sigmoid x", "silu"),
        exported("scaled", "Mul", "times s", "mul"),
        exported("first", "Gemm", "scaled a.weight", "linear", "gemm", "a"),
        exported("second", "Gemm", "first a.weight", "linear_1", "gemm", "a"),
        exported("ratio", "Div", "second s", "div"),
        exported("sum", "Add", "ratio x", "add_3"),
    ),
    tensors={},
    outputs=("sum",),
)


def test_an_operator_of_the_model_itself_is_not_the_first_of_its_kind_anywhere() -> None:
    """Its name is also that of the tensor that the first one in the graph makes."""
    nodes = (
        replace(node("node_relu", "Relu", "x", "relu", scopes=("features.2",)), operator="relu"),
        node("node_linear", "Gemm", "relu hidden.weight", "linear", "gemm", ("hidden",)),
        replace(node("node_relu_1", "Relu", "linear", "relu_1"), operator="relu_1"),
    )
    graph = GraphWork(nodes=nodes, tensors={}, outputs=("relu_1",))
    kinds = {"features.2": "ReLU", "hidden": "addmm", "relu": "generated code"}
    layers = [LayerTime(name=name, mean_ns=10, kind=kind) for name, kind in kinds.items()]
    wanted = {"features.2": ("node_relu",), "hidden": ("node_linear",), "relu": ("node_relu_1",)}
    assert join(*layers, graph=graph) == wanted


def test_a_module_that_is_called_twice_has_both_products() -> None:
    assert {"first", "second"} <= set(join("a", "sum", graph=EXPORTED)["a"])


LAYERS = (
    LayerTime(name="head", mean_ns=1e6, median_ns=0.9e6, precision="fp32", kind="Gemm"),
    LayerTime(name="stem", mean_ns=6e6, median_ns=6e6, precision="int8", kind="Conv"),
    LayerTime(name="cast", mean_ns=1e6, precision="reorder", kind="Cast"),
    LayerTime(name="shape", mean_ns=0.0, precision=None),
)


def describe(ns: float = 10e6, layers: tuple[LayerTime, ...] = LAYERS):  # type: ignore[no-untyped-def]
    engine = EngineSpec(backend="ort", precision="int8", recipe="cpu", batch=4)
    profile = LayerProfile(layers=layers, runs=5, profiler="a profiler", notes=("a note",))
    return describe_profile(model="m", engine=engine, profile=profile, end_to_end_ns=ns, clock="host")


def test_layers_without_times_have_no_shares() -> None:
    assert {name: group.share for name, group in describe().by_type.items()} == {
        "Conv": 0.75,
        "Gemm": 0.125,
        "Cast": 0.125,
        "unknown": 0,
    }
    timeless = describe(1.0, LAYERS[3:])
    assert timeless.layers[0].share is None and timeless.by_precision["unknown"].share is None


def test_what_no_layer_explains_of_a_configuration_that_the_host_holds_up_is_its_waiting() -> None:
    bound = replace(describe(), warnings=(make_warning("enqueue_bound", share=0.99),))
    said, told = (" ".join(format_times(document, 9)) for document in (describe(), bound))
    assert said.endswith("lie in no layer")
    assert told == f"{said}: the GPU waits for the host"
