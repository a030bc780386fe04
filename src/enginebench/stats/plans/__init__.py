"""Layers of a plan from the files of TensorRT's inspector and profiler, however their text is wrapped."""
