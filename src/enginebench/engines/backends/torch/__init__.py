"""PyTorch: eager, compiled and as a CUDA graph, on the CPU and on NVIDIA GPUs.

Lives here: one file per engine, and what they share (module, casts, folding, timing). May not be here: other
runtimes, and the registry, which alone imports engine files.
"""
