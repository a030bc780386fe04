"""Small graphs: of floats, of tokens, of images as wide as you like, and of classic machine learning."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from enginebench.core.records import Artifact
from enginebench.core.sums import keep_sums_exact, open_cpu_session
from enginebench.models.onnx.source import read_onnx
from enginebench.models.precision.calibrate import calibrate
from enginebench.models.precision.calibration import Calibration
from enginebench.models.precision.calibration_data import open_data

# LayerNorm as its formula is written, but with keepdims of 0, which ONNX Runtime 1.31 fuses all the same: on a square
# input the subtraction takes the means along the other axis.
UNKEPT_NORM = """
g (float[8, 8] x) => (float[8, 8] y)
   <float two = {2}, float eps = {1e-05}, float[8] g = {1, 2, 3, 4, 5, 6, 7, 8}, float[8] b = {1, 1, 1, 1, 2, 2, 2, 2}>
{
   mean = ReduceMean <axes = [-1], keepdims = 0> (x)
   centred = Sub (x, mean)
   squares = Pow (centred, two)
   variance = ReduceMean <axes = [-1], keepdims = 0> (squares)
   safe = Add (variance, eps)
   deviation = Sqrt (safe)
   normed = Div (centred, deviation)
   scaled = Mul (normed, g)
   y = Add (scaled, b)
}
"""


def build_graph(
    nodes: str | Sequence[NodeProto],
    constants: Mapping[str, Any],
    shape: Sequence[int | str] = ("batch", 4),
    out_shape: Sequence[int | str] | None = None,
    opset: int = 17,
) -> ModelProto:
    """A valid float graph from input `x` to output `y`, which has the shape of the input if none is given.

    Nodes in ONNX's own words (`[name] y = Relu (x)`) are called after what they make where they have no name.
    """
    if isinstance(nodes, str):
        nodes = onnx.parser.parse_graph(f"g (float x) => (float y) {{ {nodes} }}").node
        for node in nodes:
            node.name = node.name or node.output[0]
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, list(shape if out_shape is None else out_shape))],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def build_residual(seed: int = 0) -> ModelProto:
    """Convolution, BatchNorm, ReLU, a residual block, pooling, a linear layer: ResNet in small. x [batch, 3, 8, 8]."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Any:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)).astype(np.float32)

    nodes = """
        [first] c0 = Conv <pads = [1, 1, 1, 1]> (x, w0)
        [norm] n0 = BatchNormalization (c0, g, b, m, v)
        [relu0] r0 = Relu (n0)
        [second] c1 = Conv <pads = [1, 1, 1, 1]> (r0, w1, b1)
        [relu1] r1 = Relu (c1)
        [third] c2 = Conv <pads = [1, 1, 1, 1]> (r1, w2, b2)
        [sum] s = Add (c2, r0)
        [relu2] r2 = Relu (s)
        [pool] p = GlobalAveragePool (r2)
        [flatten] f = Flatten (p)
        [head] y = Gemm <transB = 1> (f, w3, b3)
    """
    constants = {
        "w0": draw(8, 3, 3, 3),
        "g": np.linspace(0.5, 1.5, 8, dtype=np.float32),
        "b": np.linspace(-0.1, 0.1, 8, dtype=np.float32),
        "m": np.zeros(8, np.float32),
        "v": np.ones(8, np.float32),
        "w1": draw(8, 8, 3, 3),
        "b1": draw(8),
        "w2": draw(8, 8, 3, 3),
        "b2": draw(8),
        "w3": draw(10, 8),
        "b3": draw(10),
    }
    return build_graph(nodes, constants, ["batch", 3, 8, 8], ["batch", 10])


def save(model: ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def write_nodes(
    folder: Path, nodes: str | Sequence[NodeProto], constants: Mapping[str, Any] | None = None, *given: Any, **how: Any
) -> Artifact:
    """The artifact of such a graph, in a file of the folder."""
    return read_onnx(save(build_graph(nodes, constants or {}, *given, **how), folder / "m.onnx"))


def calibrate_on_noise(artifact: Artifact, n: int = 4) -> Calibration:
    return calibrate(artifact, open_data("fake", model="m", inputs=artifact.inputs, n=n), threads=1)


def run_graph(path: Path, feeds: Mapping[str, Any], *, optimize: bool = True) -> Any:
    """First output of the graph in ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    keep_sums_exact(options)  # as the engine has them
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return open_cpu_session(str(path), options).run(None, dict(feeds))[0]


def count_ops(path: Path) -> dict[str, int]:
    types = [node.op_type for node in onnx.load(path).graph.node]
    return {name: types.count(name) for name in set(types)}


def measure_centred_cosine(found: Any, expected: Any) -> float:
    centre = expected.mean(axis=0)
    a, b = found - centre, expected - centre
    return float(np.mean((a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))))


def double(shape: list[int | str]) -> ModelProto:
    return build_graph("y = Mul (x, two)", {"two": np.float32(2)}, shape)


def find_positive() -> ModelProto:
    """Where values are positive: as many rows as there are of them."""
    nodes = "above = Greater (x, zero) places = NonZero (above) rows = Transpose (places) y = Cast <to = 1> (rows)"
    return build_graph(nodes, {"zero": np.float32(0)}, ["batch", 4], ["found", 2])


# Of operators that are not ONNX's own; that of the second knows nobody.
DOMAINS = {"ai.onnx.ml": 3, "ai.onnx.contrib": 1, "my.own": 1}


def write_text(path: Path, text: str, constants: Mapping[str, Any] | None = None, opset: int = 17) -> Path:
    """Writes a graph in ONNX's own words: `(float[n, 4] x) => (float[n, 4] y) { y = Relu (x) }`, with a name or not."""
    named = f"g {text}" if text.startswith("(") else text
    opsets = [f'"" : {opset}', *(f'"{name}" : {version}' for name, version in DOMAINS.items() if f"{name}." in text)]
    model = onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{', '.join(opsets)}]> {named}")
    values = {name: np.asarray(value) for name, value in (constants or {}).items()}
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    return save(model, path)


