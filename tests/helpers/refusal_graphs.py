"""Small graphs by which `find_refusals` is held against NVIDIA's own parser and builder, each with what it is about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

CHANNELS = 8
DEFAULT_TARGETS = ("SM89",)
FP8, INT4, UINT4 = TensorProto.FLOAT8E4M3FN, TensorProto.INT4, TensorProto.UINT4
# Operator -> (shape of the weight, axis of its output channels, shape of the input, of the output, attributes).
PRODUCTS: dict[str, tuple[tuple[int, ...], int, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "Conv": ((16, 8, 3, 3), 0, (1, 8, 8, 8), (1, 16, 6, 6), {}),
    "ConvTranspose": ((8, 16, 3, 3), 1, (1, 8, 8, 8), (1, 16, 10, 10), {}),
    "Gemm": ((32, 16), 1, (4, 32), (4, 16), {}),
    "Gemm transB": ((16, 32), 0, (4, 32), (4, 16), {"transB": 1}),
    "MatMul": ((32, 16), 1, (4, 32), (4, 16), {}),
}


class Case(NamedTuple):
    """One graph: how it is made, and for which GPUs it is built."""

    build: Callable[[], ModelProto]
    targets: tuple[str, ...] = DEFAULT_TARGETS


class Pair(NamedTuple):
    """How one operand is quantized; what is None is left out."""

    scale: Any = 0.05
    zero: Any = 0
    kind: int | None = TensorProto.INT8  # None: no zero point
    axis: int | None = None
    block: int | None = None
    stored: bool = False  # the constant is quantized already: a DequantizeLinear alone
    floats: int = TensorProto.FLOAT  # of the scale
    output_dtype: int | None = None


PLAIN = Pair()
FP16 = TensorProto.FLOAT16
HALF = Pair(floats=FP16)


def make_tensor(name: str, value: Any, kind: int) -> TensorProto:
    """A tensor of any element type; a value that is one is taken as it is."""
    if isinstance(value, TensorProto):
        return value
    array = np.asarray(value, np.float32)
    return helper.make_tensor(name, kind, array.shape, array.ravel().tolist())


def quantize(source: str, name: str, pair: Pair, constants: dict[str, TensorProto]) -> tuple[list[NodeProto], str]:
    """(the nodes around `source`, what they give); a stored constant of that name is made here."""
    attributes = {k: v for k, v in (("axis", pair.axis), ("block_size", pair.block)) if v is not None}
    scale, zero = f"{name}_scale", f"{name}_zero"
    extra = [scale]
    if scale not in constants:
        constants[scale] = make_tensor(scale, pair.scale, pair.floats)
    if pair.kind is not None:
        shape = tuple(constants[scale].dims)
        constants[zero] = make_tensor(zero, np.broadcast_to(pair.zero, shape), pair.kind)
        extra.append(zero)
    dequantize = helper.make_node("DequantizeLinear", [f"{name}_q", *extra], [f"{name}_d"], f"{name}_D", **attributes)
    if pair.stored:
        dequantize.input[0] = source
        return [dequantize], f"{name}_d"
    given = {**attributes, **({"output_dtype": pair.output_dtype} if pair.output_dtype is not None else {})}
    return [
        helper.make_node("QuantizeLinear", [source, *extra], [f"{name}_q"], f"{name}_Q", **given),
        dequantize,
    ], f"{name}_d"


def finish(
    nodes: Sequence[NodeProto],
    constants: Mapping[str, TensorProto],
    shape: Sequence[int],
    out_shape: Sequence[int],
    *,
    opset: int = 21,
    floats: int = TensorProto.FLOAT,
    inputs: Sequence[Any] = (),
    functions: Sequence[Any] = (),
    domains: Sequence[str] = (),
) -> ModelProto:
    """A graph from `x` to `y`; nobody checks it."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", floats, list(shape)), *inputs],
        [helper.make_tensor_value_info("y", floats, list(out_shape))],
    )
    for name, tensor in constants.items():
        tensor.name = name
        graph.initializer.append(tensor)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=list(functions))
    model.ir_version = 10
    return model


