"""Turns models into artifacts: the zoo, tasks, ONNX export."""
