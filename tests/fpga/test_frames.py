"""Frames: round trips, the published check value, answers found among garbage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebench.core.errors import ParseError
from enginebench.features.fpga.frames import (
    CYCLES_FORMAT,
    INFO_FORMAT,
    Answer,
    compute_crc,
    pack_answer,
    pack_request,
    split_answers,
    unpack_cycles,
    unpack_info,
)


def test_crc_has_its_published_check_value():
    assert compute_crc(b"123456789") == 0x29B1


def test_request_of_64_bytes_takes_70():
    frame = pack_request(2, 3, bytes(64))
    assert (len(frame), frame[:4]) == (70, b"\xa5\x02\x03\x40")


@given(st.lists(st.tuples(st.integers(0, 255), st.integers(0, 255), st.binary(max_size=255)), max_size=4))
def test_answers_come_out_as_they_went_in(answers):
    data = b"".join(pack_answer(*answer) for answer in answers)
    assert split_answers(data) == ([Answer(*answer) for answer in answers], b"")


@given(st.binary(max_size=40), st.binary(max_size=20))
def test_answer_behind_garbage_is_found(garbage, payload):
    found, _ = split_answers(garbage + pack_answer(0, 1, payload))
    assert Answer(0, 1, payload) in found


@given(st.integers(0, 11))
def test_beginning_is_kept_until_the_rest_comes(cut):
    data = pack_answer(0, 1, b"abcdef")
    assert split_answers(data[:cut]) == ([], data[:cut])


def test_long_garbage_is_searched_quickly():
    assert split_answers(b"\x5a\x00\x00\xff" * 2000)[0] == []


def test_info_and_cycles_of_another_length_are_refused():
    assert unpack_cycles(CYCLES_FORMAT.pack(300, 7)) == (300, 7)
    assert unpack_info(INFO_FORMAT.pack(1, 8, 64, 10, 1, 2, 12, 5, 0)).checksum == 5
    for unpack in (unpack_info, unpack_cycles):
        with pytest.raises(ParseError):
            unpack(b"123")
