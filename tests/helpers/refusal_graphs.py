"""Small quantized graphs, one trait each: the rules of `find_refusals` are held against NVIDIA's parser by them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

INT8, UINT8, INT4 = TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4
FP8, FP16, FP32 = TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT16, TensorProto.FLOAT
# Operator -> (shape of the weight, axis of its output channels, shape of the input, of the output, attributes).
PRODUCTS: dict[str, tuple[tuple[int, ...], int, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "Conv": ((16, 8, 3, 3), 0, (1, 8, 8, 8), (1, 16, 6, 6), {}),
    "ConvTranspose": ((8, 16, 3, 3), 1, (1, 8, 8, 8), (1, 16, 10, 10), {}),
    "Gemm": ((32, 16), 1, (4, 32), (4, 16), {}),
    "Gemm transB": ((16, 32), 0, (4, 32), (4, 16), {"transB": 1}),
    "MatMul": ((32, 16), 1, (4, 32), (4, 16), {}),
}


class Pair(NamedTuple):
    """How one operand is quantized; what is None is left out."""

    scale: Any = 0.05
    zero: Any = 0
    kind: int | None = INT8  # None: no zero point
    axis: int | None = None
    block: int | None = None
    stored: bool = False  # the constant is quantized already: a DequantizeLinear alone
    floats: int = FP32  # of the scale
    output_dtype: int | None = None


PLAIN = Pair()
BLOCKS = Pair(scale=np.full((2, 16), 0.05), kind=INT4, axis=0, block=16, stored=True)


def make_tensor(name: str, value: Any, kind: int) -> TensorProto:
    """A tensor of any element type."""
    array = np.asarray(value, np.float32)
    return helper.make_tensor(name, kind, array.shape, array.ravel().tolist())


def quantize(source: str, name: str, pair: Pair, constants: dict[str, TensorProto]) -> tuple[list[NodeProto], str]:
    """(the nodes around `source`, what they give); its constants are added, a scale of that name is kept."""
    attributes = {k: v for k, v in (("axis", pair.axis), ("block_size", pair.block)) if v is not None}
    scale, zero = f"{name}_scale", f"{name}_zero"
    extra = [scale]
    constants.setdefault(scale, make_tensor(scale, pair.scale, pair.floats))
    if pair.kind is not None:
        constants[zero] = make_tensor(zero, np.broadcast_to(pair.zero, tuple(constants[scale].dims)), pair.kind)
        extra.append(zero)
    first = source if pair.stored else f"{name}_q"
    nodes = [helper.make_node("DequantizeLinear", [first, *extra], [f"{name}_d"], f"{name}_D", **attributes)]
    if not pair.stored:
        given = {**attributes, **({"output_dtype": pair.output_dtype} if pair.output_dtype is not None else {})}
        nodes.insert(0, helper.make_node("QuantizeLinear", [source, *extra], [first], f"{name}_Q", **given))
    return nodes, f"{name}_d"


def finish(
    nodes: Sequence[NodeProto],
    constants: Mapping[str, TensorProto],
    shape: Sequence[int],
    out_shape: Sequence[int],
    *,
    floats: int = FP32,
    inputs: Mapping[str, int] | None = None,
    functions: Sequence[Any] = (),
) -> ModelProto:
    """A graph from `x` to `y`; nobody checks it. `inputs` are more of them: name -> type."""
    for name, tensor in constants.items():
        tensor.name = name
    graph = helper.make_graph(
        list(nodes),
        "g",
        [
            helper.make_tensor_value_info("x", floats, list(shape)),
            *(helper.make_tensor_value_info(name, kind, []) for name, kind in (inputs or {}).items()),
        ],
        [helper.make_tensor_value_info("y", floats, list(out_shape))],
        list(constants.values()),
    )
    opsets = [helper.make_opsetid("", 21), *(helper.make_opsetid(f.domain, 1) for f in functions)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=list(functions))


def product(
    op: str = "Conv",
    *,
    x: Pair | None = PLAIN,
    w: Pair = PLAIN,
    bias: Pair | None = None,
    floats: int = FP32,
    weights: int | None = None,
    before: Sequence[NodeProto] = (),
    constants: Mapping[str, TensorProto] | None = None,
    scale: str = "x_scale",
    inputs: Mapping[str, int] | None = None,
) -> ModelProto:
    """x -> pair -> op(weight behind a pair, or stored) -> Relu -> y; `scale` is that of the activation."""
    shape, axis, x_shape, y_shape, attributes = PRODUCTS[op]
    made = dict(constants or {})
    nodes, first = quantize("x", "x", x, made) if x is not None else ([], "x")
    for node in nodes:
        node.input[1] = scale
    rng = np.random.default_rng(0)
    kind = (w.kind or INT8) if w.stored else (weights or floats)
    small = kind in (INT8, INT4)
    made["w"] = make_tensor("w", rng.integers(0, 7, shape) if small else rng.standard_normal(shape) * 0.2, kind)
    extra, second = quantize("w", "w", w, made)
    operands = [first, second]
    nodes = [*before, *nodes, *extra]
    if bias is not None:
        made["b"] = make_tensor("b", np.ones(shape[axis]), bias.kind or TensorProto.INT32)
        extra, name = quantize("b", "b", bias, made)
        nodes += extra
        operands.append(name)
    nodes.append(helper.make_node(op.split()[0], operands, ["p"], "product", **attributes))
    nodes.append(helper.make_node("Relu", ["p"], ["y"], "relu"))
    return finish(nodes, made, x_shape, y_shape, floats=floats, inputs=inputs)


def per_channel(op: str, **fields: Any) -> Pair:
    """A pair with a scale for each output channel of the weight."""
    shape, axis, *_ = PRODUCTS[op]
    return Pair(scale=np.full(shape[axis], 0.05), axis=axis, **fields)


def in_branch(pair: Pair) -> ModelProto:
    """An If in a branch of an If, which holds the quantized product; its scales are constants of the graph around."""
    inner = product(x=pair)
    values = {tensor.name: tensor for tensor in inner.graph.initializer}
    given = {name: tensor for name, tensor in values.items() if name.endswith(("scale", "zero"))}
    out = [helper.make_tensor_value_info("y", FP32, [1, 16, 6, 6])]
    held = [tensor for name, tensor in values.items() if name not in given]
    body = helper.make_graph(list(inner.graph.node), "then", [], out, held)
    zeros = numpy_helper.from_array(np.zeros((1, 16, 6, 6), np.float32))
    nothing = [helper.make_node("Constant", [], ["z"], value=zeros)]
    other = helper.make_graph(nothing, "else", [], [helper.make_tensor_value_info("z", FP32, [1, 16, 6, 6])])
    for level, name in enumerate(("y0", "y")):
        branch = helper.make_node("If", ["flag"], [name], f"branch{level}", then_branch=body, else_branch=other)
        body = helper.make_graph([branch], "outer", [], [helper.make_tensor_value_info(name, FP32, [1, 16, 6, 6])])
    return finish([branch], given, (1, 8, 8, 8), (1, 16, 6, 6), inputs={"flag": TensorProto.BOOL})


def in_function(pair: Pair) -> ModelProto:
    """The pair of the activation in a local function; its scale is handed in, its zero point is the function's."""
    inside = [
        helper.make_node("Constant", [], ["z"], value=make_tensor("z", pair.zero, INT8)),
        helper.make_node("QuantizeLinear", ["t", "s", "z"], ["q"], "inner_Q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "inner_D"),
    ]
    function = helper.make_function("local", "Fake", ["t", "s"], ["d"], inside, [helper.make_opsetid("", 21)])
    made = {"w": make_tensor("w", np.ones((16, 8, 3, 3)) * 0.1, FP32), "s": make_tensor("s", pair.scale, FP32)}
    nodes, weight = quantize("w", "w", Pair(), made)
    call = helper.make_node("Fake", ["x", "s"], ["xd"], "call", domain="local")
    nodes += [call, helper.make_node("Conv", ["xd", weight], ["y"], "product")]
    return finish(nodes, made, (1, 8, 8, 8), (1, 16, 6, 6), functions=[function])


def make_sound() -> dict[str, ModelProto]:
    """Graphs that break no rule, and that a parser takes."""
    made = {}
    for op in PRODUCTS:
        made[f"{op}: one scale"] = product(op)
        made[f"{op}: by channel"] = product(op, w=per_channel(op))
        made[f"{op}: stored, by channel"] = product(op, w=per_channel(op, stored=True))
        made[f"{op}: in FP8"] = product(op, x=Pair(kind=FP8), w=per_channel(op, kind=FP8))
        made[f"{op}: in FP16"] = product(op, x=Pair(floats=FP16), w=per_channel(op, floats=FP16), floats=FP16)
    scale = {"a": make_tensor("a", 0.05, FP32)}
    constant = helper.make_node("Constant", [], ["s"], value=make_tensor("t", 0.05, FP32))
    return made | {
        "int4 in blocks": product("MatMul", x=None, w=BLOCKS),
        "output_dtype int8": product(x=Pair(kind=None, output_dtype=INT8), w=per_channel("Conv")),
        "scale: Constant": product(before=[constant], scale="s"),
        "scale: Constant value_float": product(
            before=[helper.make_node("Constant", [], ["s"], value_float=0.05)], scale="s"
        ),
        "scale: Mul of constants": product(
            before=[helper.make_node("Mul", ["a", "a"], ["s"])], constants=scale, scale="s"
        ),
        "in branches": in_branch(PLAIN),
        "in a function": in_function(PLAIN),
    }


def make_broken() -> dict[str, tuple[ModelProto, str]]:
    """Graphs that break a rule, and what is said of them."""
    said = {
        "zero point 3": (Pair(zero=3), "zero point 'x_zero' is not 0"),
        "zero point of FP8": (Pair(zero=1, kind=FP8), "zero point 'x_zero' is not 0"),
        "uint8 128": (Pair(zero=128, kind=UINT8), "uint8; expected int8"),
        "uint8 0": (Pair(kind=UINT8), "uint8; expected int8"),
        "int16": (Pair(kind=TensorProto.INT16), "int16; expected int8"),
        "e5m2": (Pair(kind=TensorProto.FLOAT8E5M2), "float8e5m2; expected int8"),
        "no zero point": (Pair(kind=None), "the output is uint8"),
        "output_dtype uint8": (Pair(kind=None, output_dtype=UINT8), "the output is uint8"),
        "scale 0": (Pair(scale=0.0), "scale 'x_scale' holds 0"),
        "negative scale": (Pair(scale=-0.5), "scale 'x_scale' holds -0.5"),
        "infinite scale": (Pair(scale=np.inf), "not finite"),
        "scale NaN": (Pair(scale=np.nan), "not finite"),
    }
    made = {name: (product(x=pair, w=pair._replace(scale=0.05, zero=0)), words) for name, (pair, words) in said.items()}
    largest = helper.make_node("ReduceMax", ["x"], ["s"], keepdims=0)
    made |= {
        "one of the scales 0": (product(w=Pair(scale=[0.05] * 15 + [0.0], axis=0)), "holds 0"),
        "scale is an input": (product(scale="s", inputs={"s": FP32}), "scale 's' is not a constant"),
        "scale is computed": (product(scale="s", before=[largest]), "scale 's' is not a constant"),
        "in branches": (in_branch(Pair(zero=3)), "zero point 'x_zero' is not 0"),
        "in a function": (in_function(Pair(zero=3)), "is not 0"),
        "bias int32": (product(bias=Pair(kind=TensorProto.INT32, stored=True)), "int32"),
        "bias int32 without zero point": (product(bias=Pair(kind=None, stored=True)), "int32"),
    }
    return made | make_integer_forms()


def make_integer_forms() -> dict[str, tuple[ModelProto, str]]:
    """Quantization in other forms than Q/DQ."""
    weight = make_tensor("w", np.ones((32, 16)), INT8)
    pair = {"s": make_tensor("s", 0.05, FP32), "z": make_tensor("z", 0, INT8)}
    dynamic = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "dynamic"),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"], "product"),
        helper.make_node("Cast", ["i"], ["y"], "cast", to=FP32),
    ]
    fused = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "x_Q"),
        helper.make_node("QLinearMatMul", ["q", "s", "z", "w", "s", "z", "s", "z"], ["m"], "product"),
        helper.make_node("DequantizeLinear", ["m", "s", "z"], ["y"], "y_D"),
    ]
    return {
        "dynamic": (finish(dynamic, {"w": weight}, (4, 32), (4, 16)), "quantizes while the network runs"),
        "QLinearMatMul": (finish(fused, {**pair, "w": weight}, (4, 32), (4, 16)), "ONNX Runtime's own form"),
    }


