"""The digits network from the file that ONNX Runtime runs: through the simulated device, and as engine `fpga-sim`."""

import numpy as np
import pytest

from chains import run_ort
from enginebench.core.records import EngineSpec, MeasureSpec
from enginebench.features.fpga.board import find_speed
from enginebench.features.fpga.engine import create_backend
from enginebench.features.fpga.gateware.device import Device
from enginebench.features.fpga.onnx_reader import read_network
from enginebench.features.fpga.simulation import count_transaction_cycles, simulate_inferences
from enginebench.features.fpga.verb import find_differences
from enginebench.models.onnx.source import read_onnx
from enginebench.models.task import feed_digits, load_digits

SPEC = EngineSpec(backend="fpga-sim", precision="int8")


@pytest.fixture(scope="module")
def digits():
    found = load_digits()
    return feed_digits("digits-mlp", found.images), found.labels


def test_all_digits_are_exact_and_classed_as_onnx_runtime_does(quantized, digits, cache_dir):
    inputs, labels = digits
    network = read_network(quantized)
    rows = network.encode(inputs)
    found = simulate_inferences(Device(network, 16, 1), rows, cache_dir)
    assert (found.answers == network.infer_bytes(rows)).all()
    assert found.cycles_per_inference == 180
    assert set(found.transaction_cycles) == {count_transaction_cycles(network, 16, 1)}
    ours = network.decode(found.answers)
    assert len(find_differences(ours, run_ort(quantized, inputs), labels)) <= 2
    assert (ours.argmax(axis=1) == labels).mean() > 0.985


@pytest.mark.parametrize(("bits", "share"), [(32, 0.0), (24, 0.0), (16, 0.02)])
def test_width_of_the_multiplier_has_its_rate_of_mismatches(bits, share, quantized, digits):
    # Answers are 32-bit sums here: one hidden byte that rounds the other way changes several of them.
    network = read_network(quantized, bits)
    exact = read_network(quantized, 32).infer_bytes(network.encode(digits[0]))
    assert (network.infer_bytes(network.encode(digits[0])) != exact).mean() <= share


def test_row_of_the_digits_network(quantized, digits, cache_dir, tmp_path):
    backend = create_backend(cache_dir)
    built = backend.build(read_onnx(quantized), SPEC, tmp_path)
    measured = backend.measure(built, SPEC, MeasureSpec(iters=5))
    # 70 bytes in and 46 back at 3 Mbaud, 1 ms of the adapter, 180 + 8 cycles at the Fmax of 16 lanes on an ECP5.
    compute_ns = 188e3 / find_speed("ecp5-25k", 16, 32)
    assert measured.device_ns == [round(compute_ns)] * 5
    assert measured.latency_ns == [round(233_333 + compute_ns) + 1_153_333] * 5
    with backend.load(built, SPEC) as engine:
        engine.bind({"input": digits[0][:200]})
        engine.run()
        answers = engine.fetch()["output"]
    assert answers.shape == (200, 10) and answers.dtype == np.float32
    assert (answers.argmax(axis=1) == digits[1][:200]).mean() > 0.97


def test_differences_name_both_classes_and_the_margin():
    ours = np.array([[1, 5, 4.5], [9, 0, 0]], np.float32)
    theirs = np.array([[1, 5, 5.5], [9, 0, 0]], np.float32)
    (found,) = find_differences(ours, theirs, np.array([2, 0]))
    assert (found.index, found.device, found.onnxruntime, found.label, found.margin) == (0, 1, 2, 2, 0.5)
