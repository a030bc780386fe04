"""Probes of a CPU's peaks through ONNX Runtime and OpenVINO, whose kernels differ from PyTorch's: the best counts."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np

from enginebench.core.errors import importing
from enginebench.core.records import Precision
from enginebench.features.roofline.peaks import PeakProbe

with importing("{}", 'pip install "enginebench[ort]"'):
    from onnx import TensorProto, helper, numpy_helper

# Operators in a chain: so many that copying the floats in and out of it costs little in comparison.
CHAIN = 4
# (height, width, other width) of a chain of products, which alternates between the widths: squares, a transformer's.
PRODUCTS = ((256, 256, 256), (512, 512, 512), (197, 192, 768))
# (channels, height and width, kernel): those of ResNets.
CONVOLUTIONS = ((64, 56, 3), (128, 28, 3), (256, 14, 3), (512, 7, 3), (256, 28, 1))
PRECISIONS: tuple[Precision, ...] = ("fp32", "int8")
OPSET = 17
Open = Callable[[bytes, Any, int], Callable[[], object]]


def list_graph_probes(precisions: Sequence[Precision], threads: int) -> Iterator[PeakProbe]:
    """Yield products and convolutions in FP32 and INT8, with so many threads, by each runtime that is installed."""
    for runtime, open_graph in _list_runtimes():
        for precision in (one for one in PRECISIONS if one in precisions):
            for height, narrow, wide in PRODUCTS:
                widths = [wide if i % 2 else narrow for i in range(CHAIN + 1)]
                x = np.ones((height, narrow), np.float32)
                call = open_graph(_build("MatMul", x, [*pairwise(widths)], precision), x, threads)
                method = f"{runtime}, {CHAIN} products, {height}x{narrow} by {narrow}x{wide} and back"
                yield PeakProbe(
                    kind="gemm", precision=precision, work=CHAIN * height * narrow * wide, call=call, method=method
                )
            for channels, size, kernel in CONVOLUTIONS:
                x = np.ones((1, channels, size, size), np.float32)
                shape = (channels, channels, kernel, kernel)
                call = open_graph(_build("Conv", x, [shape] * CHAIN, precision), x, threads)
                work = CHAIN * channels**2 * kernel**2 * size**2
                method = f"{runtime}, {CHAIN} of {kernel}x{kernel}, {channels} channels, {size}x{size}"
                yield PeakProbe(kind="conv", precision=precision, work=work, call=call, method=method)


def _list_runtimes() -> Iterator[tuple[str, Open]]:
    runtimes = (("ONNX Runtime", "onnxruntime", _open_ort), ("OpenVINO", "openvino", _open_openvino))
    for name, module, open_graph in runtimes:
        with suppress(ModuleNotFoundError):
            yield name, partial(open_graph, import_module(module))


def _open_ort(runtime: Any, model: bytes, x: Any, threads: int) -> Callable[[], object]:
    settings = runtime.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = threads, 3
    session = runtime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    return partial(session.run, None, {"x": x})


def _open_openvino(runtime: Any, model: bytes, x: Any, threads: int) -> Callable[[], object]:
    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": "1", "INFERENCE_PRECISION_HINT": "f32"}
    core = runtime.Core()
    request = core.compile_model(core.read_model(model), "CPU", settings).create_infer_request()
    request.infer({"x": x})
    call: Callable[[], object] = request.infer
    return call


def _build(op: str, x: Any, shapes: Sequence[tuple[int, ...]], precision: Precision) -> bytes:
    """Build a chain of one operator with weights of these shapes; in INT8 between quantizers, as real ones are."""
    weights = {"scale": np.array(0.1, np.float32), "zero": np.array(0, np.uint8), "signed": np.array(0, np.int8)}
    options = {"pads": [shapes[0][-1] // 2] * 4} if op == "Conv" else {}
    nodes, last = list(_quantize("x", precision)), "x" if precision == "fp32" else "x.d"
    for i, shape in enumerate(shapes):
        name, weight = f"y{i}", f"w{i}"
        signs = np.where(np.arange(np.prod(shape)) % 2, 1, -1).reshape(shape)
        weights[weight] = signs.astype(np.float32 if precision == "fp32" else np.int8)
        if precision != "fp32":
            nodes.append(helper.make_node("DequantizeLinear", [weight, "scale", "signed"], [f"{weight}.d"]))
            weight = f"{weight}.d"
        nodes += [helper.make_node(op, [last, weight], [name], **options), *_quantize(name, precision)]
        last = name if precision == "fp32" else f"{name}.d"
    graph = helper.make_graph(
        nodes,
        "trial",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    encoded: bytes = model.SerializeToString()
    return encoded


def _quantize(name: str, precision: Precision) -> Iterator[Any]:
    if precision != "fp32":
        yield helper.make_node("QuantizeLinear", [name, "scale", "zero"], [f"{name}.q"])
        yield helper.make_node("DequantizeLinear", [f"{name}.q", "scale", "zero"], [f"{name}.d"])