def product(
    op: str = "Conv",
    *,
    x: Pair | None = PLAIN,
    w: Pair | None = PLAIN,
    bias: Pair | str | None = "none",
    opset: int = 21,
    floats: int = TensorProto.FLOAT,
    weights: int | None = None,
    constants: Mapping[str, TensorProto] | None = None,
    before: Sequence[NodeProto] = (),
    inputs: Sequence[Any] = (),
) -> ModelProto:
    """x -> pair -> op(weight behind a pair or stored) -> Relu -> y."""
    shape, axis, x_shape, y_shape, attributes = PRODUCTS[op]
    made = dict(constants or {})
    nodes = list(before)
    operands = ["x"]
    if x is not None:
        extra, operands[0] = quantize("x", "x", x, made)
        nodes += extra
    rng = np.random.default_rng(0)
    kind = (w.kind or TensorProto.INT8) if w is not None and w.stored else (weights or floats)
    small = kind in (TensorProto.INT8, TensorProto.UINT8, INT4, UINT4, TensorProto.INT16, TensorProto.INT32)
    values = rng.integers(0, 7, shape) if small else rng.standard_normal(shape) * 0.2
    made["w"] = make_tensor("w", values, kind)
    if w is None:
        operands.append("w")
    else:
        extra, name = quantize("w", "w", w, made)
        nodes += extra
        operands.append(name)
    if bias != "none":
        size = shape[axis]
        if isinstance(bias, Pair):
            made["b"] = make_tensor("b", np.ones(size), (bias.kind or TensorProto.INT32) if bias.stored else floats)
            extra, name = quantize("b", "b", bias, made)
            nodes += extra
            operands.append(name)
        else:
            made["b"] = make_tensor("b", np.ones(size), floats)
            operands.append("b")
    nodes.append(helper.make_node(op.split()[0], operands, ["p"], "product", **attributes))
    nodes.append(helper.make_node("Relu", ["p"], ["y"], "relu"))
    return finish(nodes, made, x_shape, y_shape, opset=opset, floats=floats, inputs=inputs)


def per_channel(op: str, *, stored: bool = False, axis: int | None = None, **fields: Any) -> Pair:
    """A pair with a scale for each entry along an axis of the weight, by default that of its output channels."""
    shape, right, *_ = PRODUCTS[op]
    axis = right if axis is None else axis
    return Pair(scale=np.full(shape[axis], 0.05), axis=axis, stored=stored, **fields)


def around(pair: Pair, op: str = "Relu", *, opset: int = 21, floats: int = TensorProto.FLOAT) -> ModelProto:
    """x -> pair -> op -> y: an activation with no product behind it."""
    made: dict[str, TensorProto] = {}
    nodes, name = quantize("x", "x", pair, made)
    nodes.append(helper.make_node(op, [name], ["y"], "reader"))
    return finish(nodes, made, (1, 8, 8, 8), (1, 8, 8, 8), opset=opset, floats=floats)


def in_branch(pair: Pair, *, deep: int = 1, outer: bool = False) -> ModelProto:
    """An If whose branch holds the quantized product; with `outer` its scales are constants of the graph around it."""
    inner = product(x=pair)
    values = {tensor.name: tensor for tensor in inner.graph.initializer}
    given = {name: values[name] for name in values if outer and name.endswith(("scale", "zero"))}
    body = helper.make_graph(
        list(inner.graph.node), "then", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 6, 6])],
        [tensor for name, tensor in values.items() if name not in given],
    )  # fmt: skip
    other = helper.make_graph(
        [helper.make_node("Constant", [], ["z"], value=numpy_helper.from_array(np.zeros((1, 16, 6, 6), np.float32)))],
        "else", [], [helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 16, 6, 6])],
    )  # fmt: skip
    for level in range(deep):
        name = "y" if level == deep - 1 else f"y{level}"
        branch = helper.make_node("If", ["flag"], [name], f"branch{level}", then_branch=body, else_branch=other)
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 16, 6, 6])
        body = helper.make_graph([branch], f"outer{level}", [], [out])
    return finish(
        [branch],
        given,
        (1, 8, 8, 8),
        (1, 16, 6, 6),
        inputs=[helper.make_tensor_value_info("flag", TensorProto.BOOL, [])],
    )


