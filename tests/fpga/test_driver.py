"""The driver against a device that runs at once: lost bytes, flipped bits, stale answers, silence, a lost port."""

import os

import numpy as np
import pytest

from enginebench.core.errors import BackendUnavailable, FeedError, MeasurementError
from enginebench.features.fpga import waves
from enginebench.features.fpga.compiled import CompiledDevice
from enginebench.features.fpga.driver import Board, SerialLine
from enginebench.features.fpga.frames import INFO_FORMAT, Status, pack_answer
from enginebench.features.fpga.gateware.device import Device
from networks import compile_device, draw_inputs, make_network
from tracks import Clock

SMALL = make_network((6, 5, 3), bits=16)
DIVISOR, TIMEOUT_CYCLES = 4, 900  # as in test_simulation: one design to compile


class SimulatedLine:
    """The compiled device as a line. `spoil(number, data)` may change what the host writes."""

    def __init__(self, device, clock, spoil=lambda number, data: data, spoil_answer=lambda number, data: data):
        self.device, self.clock, self.spoil, self.spoil_answer = device, clock, spoil, spoil_answer
        self.writes, self.answers, self.closed = 0, 0, False
        self.arrived = b""

    def write(self, data):
        sent = self.spoil(self.writes, data)
        self.writes += 1
        # The rest is longer than the device's patience.
        line = np.concatenate([waves.encode_bytes(sent, DIVISOR), waves.rest(1500)])
        answer = waves.decode_timed(self.device.run(line)[0], DIVISOR)[0]
        self.arrived += self.spoil_answer(self.answers, answer)
        self.answers += 1

    def read(self, timeout_s):
        data, self.arrived = self.arrived, b""
        if not data:
            self.clock.now_s += timeout_s
        return data

    def close(self):
        self.closed = True


@pytest.fixture
def open_line(cache_dir):
    opened = []

    def make(**spoilers):
        device = CompiledDevice(compile_device(Device(SMALL, 4, DIVISOR, timeout_cycles=TIMEOUT_CYCLES), cache_dir))
        opened.append(device)
        clock = Clock()
        line = SimulatedLine(device, clock, **spoilers)
        return Board(line, timeout_s=0.25, retries=2, clock=clock), line

    yield make
    for device in opened:
        device.close()


def only(numbers, change):
    """`change` for the writes or answers with these numbers."""
    return lambda number, data: change(data) if number in numbers else data


def flip(data, place=5):
    return data[:place] + bytes([data[place] ^ 0x10]) + data[place + 1 :]


def expect(rows):
    return [r.astype(np.int8).tobytes() for r in SMALL.infer_bytes(rows)]


def test_everything_works_on_a_clean_line(open_line):
    board, line = open_line()
    rows = draw_inputs(SMALL, 5)
    with board:
        assert board.echo(b"abc") == b"abc"
        info = board.read_info()
        assert (info.lanes, info.inputs, info.outputs, info.checksum) == (4, 6, 3, SMALL.checksum)
        assert [board.infer(row) for row in rows] == expect(rows)
        assert board.read_cycles() > 17
        assert board.infer_all(rows) == expect(rows)
    assert board.retried == 0 and line.closed


@pytest.mark.parametrize(
    "spoiled", [flip, lambda d: d[:3], lambda d: d[:5] + d[6:], lambda d: b"", lambda d: d + b"\xa5"]
)
def test_spoiled_request_is_sent_again(open_line, spoiled):
    board, _ = open_line(spoil=only({0, 2}, spoiled))
    rows = draw_inputs(SMALL, 2)
    assert [board.infer(row) for row in rows] == expect(rows)


@pytest.mark.parametrize(
    "spoiled", [flip, lambda d: d[:4], lambda d: b"", lambda d: b"\x5a\x00\x09" + d, lambda d: d * 2]
)
def test_spoiled_answer_is_asked_for_again(open_line, spoiled):
    board, _ = open_line(spoil_answer=only({0}, spoiled))
    assert board.echo(b"abcdef") == b"abcdef"
    assert board.echo(b"xyz") == b"xyz"


@pytest.mark.parametrize("spoiled", [flip, lambda d: b""])
def test_stream_survives_spoiled_frames(open_line, spoiled):
    rows = draw_inputs(SMALL, 12)
    for kind in ("spoil", "spoil_answer"):
        board, _ = open_line(**{kind: only({3, 7}, spoiled)})
        assert board.infer_all(rows) == expect(rows)
        assert board.retried > 0


def test_silence_ends_in_an_error_that_says_how_often(open_line):
    board, line = open_line(spoil_answer=lambda number, data: b"")
    with pytest.raises(MeasurementError, match=r"nothing in 0\.25 s, 3 attempts"):
        board.echo(b"abc")
    assert line.writes == 3 and board.retried == 2


def test_wrong_length_is_not_tried_again(open_line):
    board, line = open_line()
    with pytest.raises(FeedError, match="bad length"):
        board.infer(np.zeros(5, np.int8))
    assert line.writes == 1
    with pytest.raises(FeedError, match="255"):
        board.echo(bytes(256))


class Canned:
    """A line that answers every request with the same payload."""

    def __init__(self, payload):
        self.payload = payload

    def write(self, data):
        self.sequence = data[2]

    def read(self, timeout_s):
        return pack_answer(Status.OK, self.sequence, self.payload)

    def close(self):
        pass


def test_other_protocol_version_is_refused():
    with pytest.raises(MeasurementError, match="protocol 9"):
        Board(Canned(INFO_FORMAT.pack(9, 8, 64, 10, 1, 2, 12, 5, 0))).read_info()


def test_port_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BackendUnavailable, match="no port"):
        SerialLine(str(tmp_path / "no port"), 115200)


def test_port_that_goes_away_is_an_error():
    import tty

    host, board = os.openpty()
    tty.setraw(board)
    line = SerialLine(os.ttyname(board), 115200)
    os.close(board)
    os.close(host)
    with pytest.raises(MeasurementError, match="serial port"):
        line.read(0.0)
        line.write(b"x")
        line.read(0.0)
    line.close()
    line.close()
