"""The board behind fpga-sim: outputs by simulation, times by hand, the table of speeds."""

from pathlib import Path

import numpy as np
import pytest

from chains import write_chain
from enginebench.core.errors import UsageError
from enginebench.core.records import Artifact
from enginebench.features.fpga.board import make_board
from enginebench.features.fpga.onnx_reader import read_network
from enginebench.features.fpga.simulation import FIXED_CYCLES, count_engine_cycles

OPTIONS = {"part": "ice40up5k", "lanes": "4", "multiplier_bits": "16", "link": "uart:100000+usb:2", "clock_mhz": "10"}


def make_artifact(path):
    return Artifact(kind="onnx", model="m", path=str(path), sha256="", files=(), inputs=(), outputs=())


@pytest.fixture
def artifact(tmp_path):
    return make_artifact(write_chain(tmp_path / "ein Netz é.onnx"))


def test_board_answers_and_models(artifact, cache_dir):
    board = make_board(artifact, OPTIONS, cache_dir)
    inputs = np.random.default_rng(0).random((70, 6), dtype=np.float32)
    answers, cycles = board.infer(inputs)
    network = read_network(Path(artifact.path), 16)
    assert (answers == network.infer(inputs)).all()
    expected = count_engine_cycles([(6, 5), (5, 3)], 4)
    assert cycles == [expected] * 70
    again, _ = board.infer(inputs[:3])
    assert (again == answers[:3]).all()
    # 12 bytes in, 9 back at 0.1 ms a byte, 2 ms of the adapter; cycles of 0.1 us.
    assert board.model_ns(expected) == (1_200_000, (expected + FIXED_CYCLES) * 100, 2_900_000)
    assert board.model_interval_ns(expected) == 1_200_000
    assert board.inputs[0].shape == ("batch", 6) and board.outputs[0].shape == ("batch", 3)
    board.close()
    board.close()


def test_both_banks_bound_the_interval(artifact, cache_dir):
    board = make_board(artifact, OPTIONS | {"link": "1e9", "clock_mhz": "1"}, cache_dir)
    copy_in, compute, copy_back = board.model_ns(100)
    assert board.model_interval_ns(100) == compute == 108_000
    assert copy_in + copy_back < compute
    board.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [({"lanes": "many"}, "lanes"), ({"lanes": "65"}, "64"),
     ({"clock_mhz": "fast"}, "clock_mhz"), ({"clock_mhz": "0"}, "clock_mhz"),
     ({"link": "string"}, "link"), ({"part": "xc7"}, "xc7"), ({"lanes": "3", "clock_mhz": ""}, "fpga synth")],
)  # fmt: skip
def test_wrong_options_are_named(change, said, artifact, cache_dir):
    with pytest.raises(UsageError, match=said):
        make_board(artifact, OPTIONS | change, cache_dir)
