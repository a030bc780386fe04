"""ONNX files: what they are, what their inputs want, what work is in them."""