def in_function(pair: Pair, *, scale: str = "argument") -> ModelProto:
    """The pair of the activation in a local function, its scale handed in or a constant of the function."""
    zero = helper.make_node("Constant", [], ["z"], value=make_tensor("z", pair.zero, pair.kind or TensorProto.INT8))
    inside = [zero]
    given = ["t"]
    if scale == "argument":
        given.append("s")
    else:
        inside.append(helper.make_node("Constant", [], ["s"], value=make_tensor("s", pair.scale, pair.floats)))
    inside.append(helper.make_node("QuantizeLinear", ["t", "s", "z"], ["q"], "inner_Q"))
    inside.append(helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "inner_D"))
    function = helper.make_function("local", "Fake", given, ["d"], inside, [helper.make_opsetid("", 21)])
    made: dict[str, TensorProto] = {"w": make_tensor("w", np.ones((16, 8, 3, 3)) * 0.1, TensorProto.FLOAT)}
    nodes, weight = quantize("w", "w", Pair(), made)
    if scale == "argument":
        made["x_scale"] = make_tensor("x_scale", pair.scale, pair.floats)
    call = helper.make_node("Fake", ["x", "x_scale"][: len(given)], ["xd"], "call", domain="local")
    nodes += [call, helper.make_node("Conv", ["xd", weight], ["y"], "product")]
    return finish(nodes, made, (1, 8, 8, 8), (1, 16, 6, 6), functions=[function], domains=["local"])


def in_loop(pair: Pair) -> ModelProto:
    """A Loop of three steps whose body holds the pair."""
    made: dict[str, TensorProto] = {}
    nodes, name = quantize("state", "x", pair, made)
    nodes += [helper.make_node("Relu", [name], ["next"], "reader"), helper.make_node("Identity", ["on"], ["still"])]
    shape = [1, 8, 8, 8]
    body = helper.make_graph(
        nodes,
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, shape),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, shape),
        ],
        list(made.values()),
    )
    constants = {
        "count": helper.make_tensor("count", TensorProto.INT64, [], [3]),
        "go": helper.make_tensor("go", TensorProto.BOOL, [], [True]),
    }
    loop = helper.make_node("Loop", ["count", "go", "x"], ["y"], "loop", body=body)
    return finish([loop], constants, shape, shape)


def with_scale(
    nodes: Sequence[NodeProto], constants: Mapping[str, TensorProto], *, w: Pair | None = PLAIN
) -> ModelProto:
    """A product whose activation takes the scale `s`, which `nodes` make."""
    model = product(w=w, before=nodes, constants=constants)
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name == "x_scale":
                node.input[place] = "s"
    return model


def scalar(name: str, value: float = 0.05, kind: int = TensorProto.FLOAT) -> dict[str, TensorProto]:
    return {name: make_tensor(name, value, kind)}


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), f"{op}_{outputs[0]}", **attributes)


def scales() -> Iterator[tuple[str, ModelProto]]:
    """Where a scale comes from."""
    tensor = make_tensor("t", 0.05, TensorProto.FLOAT)
    yield "Constant tensor", with_scale([node("Constant", [], ["s"], value=tensor)], {})
    yield "Constant value_float", with_scale([node("Constant", [], ["s"], value_float=0.05)], {})
    yield "Constant value_floats", with_scale([node("Constant", [], ["s"], value_floats=[0.05])], {})
    yield "Identity", with_scale([node("Identity", ["a"], ["s"])], scalar("a"))
    yield (
        "Identity of Identity",
        with_scale([node("Identity", ["a"], ["b"]), node("Identity", ["b"], ["s"])], scalar("a")),
    )
    yield "Mul of constants", with_scale([node("Mul", ["a", "b"], ["s"])], {**scalar("a"), **scalar("b", 2)})
    yield "Div of constants", with_scale([node("Div", ["a", "b"], ["s"])], {**scalar("a"), **scalar("b", 2)})
    yield (
        "Cast of a constant",
        with_scale([node("Cast", ["a"], ["s"], to=TensorProto.FLOAT)], scalar("a", kind=TensorProto.FLOAT16)),
    )
    empty = {"a": make_tensor("a", [0.05], TensorProto.FLOAT), "shape": helper.make_tensor("shape", 7, [0], [])}
    yield "Reshape of a constant", with_scale([node("Reshape", ["a", "shape"], ["s"])], empty)
    yield "Squeeze of a constant", with_scale([node("Squeeze", ["a"], ["s"])], {"a": empty["a"]})
    yield "negative behind Identity", with_scale([node("Identity", ["a"], ["s"])], scalar("a", -0.05))
    yield "negative behind Neg", with_scale([node("Neg", ["a"], ["s"])], scalar("a"))
    yield "Abs of a negative", with_scale([node("Abs", ["a"], ["s"])], scalar("a", -0.05))


