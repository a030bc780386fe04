"""The digits network from the file that ONNX Runtime runs: every digit through the simulated device."""

import pytest

from chains import run_ort
from enginebench.features.fpga.onnx_reader import read_network
from enginebench.features.fpga.simulation import DesignOptions, count_transaction_cycles, simulate_inferences
from enginebench.features.fpga.verb import find_differences, quantize_default
from enginebench.models.task import feed_digits, load_digits


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    return quantize_default(tmp_path_factory.mktemp("quantized é"))


@pytest.fixture(scope="module")
def digits():
    found = load_digits()
    return feed_digits("digits-mlp", found.images), found.labels


def test_all_digits_are_exact_and_classed_as_onnx_runtime_does(quantized, digits, cache_dir):
    inputs, labels = digits
    network = read_network(quantized)
    rows = network.encode(inputs)
    found = simulate_inferences(network, DesignOptions(lanes=8, divisor=12), rows, cache_dir)
    assert (found.answers == network.infer_bytes(rows)).all()
    assert found.cycles_per_inference == 332 and set(found.compute_cycles) == {332}
    assert set(found.transaction_cycles) == {count_transaction_cycles(network, 8, 12)}
    ours = network.decode(found.answers)
    assert len(find_differences(ours, run_ort(quantized, inputs), labels)) <= 2
    assert (ours.argmax(axis=1) == labels).mean() > 0.985


@pytest.mark.parametrize(("bits", "share"), [(32, 0.0), (24, 0.0), (16, 0.02)])
def test_width_of_the_multiplier_has_its_rate_of_mismatches(bits, share, quantized, digits):
    # Answers are 32-bit sums here: one hidden byte that rounds the other way changes several of them.
    network = read_network(quantized, bits)
    exact = read_network(quantized, 32).infer_bytes(network.encode(digits[0]))
    assert (network.infer_bytes(network.encode(digits[0])) != exact).mean() <= share
