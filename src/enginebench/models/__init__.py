"""Model to Artifact: the zoo, tasks, ONNX export."""