def odd_graphs() -> Iterator[tuple[str, ModelProto]]:
    """Graphs that no engine takes for reasons that have nothing to do with Q/DQ nodes."""
    shape = (1, 8, 8, 8)
    yield "unknown operator", finish([node("Unheard", ["x"], ["y"])], {}, shape, shape)
    yield (
        "unknown domain",
        finish(
            [helper.make_node("Gelu2", ["x"], ["y"], domain="com.nowhere")], {}, shape, shape, domains=["com.nowhere"]
        ),
    )
    yield "NonZero", finish([node("NonZero", ["x"], ["n"]), node("Cast", ["n"], ["y"], to=1)], {}, shape, (4, 1))
    yield (
        "shape mismatch",
        finish(
            [node("Conv", ["x", "w"], ["y"])], {"w": make_tensor("w", np.ones((4, 3, 3, 3)), 1)}, shape, (1, 4, 6, 6)
        ),
    )
    yield "undefined input", finish([node("Add", ["x", "nowhere"], ["y"])], {}, shape, shape)


def integer_graphs() -> Iterator[tuple[str, ModelProto]]:
    """Quantization in other forms than Q/DQ."""
    pair = {**scalar("s"), "z": make_tensor("z", 0, TensorProto.INT8)}
    square = {"w": make_tensor("w", np.ones((32, 16)), TensorProto.INT8)}
    dynamic = [node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])]
    yield (
        "DynamicQuantizeLinear",
        finish([*dynamic, node("DequantizeLinear", ["q", "s", "z"], ["y"])], {}, (4, 32), (4, 32)),
    )
    yield (
        "MatMulInteger",
        finish(
            [*dynamic, node("MatMulInteger", ["q", "w", "z"], ["i"]), node("Cast", ["i"], ["y"], to=1)],
            square,
            (4, 32),
            (4, 16),
        ),
    )
    quantized = [node("QuantizeLinear", ["x", "s", "z"], ["q"])]
    yield "QLinearMatMul", finish(
        [*quantized, node("QLinearMatMul", ["q", "s", "z", "w", "s", "z", "s", "z"], ["m"]),
         node("DequantizeLinear", ["m", "s", "z"], ["y"])], {**pair, **square}, (4, 32), (4, 16)
    )  # fmt: skip
    kernel = {"w": make_tensor("w", np.ones((16, 8, 3, 3)), TensorProto.INT8)}
    yield "QLinearConv", finish(
        [*quantized, node("QLinearConv", ["q", "s", "z", "w", "s", "z", "s", "z"], ["m"]),
         node("DequantizeLinear", ["m", "s", "z"], ["y"])], {**pair, **kernel}, (1, 8, 8, 8), (1, 16, 6, 6)
    )  # fmt: skip
    yield "ConvInteger", finish(
        [*quantized, node("ConvInteger", ["q", "w"], ["i"]), node("Cast", ["i"], ["y"], to=1)],
        {**pair, **kernel}, (1, 8, 8, 8), (1, 16, 6, 6),
    )  # fmt: skip


