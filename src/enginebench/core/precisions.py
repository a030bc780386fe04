"""The names under which time is recorded by precision, and the precision of a GPU kernel, read from its name."""

import re

# From one type or layout to another: quantize, dequantize, cast, reorder. It computes nothing in either type.
REORDER = "reorder"
# Known to be in none of the precisions: work on indices, shapes and truth values.
OTHER = "other"
# The record gives no type, or an unrecognized one: any precision is possible.
UNKNOWN = "unknown"

# The first that matches decides. The names are those of cuDNN 8 and 9, cuBLAS 13, CUTLASS, PyTorch 2.11 and TensorRT
# 8.4 on Hopper, Ampere and Turing, as profilers and TensorRT's inspector show them: matrix units say in what they
# multiply (tf32f32, s1688gemm, h16816, f16f16, bf16bf16, i8i32; nvjet's three letters are input, compute and output
# type), plain FP32 ones are called sgemm, scudnn, simt or f32f32; templates name their element type. The shape s1688
# alone means TF32; half types have it too and say so.
PATTERNS: tuple[tuple[str, str], ...] = (
    (r"memcpy|memset|nchwtonhwc|nhwctonchw|nchw_?to_?nhwc|nhwc_?to_?nchw|convert_?tensor|cublaslt::split", REORDER),
    (r"direct_copy_kernel|copy_device_to_device|unrolled_elementwise_kernel.*copy|bfloat16_copy|float16_copy", REORDER),
    (r"(?<![a-z])tf32|^(?!.*(f16|fp16)).*s1688", "tf32"),
    (r"e4m3|e5m2|fp8|nvjet_(sm\d+_)?q[a-z]+_", "fp8"),
    (r"i8816|i16832|imma|int8|s8s8|u8s8|_i8i(8|32)_|dp4a", "int8"),
    (r"bf16|bfloat16|nvjet_(sm\d+_)?t[a-z]{2}_", "bf16"),
    (r"f16f16|f16_s16816|fp16|h16816|h884|h1688|hcudnn|hgemm|hmma|half|nvjet_(sm\d+_)?h[a-z]{2}_", "fp16"),
    (r"f32f32|fp32|sgemm|scudnn|simt|sconv|ffma|winograd.*float|nvjet_(sm\d+_)?s[a-z]{2}_", "fp32"),
    (r"<float|float,|float>|float const|\bfloat\b", "fp32"),
)
_COMPILED = tuple((re.compile(pattern), dtype) for pattern, dtype in PATTERNS)
# Code that a compiler (Triton, TensorRT's Myelin) generated is named after its operators, not its types.
_GENERATED = ("triton_", "__myl")


def classify_kernel(name: str) -> str:
    """The precision in which a kernel computes, "reorder" for a copy, or "unknown" where its name does not say."""
    lower = name.lower()
    if lower.startswith(_GENERATED):
        return UNKNOWN
    return next((dtype for pattern, dtype in _COMPILED if pattern.search(lower)), UNKNOWN)
