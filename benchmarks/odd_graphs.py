"""Small graphs of odd operators through `enginebench run`: is every engine that differs named, and none that does not?

Each graph is computed by onnx's reference evaluator, which no engine shares code with, by ONNX Runtime with and
without its optimizer, and by OpenVINO. What lies more than --tolerance apart from the evaluator (or, where it cannot
run a graph or stands alone against both sessions without an optimizer, from ONNX Runtime without one) must be
`changed` in the run, and nothing else.

    python benchmarks/odd_graphs.py [--only NAME,...] [--out DIR] [--json]
"""

# ruff: noqa: E501 - a graph in ONNX's own words is one text

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper, parser

Arrays = Mapping[str, Any]
# Noise-to-signal ratio beyond which two outputs in FP32 are not rounded otherwise: 60 dB, as stats/drift.py has it.
TOLERANCE = 1e-3
# That of integers of 8 bits: one step more or less in some values.
INT8_TOLERANCE = 0.5
TIMEOUT_S = 300.0

RNG = np.random.default_rng(0)
WEIGHT = RNG.standard_normal((4, 3, 3, 3)).astype(np.float32) / 3
SQUARE = RNG.standard_normal((8, 8)).astype(np.float32) / 3
GAMMA, BETA = (RNG.standard_normal(8).astype(np.float32) for _ in range(2))


class Graph:
    """A graph: its text in ONNX's own words, the constants in it, and its opset."""

    def __init__(self, text: str, opset: int = 17, /, **constants: Any) -> None:
        self.text, self.opset, self.constants = text, opset, constants

    def build(self, name: str) -> ModelProto:
        domains = ', "com.microsoft" : 1' if "com.microsoft" in self.text else ""
        if "ai.onnx.ml" in self.text:
            domains += ', "ai.onnx.ml" : 3'
        model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : {self.opset}{domains}]> {name} {self.text}')
        tensors = [numpy_helper.from_array(np.asarray(value), key) for key, value in self.constants.items()]
        model.graph.initializer.extend(tensors)
        for value in model.graph.output:
            value.type.tensor_type.ClearField("shape")
        return onnx.shape_inference.infer_shapes(model)


def i64(*values: int) -> Any:
    return np.array(values, np.int64)


def f32(*values: float) -> Any:
    return np.array(values, np.float32)


PICTURE = "(float[1, 3, 8, 8] x) => (float y)"
ROWS = "(float[8, 8] x) => (float y)"
TOKENS = "(float[1, 6, 8] x) => (float y)"


def quantized_gemm(attributes: str, *, bias_scale: float) -> Graph:
    """Make a Gemm between Q/DQ pairs, with its bias as integers of 32 bits."""
    return Graph(
        f"{ROWS} {{ q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) v = DequantizeLinear (w, ws, wz) bb = DequantizeLinear (b, bs, bz) g2 = Gemm <{attributes}> (d, v, bb) p = QuantizeLinear (g2, t, z) y = DequantizeLinear (p, t, z) }}",
        13,
        w=QSQUARE,
        ws=np.float32(0.01),
        wz=np.int8(0),
        b=np.arange(-4, 4).astype(np.int32) * 1000,
        bs=np.float32(bias_scale),
        bz=np.int32(0),
        s=np.float32(0.02),
        z=np.uint8(128),
        t=np.float32(0.1),
    )


def norm(
    *, keep: str = "1", minus: str = "x, mn", power: str = "Pow (ct, two)", opset_axes: str = "axes: ints = [-1]"
) -> str:
    return f"""{ROWS} {{
        mn = ReduceMean <{opset_axes}, keepdims: int = {keep}> (x)
        ct = Sub ({minus})
        sq = {power}
        vr = ReduceMean <{opset_axes}, keepdims: int = {keep}> (sq)
        ve = Add (vr, eps)
        sd = Sqrt (ve)
        nm = Div (ct, sd)
        sc = Mul (nm, g)
        y = Add (sc, b) }}"""


NORM = {"two": np.float32(2), "eps": np.float32(1e-5), "g": GAMMA, "b": BETA}
MASKED = np.array([[True] * 6] * 5 + [[False] * 6])
TIES = np.array([[1, 3, 3, 2, 3, 0, 0, 1]], np.float32)
GRID = RNG.uniform(-1.2, 1.2, (1, 5, 5, 2)).astype(np.float32)
QUANT = {"s": np.float32(0.02), "z": np.uint8(128), "ws": np.float32(0.01), "wz": np.int8(0)}
QWEIGHT = RNG.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8)
QSQUARE = RNG.integers(-127, 128, (8, 8)).astype(np.int8)

LATER = np.random.default_rng(11)  # of its own: the constants of the other graphs stay


def draw_weights(*shape: int) -> Any:
    return LATER.standard_normal(shape).astype(np.float32)