def placed() -> Iterator[tuple[str, ModelProto]]:
    """Pairs at other places than before a product."""
    shape = (1, 8, 8, 8)
    for op in ("Relu", "Softmax", "MaxPool", "AveragePool", "GlobalAveragePool", "Transpose", "Sigmoid"):
        attributes = {"kernel_shape": [1, 1]} if op in ("MaxPool", "AveragePool") else {}
        made: dict[str, TensorProto] = {}
        nodes, name = quantize("x", "x", Pair(), made)
        out = {"GlobalAveragePool": (1, 8, 1, 1), "Transpose": (8, 8, 8, 1)}.get(op, shape)
        yield f"before {op}", finish([*nodes, node(op, [name], ["y"], **attributes)], made, shape, out)
    made = {}
    first, a = quantize("x", "a", Pair(), made)
    second, b = quantize("x", "b", Pair(scale=0.1), made)
    yield "both sides of Add", finish([*first, *second, node("Add", [a, b], ["y"])], made, shape, shape)
    made = {}
    first, a = quantize("x", "a", Pair(), made)
    again, b = quantize(a, "b", Pair(scale=0.1), made)
    yield "twice in a row", finish([*first, *again, node("Relu", [b], ["y"])], made, shape, shape)
    made = {}
    before, a = quantize("x", "x", Pair(), made)
    after, b = quantize("r", "r", Pair(), made)
    yield "output of the graph", finish([*before, node("Relu", [a], ["r"]), *after, node("Identity", [b], ["y"])],
                                        made, shape, shape)  # fmt: skip
    weight = per_channel("Gemm", stored=True)
    yield "weights alone", product("Gemm", x=None, w=weight)
    yield "activations alone", product(w=None)


