"""PyTorch: eager, compiled and as a CUDA graph, on the CPU and on NVIDIA GPUs."""