GRAPHS: dict[str, Graph] = {
    # Normalizations, as people write them by hand.
    "norm_plain": Graph(norm(), 13, **NORM),
    "norm_no_keep": Graph(norm(keep="0"), 13, **NORM),
    "norm_times_itself": Graph(norm(power="Mul (ct, ct)"), 13, **NORM),
    "norm_reversed": Graph(norm(minus="mn, x"), 13, **NORM),
    "norm_first_axis": Graph(norm(opset_axes="axes: ints = [0]"), 13, **NORM),
    "norm_both_axes": Graph(norm(opset_axes="axes: ints = [0, 1]"), 13, **NORM),
    "norm_cubed": Graph(norm(power="Pow (ct, three)"), 13, three=np.float32(2.5), **NORM),
    "norm_operator": Graph(f"{ROWS} {{ y = LayerNormalization <axis = -1> (x, g, b) }}", 17, g=GAMMA, b=BETA),
    "norm_first": Graph(f"{ROWS} {{ y = LayerNormalization <axis = 0> (x, g) }}", 17, g=SQUARE),
    "rms_by_hand": Graph(
        f"{ROWS} {{ q = Mul (x, x) m = ReduceMean <axes = [-1]> (q) e = Add (m, eps) s = Sqrt (e) d = Div (x, s) "
        "y = Mul (d, g) }",
        13,
        eps=np.float32(1e-6),
        g=GAMMA,
    ),
    "group_norm": Graph(
        "(float[1, 4, 6, 6] x) => (float y) { y = InstanceNormalization (x, g, b) }", 17, g=GAMMA[:4], b=BETA[:4]
    ),
    "lrn": Graph(f"{PICTURE} {{ y = LRN <size = 3, alpha = 0.5> (x) }}", 13),
    "lp_norm": Graph(f"{ROWS} {{ y = LpNormalization <axis = 0, p = 1> (x) }}", 13),
    "mean_variance": Graph(f"{PICTURE} {{ y = MeanVarianceNormalization <axes = [0, 2]> (x) }}", 13),
    # Activations and what optimizers fuse.
    "gelu_erf": Graph(
        f"{ROWS} {{ d = Div (x, r) e = Erf (d) a = Add (e, one) m = Mul (x, a) y = Mul (m, half) }}",
        13,
        r=np.float32(2**0.5),
        one=np.float32(1),
        half=np.float32(0.5),
    ),
    "gelu_almost": Graph(
        f"{ROWS} {{ d = Div (x, r) e = Erf (d) a = Add (e, one) m = Mul (x, a) y = Mul (m, half) }}",
        13,
        r=np.float32(1.5),
        one=np.float32(1.1),
        half=np.float32(0.4),
    ),
    "fast_gelu_almost": Graph(
        f"{ROWS} {{ c = Pow (x, three) k = Mul (c, w) s = Add (x, k) t = Mul (s, p) h = Tanh (t) a = Add (h, one) "
        "m = Mul (x, a) y = Mul (m, half) }",
        13,
        three=np.float32(3),
        w=np.float32(0.06),
        p=np.float32(0.9),
        one=np.float32(1),
        half=np.float32(0.5),
    ),
    "quick_gelu": Graph(f"{ROWS} {{ t = Mul (x, k) s = Sigmoid (t) y = Mul (x, s) }}", 13, k=np.float32(1.702)),
    "prelu_channel": Graph(f"{PICTURE} {{ y = PRelu (x, s) }}", 16, s=f32(0.1, -0.5, 2).reshape(3, 1, 1)),
    "prelu_wide": Graph(f"{ROWS} {{ y = PRelu (x, s) }}", 16, s=GAMMA),
    "hard_sigmoid": Graph(f"{ROWS} {{ y = HardSigmoid <alpha = 0.3, beta = 0.6> (x) }}", 13),
    "thresholded": Graph(f"{ROWS} {{ y = ThresholdedRelu <alpha = 0.7> (x) }}", 13),
    "shrink": Graph(f"{ROWS} {{ y = Shrink <bias = 0.2, lambd = 0.4> (x) }}", 13),
    "celu": Graph(f"{ROWS} {{ y = Celu <alpha = 2.0> (x) }}", 13),
    "mish": Graph(f"{ROWS} {{ y = Mish (x) }}", 18),
    "softmax_old": Graph("(float[2, 3, 4] x) => (float y) { y = Softmax <axis = 1> (x) }", 11),
    "softmax_new": Graph("(float[2, 3, 4] x) => (float y) { y = Softmax <axis = 1> (x) }", 13),
    "log_softmax_first": Graph(f"{ROWS} {{ y = LogSoftmax <axis = 0> (x) }}", 13),
    "hardmax_old": Graph("(float[2, 3, 4] x) => (float y) { y = Hardmax <axis = 1> (x) }", 11),
    "clip_scalars": Graph(
        f"{ROWS} {{ r = Relu (x) y = Clip (r, lo, hi) }}", 13, lo=np.float32(-0.5), hi=np.float32(0.5)
    ),
    "clip_after_relu": Graph(
        f"{ROWS} {{ c = Clip (x, lo, hi) y = Relu (c) }}", 13, lo=np.float32(0.2), hi=np.float32(0.9)
    ),
    # Convolutions and pools.
    "conv_pads_odd": Graph(f"{PICTURE} {{ y = Conv <pads = [2, 0, 1, 3], strides = [2, 1]> (x, w) }}", 13, w=WEIGHT),
    "conv_same_lower": Graph(
        f'{PICTURE} {{ y = Conv <auto_pad = "SAME_LOWER", strides = [3, 3]> (x, w) }}', 13, w=WEIGHT
    ),
    "conv_dilated": Graph(f"{PICTURE} {{ y = Conv <dilations = [2, 3]> (x, w) }}", 13, w=WEIGHT),
    "conv_pad_before": Graph(
        f"{PICTURE} {{ p = Pad (x, pads, v) y = Conv <pads = [1, 1, 1, 1]> (p, w) }}",
        13,
        pads=i64(0, 0, 1, 1, 0, 0, 0, 2),
        v=np.float32(0.5),
        w=WEIGHT,
    ),
    "conv_add_mul": Graph(
        f"{PICTURE} {{ c = Conv (x, w) a = Add (c, b) y = Mul (a, m) }}",
        13,
        w=WEIGHT,
        b=GAMMA[:4].reshape(4, 1, 1),
        m=BETA[:6],
    ),
    "conv_transpose_same": Graph(
        f'{PICTURE} {{ y = ConvTranspose <auto_pad = "SAME_UPPER", strides = [2, 2]> (x, w) }}',
        11,
        w=WEIGHT.transpose(1, 0, 2, 3).copy(),
    ),
    "conv_transpose_lower": Graph(
        f'{PICTURE} {{ y = ConvTranspose <auto_pad = "SAME_LOWER", strides = [2, 2]> (x, w) }}',
        11,
        w=WEIGHT.transpose(1, 0, 2, 3).copy(),
    ),
    "conv_transpose_shape": Graph(
        f"{PICTURE} {{ y = ConvTranspose <output_shape = [18, 17], strides = [2, 2]> (x, w) }}",
        11,
        w=WEIGHT.transpose(1, 0, 2, 3).copy(),
    ),
    "conv_transpose_group": Graph(
        "(float[1, 4, 5, 5] x) => (float y) { y = ConvTranspose <group = 2, output_padding = [1, 0], "
        "strides = [2, 2]> (x, w) }",
        11,
        w=WEIGHT[:, :2].copy(),
    ),
    "batch_norm_after": Graph(
        f"{PICTURE} {{ c = Conv (x, w) y = BatchNormalization (c, g, b, m, v) }}",
        14,
        w=WEIGHT,
        g=GAMMA[:4],
        b=BETA[:4],
        m=BETA[4:],
        v=np.abs(GAMMA[4:]),
    ),
    "pool_average_pads": Graph(
        f"{PICTURE} {{ y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1, "
        "strides = [2, 2], ceil_mode = 1> (x) }",
        11,
    ),
    "pool_average_ceil": Graph(
        f"{PICTURE} {{ y = AveragePool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (x) }}", 19
    ),
    "pool_max_dilated": Graph(f"{PICTURE} {{ y = MaxPool <kernel_shape = [2, 2], dilations = [2, 2]> (x) }}", 12),
    "pool_max_same": Graph(
        f'{PICTURE} {{ y = MaxPool <kernel_shape = [3, 3], auto_pad = "SAME_LOWER", strides = [2, 2]> (x) }}', 12
    ),
    "pool_lp": Graph(f"{PICTURE} {{ y = LpPool <kernel_shape = [2, 2], p = 3> (x) }}", 18),
    "pool_indices": Graph(
        "(float[1, 3, 8, 8] x) => (float y, int64 i) { y, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) }",
        12,
    ),
    # Resizing and sampling.
    **{
        f"resize_{mode}_{coords}": Graph(
            f'{PICTURE} {{ y = Resize <mode = "{mode}", coordinate_transformation_mode = "{coords}"> (x, , scales) }}',
            13,
            scales=f32(1, 1, 1.7, 0.6),
        )
        for mode, coords in (
            ("nearest", "half_pixel"),
            ("nearest", "asymmetric"),
            ("nearest", "align_corners"),
            ("linear", "half_pixel"),
            ("linear", "pytorch_half_pixel"),
            ("linear", "align_corners"),
            ("cubic", "half_pixel"),
            ("cubic", "align_corners"),
        )
    },
    "resize_ceil": Graph(
        f'{PICTURE} {{ y = Resize <mode = "nearest", nearest_mode = "ceil"> (x, , scales) }}',
        13,
        scales=f32(1, 1, 1.3, 2.5),
    ),
    "resize_antialias": Graph(
        f'{PICTURE} {{ y = Resize <mode = "linear", antialias = 1> (x, , scales) }}', 18, scales=f32(1, 1, 0.5, 0.6)
    ),
    "upsample": Graph(f'{PICTURE} {{ y = Upsample <mode = "linear"> (x, scales) }}', 9, scales=f32(1, 1, 2, 3)),
    "grid_sample": Graph(f"{PICTURE} {{ y = GridSample (x, grid) }}", 16, grid=GRID),
    "grid_sample_border": Graph(
        f'{PICTURE} {{ y = GridSample <padding_mode = "border", mode = "nearest", align_corners = 1> (x, grid) }}',
        16,
        grid=GRID,
    ),
    "grid_sample_reflection": Graph(
        f'{PICTURE} {{ y = GridSample <padding_mode = "reflection", mode = "bicubic"> (x, grid) }}', 16, grid=GRID
    ),
    "roi_align": Graph(
        f"{PICTURE} {{ y = RoiAlign <output_height = 2, output_width = 2, sampling_ratio = 2> (x, r, n) }}",
        16,
        r=f32(0, 0, 4, 4, 1, 2, 7, 6).reshape(2, 4),
        n=i64(0, 0),
    ),
    "depth_to_space_crd": Graph(
        '(float[1, 8, 4, 4] x) => (float y) { y = DepthToSpace <blocksize = 2, mode = "CRD"> (x) }', 13
    ),
    "pad_reflect": Graph(f'{PICTURE} {{ y = Pad <mode = "reflect"> (x, pads) }}', 13, pads=i64(0, 0, 2, 3, 0, 0, 1, 2)),
    "pad_edge_negative": Graph(
        f'{PICTURE} {{ y = Pad <mode = "edge"> (x, pads) }}', 13, pads=i64(0, 0, -1, 2, 0, 0, 3, -2)
    ),
    "pad_wrap": Graph(f'{PICTURE} {{ y = Pad <mode = "wrap"> (x, pads) }}', 19, pads=i64(0, 0, 2, 1, 0, 0, 1, 2)),
    # Sums, scans, gathers.
    "cumsum_exclusive": Graph(f"{ROWS} {{ y = CumSum <exclusive = 1, reverse = 1> (x, a) }}", 14, a=np.int64(1)),
    "cumsum_negative": Graph(f"{ROWS} {{ y = CumSum (x, a) }}", 14, a=np.int64(-2)),
    "scatter_nd_add": Graph(
        f'{ROWS} {{ y = ScatterND <reduction = "add"> (x, i, u) }}', 18, i=i64(1, 1, 3).reshape(3, 1), u=SQUARE[:3]
    ),
    "scatter_elements_max": Graph(
        f'{ROWS} {{ y = ScatterElements <axis = 1, reduction = "max"> (x, i, u) }}',
        18,
        i=np.tile(i64(0, 0, 5), (8, 1)),
        u=SQUARE[:, :3].copy(),
    ),
    "gather_negative": Graph(f"{ROWS} {{ y = Gather <axis = 1> (x, i) }}", 13, i=i64(-1, 0, -8)),
    "gather_nd_batch": Graph(
        f"{ROWS} {{ y = GatherND <batch_dims = 1> (x, i) }}", 13, i=i64(0, 7, 6, 5, 4, 3, 2, 1).reshape(8, 1)
    ),
    "slice_backwards": Graph(
        f"{ROWS} {{ y = Slice (x, s, e, a, k) }}", 13, s=i64(-1, 6), e=i64(-100, 0), a=i64(1, 0), k=i64(-2, -3)
    ),
    "reduce_log_sum": Graph(f"{ROWS} {{ y = ReduceLogSumExp <axes = [0], keepdims = 0> (x) }}", 13),
    "reduce_l1_noop": Graph(f"{ROWS} {{ y = ReduceL1 <noop_with_empty_axes = 1> (x, a) }}", 18, a=i64()),
    "reduce_prod": Graph(f"{ROWS} {{ y = ReduceProd <axes = [1]> (x) }}", 13),
    "arg_max_last": Graph("(float[8, 8] x) => (int64 y) { y = ArgMax <axis = 1, select_last_index = 1> (x) }", 13),
    "arg_max_ties": Graph(
        "(float[8, 8] x) => (int64 y) { t = Mul (x, z) s = Add (t, v) y = ArgMax <axis = 1> (s) }",
        13,
        z=np.float32(0),
        v=TIES,
    ),
    "top_k_ties": Graph(
        "(float[8, 8] x) => (float y, int64 i) { t = Mul (x, z) s = Add (t, v) y, i = TopK (s, k) }",
        11,
        z=np.float32(0),
        v=TIES,
        k=i64(4),
    ),
    "top_k_smallest": Graph("(float[8, 8] x) => (float y, int64 i) { y, i = TopK <largest = 0> (x, k) }", 11, k=i64(3)),
    "unique": Graph("(float[8, 8] x) => (float y) { r = Round (x) y, i, v, c = Unique <sorted = 1> (r) }", 11),
    "one_hot_axis": Graph(
        "(float[8, 8] x) => (float y) { i = ArgMax <axis = 1, keepdims = 0> (x) y = OneHot <axis = 0> (i, d, v) }",
        11,
        d=np.int64(10),
        v=f32(-1, 2),
    ),
    "trilu_upper": Graph(f"{ROWS} {{ y = Trilu <upper = 0> (x, k) }}", 14, k=np.int64(-2)),
    "compress": Graph(f"{ROWS} {{ y = Compress <axis = 1> (x, c) }}", 11, c=np.array([1, 0, 1, 1, 0], bool)),
    "non_zero": Graph("(float[8, 8] x) => (int64 y) { r = Relu (x) y = NonZero (r) }", 13),
    "non_max": Graph(
        "(float[1, 1, 4] x) => (int64 y) { y = NonMaxSuppression (b, x, m, u, s) }",
        11,
        b=f32(0, 0, 1, 1, 0, 0.1, 1, 1.1, 2, 2, 3, 3, 0, 0, 0.9, 1).reshape(1, 4, 4),
        m=i64(3),
        u=f32(0.5),
        s=f32(-9),
    ),
    # Matrix products.
    "einsum_trace": Graph('(float[3, 4, 4] x) => (float y) { y = Einsum <equation = "bii->bi"> (x) }', 12),
    "einsum_three": Graph(
        f'{ROWS} {{ y = Einsum <equation = "ij,jk,lk->il"> (x, w, v) }}', 12, w=SQUARE, v=SQUARE.T.copy()
    ),
    "gemm_scaled": Graph(
        f"{ROWS} {{ y = Gemm <alpha = 0.3, beta = 2.0, transA = 1, transB = 1> (x, w, b) }}", 13, w=SQUARE, b=GAMMA
    ),
    "matmul_broadcast": Graph(
        f"{TOKENS[:-1]}) {{ t = MatMul (x, w) u = Transpose <perm = [0, 2, 1]> (t) y = MatMul (u, x) }}", 13, w=SQUARE
    ),
    "matmul_add_wide": Graph(f"{ROWS} {{ m = MatMul (x, w) y = Add (m, b) }}", 13, w=SQUARE, b=SQUARE),
    "matmul_scale": Graph(
        f"{ROWS} {{ s = Div (x, k) t = Transpose <perm = [1, 0]> (s) m = MatMul (t, w) y = Mul (m, k) }}",
        13,
        w=SQUARE,
        k=np.float32(3),
    ),
    "attention_mask": Graph(
        f"{TOKENS} {{ t = Transpose <perm = [0, 2, 1]> (x) s = MatMul (x, t) d = Div (s, k) a = Add (d, m) "
        "p = Softmax <axis = -1> (a) y = MatMul (p, x) }",
        13,
        k=np.float32(8**0.5),
        m=np.triu(np.full((6, 6), -1e9, np.float32), 1),
    ),
    "transpose_chain": Graph(
        "(float[2, 3, 4] x) => (float y) { a = Transpose <perm = [2, 0, 1]> (x) "
        "b = Transpose <perm = [1, 2, 0]> (a) c = Reshape (b, s) y = Relu (c) }",
        13,
        s=i64(0, -1),
    ),
    "lstm_peephole": Graph(
        '(float[4, 2, 8] x) => (float y) { y, h, c = LSTM <hidden_size = 2, direction = "reverse"> (x, w, r, b, , , , p) }',
        14,
        w=np.tile(SQUARE, 1)[None],
        r=SQUARE[None, :, :2].copy(),
        b=np.tile(GAMMA, 2)[None],
        p=GAMMA[None, :6].copy(),
    ),
    "gru_before_reset": Graph(
        "(float[4, 2, 8] x) => (float y) { y, h = GRU <hidden_size = 2, linear_before_reset = 1> (x, w, r, b) }",
        14,
        w=SQUARE[None, :6].copy(),
        r=SQUARE[None, :6, :2].copy(),
        b=np.tile(GAMMA[:6], 2)[None],
    ),
    "rnn_both": Graph(
        '(float[4, 2, 8] x) => (float y) { y, h = RNN <hidden_size = 3, direction = "bidirectional"> (x, w, r) }',
        14,
        w=np.stack([SQUARE[:3], SQUARE[3:6]]),
        r=np.stack([SQUARE[:3, :3], SQUARE[3:6, :3]]),
    ),
    # Control flow.
    "if_branch": Graph(
        f"{ROWS} {{ s = ReduceSum <keepdims = 0> (x) c = Greater (s, zero) y = If (c) "
        "<then_branch = t () => (float a) { a = Neg (x) }, else_branch = e () => (float b) { b = Exp (x) }> }",
        13,
        zero=np.float32(0),
    ),
    "loop_grow": Graph(
        f"{ROWS} {{ y = Loop (n, go, x) <body = b (int64 i, bool c, float v) => (bool o, float w) "
        "{ o = Identity (c) f = Cast <to = 1> (i) a = Add (v, f) w = Tanh (a) }> }",
        13,
        n=np.int64(3),
        go=np.array(True),
    ),
    "scan_sum": Graph(
        f"{ROWS} {{ l, y = Scan <num_scan_inputs = 1, body = b (float[8] s, float[8] r) => (float[8] o, float[8] q) "
        "{ o = Add (s, r) q = Sin (o) }> (z, x) }",
        13,
        z=np.zeros(8, np.float32),
    ),
    # Integers, booleans, text, what is empty.
    "mod_signs": Graph(
        "(float[8, 8] x) => (int64 y) { m = Mul (x, t) i = Cast <to = 7> (m) y = Mod (i, k) }",
        13,
        t=np.float32(10),
        k=np.int64(-3),
    ),
    "mod_float": Graph(f"{ROWS} {{ y = Mod <fmod = 1> (x, k) }}", 13, k=np.float32(0.7)),
    "divide_integers": Graph(
        "(float[8, 8] x) => (int64 y) { m = Mul (x, t) i = Cast <to = 7> (m) y = Div (i, k) }",
        13,
        t=np.float32(10),
        k=np.int64(3),
    ),
    "shift_bits": Graph(
        '(uint8[4, 4] x) => (uint8 y) { y = BitShift <direction = "RIGHT"> (x, k) }', 11, k=np.uint8(3)
    ),
    "greater_bool": Graph(
        "(float[8, 8] x) => (bool y) { a = Greater (x, z) b = IsNaN (x) y = Xor (a, b) }", 13, z=np.float32(0.1)
    ),
    "round_half": Graph(
        f"{ROWS} {{ t = Mul (x, k) r = Round (t) h = Div (r, two) y = Round (h) }}",
        13,
        k=np.float32(4),
        two=np.float32(2),
    ),
    "cast_saturates": Graph(
        "(float[8, 8] x) => (int32 y) { m = Mul (x, k) y = Cast <to = 6> (m) }", 13, k=np.float32(100)
    ),
    "where_broadcast": Graph(f"{ROWS} {{ c = Less (x, z) y = Where (c, g, x) }}", 13, z=np.float32(0), g=GAMMA),
    "sign_zero": Graph(f"{ROWS} {{ r = Round (x) y = Sign (r) }}", 13),
    "empty_slice": Graph(
        "(float[8, 8] x) => (float y, float z) { y = Slice (x, s, e) z = Relu (x) }", 13, s=i64(3, 0), e=i64(3, 8)
    ),
    "text_labels": Graph(
        "(float[1, 4] x) => (string y) { i = ArgMax <axis = 1, keepdims = 0> (x) y = Gather (t, i) }",
        13,
        t=np.array(["red", "green", "blue", "grey"], object),
    ),
    "infinities": Graph(f"{ROWS} {{ l = Log (x) y = Where (c, l, x) }}", 13, c=np.zeros((8, 8), bool)),
    # Quantized.
    "qdq_conv": Graph(
        f"{PICTURE} {{ q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) v = DequantizeLinear (w, ws, wz) "
        "c = Conv (d, v) p = QuantizeLinear (c, s, z) y = DequantizeLinear (p, s, z) }",
        13,
        w=QWEIGHT,
        **QUANT,
    ),
    "qdq_small_bias": Graph(
        f"{PICTURE} {{ q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) v = DequantizeLinear (w, ts, wz) "
        "c = Conv (d, v, b) p = QuantizeLinear (c, s, z) y = DequantizeLinear (p, s, z) }",
        13,
        w=QWEIGHT,
        ts=np.float32(1e-12),
        b=f32(1, -1, 2, 0.5),
        s=QUANT["s"],
        z=QUANT["z"],
        wz=QUANT["wz"],
    ),
    "qdq_clipped_relu": Graph(
        f"{ROWS} {{ q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) r = Relu (d) p = QuantizeLinear (r, s, n) "
        "y = DequantizeLinear (p, s, n) }",
        13,
        n=np.uint8(64),
        s=QUANT["s"],
        z=QUANT["z"],
    ),
    "qlinear_matmul": Graph(
        f"{ROWS} {{ q = QuantizeLinear (x, s, z) m = QLinearMatMul (q, s, z, w, ws, wz, s, z) "
        "y = DequantizeLinear (m, s, z) }",
        13,
        w=QSQUARE,
        **QUANT,
    ),
    "qlinear_conv": Graph(
        f"{PICTURE} {{ q = QuantizeLinear (x, s, z) m = QLinearConv <pads = [1, 0, 0, 1]> (q, s, z, w, ws, wz, s, z) "
        "y = DequantizeLinear (m, s, z) }",
        13,
        w=QWEIGHT,
        **QUANT,
    ),
    "matmul_integer": Graph(
        "(uint8[8, 8] x) => (int32 y) { y = MatMulInteger (x, w, z, wz) }", 13, w=QSQUARE, z=QUANT["z"], wz=QUANT["wz"]
    ),
    "conv_integer": Graph(
        "(uint8[1, 3, 8, 8] x) => (int32 y) { y = ConvInteger (x, w, z) }", 13, w=QWEIGHT, z=QUANT["z"]
    ),
    "dynamic_quantize": Graph(
        f"{ROWS} {{ q, s, z = DynamicQuantizeLinear (x) m = MatMulInteger (q, w, z) f = Cast <to = 1> (m) k = Mul (s, ws) "
        "y = Mul (f, k) }",
        13,
        w=QSQUARE,
        ws=QUANT["ws"],
    ),
    "qdq_per_axis": Graph(
        f"{PICTURE} {{ q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) v = DequantizeLinear <axis = 0> (w, ws) "
        "y = Conv (d, v) }",
        13,
        w=QWEIGHT,
        ws=f32(0.01, 0.03, 0.002, 0.05),
        s=QUANT["s"],
        z=QUANT["z"],
    ),
    # What an optimizer almost recognizes, and what the operators say of odd values.
    "norm_eps_vector": Graph(
        f"{ROWS} {{ mn = ReduceMean <axes = [-1]> (x) ct = Sub (x, mn) sq = Pow (ct, two) vr = ReduceMean <axes = [-1]> (sq) ve = Add (vr, eps) sd = Sqrt (ve) nm = Div (ct, sd) sc = Mul (nm, g) y = Add (sc, b) }}",
        13,
        two=np.float32(2),
        eps=f32(*[0.1 * i for i in range(8)]),
        g=GAMMA,
        b=BETA,
    ),
    "norm_wide_scale": Graph(
        f"{ROWS} {{ mn = ReduceMean <axes = [-1]> (x) ct = Sub (x, mn) sq = Pow (ct, two) vr = ReduceMean <axes = [-1]> (sq) ve = Add (vr, eps) sd = Sqrt (ve) nm = Div (ct, sd) sc = Mul (nm, g) y = Add (sc, b) }}",
        13,
        two=np.float32(2),
        eps=np.float32(1e-5),
        g=SQUARE,
        b=SQUARE.T.copy(),
    ),
    "norm_column_scale": Graph(
        f"{ROWS} {{ mn = ReduceMean <axes = [-1]> (x) ct = Sub (x, mn) sq = Pow (ct, two) vr = ReduceMean <axes = [-1]> (sq) ve = Add (vr, eps) sd = Sqrt (ve) nm = Div (ct, sd) sc = Mul (nm, g) y = Add (sc, b) }}",
        13,
        two=np.float32(2),
        eps=np.float32(1e-5),
        g=GAMMA.reshape(8, 1),
        b=BETA.reshape(8, 1),
    ),
    "norm_other_axes": Graph(
        f"{ROWS} {{ mn = ReduceMean <axes = [-1]> (x) ct = Sub (x, mn) sq = Pow (ct, two) vr = ReduceMean <axes = [0]> (sq) ve = Add (vr, eps) sd = Sqrt (ve) nm = Div (ct, sd) sc = Mul (nm, g) y = Add (sc, b) }}",
        13,
        two=np.float32(2),
        eps=np.float32(1e-5),
        g=GAMMA,
        b=BETA,
    ),
    "norm_large_eps": Graph(
        f"{ROWS} {{ mn = ReduceMean <axes = [-1]> (x) ct = Sub (x, mn) sq = Pow (ct, two) vr = ReduceMean <axes = [-1]> (sq) ve = Add (vr, eps) sd = Sqrt (ve) nm = Div (ct, sd) sc = Mul (nm, g) y = Add (sc, b) }}",
        13,
        two=np.float32(2),
        eps=np.float32(3.0),
        g=GAMMA,
        b=BETA,
    ),
    "norm_scale_broadcast": Graph(
        "(float[2, 3, 4] x) => (float y) { y = LayerNormalization <axis = 1> (x, g) }", 17, g=f32(1, 2, 3, 4)
    ),
    "norm_middle_axis": Graph(
        "(float[2, 3, 4] x) => (float y) { y = LayerNormalization <axis = 1> (x, g, b) }",
        17,
        g=RNG.standard_normal((3, 4)).astype(np.float32),
        b=RNG.standard_normal((3, 4)).astype(np.float32),
    ),
    "rms_other_axis": Graph(
        f"{ROWS} {{ q = Pow (x, two) m = ReduceMean <axes = [0]> (q) e = Add (m, eps) s = Sqrt (e) d = Div (x, s) y = Mul (d, g) }}",
        13,
        two=np.float32(2),
        eps=np.float32(1e-6),
        g=GAMMA,
    ),
    "skip_norm_broadcast": Graph(
        "(float[2, 4, 8] x) => (float y, float z) { z = Add (x, w) y = LayerNormalization <axis = -1> (z, g, b) }",
        17,
        w=SQUARE[:1].reshape(1, 1, 8),
        g=GAMMA,
        b=BETA,
    ),
    "skip_norm_used_twice": Graph(
        f"{ROWS} {{ a = Add (x, x) n = LayerNormalization <axis = -1> (a, g, b) y = Sub (n, a) }}", 17, g=GAMMA, b=BETA
    ),
    "bias_gelu_column": Graph(
        f"{ROWS} {{ c = Add (x, bias) d = Div (c, r) e = Erf (d) a = Add (e, one) m = Mul (c, a) y = Mul (m, half) }}",
        13,
        bias=GAMMA.reshape(8, 1),
        r=np.float32(2**0.5),
        one=np.float32(1),
        half=np.float32(0.5),
    ),
    "gelu_vector_half": Graph(
        f"{ROWS} {{ d = Div (x, r) e = Erf (d) a = Add (e, one) m = Mul (x, a) y = Mul (m, half) }}",
        13,
        r=np.float32(2**0.5),
        one=np.float32(1),
        half=f32(*[0.5] * 7, 0.9),
    ),
    "gelu_other_input": Graph(
        f"{ROWS} {{ w2 = Neg (x) d = Div (w2, r) e = Erf (d) a = Add (e, one) m = Mul (x, a) y = Mul (m, half) }}",
        13,
        r=np.float32(2**0.5),
        one=np.float32(1),
        half=np.float32(0.5),
    ),
    "fast_gelu_pow_two": Graph(
        f"{ROWS} {{ c = Pow (x, three) k = Mul (c, w) s = Add (x, k) t = Mul (s, p) h = Tanh (t) a = Add (h, one) m = Mul (x, a) y = Mul (m, half) }}",
        13,
        three=np.float32(2),
        w=np.float32(0.044715),
        p=np.float32(0.7978845608),
        one=np.float32(1),
        half=np.float32(0.5),
    ),
    "quick_gelu_vector": Graph(f"{ROWS} {{ t = Mul (x, k) s = Sigmoid (t) y = Mul (x, s) }}", 13, k=GAMMA),
    "hard_swish_almost": Graph(
        f"{ROWS} {{ a = Add (x, three) c = Clip (a, z, six) m = Mul (x, c) y = Div (m, d) }}",
        13,
        three=np.float32(3),
        z=np.float32(0),
        six=np.float32(6),
        d=np.float32(5),
    ),
    "clip_reversed": Graph(f"{ROWS} {{ y = Clip (x, lo, hi) }}", 13, lo=np.float32(0.5), hi=np.float32(-0.5)),
    "clip_nan": Graph(
        f"{ROWS} {{ s = Sqrt (x) c = Clip (s, lo, hi) n = IsNaN (c) y = Where (n, m, c) }}",
        13,
        lo=np.float32(0),
        hi=np.float32(1),
        m=np.float32(5),
    ),
    "max_nan": Graph(
        f"{ROWS} {{ s = Log (x) c = Max (s, lo) n = IsNaN (c) y = Where (n, m, c) }}",
        13,
        lo=np.float32(0),
        m=np.float32(5),
    ),
    "relu_nan": Graph(f"{ROWS} {{ s = Sqrt (x) c = Relu (s) n = IsNaN (c) y = Where (n, m, c) }}", 13, m=np.float32(5)),
    "softmax_negative_old": Graph("(float[2, 3, 4] x) => (float y) { y = Softmax <axis = -2> (x) }", 11),
    "conv_add_row": Graph(f"{PICTURE} {{ c = Conv (x, w) y = Add (c, b) }}", 13, w=WEIGHT, b=GAMMA[:6]),
    "conv_mul_column": Graph(
        f"{PICTURE} {{ c = Conv (x, w) y = Mul (c, k) }}", 13, w=WEIGHT, k=GAMMA[:6].reshape(6, 1)
    ),
    "conv_add_more_axes": Graph(
        f"{PICTURE} {{ c = Conv (x, w) y = Add (c, k) }}",
        13,
        w=WEIGHT,
        k=RNG.standard_normal((2, 1, 4, 1, 1)).astype(np.float32),
    ),
    "conv_shared_weight": Graph(
        f"{PICTURE} {{ c = Conv (x, w) d = Conv (x, w) m = Mul (c, k) y = Add (m, d) }}",
        13,
        w=WEIGHT,
        k=GAMMA[:4].reshape(1, 4, 1, 1),
    ),
    "conv_norm_shared": Graph(
        f"{PICTURE} {{ c = Conv (x, w) n = BatchNormalization <epsilon = 0.5> (c, g, b, m, v) y = Add (n, c) }}",
        14,
        w=WEIGHT,
        g=GAMMA[:4],
        b=BETA[:4],
        m=BETA[4:],
        v=np.abs(GAMMA[4:]),
    ),
    "pad_max_pool": Graph(
        f"{PICTURE} {{ p = Pad (x, pads, v) y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (p) }}",
        13,
        pads=i64(0, 0, 1, 1, 0, 0, 1, 1),
        v=np.float32(0),
    ),
    "pad_negative_conv": Graph(
        f"{PICTURE} {{ p = Pad (x, pads) y = Conv (p, w) }}", 13, pads=i64(0, 0, -1, 1, 0, 0, 0, -2), w=WEIGHT
    ),
    "pool_column_order": Graph(
        "(float[1, 3, 8, 8] x) => (float y, int64 i) { y, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2], storage_order = 1> (x) }",
        12,
    ),
    "matmul_add_column": Graph(f"{ROWS} {{ m = MatMul (x, w) y = Add (m, b) }}", 13, w=SQUARE, b=GAMMA.reshape(8, 1)),
    "transpose_matmul_scales": Graph(
        f"{ROWS} {{ a = Mul (x, k) t = Transpose (a) u = Transpose (x) m = MatMul (t, u) y = Div (m, k) }}",
        13,
        k=f32(4),
    ),
    "reduce_log": Graph(f"{ROWS} {{ a = Abs (x) y = ReduceLogSum <axes = [1]> (a) }}", 13),
    "reduce_zero_size": Graph(
        f"{ROWS} {{ e = Slice (x, s, z) y = ReduceSum <keepdims = 0> (e, a) }}", 13, s=i64(0), z=i64(0), a=i64(0)
    ),
    "top_k_integers": Graph(
        "(float[8, 8] x) => (int64 y, int64 i) { m = Mul (x, t) c = Cast <to = 7> (m) y, i = TopK <axis = 0> (c, k) }",
        11,
        t=np.float32(3),
        k=i64(8),
    ),
    "non_max_ties": Graph(
        "(float[1, 1, 4] x) => (int64 y) { r = Mul (x, q) y = NonMaxSuppression (b, r, m, u, s) }",
        11,
        q=np.float32(0),
        b=f32(0, 0, 1, 1, 0, 0.1, 1, 1.1, 2, 2, 3, 3, 0, 0, 0.9, 1).reshape(1, 4, 4),
        m=i64(3),
        u=f32(0.5),
        s=f32(-9),
    ),
    "resize_sizes_axes": Graph(
        f'{PICTURE} {{ y = Resize <mode = "linear", axes = [3, 2], keep_aspect_ratio_policy = "not_larger"> (x, , , sz) }}',
        18,
        sz=i64(13, 11),
    ),
    "resize_10": Graph(f'{PICTURE} {{ y = Resize <mode = "nearest"> (x, sc) }}', 10, sc=f32(1, 1, 0.6, 1.7)),
    "upsample_nearest": Graph(f'{PICTURE} {{ y = Upsample <mode = "nearest"> (x, sc) }}', 9, sc=f32(1, 1, 1.6, 2.3)),
    "roi_align_max": Graph(
        f'{PICTURE} {{ y = RoiAlign <mode = "max", output_height = 3, output_width = 2, sampling_ratio = 0, spatial_scale = 0.5, coordinate_transformation_mode = "output_half_pixel"> (x, r, n) }}',
        16,
        r=f32(0, 0, 14, 14, -3, 2, 9, 20).reshape(2, 4),
        n=i64(0, 0),
    ),
    "cast_half_and_back": Graph(
        f"{ROWS} {{ m = Mul (x, t) a = Cast <to = 10> (m) b = Cast <to = 1> (a) y = Sub (m, b) }}",
        13,
        t=np.float32(1000),
    ),
    "cast_chain_int8": Graph(
        f"{ROWS} {{ m = Mul (x, t) a = Cast <to = 6> (m) b = Cast <to = 3> (a) y = Cast <to = 1> (b) }}",
        13,
        t=np.float32(100),
    ),
    "cast_fp8": Graph(
        f"{ROWS} {{ t = Mul (x, k) a = Cast <to = 17> (t) y = Cast <to = 1> (a) }}", 19, k=np.float32(300)
    ),
    "uint8_wraps": Graph("(uint8[4, 4] x) => (uint8 y) { y = Add (x, k) }", 14, k=np.uint8(200)),
    "where_int_overflow": Graph(
        "(int64[4, 4] x) => (int64 y) { a = Mul (x, k) y = Add (a, k) }", 14, k=np.int64(2**40 + 1)
    ),
    "shift_large": Graph(
        '(uint32[4, 4] x) => (uint32 y) { y = BitShift <direction = "LEFT"> (x, k) }', 11, k=np.uint32(31)
    ),
    "div_int_negative_divisor": Graph(
        "(float[8, 8] x) => (int32 y) { m = Mul (x, t) i = Cast <to = 6> (m) y = Div (i, k) }",
        14,
        t=np.float32(10),
        k=np.int32(-3),
    ),
    "gru_lengths": Graph(
        "(float[4, 2, 8] x) => (float y, float h) { y, h = GRU <hidden_size = 2, linear_before_reset = 1> (x, w, r, b, l) }",
        14,
        w=SQUARE[None, :6].copy(),
        r=SQUARE[None, :6, :2].copy(),
        b=np.tile(GAMMA[:6], 2)[None],
        l=np.array([4, 2], np.int32),
    ),
    "lstm_activations": Graph(
        '(float[4, 2, 8] x) => (float y) { y, h, c = LSTM <hidden_size = 2, activations = ["HardSigmoid", "Relu", "Softsign"], activation_alpha = [0.3], activation_beta = [0.4]> (x, w, r) }',
        14,
        w=SQUARE[None],
        r=SQUARE[None, :, :2].copy(),
    ),
    "loop_outer": Graph(
        f"{ROWS} {{ k = Exp (x) y, s = Loop (n, go, x) <body = b (int64 i, bool c, float v) => (bool o, float w, float t) {{ o = Identity (c) a = Add (v, k) w = Tanh (a) t = ReduceSum <keepdims = 0> (w) }}> }}",
        13,
        n=np.int64(3),
        go=np.array(True),
    ),
    "loop_stops": Graph(
        f"{ROWS} {{ y = Loop (n, go, x) <body = b (int64 i, bool c, float v) => (bool o, float w) {{ w = Mul (v, two) s = ReduceSum <keepdims = 0> (w) q = Abs (s) o = Less (q, lim) }}> }}",
        13,
        n=np.int64(20),
        go=np.array(True),
        two=np.float32(2),
        lim=np.float32(100),
    ),
    "scan_reverse": Graph(
        f"{ROWS} {{ l, y = Scan <num_scan_inputs = 1, scan_input_directions = [1], scan_output_directions = [1], scan_input_axes = [1], body = b (float[8] s, float[8] r) => (float[8] o, float[8] q) {{ m = Mul (s, d) o = Add (m, r) q = Tanh (o) }}> (z, x) }}",
        13,
        z=np.zeros(8, np.float32),
        d=np.float32(0.5),
    ),
    "if_shapes": Graph(
        f"{ROWS} {{ s = ReduceSum <keepdims = 0> (x) c = Greater (s, zero) y = If (c) <then_branch = t () => (float a) {{ a = ReduceSum (x) }}, else_branch = e () => (float b) {{ b = Exp (x) }}> }}",
        13,
        zero=np.float32(0),
    ),
    "qdq_axis_one": Graph(
        f"{ROWS} {{ v = DequantizeLinear <axis = 1> (w, ws, wz) y = MatMul (x, v) }}",
        13,
        w=QSQUARE,
        ws=np.abs(GAMMA) / 50,
        wz=np.arange(-4, 4).astype(np.int8),
    ),
    "qdq_uint8_odd_zero": Graph(
        f"{ROWS} {{ q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) v = DequantizeLinear (w, ws, wz) m = MatMul (d, v) p = QuantizeLinear (m, t, o) y = DequantizeLinear (p, t, o) }}",
        13,
        w=QSQUARE,
        s=np.float32(0.02),
        z=np.uint8(3),
        ws=np.float32(0.01),
        wz=np.int8(0),
        t=np.float32(0.1),
        o=np.uint8(250),
    ),
    "qdq_weight_zero": Graph(
        f"{ROWS} {{ q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) v = DequantizeLinear (w, ws, wz) y = MatMul (d, v) }}",
        13,
        w=QSQUARE,
        s=np.float32(0.02),
        z=np.uint8(128),
        ws=np.float32(0.01),
        wz=np.int8(-90),
    ),
    "qdq_uint16": Graph(
        f"{ROWS} {{ q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) y = MatMul (d, w) }}",
        21,
        s=np.float32(1e-4),
        z=np.uint16(30000),
        w=SQUARE,
    ),
    "qdq_gemm_bias": quantized_gemm("transB = 1, beta = 2.0", bias_scale=0.0002),
    "qdq_gemm_bias_scale": quantized_gemm("transB = 1", bias_scale=0.002),  # not that of the product
    "qdq_blocked": Graph(
        f"{ROWS} {{ v = DequantizeLinear <axis = 0, block_size = 4> (w, ws) y = MatMul (x, v) }}",
        21,
        w=QSQUARE,
        ws=np.abs(SQUARE[:2]) / 30,
    ),
    "dq_shared": Graph(
        f"{ROWS} {{ v = DequantizeLinear (w, ws, wz) m = MatMul (x, v) t = Transpose (v) n = MatMul (x, t) y = Add (m, n) }}",
        13,
        w=QSQUARE,
        ws=np.float32(0.01),
        wz=np.int8(7),
    ),
    "mul_zero": Graph(
        f"{ROWS} {{ s = Log (x) z = Mul (s, k) n = IsNaN (z) y = Where (n, x, z) }}", 13, k=np.float32(0)
    ),
    "exp_log": Graph(f"{ROWS} {{ l = Log (x) e = Exp (l) n = IsNaN (e) y = Where (n, k, e) }}", 13, k=np.float32(-3)),
    "distribute": Graph(
        f"{ROWS} {{ a = Mul (x, k) b = Mul (x, l) c = Add (a, b) d = Add (c, k) y = Sub (d, k) }}",
        13,
        k=np.float32(3e4),
        l=np.float32(-3e4),
    ),
    "attention_masked_row": Graph(
        f"{TOKENS} {{ t = Transpose <perm = [0, 2, 1]> (x) s = MatMul (x, t) a = Where (c, s, n) p = Softmax <axis = -1> (a) y = MatMul (p, x) }}",
        13,
        c=MASKED,
        n=np.float32(-np.inf),
    ),
    # Operators with less usual attributes.
    "einsum_ellipsis": Graph(
        '(float[2, 3, 4] x) => (float y) { y = Einsum <equation = "...ij,jk->...ki"> (x, w) }', 13, w=draw_weights(4, 5)
    ),
    "einsum_diagonal": Graph(f'{ROWS} {{ y = Einsum <equation = "ii->i"> (x) }}', 13),
    "grid_cubic": Graph(
        f'{PICTURE} {{ y = GridSample <mode = "cubic", padding_mode = "border", align_corners = 1> (x, g) }}',
        20,
        g=GRID,
    ),
    "grid_nearest": Graph(
        f'{PICTURE} {{ y = GridSample <mode = "nearest", padding_mode = "reflection", align_corners = 1> (x, g) }}',
        20,
        g=GRID,
    ),
    "lstm_both_lengths": Graph(
        '(float[5, 2, 3] x) => (float y) { y, h, c = LSTM <hidden_size = 4, direction = "bidirectional"> (x, w, r, b, l) }',
        14,
        w=draw_weights(2, 16, 3),
        r=draw_weights(2, 16, 4) / 2,
        b=draw_weights(2, 32),
        l=np.array([3, 5], "int32"),
    ),
    "lstm_clip": Graph(
        "(float[5, 2, 3] x) => (float y) { y, h, c = LSTM <hidden_size = 4, clip = 0.3> (x, w, r, b) }",
        14,
        w=draw_weights(1, 16, 3),
        r=draw_weights(1, 16, 4) / 2,
        b=draw_weights(1, 32),
    ),
    "lstm_reverse_state": Graph(
        '(float[5, 2, 3] x) => (float y) { o, h, y = LSTM <hidden_size = 4, direction = "reverse"> (x, w, r, b, , h0, c0) }',
        14,
        w=draw_weights(1, 16, 3),
        r=draw_weights(1, 16, 4) / 2,
        b=draw_weights(1, 32),
        h0=draw_weights(1, 2, 4),
        c0=draw_weights(1, 2, 4),
    ),
    "lstm_input_forget": Graph(
        "(float[5, 2, 3] x) => (float y) { y, h, c = LSTM <hidden_size = 4, input_forget = 1> (x, w, r, b) }",
        14,
        w=draw_weights(1, 16, 3),
        r=draw_weights(1, 16, 4) / 2,
        b=draw_weights(1, 32),
    ),
    "top_k_axis_zero": Graph(
        f"{ROWS} {{ v, i = TopK <axis = 0, largest = 0> (x, k) f = Cast <to = 1> (i) y = Add (v, f) }}", 13, k=i64(3)
    ),
    "cumsum_exclusive_reverse": Graph(
        f"{ROWS} {{ y = CumSum <exclusive = 1, reverse = 1> (x, a) }}", 14, a=np.int64(-1)
    ),
    "slice_steps_three": Graph(
        f"{PICTURE} {{ y = Slice (x, s, e, a, t) }}",
        13,
        s=i64(-1, 100, 5),
        e=i64(-100, -100, 0),
        a=i64(-1, 1, 2),
        t=i64(-3, -2, -2),
    ),
    "slice_int32": Graph(
        f"{ROWS} {{ y = Slice (x, s, e, a, t) }}",
        13,
        s=np.array([7], "int32"),
        e=np.array([-2147483648], "int32"),
        a=np.array([0], "int32"),
        t=np.array([-2], "int32"),
    ),
    "concat_empty": Graph(f"{ROWS} {{ n = Slice (x, o, o, o) y = Concat <axis = 0> (n, x, n) }}", 13, o=i64(0)),
    "matmul_empty": Graph(
        f"{ROWS} {{ n = Slice (x, o, o, one) y = MatMul (n, w) }}", 13, o=i64(0), one=i64(1), w=np.zeros((0, 5), "f")
    ),
    "gather_elements_negative": Graph(
        f"{ROWS} {{ y = GatherElements <axis = 1> (x, i) }}", 13, i=LATER.integers(-8, 8, (8, 3))
    ),
    "scatter_nd_min": Graph(
        f'{ROWS} {{ y = ScatterND <reduction = "min"> (x, i, u) }}',
        18,
        i=np.array([[0], [3], [0]]),
        u=draw_weights(3, 8),
    ),
    "scatter_elements_twice": Graph(
        f'{ROWS} {{ y = ScatterElements <axis = 1, reduction = "add"> (x, i, u) }}',
        18,
        i=LATER.integers(-8, 8, (8, 5)),
        u=draw_weights(8, 5),
    ),
    "scatter_elements_mul": Graph(
        f'{ROWS} {{ y = ScatterElements <axis = 0, reduction = "mul"> (x, i, u) }}',
        18,
        i=LATER.integers(0, 8, (5, 8)),
        u=draw_weights(5, 8),
    ),
    "resize_crop": Graph(
        f'{PICTURE} {{ y = Resize <mode = "linear", coordinate_transformation_mode = "tf_crop_and_resize", extrapolation_value = 2.5> (x, r, , z) }}',
        13,
        r=f32(0, 0, -0.2, 0.1, 1, 1, 1.3, 0.9),
        z=i64(1, 3, 7, 5),
    ),
    "resize_nearest_ceil": Graph(
        f'{PICTURE} {{ y = Resize <mode = "nearest", nearest_mode = "ceil", coordinate_transformation_mode = "half_pixel"> (x, , s) }}',
        13,
        s=f32(1, 1, 1.7, 0.6),
    ),
    "resize_round_up": Graph(
        f'{PICTURE} {{ y = Resize <mode = "nearest", nearest_mode = "round_prefer_ceil", coordinate_transformation_mode = "asymmetric"> (x, , s) }}',
        13,
        s=f32(1, 1, 2, 0.5),
    ),
    "resize_cubic_outside": Graph(
        f'{PICTURE} {{ y = Resize <mode = "cubic", cubic_coeff_a = -0.5, exclude_outside = 1> (x, , s) }}',
        13,
        s=f32(1, 1, 1.5, 0.75),
    ),
    "resize_aspect": Graph(
        f'{PICTURE} {{ y = Resize <mode = "linear", keep_aspect_ratio_policy = "not_larger", axes = [2, 3]> (x, , , z) }}',
        18,
        z=i64(20, 12),
    ),
    "resize_symmetric": Graph(
        f'{PICTURE} {{ y = Resize <mode = "linear", coordinate_transformation_mode = "half_pixel_symmetric"> (x, , s) }}',
        19,
        s=f32(1, 1, 0.7, 1.3),
    ),
    "resize_antialias_cubic": Graph(
        f'{PICTURE} {{ y = Resize <mode = "cubic", antialias = 1> (x, , s) }}', 18, s=f32(1, 1, 0.5, 0.6)
    ),
    "center_crop_pad": Graph(f"{PICTURE} {{ y = CenterCropPad <axes = [2, -1]> (x, s) }}", 18, s=i64(5, 11)),
    "affine_grid": Graph(
        "(float[1, 2, 3] x) => (float y) { y = AffineGrid <align_corners = 0> (x, s) }", 20, s=i64(1, 3, 4, 5)
    ),
    "col2im": Graph(
        "(float[1, 12, 4] x) => (float y) { y = Col2Im <strides = [2, 2]> (x, s, b) }", 18, s=i64(4, 4), b=i64(2, 2)
    ),
    "split_uneven": Graph(f"{ROWS} {{ a, b, y = Split <axis = 1, num_outputs = 3> (x) }}", 18),
    "reverse_sequence": Graph(
        f"{ROWS} {{ y = ReverseSequence <batch_axis = 0, time_axis = 1> (x, l) }}", 13, l=i64(1, 2, 3, 4, 5, 6, 7, 8)
    ),
    "group_norm_new": Graph(
        "(float[2, 4, 6, 6] x) => (float y) { y = GroupNormalization <num_groups = 2> (x, g, b) }",
        21,
        g=GAMMA[:4],
        b=BETA[:4],
    ),
    "gelu_tanh": Graph(f'{ROWS} {{ y = Gelu <approximate = "tanh"> (x) }}', 20),
    "reduce_log_sum_exp": Graph(
        f"{ROWS} {{ b = Mul (x, k) y = ReduceLogSumExp <keepdims = 0> (b, a) }}", 18, k=np.float32(200), a=i64(-1)
    ),
    "reduce_max_empty": Graph(
        f"{ROWS} {{ n = Slice (x, o, o, o) m = ReduceSum <keepdims = 0> (n, o) y = Add (m, x) }}", 13, o=i64(0)
    ),
    "shape_part": Graph(
        f"{PICTURE} {{ s = Shape <start = -2> (x) f = Cast <to = 1> (s) r = ReduceSum <keepdims = 0> (f) y = Add (x, r) }}",
        15,
    ),
    "non_max_center": Graph(
        "(float[1, 6, 4] x) => (int64 y) { a = Abs (x) y = NonMaxSuppression <center_point_box = 1> (a, s, n, t) }",
        11,
        s=LATER.uniform(0, 1, (1, 2, 6)).astype("f"),
        n=i64(4),
        t=f32(0.3),
    ),
    "pool_max_storage": Graph(
        f"{PICTURE} {{ v, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2], storage_order = 1> (x) y = Cast <to = 1> (i) }}",
        12,
    ),
    "pow_negative_int": Graph(f"{ROWS} {{ y = Pow (x, k) }}", 15, k=np.int64(3)),
    "pad_axes": Graph(f"{PICTURE} {{ y = Pad (x, p, v, a) }}", 18, p=i64(1, -2, 0, 3), v=np.float32(7), a=i64(-1, 1)),
    "pad_reflect_wide": Graph(f'{PICTURE} {{ y = Pad <mode = "reflect"> (x, p) }}', 13, p=i64(0, 0, 6, 7, 0, 0, 5, 1)),
    "qdq_conv_odd_zero": Graph(
        f"{PICTURE} {{ q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) v = DequantizeLinear <axis = 0> (w, ws, wz) c = Conv <pads = [1, 1, 1, 1]> (d, v) p = QuantizeLinear (c, t, tz) y = DequantizeLinear (p, t, tz) }}",
        21,
        s=np.float32(0.02),
        z=np.uint8(97),
        w=QWEIGHT,
        ws=f32(0.01, 0.02, 0.001, 0.005),
        wz=np.array([3, -5, 0, 100], "int8"),
        t=np.float32(0.05),
        tz=np.uint8(11),
    ),
    "qdq_last_axis": Graph(
        f"{ROWS} {{ v = DequantizeLinear <axis = -1> (w, ws, wz) y = MatMul (x, v) }}",
        21,
        w=QSQUARE,
        ws=LATER.uniform(0.001, 0.02, 8).astype("f"),
        wz=LATER.integers(-9, 9, 8).astype("int8"),
    ),
    "qdq_relu_low_zero": Graph(
        f"{ROWS} {{ q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) r = Relu (d) p = QuantizeLinear (r, s, z) y = DequantizeLinear (p, s, z) }}",
        21,
        s=np.float32(0.03),
        z=np.int8(-20),
    ),
    "qdq_add_scales": Graph(
        f"{ROWS} {{ q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) e = QuantizeLinear (x, t, u) f = DequantizeLinear (e, t, u) a = Add (d, f) p = QuantizeLinear (a, v, z) y = DequantizeLinear (p, v, z) }}",
        21,
        s=np.float32(0.02),
        z=np.uint8(100),
        t=np.float32(0.05),
        u=np.uint8(30),
        v=np.float32(0.08),
    ),
    "qdq_concat": Graph(
        f"{ROWS} {{ q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) e = QuantizeLinear (x, t, u) f = DequantizeLinear (e, t, u) a = Concat <axis = 1> (d, f) p = QuantizeLinear (a, t, z) y = DequantizeLinear (p, t, z) }}",
        21,
        s=np.float32(0.02),
        z=np.uint8(100),
        t=np.float32(0.05),
        u=np.uint8(30),
    ),
    "qdq_sigmoid": Graph(
        f"{ROWS} {{ q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) a = Sigmoid (d) p = QuantizeLinear (a, t, u) y = DequantizeLinear (p, t, u) }}",
        21,
        s=np.float32(0.02),
        z=np.uint8(100),
        t=np.float32(1 / 256),
        u=np.uint8(0),
    ),
    "matmul_integer_zero": Graph(
        f"{ROWS} {{ q, s, z = DynamicQuantizeLinear (x) m = MatMulInteger (q, w, z, wz) y = Cast <to = 1> (m) }}",
        13,
        w=QSQUARE,
        wz=LATER.integers(-9, 9, 8).astype("int8"),
    ),
    "softmax_axis_one": Graph(f"{PICTURE} {{ y = Softmax <axis = 1> (x) }}", 11),
    "batch_norm_zero_variance": Graph(
        f"{PICTURE} {{ c = Conv (x, w) y = BatchNormalization (c, g, b, m, v) }}",
        15,
        w=WEIGHT,
        g=GAMMA[:4],
        b=BETA[:4],
        m=BETA[4:],
        v=f32(0, 1e-12, 1, 4),
    ),
    "loop_if": Graph(
        "(float[8, 8] x) => (float y) { y = Loop (n, t, x) <body = l (int64 i, bool c, float[8, 8] v) => (bool o, float[8, 8] r) { o = Identity (c) m = Mod (i, two) e = Equal (m, zero) r = If (e) <then_branch = a () => (float[8, 8] p) { p = Mul (v, k) }, else_branch = b () => (float[8, 8] p) { p = Sub (v, k) }> }> }",
        16,
        n=np.int64(5),
        t=np.array(True),
        two=np.int64(2),
        zero=np.int64(0),
        k=np.float32(1.3),
    ),
    "conv_1d_same": Graph(
        '(float[1, 3, 9] x) => (float y) { y = Conv <auto_pad = "SAME_UPPER", strides = [2], dilations = [1], group = 3> (x, w) }',
        13,
        w=draw_weights(6, 1, 4),
    ),
    "conv_3d": Graph(
        "(float[1, 2, 5, 5, 5] x) => (float y) { y = Conv <pads = [0, 1, 2, 1, 0, 1], dilations = [1, 2, 1]> (x, w) }",
        13,
        w=draw_weights(3, 2, 2, 2, 3),
    ),
    "instance_norm_1d": Graph(
        "(float[2, 3, 7] x) => (float y) { y = InstanceNormalization <epsilon = 0.1> (x, g, b) }",
        13,
        g=GAMMA[:3],
        b=BETA[:3],
    ),
    "one_hot_negative": Graph(
        f"{ROWS} {{ i = Cast <to = 7> (x) y = OneHot <axis = 0> (i, d, v) }}", 13, d=np.int64(3), v=f32(0.5, 2)
    ),
    "dft": Graph("(float[1, 8, 1] x) => (float y) { y = DFT <axis = 1, onesided = 1> (x) }", 17),
    "dft_inverse": Graph("(float[1, 8, 2] x) => (float y) { y = DFT <axis = 1, inverse = 1> (x) }", 17),
    "mel_window": Graph(f"{ROWS} {{ w = HannWindow <periodic = 0> (n) y = Mul (x, w) }}", 17, n=np.int64(8)),
    "tanh_shift_fused": Graph(
        f"{ROWS} {{ m = MatMul (x, w) t = Transpose <perm = [1, 0]> (m) a = MatMul (t, w) y = Transpose <perm = [1, 0]> (a) }}",
        13,
        w=SQUARE,
    ),
    "max_integers": Graph(
        "(int32[8] x) => (int32 y) { y = Max (x, k) }", 13, k=np.array([-(2**31), 2**31 - 1, 0, 1, 2, 3, 4, 5], "int32")
    ),
    "gather_expand": Graph(
        f"{ROWS} {{ g = Gather <axis = 1> (x, i) e = Expand (g, s) y = ReduceMean <keepdims = 0, axes = [0]> (e) }}",
        13,
        i=np.array([[-1, 0], [3, -8]]),
        s=i64(2, 8, 2, 2),
    ),
    "layer_norm_stash": Graph(
        "(float[2, 3, 8] x) => (float y) { b = Add (x, k) y = LayerNormalization <axis = 1, epsilon = 0.5> (b, g, h) }",
        17,
        k=np.float32(1000),
        g=draw_weights(3, 8),
        h=draw_weights(3, 8),
    ),
}


