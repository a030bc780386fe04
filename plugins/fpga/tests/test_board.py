"""The board behind fpga-sim: outputs by simulation, times by hand, the table of speeds."""

from pathlib import Path

import numpy as np
import pytest

from chains import run_ort, write_chain
from enginebench.core.records import Artifact, EngineSpec, MeasureSpec
from enginebench.models.onnx.source import read_onnx
from enginebench.models.task import feed_digits, load_digits
from enginebench_fpga import simulation
from enginebench_fpga.board import find_speed, make_board
from enginebench_fpga.engine import create_backend
from enginebench_fpga.gateware.device import Device
from enginebench_fpga.onnx_reader import read_network
from enginebench_fpga.verb import find_other_classes

OPTIONS = {"part": "ice40up5k", "lanes": "4", "multiplier_bits": "16", "link": "uart:100000+usb:2", "clock_mhz": "10"}


def make_artifact(path):
    return Artifact(kind="onnx", model="m", path=str(path), sha256="", files=(), inputs=(), outputs=())


@pytest.fixture
def artifact(tmp_path):
    return make_artifact(write_chain(tmp_path / "ein Netz é.onnx"))


def test_board_outputs_and_models_within_both_banks(artifact, cache_dir):
    board = make_board(artifact, OPTIONS, cache_dir)
    inputs = np.random.default_rng(0).random((70, 6), dtype=np.float32)
    answers, cycles = board.infer(inputs)
    network = read_network(Path(artifact.path), 16)
    assert (answers == network.infer(inputs)).all()
    expected = simulation.count_engine_cycles([(6, 5), (5, 3)], 4)
    assert cycles == [expected] * 70
    again, _ = board.infer(inputs[:3])
    assert (again == answers[:3]).all()
    # 12 bytes in, 9 back at 0.1 ms a byte, 2 ms of the adapter; cycles of 0.1 us.
    assert board.model_ns(expected) == (1_200_000, (expected + simulation.FIXED_CYCLES) * 100, 2_900_000)
    assert board.model_interval_ns(expected) == 1_200_000
    assert board.inputs[0].shape == ("batch", 6) and board.outputs[0].shape == ("batch", 3)
    board.close()
    board.close()
    board = make_board(artifact, OPTIONS | {"link": "1e9", "clock_mhz": "1"}, cache_dir)
    copy_in, compute, copy_back = board.model_ns(100)
    assert board.model_interval_ns(100) == compute == 108_000
    assert copy_in + copy_back < compute
    board.close()


# The digits network from the file that ONNX Runtime runs: through the simulated device, and as engine `fpga-sim`.

SPEC = EngineSpec(backend="fpga-sim", precision="int8")


@pytest.fixture(scope="module")
def digits():
    found = load_digits()
    return feed_digits("digits-mlp", found.images), found.labels


def test_all_digits_are_exact_and_classed_as_onnx_runtime_does(quantized, digits, cache_dir):
    inputs, labels = digits
    network = read_network(quantized)
    rows = network.encode(inputs)
    found = simulation.simulate_inferences(Device(network, 16, 1), rows, cache_dir)
    assert (found.answers == network.infer_bytes(rows)).all()
    assert found.cycles_per_inference == 180
    assert set(found.transaction_cycles) == {simulation.count_transaction_cycles(network, 16, 1)}
    ours = network.decode(found.answers)
    assert len(find_other_classes(ours, run_ort(quantized, inputs), labels)) <= 2
    assert (ours.argmax(axis=1) == labels).mean() > 0.985


@pytest.mark.parametrize(("bits", "share"), [(32, 0.0), (24, 0.0), (16, 0.02)])
def test_width_of_the_multiplier_has_its_rate_of_mismatches(bits, share, quantized, digits):
    # Answers are 32-bit sums here: one hidden byte that rounds the other way changes several of them.
    network = read_network(quantized, bits)
    exact = read_network(quantized, 32).infer_bytes(network.encode(digits[0]))
    assert (network.infer_bytes(network.encode(digits[0])) != exact).mean() <= share


def test_configuration_of_the_digits_network_and_differences_of_classes(quantized, digits, cache_dir, tmp_path):
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
    ours = np.array([[1, 5, 4.5], [9, 0, 0]], np.float32)
    theirs = np.array([[1, 5, 5.5], [9, 0, 0]], np.float32)
    (found,) = find_other_classes(ours, theirs, np.array([2, 0]))
    assert (found.index, found.device, found.onnxruntime, found.label, found.margin) == (0, 1, 2, 2, 0.5)
