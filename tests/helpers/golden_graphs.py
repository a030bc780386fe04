"""The graphs and files that the sessions start from; their weights are sixteenths, so that sums have no rounding."""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

PIXELS = 64


def weights(name: str, *shape: int) -> onnx.TensorProto:
    """Whole sixteenths between -1 and 1, by a rule that needs no generator."""
    count = int(np.prod(shape))
    values = (np.arange(count) * 7919 % 31 - 15) / 16
    return numpy_helper.from_array(values.reshape(shape).astype(np.float32), name)


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    shapes: dict[str, list[object]],
    *constants: onnx.TensorProto,
    kind: int = TensorProto.FLOAT,
    domain: str = "",
) -> None:
    """Writes a graph from `input` to `output`, in versions of the format that every runtime of today reads."""
    ends = [helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes.items()]
    graph = helper.make_graph(nodes, "golden", ends[:1], ends[1:], list(constants))
    versions = [helper.make_opsetid("", 18)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    path.write_bytes(helper.make_model(graph, opset_imports=versions, ir_version=9).SerializeToString())


def make_all(folder: Path) -> None:
    """Writes all of them into `folder`."""
    layers = [
        helper.make_node("Gemm", ["input", "w1", "b1"], ["hidden"], name="first", transB=1),
        helper.make_node("Relu", ["hidden"], ["active"], name="relu"),
        helper.make_node("Gemm", ["active", "w2", "b2"], ["output"], name="second", transB=1),
    ]
    values = [weights("w1", 32, PIXELS), weights("b1", 32), weights("w2", 10, 32), weights("b2", 10)]
    save(folder / "mlp.onnx", layers, {"input": ["batch", PIXELS], "output": ["batch", 10]}, *values)
    save(folder / "fixed.onnx", layers, {"input": [1, PIXELS], "output": [1, 10]}, *values)
    other = [weights("w1", 32, PIXELS), weights("b1", 32), weights("b1", 320), weights("b2", 10)]
    other[2] = numpy_helper.from_array(-numpy_helper.to_array(values[2]), "w2")
    save(folder / "negated.onnx", layers, {"input": ["batch", PIXELS], "output": ["batch", 10]}, *other)
    only = [helper.make_node("Gemm", ["input", "w1", "b1"], ["output"], name="only", transB=1)]
    tiny = [weights("w1", 2, 4), weights("b1", 2)]
    save(folder / "tiny.onnx", only, {"input": ["batch", 4], "output": ["batch", 2]}, *tiny)
    add = [helper.make_node("Add", ["input", "input"], ["output"], name="add")]
    save(folder / "whole.onnx", add, {"input": [1, 4], "output": [1, 4]}, kind=TensorProto.INT64)
    save(
        folder / "open.onnx", add, {"input": ["batch", 3, "height", "width"], "output": ["batch", 3, "height", "width"]}
    )
    custom = [helper.make_node("Mystery", ["input"], ["output"], name="odd", domain="com.example")]
    save(folder / "custom.onnx", custom, {"input": [1, 4], "output": [1, 4]}, domain="com.example")
    pixels = (np.arange(3 * PIXELS).reshape(3, PIXELS) % 17).astype(np.float32)
    np.savez(folder / "in.npz", input=pixels)
    np.savez(folder / "double.npz", input=pixels.astype(np.float64))
    np.savez(folder / "narrow.npz", input=pixels[:, :10])
    np.savez(folder / "misnamed.npz", picture=pixels)
    np.savez(folder / "undefined.npz", input=np.where(pixels > 15, np.nan, pixels).astype(np.float32))
    np.savez(folder / "objects.npz", input=np.array([{"a": 1}, None], dtype=object))


if __name__ == "__main__":
    make_all(Path(sys.argv[1]))