def list_cases() -> dict[str, Case]:
    """Every small graph by name."""
    cases: dict[str, Case] = {}

    def add(name: str, build: Callable[[], ModelProto], *targets: str) -> None:
        assert name not in cases, name
        cases[name] = Case(build, targets or DEFAULT_TARGETS)

    for op, (_, right, *_) in PRODUCTS.items():
        for stored in (False, True):
            form = "stored" if stored else "pair"
            add(f"{op}: {form}, one scale", lambda op=op, s=stored: product(op, w=Pair(stored=s)))
            add(f"{op}: {form}, by channel", lambda op=op, s=stored: product(op, w=per_channel(op, stored=s)))
            for axis in range(2):
                if axis != right:
                    add(
                        f"{op}: {form}, axis {axis}",
                        lambda op=op, s=stored, a=axis: product(op, w=per_channel(op, stored=s, axis=a)),
                    )
            add(
                f"{op}: {form}, scale of shape [1]", lambda op=op, s=stored: product(op, w=Pair(scale=[0.05], stored=s))
            )
        add(
            f"{op}: axis from behind",
            lambda op=op: product(op, w=per_channel(op, axis=PRODUCTS[op][1] - len(PRODUCTS[op][0]))),
        )
        add(
            f"{op}: wrong number of scales",
            lambda op=op: product(op, w=Pair(scale=np.full(5, 0.05), axis=PRODUCTS[op][1])),
        )
        add(
            f"{op}: activation by channel",
            lambda op=op: product(op, x=Pair(scale=np.full(PRODUCTS[op][2][1], 0.05), axis=1)),
        )
        add(f"{op}: activation with a scale of shape [1]", lambda op=op: product(op, x=Pair(scale=[0.05])))
        add(f"{op}: in FP8", lambda op=op: product(op, x=Pair(kind=FP8), w=per_channel(op, kind=FP8)))
        add(f"{op}: in FP16", lambda op=op: product(op, x=HALF, w=per_channel(op, floats=FP16), floats=FP16))
        add(f"{op}: float bias", lambda op=op: product(op, bias=None)) if op != "MatMul" else None
    for opset in (13, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26):
        add(f"opset {opset}", lambda o=opset: product(opset=o, w=per_channel("Conv")))
        if opset >= 19:
            add(f"opset {opset} in FP8", lambda o=opset: product(opset=o, x=Pair(kind=FP8), w=Pair(kind=FP8)))
    zeros: dict[str, Pair] = {
        "3": Pair(zero=3),
        "uint8 128": Pair(zero=128, kind=TensorProto.UINT8),
        "uint8 0": Pair(kind=TensorProto.UINT8),
        "int16": Pair(kind=TensorProto.INT16),
        "uint16": Pair(kind=TensorProto.UINT16),
        "none": Pair(kind=None),
        "none, output_dtype int8": Pair(kind=None, output_dtype=TensorProto.INT8),
        "none, output_dtype uint8": Pair(kind=None, output_dtype=TensorProto.UINT8),
        "fp8 1": Pair(zero=1, kind=FP8),
        "e5m2": Pair(kind=TensorProto.FLOAT8E5M2),
        "e4m3fnuz": Pair(kind=TensorProto.FLOAT8E4M3FNUZ),
    }
    for name, pair in zeros.items():
        add(f"zero point {name}", lambda p=pair: product(x=p, w=p._replace(zero=0) if p.kind else Pair()))
        add(f"zero point {name}, no product", lambda p=pair: around(p))
    add("zero point uint8 0, weight in int8", lambda: product(x=zeros["uint8 0"]))
    add("zero point 3 of a weight", lambda: product(w=Pair(zero=3)))
    add("zero point 3 of a stored weight", lambda: product(w=Pair(zero=3, stored=True)))
    for name, value in {"0": 0.0, "negative": -0.05, "infinite": np.inf, "NaN": np.nan}.items():
        add(f"scale {name}", lambda v=value: product(x=Pair(scale=v)))
        add(f"scale {name} of a weight", lambda v=value: product(w=Pair(scale=v)))
    add("one of the scales 0", lambda: product(w=Pair(scale=[0.05] * 15 + [0.0], axis=0)))
    add("wrong number of scales of an activation", lambda: product(x=Pair(scale=np.full(5, 0.05), axis=1)))
    for name, model in scales():
        add(f"scale: {name}", lambda m=model: m)
    stored = {
        "int32": Pair(kind=TensorProto.INT32, stored=True),
        "int32 without zero point": Pair(kind=None, stored=True),
        "int8": Pair(stored=True),
        "pair of a float": Pair(),
        "int8 by channel": Pair(scale=np.full(16, 0.05), axis=0, stored=True),
    }
    for op in ("Conv", "Gemm"):
        for name, pair in stored.items():
            add(f"{op}: bias {name}", lambda op=op, p=pair: product(op, bias=p))
    for name, model in integer_graphs():
        add(name, lambda m=model: m)
    blocks = {
        "int4 in blocks": Pair(scale=np.full((2, 16), 0.05), kind=INT4, axis=0, block=16, stored=True),
        "int8 in blocks": Pair(scale=np.full((2, 16), 0.05), axis=0, block=16, stored=True),
        "int4 by column": Pair(scale=np.full(16, 0.05), kind=INT4, axis=1, stored=True),
        "int4 by row": Pair(scale=np.full(32, 0.05), kind=INT4, axis=0, stored=True),
        "int4, one scale": Pair(kind=INT4, stored=True),
        "uint4 in blocks": Pair(scale=np.full((2, 16), 0.05), kind=UINT4, axis=0, block=16, stored=True),
        "int4 in blocks of another length": Pair(
            scale=np.full((3, 16), 0.05), kind=INT4, axis=0, block=16, stored=True
        ),
    }
    for name, pair in blocks.items():
        add(f"MatMul: {name}", lambda p=pair: product("MatMul", x=None, w=p))
        add(f"MatMul: {name}, activation in INT8", lambda p=pair: product("MatMul", w=p))
    mixed = {
        "FP8": Pair(kind=FP8),
        "INT8": Pair(),
        "INT4": Pair(kind=INT4),
        "INT4 by channel": per_channel("Gemm", kind=INT4),
        "FP8 by channel": per_channel("Gemm", kind=FP8),
    }
    for x in ("FP8", "INT8", "INT4"):
        for w in mixed:
            if x != w.split()[0]:
                add(f"Gemm: activation in {x}, weight in {w}", lambda x=x, w=w: product("Gemm", x=mixed[x], w=mixed[w]))
    add(
        "MatMul: int4 in blocks, activation in FP8",
        lambda: product("MatMul", x=Pair(kind=FP8), w=blocks["int4 in blocks"]),
    )
    add(
        "MatMul: int8 in blocks, activation in FP8",
        lambda: product("MatMul", x=Pair(kind=FP8), w=blocks["int8 in blocks"]),
    )
    for x, w in (("FP8", "INT8"), ("INT8", "FP8"), ("INT8", "INT4")):
        add(f"Conv: activation in {x}, weight in {w}", lambda x=x, w=w: product(x=mixed[x], w=mixed[w]))
    sound, crooked = Pair(), Pair(zero=3)
    for name, pair in (("sound", sound), ("zero point 3", crooked), ("uint8", zeros["uint8 128"])):
        add(f"If: {name}", lambda p=pair: in_branch(p))
        add(f"If in If: {name}", lambda p=pair: in_branch(p, deep=2))
        add(f"If, constants outside: {name}", lambda p=pair: in_branch(p, outer=True))
        add(f"Loop: {name}", lambda p=pair: in_loop(p))
        add(f"function: {name}", lambda p=pair: in_function(p))
        add(f"function with its own scale: {name}", lambda p=pair: in_function(p, scale="inside"))
    add("function: scale 0", lambda: in_function(Pair(scale=0.0)))
    add("function with its own scale: 0", lambda: in_function(Pair(scale=0.0), scale="inside"))
    half = FP16
    add("fp16 weight, float activation", lambda: product(weights=half, w=Pair(floats=half)))
    add("fp16 weight, float scales", lambda: product(weights=half, w=Pair()))
    add("fp16 throughout, float scales", lambda: product(floats=half))
    add("float weight, fp16 activation", lambda: product(floats=half, weights=1, x=Pair(floats=half), w=Pair()))
    add("stored weight with fp16 scales, float activation", lambda: product(w=Pair(floats=half, stored=True)))
    add("stored weight, fp16 activation", lambda: product(floats=half, x=Pair(floats=half), w=Pair(stored=True)))
    add("bf16 throughout", lambda: product(
        opset=22, floats=16, x=Pair(floats=16), w=Pair(floats=16)))  # fmt: skip
    for name, model in placed():
        add(f"pair {name}" if "alone" not in name else name, lambda m=model: m)
    for name, model in odd_graphs():
        add(name, lambda m=model: m)
    for target in ("SM75", "SM80", "SM86", "SM89", "SM120", "SM121"):
        add(f"INT8 convolution for {target}", lambda: product(), target)
        add(f"INT8 Gemm for {target}", lambda: product("Gemm"), target)
        add(f"FP8 convolution for {target}", lambda: product(x=Pair(kind=FP8), w=Pair(kind=FP8)), target)
        add(f"INT4 weights for {target}", lambda: product("MatMul", x=None, w=blocks["int4 in blocks"]), target)
        add(f"FP16 Gemm in INT8 for {target}", lambda: product(
            "Gemm", x=Pair(floats=half), w=Pair(floats=half), floats=half), target)  # fmt: skip
        add(f"BF16 convolution in INT8 for {target}", lambda: product(
            opset=22, floats=16, x=Pair(floats=16), w=Pair(floats=16)), target)  # fmt: skip
    add("FP8 for SM86 and SM89", lambda: product(x=Pair(kind=FP8), w=Pair(kind=FP8)), "SM86", "SM89")
    return cases


