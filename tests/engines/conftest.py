"""The small network of the contract suite, for every engine."""

from small_net import expect, load_engine, loader, onnx_artifact, torch_artifact, weights

__all__ = ["expect", "load_engine", "loader", "onnx_artifact", "torch_artifact", "weights"]
