"""PyTorch models: from what a user named to a module, and to ONNX."""
