"""ONNX Runtime: on the CPU, on CUDA, and with TensorRT as its provider.

Lives here: one file per engine. May not be here: other runtimes, and what every backend checks (`request`).
"""
