"""The device in Amaranth's simulator: commands, refusals, garbage, lost bytes, overlap."""

import numpy as np
import pytest
from networks import Echo, draw_inputs, make_network, simulate_pins

from enginebench.core.errors import MeasurementError, UsageError
from enginebench_fpga import waves
from enginebench_fpga.frames import Command, Status, pack_request, split_answers, unpack_info
from enginebench_fpga.gateware.device import Device, make_device
from enginebench_fpga.simulation import count_transaction_cycles

SMALL = make_network((6, 5, 3), bits=16)
TIMEOUT = 400


def talk(*pieces, network=SMALL, divisor=2, lanes=4, tail=1500):
    """The replies to requests (bytes) and pauses (cycles), one after the other."""
    line = [waves.rest(4)]
    line += [waves.rest(p) if isinstance(p, int) else waves.encode_bytes(p, divisor) for p in pieces]
    device = Device(network, lanes, divisor, timeout_cycles=TIMEOUT)
    wave = simulate_pins(device, np.concatenate([*line, waves.rest(tail)]))
    answers, rest = split_answers(waves.decode_timed(wave, divisor)[0])
    assert rest == b""
    return answers


def infer(inputs, sequence=0):
    return pack_request(Command.INFER, sequence, inputs.tobytes())


def expect(network, inputs):
    return network.infer_bytes(inputs[None])[0].astype("<i1" if network.answer_bytes == 1 else "<i4").tobytes()


@pytest.mark.parametrize(
    ("frame", "status"),
    [
        (pack_request(Command.ECHO, 9, b"abc")[:-1] + b"?", Status.BAD_CRC),
        (pack_request(Command.INFER, 9, bytes(5)), Status.BAD_LENGTH),
        (pack_request(Command.ECHO, 9, bytes(200)), Status.BAD_LENGTH),
        (pack_request(Command.INFO, 9, b"x"), Status.BAD_LENGTH),
        (pack_request(0, 9), Status.UNKNOWN_COMMAND),
        (pack_request(Command.ECHO | 8, 9, b"x"), Status.UNKNOWN_COMMAND),
    ],
)
def test_refusals_say_why_and_leave_the_device_ready(frame, status):
    row = draw_inputs(SMALL, 1)[0]
    refused, answered = talk(frame, infer(row))
    assert (refused.status, refused.sequence, refused.payload) == (status, 9, b"")
    assert answered.payload == expect(SMALL, row)


@pytest.mark.parametrize("kept", [1, 2, 3, 4, 7, 10, 11])
def test_lost_bytes_never_hang_it(kept):
    frame = infer(draw_inputs(SMALL, 1)[0])
    told, echo = pack_request(Command.INFO, 2), pack_request(Command.ECHO, 1)
    lost, answer = talk(frame[:kept], TIMEOUT + 50, told, 600, echo, tail=400)
    assert unpack_info(lost.payload).dropped == 1
    assert answer.sequence == 1


def test_stream_takes_as_long_as_its_requests():
    """The next request travels while the engine works and the answer goes out: only the last one is waited for."""
    inputs, divisor = draw_inputs(SMALL, 6), 4
    requests = [waves.encode_bytes(infer(row, i), divisor) for i, row in enumerate(inputs)]
    wave = simulate_pins(Device(SMALL, 4, divisor), np.concatenate([*requests, waves.rest(800)]))
    data, starts = waves.decode_timed(wave, divisor)
    answers, _ = split_answers(data)
    assert [(a.status, a.sequence) for a in answers] == [(0, i) for i in range(6)]
    assert [a.payload for a in answers] == [expect(SMALL, row) for row in inputs]
    request, one = len(requests[0]), count_transaction_cycles(SMALL, 4, divisor)
    assert starts[-1] + 10 * divisor == 5 * request + one
    assert 5 * request + one < 0.7 * 6 * one


def test_networks_and_inputs_that_do_not_fit_are_refused():
    # One lane and hidden layers that take longer than a frame: answers cannot keep up.
    slow = make_network((6, 40, 40, 3), bits=16)
    inputs = draw_inputs(slow, 3)
    answers = talk(*(infer(row, i) for i, row in enumerate(inputs)), network=slow, lanes=1, divisor=1, tail=8000)
    assert sorted((a.sequence, a.status) for a in answers) == [(0, 0), (1, 0), (2, Status.BUSY)]
    assert [a.payload for a in answers[:2]] == [expect(slow, row) for row in inputs[:2]]
    for sizes in ((256, 2), (4, 64)):
        with pytest.raises(UsageError, match="255"):
            make_device(make_network(sizes, wide=True), 4, 12)
    for lanes, divisor, said in ((0, 12, "64"), (65, 12, "64"), (4, 0, "65535"), (4, -1, "65535"), (4, 65536, "65535")):
        with pytest.raises(UsageError, match=said):
            make_device(SMALL, lanes, divisor)