def list_crashing() -> dict[str, Case]:
    """Graphs whose scale is no constant: the builder ends its process, with a segmentation fault."""
    value = [helper.make_tensor_value_info("s", TensorProto.FLOAT, [])]

    def handed() -> ModelProto:
        model = with_scale([], {})
        model.graph.input.extend(value)
        return model

    def computed() -> ModelProto:
        return with_scale([node("ReduceMax", ["x"], ["s"], keepdims=0)], {})

    return {"scale is an input": Case(handed), "scale is computed": Case(computed)}


# RTX takes these and gives them another meaning than ONNX does; they stay refused.
CHANGED = {
    "zero point uint8 0": "RTX reads uint8 as int8: values above 127 become negative",
    "zero point none": "ONNX means uint8, RTX int8",
    "zero point fp8 1": "RTX drops a zero point of FP8",
    "scale infinite": "every value becomes zero or not a number",
    "scale: negative": "RTX asks for positive scales, and does not see those that it folds itself",
}
# RTX refuses these for reasons that have nothing to do with Q/DQ nodes; its parser says so at once.
NO_QUANTIZERS = tuple(name for name, _ in odd_graphs())


def judge_agreement(name: str, refused: bool, said: str) -> str:
    """What came of a graph: how our check and RTX agree, or why they need not, or which of them is too strict."""
    if refused == (said != "taken"):
        return "both refuse" if refused else "both take"
    if refused and any(name.startswith(begin) for begin in CHANGED):
        return "listed: another meaning"
    if not refused and name in NO_QUANTIZERS:
        return "listed: no Q/DQ nodes"
    return "too strict" if refused else "too lax"
