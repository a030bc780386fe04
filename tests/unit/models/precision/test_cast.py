"""Casts that hold for any graph: what each operator takes and makes is read from ONNX's schemas and type inference."""

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from enginebench.models.precision.cast import cast_to_bf16, cast_to_fp16
from enginebench.models.precision.graph import name_nodes

CASTS = {"fp16": (cast_to_fp16, 0.01), "bf16": (cast_to_bf16, 0.05)}
# Graphs of one operator that does not simply take and make the new type: the operator, and what stays in FP32.
GRAPHS = {
    # A constant without a value is of zeros in FP32; a window that is cut out of it reads what others computed.
    "constant of shape": (
        """shape = Shape (x) zeros = ConstantOfShape (shape) i = Constant <value_ints = [1]> () one = Constant
        <value_ints = [1]> () j = Unsqueeze (i, one) row = Gather (x, i) part = Neg (row) h = ScatterND (zeros, j, part)
        y = Mul (h, x)""",
        [],
    ),
    "statistics": ("n, mean, deviation = LayerNormalization <axis = 1> (x, g) c = Sub (n, mean) y = Add (c, x)", []),
    "window": ("n = Constant <value_int = 4> () w = HannWindow (n) y = Mul (x, w)", ["HannWindow"]),
    "bits": (
        "z = Constant <value_float = 1.0> () h = Add (x, z) i = BitCast <to = 6> (h) y = BitCast <to = 1> (i)",
        ["BitCast"],
    ),
    "input that one node reads in FP32": (
        "q, s, z = DynamicQuantizeLinear (x) d = DequantizeLinear (q, s, z) h = Add (d, g) y = Mul (h, x)",
        ["DynamicQuantizeLinear"],
    ),
    "sequence": (
        "a = Neg (x) s = SequenceConstruct (a, x) p = Constant <value_int = 0> () y = SequenceAt (s, p)",
        ["SequenceConstruct", "SequenceAt"],
    ),
    "definition with constants in FP32": (
        """f = Constant <value_ints = [1, 1, 3, 4]> () h = Reshape (x, f) m = MeanVarianceNormalization (h)
        b = Constant <value_ints = [3, 4]> () y = Reshape (m, b)""",
        ["MeanVarianceNormalization"],
    ),
    "loop": (
        """n = Constant <value_int = 2> () yes = Constant <value = bool {1}> ()
        y = Loop (n, yes, x) <body = b (int64 i, bool go, float[3, 4] h) => (bool on, float[3, 4] more) {
            on = Identity (go) d = Shape (h) z = ConstantOfShape (d) a = Add (h, z) more = Mul (a, g) }>""",
        [],
    ),
}


def build(nodes: str, opset: int) -> onnx.ModelProto:
    text = f"""<ir_version: 10, opset_import: ["" : {opset}]>
        m (float[3, 4] x) => (float[3, 4] y) <float[4] g = {{0.5, 1.0, 1.5, 2.0}}> {{ {nodes} }}"""
    model = onnx.parser.parse_model(text)
    name_nodes(model)
    return model


@pytest.mark.parametrize("keep_io", [True, False])
@pytest.mark.parametrize("to", CASTS)
@pytest.mark.parametrize("name", GRAPHS)
def test_a_cast_graph_is_valid_and_keeps_its_outputs(name, to, keep_io):
    nodes, kept_operators = GRAPHS[name]
    cast, tolerance = CASTS[to]
    model = build(nodes, 26 if name == "bits" else 22)
    x = np.random.default_rng(0).standard_normal((3, 4), dtype=np.float32)
    made, kept = cast(model, (), keep_io)
    onnx.checker.check_model(made, full_check=name != "definition with constants in FP32")
    operators = {node.name: node.op_type for node in model.graph.node}
    assert sorted({operators[node] for node in kept}) == sorted(kept_operators)
    given = onnx.helper.tensor_dtype_to_np_dtype(made.graph.input[0].type.tensor_type.elem_type)
    assert (given == np.float32) is keep_io
    (found,) = ReferenceEvaluator(made).run(None, {"x": x.astype(given)})
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    assert found.dtype == given
    assert np.allclose(found.astype(np.float32), expected, rtol=tolerance, atol=tolerance)
