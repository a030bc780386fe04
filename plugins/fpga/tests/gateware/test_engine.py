"""The engine: bit for bit equal to the integer reference, and as fast as it says."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import draw_inputs, make_network, run_engine

from enginebench.core.errors import UsageError
from enginebench_fpga import network
from enginebench_fpga.gateware.engine import InferenceCore
from enginebench_fpga.simulation import count_engine_cycles


def check(network, lanes, split=0, n=2):
    """Answers are the reference's; every inference takes as long as the closed form says."""
    inputs = draw_inputs(network, n)
    answers, cycles = run_engine(InferenceCore(network, lanes, split), inputs)
    assert answers.tolist() == network.infer_bytes(inputs).tolist()
    assert set(cycles) == {count_engine_cycles(network.sizes, lanes)}


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("split", [10, 15, 17, 31])
def test_widths_and_split_of_the_multiplication(bits, split):
    check(make_network(seed=bits, bits=bits), 8, split)


@pytest.mark.parametrize(
    ("sizes", "lanes"),
    [
        ((5, 3), 4),  # fewer outputs than lanes, sizes that are no power of two
        ((3, 17, 2), 16),  # fewer activations than lanes: sums wait for the shift register
        ((1, 1, 1), 1),
        ((9, 33, 7, 12, 5), 8),  # five layers use both halves of the activations
        ((64, 32, 10), 32),  # one group a layer: the next layer waits for activations
    ],
)
def test_any_sizes(sizes, lanes):
    check(make_network(sizes, seed=len(sizes), bits=24), lanes, n=3)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("zero_points", [(0, 0, 0), (-128, 17, -5), (127, -128, 127)])
def test_zero_points_and_relu(zero_points, relu):
    check(make_network((12, 8, 6), zero_points=zero_points, relu=relu), 4)


@pytest.mark.parametrize("relu", [False, True])
def test_layer_without_quantization_outputs_its_sums(relu):
    network = make_network((12, 8, 6), wide=True, relu=relu)
    assert network.answer_bytes == 4
    check(network, 4)


def test_channels_far_apart_and_extremes_do_not_overflow():
    network = make_network((12, 8, 6), bits=16, spread=2.0**12)
    assert max(int(x.shift.max()) for x in network.layers) - min(int(x.shift.min()) for x in network.layers) <= 7
    check(network, 4)
    network = make_network((64, 4, 3))
    for value in (-128, 127):
        inputs = np.full((1, 64), value, np.int8)
        inputs[0, ::2] = -128
        answers, _ = run_engine(InferenceCore(network, 4), inputs)
        assert answers.tolist() == network.infer_bytes(inputs).tolist()


@pytest.mark.parametrize("bits", [16, 24, 32])
def test_ties_go_to_the_even_neighbour(bits):
    """Halves of sums: every other one lies exactly between two answers."""
    whole = network.Quantization(scale=1.0, zero_point=0)
    weights = np.random.default_rng(bits).integers(-1, 2, (12, 6))
    layer = network.make_layer(weights, np.zeros(12), np.full(12, 0.5), whole, whole, relu=False)
    check(network.fit_multipliers(network.Network(layers=(layer,), input_quantization=whole), bits), 4, n=4)


# Fixed point: NumPy against exact fractions.


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 62))
def test_shift_right_rounds_every_wide_number(value, shift):
    exact = round(Fraction(value, 1 << shift))
    if -(2**63) <= exact < 2**63:
        assert int(network.shift_right(value, shift)) == exact


@given(st.integers(-(2**31), 2**31 - 1), st.integers(1, 2**31 - 1), st.integers(0, 62), st.integers(-128, 127))
def test_requantize_rounds_once_then_saturates(accumulator, multiplier, shift, zero):
    exact = round(Fraction(accumulator * multiplier, 1 << shift)) + zero
    found = network.requantize(accumulator, multiplier, shift, zero)
    assert int(found) == min(127, max(-128, exact))


@given(st.floats(1e-9, 0.99), st.integers(4, 32))
def test_split_scale_is_as_near_as_the_word_allows(scale, bits):
    multiplier, shift = network.split_scale(scale, bits)
    assert 2 ** (bits - 2) <= multiplier < 2 ** (bits - 1)
    assert abs(Fraction(multiplier, 1 << shift) / Fraction(scale) - 1) <= Fraction(1, 2 ** (bits - 1))


@pytest.mark.parametrize(
    ("scale", "bits"), [(0.0, 32), (-1.0, 32), (float("nan"), 16), (float("inf"), 16), (1e-30, 32), (1e12, 32)]
)
def test_split_scale_refuses_what_has_no_multiplier(scale, bits):
    with pytest.raises(UsageError):
        network.split_scale(scale, bits)
