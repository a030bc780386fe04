"""Quantized ONNX files for tests: by hand, and by ONNX Runtime's quantizer from the shipped digits network."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from enginebench.core.sums import keep_sums_exact, open_cpu_session

SCALES = {"input": 1 / 255, "hidden": 0.02, "output": 0.1}


def write_chain(
    path,
    *,
    seed=0,
    kind=np.uint8,
    transposed=True,
    matmul=False,
    per_channel=True,
    bias="float",
    relu=None,
    output_q=True,
    weight_zero=0,
    constant_weights=False,
    axis=None,
    swap=None,
):
    """A 6-5-3 network in Q/DQ form. `swap` may change the list of nodes and the dictionary of constants."""
    rng = np.random.default_rng(seed)
    zeros = {"input": 0, "hidden": 0, "output": 128} if kind is np.uint8 else {"input": -3, "hidden": 0, "output": 5}
    constants, nodes = {}, []

    def add(operator, inputs, output, **more):
        nodes.append(helper.make_node(operator, inputs, [output], **more))
        return output

    def add_pair(tensor, name):
        constants.update({f"{name}_s": np.float32(SCALES[name]), f"{name}_z": kind(zeros[name])})
        add("QuantizeLinear", [tensor, f"{name}_s", f"{name}_z"], f"{name}_q")
        return add("DequantizeLinear", [f"{name}_q", f"{name}_s", f"{name}_z"], f"{name}_dq")

    tensor = add_pair("input", "input")
    for i, (inputs, outputs) in enumerate(((6, 5), (5, 3))):
        name = f"layer{i}"
        weights = rng.integers(-120, 120, (outputs, inputs))
        scale = (0.005 + 0.01 * rng.random(outputs)).astype(np.float32) if per_channel else np.float32(0.01)
        stored = (weights if transposed and not matmul else weights.T) + weight_zero
        wkind = np.uint8 if weight_zero == 128 else np.int8
        constants |= {f"{name}_w": stored.astype(wkind), f"{name}_ws": scale}
        constants[f"{name}_wz"] = np.full(np.shape(scale), weight_zero, wkind)
        own_axis = (0 if transposed and not matmul else 1) if axis is None else axis
        add("DequantizeLinear", [f"{name}_w", f"{name}_ws", f"{name}_wz"], f"{name}_wf", axis=own_axis)
        real = rng.normal(0, 1, outputs).astype(np.float32)
        source = SCALES["input" if i == 0 else "hidden"]
        if bias == "dq":
            constants[f"{name}_bs"] = np.broadcast_to(scale * np.float32(source), (outputs,)).astype(np.float32)
            constants[f"{name}_bq"] = np.rint(real / constants[f"{name}_bs"]).astype(np.int32)
            constants[f"{name}_bz"] = np.zeros(outputs, np.int32)
            add("DequantizeLinear", [f"{name}_bq", f"{name}_bs", f"{name}_bz"], f"{name}_b", axis=0)
        else:
            constants[f"{name}_b"] = real
        if matmul:
            product = add("MatMul", [tensor, f"{name}_wf"], f"{name}_m", name=name)
            tensor = add("Add", [f"{name}_b", product], f"{name}_y")
        else:
            ends = [tensor, f"{name}_wf", f"{name}_b"]
            tensor = add("Gemm", ends, f"{name}_y", name=name, transB=int(transposed))
        if i == 0:
            if relu == "relu":
                tensor = add("Relu", [tensor], "cut")
            elif relu == "clip":
                constants["zero"] = np.float32(0)
                tensor = add("Clip", [tensor, "zero"], "cut")
            tensor = add_pair(tensor, "hidden")
        elif output_q:
            tensor = add_pair(tensor, "output")
    nodes[-1].output[0] = "y"
    if constant_weights:
        value = numpy_helper.from_array(constants.pop("layer0_w"))
        nodes.insert(0, helper.make_node("Constant", [], ["layer0_w"], value=value))
    if swap:
        swap(nodes, constants)
    given, made = (helper.make_tensor_value_info(k, TensorProto.FLOAT, ["batch", n]) for k, n in (("x", 6), ("y", 3)))
    values = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "chain", [given], [made], values)
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name == "input":
                node.input[i] = "x"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def run_ort(path, inputs):
    """What ONNX Runtime answers, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    keep_sums_exact(options)  # as the engine has them
    session = open_cpu_session(str(path), options)
    return session.run(None, {session.get_inputs()[0].name: inputs})[0]
