"""TensorRT through its Python API, and what trtexec shares with it: build settings and the plan store.

Lives here: building, running and keeping plans. May not be here: command lines and logs (`trtexec`).
"""
