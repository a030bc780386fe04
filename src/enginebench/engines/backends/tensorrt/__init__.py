"""TensorRT through its Python API, and what trtexec shares with it: build settings and the plan store."""
