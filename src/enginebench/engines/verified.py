"""The machines on which engines were seen to work, and options that several of them have."""

from enginebench.core.entry import Option, switch

CPU_VERIFIED = "x86-64 (AVX512-VNNI), Debian 12, Python 3.11"
GPU_VERIFIED = "NVIDIA H200, driver 580, CUDA 13.0, Python 3.12"

# Of the engines that know BF16 or FP16.
FORCE = switch("1 runs BF16 and FP16 even if the CPU has no instructions for them")

# Of the engines that serve several shapes: `core/engine_api.py: PaddedEngine` does it for them.
PADDING = Option(default="", meaning="of a mix: lengths are padded to a multiple of this, or all shapes to the largest")