def test_noise_on_the_line_never_stops_it():
    rng = np.random.default_rng(5)
    noise = rng.integers(0, 2, 6000).astype(np.uint8)
    good = waves.encode_bytes(pack_request(Command.ECHO, 4, b"xyz"), 3)
    line = np.concatenate([waves.rest(9), noise, waves.rest(TIMEOUT + 60), good, waves.rest(1500)])
    wave = simulate_pins(Device(SMALL, 4, 3, timeout_cycles=TIMEOUT), line)
    answers, _ = split_answers(waves.decode_timed(wave, 3)[0])
    assert answers[-1].payload == b"xyz"


# The UART: every divisor, back-to-back bytes, glitches, broken frames, breaks, clocks that are off.

TEXT = bytes([0x00, 0xFF, 0xA5, 0x5A, 0x01, 0x80])


def echo(divisor, *pieces):
    """What an echo replies to pieces of a line, after enough rest for it to finish."""
    line = np.concatenate([waves.rest(8), *pieces, waves.rest(14 * divisor + 20)])
    return waves.decode_timed(simulate_pins(Echo(divisor), line), divisor)[0]


@pytest.mark.parametrize("divisor", [1, 2, 3, 4, 5, 13, 104])
def test_echo_is_exact_at_any_divisor(divisor):
    data = TEXT if divisor < 100 else TEXT[2:4]
    assert echo(divisor, waves.encode_bytes(data, divisor)) == data


def test_bytes_follow_without_a_gap_and_what_has_no_room_is_dropped_whole():
    line = np.concatenate([waves.encode_bytes(TEXT, 4), waves.rest(100)])
    data, starts = waves.decode_timed(simulate_pins(Echo(4), line), 4)
    assert data == TEXT
    assert np.diff(starts).tolist() == [40] * (len(TEXT) - 1)
    # Stop bits cut to 0.6 of a bit: 9.6 bits a byte come in, 10 go out; sixteen bytes of room last for 400.
    data = bytes(i % 251 for i in range(450))
    frames = waves.encode_bytes(data, 5).reshape(len(data), 50)[:, :48]
    answer = echo(5, frames.reshape(-1), waves.rest(20 * 50))
    assert len(answer) < len(data) and answer[:300] == data[:300]


def test_glitches_broken_frames_and_breaks_start_nothing():
    glitch = np.concatenate([np.zeros(3, np.uint8), waves.rest(30)])
    assert echo(8, glitch, waves.encode_bytes(b"U", 8), waves.rest(5), glitch, waves.encode_bytes(b"V", 8)) == b"UV"
    broken = waves.encode_bytes(b"\x0f", 8)
    broken[-8:] = 0
    assert echo(8, broken, waves.rest(8), waves.encode_bytes(b"ok", 8)) == b"ok"
    assert echo(8, np.zeros(8 * 55, np.uint8), waves.rest(12), waves.encode_bytes(b"ok", 8)) == b"ok"


@pytest.mark.parametrize("sender", [96, 104])
def test_clocks_may_differ_by_four_percent(sender):
    # Sampling drifts by 9.5 bits x 4 % = 0.38 of a bit until the stop bit, less than the half that it has.
    assert echo(100, waves.encode_bytes(TEXT[:3], sender)) == TEXT[:3]


def test_waves_decode_what_they_encode_and_name_what_is_broken():
    line = np.concatenate([waves.rest(7), waves.encode_bytes(TEXT, 3, gap_cycles=2), waves.rest(5)])
    assert waves.decode_timed(line, 3)[0] == TEXT
    with pytest.raises(MeasurementError, match="ends"):
        waves.decode_timed(line[:40], 3)[0]
    with pytest.raises(MeasurementError, match="stop bit"):
        waves.decode_timed(np.zeros(100, np.uint8), 3)[0]
    assert waves.decode_timed(waves.rest(10), 3)[0] == b""
