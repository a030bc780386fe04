"""The simulated board: its line is paced on any clock, and a driver can talk to it through a pseudo-terminal."""

import threading

import numpy as np
import pytest

from enginebench.features.fpga.compiled import CompiledDevice, compile_device
from enginebench.features.fpga.driver import open_board
from enginebench.features.fpga.frames import Command, pack_request, split_answers
from enginebench.features.fpga.gateware.device import Device
from enginebench.features.fpga.serve import DIVISOR, PacedDevice, serve_terminal
from networks import draw_inputs, make_network

SMALL = make_network((6, 5, 3), bits=16)
TIMEOUT_CYCLES = 900  # as in test_driver: one design to compile
BAUD, CLOCK_HZ = 1000.0, 1e5  # a byte takes 10 ms, a cycle 10 us


@pytest.fixture
def device(cache_dir):
    design = Device(SMALL, 4, DIVISOR, timeout_cycles=TIMEOUT_CYCLES)
    with CompiledDevice(compile_device(design, cache_dir)) as pins:
        yield PacedDevice(pins, BAUD, CLOCK_HZ, TIMEOUT_CYCLES)


def play(device, until_s=60.0):
    """[(second, byte)] of all that comes, every event at its own time."""
    found = []
    while (due := device.find_next()) is not None and due <= until_s:
        found += [(due, byte) for byte in device.advance(due)]
    return found


def test_line_and_compute_take_their_time(device):
    row = draw_inputs(SMALL, 1)[0]
    frame = pack_request(Command.INFER, 1, row.tobytes())
    device.receive(frame, 5.0)
    found = play(device)
    (answer,), _ = split_answers(bytes(byte for _, byte in found))
    assert answer.payload == SMALL.infer_bytes(row[None])[0].astype(np.int8).tobytes()
    times = [when for when, _ in found]
    assert np.diff(times) == pytest.approx([0.01] * 8)
    # Twelve bytes there, the cycles of the engine, one byte back.
    compute = times[0] - 5.0 - 0.12 - 0.01
    assert 17e-5 < compute < 50e-5 and compute * CLOCK_HZ == pytest.approx(round(compute * CLOCK_HZ))
    assert device.inferences == 1


def test_bytes_come_in_no_faster_than_the_line(device):
    device.receive(pack_request(Command.ECHO, 1, b"ab"), 0.0)
    device.receive(pack_request(Command.ECHO, 2, b"cd"), 0.001)
    found = play(device)
    answers, _ = split_answers(bytes(byte for _, byte in found))
    assert [a.payload for a in answers] == [b"ab", b"cd"]
    assert found[0][0] == pytest.approx(0.09) and found[8][0] == pytest.approx(0.17)


def test_nothing_is_due_before_its_time(device):
    device.receive(pack_request(Command.ECHO, 1, b"ab"), 0.0)
    assert device.advance(0.05) == b""
    assert device.find_next() == pytest.approx(0.01 * 6)


def test_long_pause_ends_an_unfinished_frame(device):
    device.receive(pack_request(Command.ECHO, 1, b"lost")[:6], 0.0)
    device.receive(pack_request(Command.ECHO, 2, b"ok"), 9.0)
    answers, _ = split_answers(bytes(byte for _, byte in play(device)))
    assert [a.payload for a in answers] == [b"ok"]


def test_lag_is_told_where_simulation_falls_behind(device):
    device.receive(b"\x00", 0.0)
    device.advance(3.0)
    assert device.lag_s == pytest.approx(2.99)


def test_driver_talks_to_it_through_a_terminal(cache_dir):
    rows = draw_inputs(SMALL, 10)
    expected = [r.astype(np.int8).tobytes() for r in SMALL.infer_bytes(rows)]
    ready, done, path = threading.Event(), threading.Event(), []

    def on_ready(where):
        path.append(where)
        ready.set()

    design = Device(SMALL, 4, DIVISOR, timeout_cycles=TIMEOUT_CYCLES)
    with CompiledDevice(compile_device(design, cache_dir)) as pins:
        served = PacedDevice(pins, 921600, 12e6, TIMEOUT_CYCLES)
        thread = threading.Thread(target=serve_terminal, args=(served, on_ready, done.is_set))
        thread.start()
        try:
            assert ready.wait(30)
            for _ in range(2):  # a second program finds the board as the first one left it
                with open_board(path[0], 921600, timeout_s=10.0) as board:
                    assert board.echo(b"hello") == b"hello"
                    assert board.read_info().checksum == SMALL.checksum
                    assert [board.infer(row) for row in rows] == expected
                    assert board.infer_all(rows) == expected
        finally:
            done.set()
            thread.join(30)
    assert served.inferences >= 20
