"""The integer reference against plain Python, and what a network refuses."""

from fractions import Fraction

import numpy as np
import pytest

from enginebench.core.errors import FeedError, ModelError, UsageError
from enginebench.features.fpga.network import Quantization, fit_multipliers, make_layer
from networks import draw_inputs, make_network


def test_reference_is_what_exact_fractions_say():
    network = make_network((7, 5, 3), bits=32)
    for row in draw_inputs(network, 20):
        values = [int(v) for v in row]
        for layer in network.layers:
            sums = [
                sum(int(w) * v for w, v in zip(weights, values, strict=True)) + int(bias)
                for weights, bias in zip(layer.weights, layer.bias, strict=True)
            ]
            exact = [
                Fraction(s * int(m), 2 ** int(k)) for s, m, k in zip(sums, layer.multiplier, layer.shift, strict=True)
            ]
            values = [min(127, max(layer.low, round(e) + layer.zero_point)) for e in exact]  # round: ties to even
        assert network.infer_bytes(row[None])[0].tolist() == values


def test_bounds_hold_at_the_extremes():
    network = make_network((9, 4))
    layer = network.layers[0]
    low, high = layer.bound_accumulators()
    worst = np.where(layer.weights > 0, 127, -128)
    assert [int(layer.accumulate(row[None])[0, i]) for i, row in enumerate(worst)] == high.tolist()
    best = np.where(layer.weights > 0, -128, 127)
    assert [int(layer.accumulate(row[None])[0, i]) for i, row in enumerate(best)] == low.tolist()


def test_quantization_rounds_ties_to_even_and_saturates():
    kind = Quantization(scale=0.5, zero_point=-3)
    assert kind.encode(np.array([0.25, 0.75, 100, -100], np.float32)).tolist() == [-3, -1, 127, -128]
    assert kind.decode(np.array([-3, -1], np.int8)).tolist() == [0.0, 1.0]
    with pytest.raises(FeedError, match="not a number"):
        kind.encode(np.array([np.nan], np.float32))


def test_checksum_tells_networks_apart():
    network = make_network((7, 5, 3))
    assert network.checksum == make_network((7, 5, 3)).checksum
    others = [make_network((7, 5, 3), seed=1), make_network((7, 5, 3), bits=16), make_network((7, 5, 3), relu=False)]
    assert network.checksum not in [other.checksum for other in others]


def test_inputs_of_another_size_are_refused():
    network = make_network((7, 3))
    assert network.infer(np.zeros((2, 7, 1, 1), np.float32)).shape == (2, 3)
    for shape in ((2, 6), (7,), ()):
        with pytest.raises(FeedError, match="7"):
            network.infer(np.zeros(shape, np.float32))


@pytest.mark.parametrize("bits", [0, 3, 33])
def test_width_of_a_multiplier_is_checked(bits):
    with pytest.raises(UsageError, match="4 to 32"):
        fit_multipliers(make_network((3, 2)), bits)


def test_scale_without_multiplier_is_named():
    source = Quantization(scale=1.0, zero_point=0)
    weights = np.ones((2, 3), np.int8)
    tiny = make_layer(weights, np.zeros(2), np.full(2, 1e-30), source, source, relu=False)
    network = make_network((3, 2))
    with pytest.raises(ModelError, match="shift"):
        fit_multipliers(type(network)(layers=(tiny,), input_quantization=source), 32)


def test_layer_that_overflows_is_refused():
    source = Quantization(scale=1.0, zero_point=0)
    with pytest.raises(ModelError, match="32 bits"):
        make_layer(np.full((1, 140_000), 127, np.int8), np.zeros(1), np.ones(1), source, None, relu=False)