# TensorRT for RTX takes these and gives them another meaning than ONNX does; they stay refused.
CHANGED = {
    "uint8 0": "it reads uint8 as int8: values above 127 become negative",
    "no zero point": "ONNX means uint8, it int8",
    "zero point of FP8": "it drops it",
    "infinite scale": "every value becomes zero or not a number",
}


def make_left_to_parser() -> dict[str, tuple[ModelProto, str]]:
    """Graphs that no rule is about and that a parser refuses, and the node at which it does."""
    shape = (1, 8, 8, 8)
    narrow = {"w": make_tensor("w", np.ones((4, 3, 3, 3)), FP32)}
    conv = [helper.make_node("Conv", ["x", "w"], ["y"], "product")]
    return {
        "wrong number of scales": (product(w=Pair(scale=np.full(5, 0.05), axis=0)), "w_Q"),
        "scales of an activation": (product(x=Pair(scale=np.full(5, 0.05), axis=1)), "x_Q"),
        "blocks of another length": (product("MatMul", x=None, w=BLOCKS._replace(scale=np.full((3, 16), 0.05))), "w_D"),
        "operands in two types": (product(weights=FP16, w=Pair(floats=FP16)), "product"),
        "another number of channels": (finish(conv, narrow, shape, (1, 4, 6, 6)), "product"),
        "unknown operator": (finish([helper.make_node("Unheard", ["x"], ["y"], "odd")], {}, shape, shape), "odd"),
    }