def write_graph(path: Path, text: str, weights: Mapping[str, Any] | None = None, opset: int = 17) -> Artifact:
    """The artifact of such a graph."""
    return read_onnx(write_text(path, text, weights, opset))


def write_tokens(path: Path, batch: int, opset: int = 17) -> Artifact:
    """Rows of a table by number, and the place of the largest value in each: whole numbers go in and come out."""
    ends = f"(int64[{batch}, 6] ids) => (float[{batch}, 6, 8] rows, int64[{batch}, 6] best)"
    text = f"tokens {ends} {{ rows = Gather (table, ids) best = ArgMax <axis = -1, keepdims = 0> (rows) }}"
    table = np.random.default_rng(0).standard_normal((100, 8), np.float32)
    return write_graph(path, text, {"table": table}, opset)


def make_scale(
    path: Path, factor: float, *, given: str = "x", answer: str = "y", shape: str = "n, 4", dtype: str = "float"
) -> Path:
    """A graph y = factor * x."""
    text = f"({dtype}[{shape}] {given}) => ({dtype}[{shape}] {answer}) {{ {answer} = Mul({given}, factor) }}"
    return write_text(path, text, {"factor": np.array(factor, np.float32 if dtype == "float" else np.float64)})


def write_lines(folder: Path, batch: int | str = "batch") -> Path:
    """A convolution over lines of any width: OpenVINO refuses to compile it for a width of 1, where 3 is its least."""
    weights = np.random.default_rng(0).standard_normal((4, 3, 8, 3)).astype(np.float32)
    text = "(float[BATCH, 3, 8, wide] x) => (float[BATCH, 4, 1, out] y) { c = Conv(x, w) y = Relu(c) }"
    return write_text(folder / "lines.onnx", text.replace("BATCH", str(batch)), {"w": weights})


def draw_lines(n: int, width: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((n, 3, 8, width)).astype(np.float32)


def quantize_on_noise(given: Path, made: Path, shape: Sequence[int], **how: Any) -> None:
    """By ONNX Runtime's own quantizer, with the ranges of noise at input `x`."""
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Noise(CalibrationDataReader):  # type: ignore[misc]  # no types
        left = [{"x": np.float32(np.random.default_rng(i).standard_normal(shape))} for i in range(4)]

        def get_next(self) -> dict[str, np.ndarray] | None:
            return self.left.pop() if self.left else None

    quantize_static(given, made, Noise(), **how)


# Graphs of classic machine learning: words to numbers and back, scores to maps, a forest.


def translate_words(path: Path) -> Path:
    """Two English words of each entry to German ones: text in, text out."""
    words = 'keys_strings = ["red", "green"], values_strings = ["rot", "gruen"], default_string = "unbekannt"'
    return write_text(path, f"(string[n, 2] x) => (string[n, 2] y) {{ y = ai.onnx.ml.LabelEncoder <{words}> (x) }}")


def classify(path: Path) -> Path:
    """Three numbers to a forest's label, and the map of its probabilities, as scikit-learn's classifiers end."""
    tree = {
        "nodes_treeids": [0] * 3,
        "nodes_nodeids": [0, 1, 2],
        "nodes_featureids": [0] * 3,
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_values": [0.0] * 3,
        "nodes_truenodeids": [1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0],
        "class_treeids": [0] * 4,
        "class_nodeids": [1, 1, 2, 2],
        "class_ids": [0, 1, 0, 1],
        "class_weights": [0.75, 0.25, 0.125, 0.875],
        "classlabels_int64s": [0, 1],
    }
    nodes = [
        helper.make_node("TreeEnsembleClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml", **tree),
        helper.make_node("ZipMap", ["scores"], ["probabilities"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]),
    ]
    pairs = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3]),
        helper.make_tensor_value_info("label", TensorProto.INT64, ["n"]),
        helper.make_value_info("probabilities", helper.make_sequence_type_proto(pairs)),
    ]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path
