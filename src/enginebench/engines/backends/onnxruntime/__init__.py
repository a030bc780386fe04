"""ONNX Runtime: on the CPU, on CUDA, and with TensorRT as its provider."""
