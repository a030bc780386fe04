"""The UART: every divisor, back-to-back bytes, glitches, broken frames, breaks, clocks that are off."""

import numpy as np
import pytest

from bench import Echo
from enginebench.core.errors import MeasurementError, UsageError
from enginebench.features.fpga import waves
from enginebench.features.fpga.gateware.uart import check_divisor
from networks import simulate_pins

TEXT = bytes([0x00, 0xFF, 0xA5, 0x5A, 0x01, 0x80])


def echo(divisor, *pieces):
    """What an echo replies to pieces of a line, after enough rest for it to finish."""
    line = np.concatenate([waves.rest(8), *pieces, waves.rest(14 * divisor + 20)])
    return waves.decode_timed(simulate_pins(Echo(divisor), line), divisor)[0]


@pytest.mark.parametrize("divisor", [1, 2, 3, 4, 5, 13, 104])
def test_echo_is_exact_at_any_divisor(divisor):
    data = TEXT if divisor < 100 else TEXT[2:4]
    assert echo(divisor, waves.encode_bytes(data, divisor)) == data


def test_transmitter_leaves_no_gap():
    line = np.concatenate([waves.encode_bytes(TEXT, 4), waves.rest(100)])
    data, starts = waves.decode_timed(simulate_pins(Echo(4), line), 4)
    assert data == TEXT
    assert np.diff(starts).tolist() == [40] * (len(TEXT) - 1)


def test_glitches_start_nothing():
    glitch = np.concatenate([np.zeros(3, np.uint8), waves.rest(30)])
    assert echo(8, glitch, waves.encode_bytes(b"U", 8), waves.rest(5), glitch, waves.encode_bytes(b"V", 8)) == b"UV"


def test_byte_without_stop_bit_is_dropped():
    broken = waves.encode_bytes(b"\x0f", 8)
    broken[-8:] = 0
    assert echo(8, broken, waves.rest(8), waves.encode_bytes(b"ok", 8)) == b"ok"


def test_break_is_one_error_and_no_bytes():
    assert echo(8, np.zeros(8 * 55, np.uint8), waves.rest(12), waves.encode_bytes(b"ok", 8)) == b"ok"


@pytest.mark.parametrize("sender", [96, 104])
def test_clocks_may_differ_by_four_percent(sender):
    # Sampling drifts by 9.5 bits x 4 % = 0.38 of a bit until the stop bit, less than the half that it has.
    assert echo(100, waves.encode_bytes(TEXT[:3], sender)) == TEXT[:3]


def test_faster_sender_fills_the_echo_and_what_has_no_room_is_dropped_whole():
    # Stop bits cut to 0.6 of a bit: 9.6 bits a byte come in, 10 go out; sixteen bytes of room last for 400.
    data = bytes(i % 251 for i in range(450))
    frames = waves.encode_bytes(data, 5).reshape(len(data), 50)[:, :48]
    answer = echo(5, frames.reshape(-1), waves.rest(20 * 50))
    assert len(answer) < len(data) and answer[:300] == data[:300]


@pytest.mark.parametrize("divisor", [0, -1, 65536])
def test_divisor_out_of_range_is_refused(divisor):
    with pytest.raises(UsageError, match="65535"):
        check_divisor(divisor)


def test_waves_decode_what_they_encode_and_name_what_is_broken():
    line = np.concatenate([waves.rest(7), waves.encode_bytes(TEXT, 3, gap_cycles=2), waves.rest(5)])
    assert waves.decode_timed(line, 3)[0] == TEXT
    with pytest.raises(MeasurementError, match="ends"):
        waves.decode_timed(line[:40], 3)[0]
    with pytest.raises(MeasurementError, match="stop bit"):
        waves.decode_timed(np.zeros(100, np.uint8), 3)[0]
    assert waves.decode_timed(waves.rest(10), 3)[0] == b""
