"""What TensorRT's inspector and profiler wrote of a plan, as layers; texts are read however they were wrapped."""
