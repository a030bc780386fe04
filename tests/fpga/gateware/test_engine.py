"""The engine: bit for bit equal to the integer reference, and as fast as it says."""

import numpy as np
import pytest

from enginebench.features.fpga.gateware.engine import Engine
from enginebench.features.fpga.simulation import count_engine_cycles
from networks import draw_inputs, make_network, run_engine


def check(network, lanes, split=0, n=2):
    """Answers are the reference's; every inference takes as long as the closed form says."""
    inputs = draw_inputs(network, n)
    answers, cycles = run_engine(Engine(network, lanes, split), inputs)
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
def test_layer_without_quantization_answers_its_sums(relu):
    network = make_network((12, 8, 6), wide=True, relu=relu)
    assert network.answer_bytes == 4
    check(network, 4)


def test_channels_far_apart_keep_fewer_bits():
    network = make_network((12, 8, 6), bits=16, spread=2.0**12)
    assert max(int(x.shift.max()) for x in network.layers) - min(int(x.shift.min()) for x in network.layers) <= 7
    check(network, 4)


def test_extreme_weights_and_inputs_do_not_overflow():
    network = make_network((64, 4, 3))
    for value in (-128, 127):
        inputs = np.full((1, 64), value, np.int8)
        inputs[0, ::2] = -128
        answers, _ = run_engine(Engine(network, 4), inputs)
        assert answers.tolist() == network.infer_bytes(inputs).tolist()