def draw(model: ModelProto) -> dict[str, Any]:
    """Inputs of one call, other than those that the run makes up."""
    rng, feeds = np.random.default_rng(7), {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape, dtype = [axis.dim_value for axis in kind.shape.dim], onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        whole = dtype.kind in "iu"
        feeds[value.name] = (rng.integers(0, 100, shape) if whole else rng.standard_normal(shape)).astype(dtype)
    return feeds


def evaluate(model: ModelProto, feeds: Arrays) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    with np.errstate(all="ignore"):
        return list(ReferenceEvaluator(model).run(None, dict(feeds)))


def run_session(model: ModelProto, feeds: Arrays, level: str) -> list[Any]:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def run_openvino(model: ModelProto, feeds: Arrays) -> list[Any]:
    import io

    import openvino

    core = openvino.Core()
    config = {"INFERENCE_PRECISION_HINT": "f32"}
    found = core.compile_model(core.read_model(io.BytesIO(model.SerializeToString())), "CPU", config)(dict(feeds))
    return [found[i] for i in range(len(model.graph.output))]


def measure_distance(wanted: list[Any], found: list[Any]) -> float:
    """The largest noise-to-signal ratio of an output; 1 for another shape, kind or word."""
    worst = 0.0
    for one, other in zip(wanted, found, strict=True):
        a, b = np.asarray(one), np.asarray(other)
        if a.shape != b.shape:
            return 1.0
        if a.dtype.kind not in "fiub":
            worst = max(worst, float(np.mean(a.astype(str) != b.astype(str))))
            continue
        x, y = (np.nan_to_num(array.astype(np.float64), posinf=0, neginf=0) for array in (a, b))
        signal = float(np.linalg.norm(x))
        worst = max(worst, float(np.linalg.norm(x - y)) / signal if signal else float(np.any(x != y)))
    return worst


def compare_by_hand(model: ModelProto, feeds: Arrays, tolerance: float) -> dict[str, Any]:
    """What each engine is expected to be: "same", "changed", or why it ran nothing; and what was the truth."""
    found: dict[str, Any] = {}
    for name, ask in (
        ("evaluator", lambda: evaluate(model, feeds)),
        ("ort:opt=none", lambda: run_session(model, feeds, "ORT_DISABLE_ALL")),
        ("ort", lambda: run_session(model, feeds, "ORT_ENABLE_ALL")),
        ("openvino", lambda: run_openvino(model, feeds)),
    ):
        try:
            found[name] = ask()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"
    evaluated, plain = found["evaluator"], found["ort:opt=none"]
    both = isinstance(evaluated, list) and isinstance(plain, list)
    differs = both and measure_distance(plain, evaluated) > tolerance
    truth = plain if isinstance(plain, list) else evaluated
    told: dict[str, Any] = {
        "evaluator": "differs from ort:opt=none" if differs else "agrees" if both else "only one ran"
    }
    for name in ("ort", "openvino"):
        other = found[name]
        if isinstance(truth, str) or isinstance(other, str):
            told[name] = "failed" if isinstance(other, str) else "no truth"
        else:
            told[name] = "changed" if measure_distance(truth, other) > tolerance else "same"
    return told


def run_graph(path: Path, out: Path) -> dict[str, str]:
    """Engine -> its verdict in a run."""
    command = [sys.executable, "-m", "enginebench", "run", str(path), "--engines", "ort,openvino", "--precisions"]
    command += ["fp32", "--quick", "--iters", "5", "--out", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    try:
        rows = json.loads(done.stdout)["rows"]
    except (ValueError, KeyError):
        text = (done.stderr.strip().splitlines() or [""])[-1]
        return {"run": f"exit code {done.returncode}: {text[:100]}"}
    found = {}
    for row in rows:
        verdict = row["outputs"] if row["status"] == "ok" else row["status"]
        found[row["engine"]] = f"not judged ({row['outputs_reason'][:60]})" if verdict == "not_judged" else verdict
    return found


def judge(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Each engine whose verdict is not what was expected."""
    wrong = []
    for engine in ("ort", "openvino"):
        said, wanted = found.get(engine, "no row"), expected[engine]
        if wanted == "changed" and said in ("same", "within_limits"):
            wrong.append(f"{engine}: a difference is not named")
        if wanted == "changed" and said.startswith("not judged"):
            wrong.append(f"{engine}: a difference is not judged")
        if wanted == "same" and said == "changed":
            wrong.append(f"{engine}: named without a difference")
    return wrong


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", default="", help="names of graphs, separated by commas")
    options.add_argument("--out", help="folder of the graphs and runs, which are kept")
    options.add_argument("--tolerance", type=float, default=TOLERANCE)
    options.add_argument("--json", action="store_true", help="a line of JSON for each graph")
    asked = options.parse_args()
    chosen = [name for name in GRAPHS if not asked.only or name in asked.only.split(",")]
    faults = 0
    with tempfile.TemporaryDirectory() as scratch:
        home = Path(asked.out or scratch)
        home.mkdir(parents=True, exist_ok=True)
        for name in chosen:
            model = GRAPHS[name].build(name)
            onnx.save(model, home / f"{name}.onnx")
            quantized = any(
                node.op_type in ("QuantizeLinear", "QLinearMatMul", "DynamicQuantizeLinear")
                for node in model.graph.node
            )
            tolerance = INT8_TOLERANCE if quantized else asked.tolerance
            expected = compare_by_hand(model, draw(model), tolerance)
            found = run_graph(home / f"{name}.onnx", home / name)
            wrong = judge(expected, found)
            faults += len(wrong)
            if asked.json:
                print(json.dumps({"graph": name, "expected": expected, "found": found, "wrong": wrong}), flush=True)
            else:
                verdicts = ", ".join(f"{engine} {verdict}" for engine, verdict in found.items())
                print(f"{name:24} {verdicts:60} {'; '.join(wrong)}", flush=True)
    print(f"{len(chosen)} graphs, {faults} wrong verdicts", file=sys.stderr)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
