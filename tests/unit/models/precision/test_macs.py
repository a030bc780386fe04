"""Multiply-accumulates, against the published counts of the zoo."""

import numpy as np
import onnx
import pytest

from enginebench.models.precision.macs import count_macs, list_quantized_products, measure_coverage
from enginebench.models.zoo import BUILTIN, packaged_onnx
from graphs import build_graph


@pytest.mark.parametrize("name", ["digits-cnn", "digits-mlp"])
def test_counts_what_the_card_says(name):
    assert sum(count_macs(onnx.load(packaged_onnx(name))).values()) == BUILTIN[name].multiply_adds


@pytest.mark.parametrize(
    ("op", "weight", "shape", "out", "attributes", "expected"),
    [
        ("Conv", (6, 2, 3, 3), [1, 4, 5, 5], [1, 6, 3, 3], "<group = 2>", 6 * 9 * 2 * 9),
        ("ConvTranspose", (4, 6, 2, 2), [1, 4, 5, 5], [1, 6, 6, 6], "", 4 * 25 * 6 * 4),
        ("Gemm", (3, 6), [3, 2], [2, 6], "<transA = 1>", 2 * 6 * 3),
        ("MatMul", (4, 6), ["batch", 7, 4], ["batch", 7, 6], "", 7 * 6 * 4),
        ("Add", (4,), [2, 4], [2, 4], "", 0),
    ],
)
def test_counts_by_operator(op, weight, shape, out, attributes, expected):
    model = build_graph(f"y = {op} {attributes} (x, w)", {"w": np.ones(weight, np.float32)}, shape, out)
    assert sum(count_macs(model).values()) == expected


MOVERS = {
    "Pad": (["pads"], ""),
    "MaxPool": ([], "<kernel_shape = [1, 1]>"),
    "Reshape": (["shape"], ""),
    "DepthToSpace": ([], "<blocksize = 1>"),
    "SpaceToDepth": ([], "<blocksize = 1>"),
    "Expand": (["shape"], ""),
    "Tile": (["repeats"], ""),
    "Dropout": ([], ""),
    "Cast": ([], "<to = 1>"),
    "Resize": (["", "repeats_f"], '<mode = "nearest">'),
    "Resize that blends": (["", "repeats_f"], '<mode = "linear">'),
}


@pytest.mark.parametrize("op", MOVERS)
def test_coverage_looks_through_what_only_moves_or_selects_values(op):
    """NNCF puts Q/DQ in front of such operators, and engines carry the 8 bits through them."""
    more, attributes = MOVERS[op]
    nodes = f"""
        q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z)
        m = {op.partition(" ")[0]} {attributes} ({", ".join(["d", *more])})
        dw = DequantizeLinear (w, s, z) [conv] y = Conv (m, dw)
    """
    constants = {
        "s": np.float32(0.1),
        "z": np.int8(0),
        "w": np.ones((4, 2, 1, 1), np.int8),
        "pads": np.zeros(8, np.int64),
        "shape": np.array([1, 2, 6, 6]),
        "repeats": np.ones(4, np.int64),
        "repeats_f": np.ones(4, np.float32),
    }
    model = build_graph(nodes, constants, [1, 2, 6, 6], [1, 4, 6, 6])
    moves = "blends" not in op
    assert measure_coverage(model) == moves and list_quantized_products(model) == ["conv"] * moves
