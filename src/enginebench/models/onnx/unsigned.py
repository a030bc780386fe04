"""Make the constant weights of integer products unsigned, where this processor's signed kernels saturate."""

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper

# Operator -> the places of its weights and of their zero points. In floats between Q/DQ nodes nothing saturates.
WEIGHTS = {"MatMulInteger": (1, 3), "ConvInteger": (1, 3), "QLinearMatMul": (3, 5), "QLinearConv": (3, 5)}
OFFSET = 128


def write_unsigned(model: str | bytes) -> bytes | None:
    """Return the graph with unsigned weights in its integer products, which computes the same; None if none changes.

    ONNX Runtime's optimizer does so for `core/sums.py: EXACT_SUMS`: weights and zero points are both higher by 128.
    Without any optimizer that setting has no effect, and a product of unsigned and signed bytes saturates.
    """
    read = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model, load_external_data=False)
    if not any(node.op_type in WEIGHTS for node in read.graph.node):
        return None
    if isinstance(model, str):
        onnx.load_external_data_for_model(read, str(Path(model).parent))
    return read.SerializeToString() if _write_weights(read) else None


def _write_weights(model: ModelProto) -> bool:
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    written: set[str] = set()
    for node in (node for node in model.graph.node if node.op_type in WEIGHTS):
        places = WEIGHTS[node.op_type]
        names = [node.input[i] if i < len(node.input) else "" for i in places]
        tensors = [constants.get(name) for name in names]
        weights, zero = tensors
        if weights is None or weights.data_type != TensorProto.INT8 or (names[1] and zero is None):
            continue
        node.input.extend([""] * (places[1] + 1 - len(node.input)))
        for place, name, tensor in zip(places, names, tensors, strict=True):
            values = numpy_helper.to_array(tensor) if tensor is not None else np.int8(0)
            node.input[place] = unsigned = f"{name}/unsigned"
            if unsigned not in written:
                raised = (values.astype(np.int16) + OFFSET).astype(np.uint8)
                model.graph.initializer.append(numpy_helper.from_array(raised, unsigned))
                written.add(unsigned)
    return bool(written)
