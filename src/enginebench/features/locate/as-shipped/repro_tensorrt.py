"""Exit with 1 while TensorRT gives other outputs than expected.npz, those of the graph as it is written."""

import json
import sys
from pathlib import Path

import numpy as np
import tensorrt as trt
from cuda.bindings import runtime as cuda

HERE = Path(__file__).parent
SETTINGS = json.loads((HERE / "settings.json").read_text("utf-8"))
expected, inputs = (dict(np.load(HERE / f"{name}.npz")) for name in ("expected", "inputs"))
cuda.cudaSetDevice(SETTINGS["device"])
builder = trt.Builder(log := trt.Logger(trt.Logger.ERROR))
network = builder.create_network(1 << int(getattr(trt.NetworkDefinitionCreationFlag, SETTINGS["network"])))
parser, config = trt.OnnxParser(network, log), builder.create_builder_config()
parser.parse_from_file(str(HERE / "model.onnx")) or sys.exit("model.onnx cannot be read")
SETTINGS["tf32"] or config.clear_flag(trt.BuilderFlag.TF32)
for name in SETTINGS["flags"]:
    config.set_flag(getattr(trt.BuilderFlag, name))
engine = (runtime := trt.Runtime(log)).deserialize_cuda_engine(bytes(builder.build_serialized_network(network, config)))
context, addresses, difference = engine.create_execution_context(), {}, 0.0
for name in [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]:
    kind = engine.get_tensor_dtype(name).name
    dtype, shape = {"FLOAT": "float32", "HALF": "float16"}.get(kind, kind.lower()), engine.get_tensor_shape(name)
    array = np.ascontiguousarray(inputs[name], dtype) if name in inputs else np.zeros(shape, dtype)
    addresses[name] = array, int(cuda.cudaMalloc(max(1, array.nbytes))[1])
    cuda.cudaMemcpy(addresses[name][1], array.ctypes.data, array.nbytes, cuda.cudaMemcpyKind.cudaMemcpyHostToDevice)
    context.set_tensor_address(name, addresses[name][1])
stream = cuda.cudaStreamCreateWithFlags(cuda.cudaStreamDefault)[1]
context.execute_async_v3(int(stream)) and cuda.cudaStreamSynchronize(stream)
for name, a in expected.items():
    b, address = addresses[name]
    cuda.cudaMemcpy(b.ctypes.data, address, b.nbytes, cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost)
    print("expected", a.reshape(-1)[:8], "found", b.reshape(-1)[:8], sep="\n")
    gap = np.where(np.isclose(a, b, 0, 0, True), 0.0, np.abs(a.astype(float) - b)) if a.shape == b.shape else np.inf
    difference = max(difference, float(np.max(np.where(np.isnan(gap), np.inf, gap), initial=0.0)))
print(f"largest difference {difference:g}; the fault is there above {SETTINGS['tolerance']:g}")
sys.exit(difference > SETTINGS["tolerance"])
