"""The protocol on the line: frames, commands, answers, and what they hold. Pure Python, shared by driver and gateware.

    request:  A5  command  sequence  length  payload ...  CRC high  CRC low
    reply:    5A  status   sequence  length  payload ...  CRC high  CRC low

The CRC covers everything but itself and the first byte. The sequence number of a request comes back in its answer.
"""

import binascii
import struct
from enum import IntEnum

from msgspec import Struct

from enginebench.core.errors import ParseError

REQUEST_START = 0xA5
ANSWER_START = 0x5A
# Start, command or status, sequence, length; two bytes of CRC.
FRAME_BYTES = 6
LARGEST_PAYLOAD = 255
PROTOCOL_VERSION = 1
# Bits of one byte on the wire, without parity: start, eight data, stop.
FRAME_BITS = 10
# Inputs that the device can hold at once: one in work, one on its way.
BANKS = 2


class Command(IntEnum):
    ECHO = 1  # the payload comes back
    INFER = 2  # one input; one answer
    INFO = 3  # what the device is
    CYCLES = 4  # clock cycles of the last inference, and how many there were


class Status(IntEnum):
    OK = 0
    BAD_CRC = 1
    BAD_LENGTH = 2
    UNKNOWN_COMMAND = 3
    BUSY = 4  # both banks hold inputs whose answers are not sent yet


class Answer(Struct, frozen=True):
    status: int
    sequence: int
    payload: bytes


class Info(Struct, frozen=True):
    version: int
    lanes: int
    inputs: int
    outputs: int
    answer_bytes: int
    layers: int
    divisor: int
    checksum: int  # of the network: `Network.checksum`
    dropped: int  # frames that were cut off by a pause or a broken byte, since power-up, modulo 65536


# Little-endian, as the device sends it.
INFO_FORMAT = struct.Struct("<BBHHBBHIH")
CYCLES_FORMAT = struct.Struct("<II")


def compute_crc(data: bytes) -> int:
    """CRC-16/IBM-3740: polynomial 0x1021, starting at 0xFFFF, most significant bit first.

    Source: G. Cook, "Catalogue of parametrised CRC algorithms", CRC-16/IBM-3740; its check value is 0x29B1.
    """
    return binascii.crc_hqx(data, 0xFFFF)


def pack_request(command: int, sequence: int, payload: bytes = b"") -> bytes:
    """Return the bytes of a request: a `Command`, a number from 0 to 255, at most 255 bytes of payload."""
    return _pack_frame(REQUEST_START, bytes([command, sequence, len(payload)]) + payload)


def pack_response(status: int, sequence: int, payload: bytes = b"") -> bytes:
    """Return the bytes of a response: a `Status`, the number of its request, at most 255 bytes of payload."""
    return _pack_frame(ANSWER_START, bytes([status, sequence, len(payload)]) + payload)


def _pack_frame(start: int, body: bytes) -> bytes:
    return bytes([start]) + body + compute_crc(body).to_bytes(2, "big")


def split_answers(data: bytes) -> tuple[list[Answer], bytes]:
    """(whole and valid answers in `data`, what may be the beginning of another).

    What is no answer is skipped; after a bad CRC the search goes on one byte further, so that no good frame behind
    garbage is lost.
    """
    answers: list[Answer] = []
    i = 0
    while (i := data.find(ANSWER_START, i)) >= 0:
        head = data[i : i + FRAME_BYTES - 2]
        if len(head) < FRAME_BYTES - 2:
            return answers, data[i:]
        end = i + FRAME_BYTES + head[3]
        if len(data) < end:
            # Either it is still coming, or this is garbage that looks like a start; a good frame behind it decides.
            inner, rest = split_answers(data[i + 1 :])
            return (answers + inner, rest) if inner else (answers, data[i:])
        body = data[i + 1 : end - 2]
        if compute_crc(body) == int.from_bytes(data[end - 2 : end], "big"):
            answers.append(Answer(body[0], body[1], body[3:]))
            i = end
        else:
            i += 1
    return answers, b""


def unpack_info(payload: bytes) -> Info:
    return Info(*_unpack(INFO_FORMAT, payload, "INFO reply"))


def unpack_cycles(payload: bytes) -> tuple[int, int]:
    """(clock cycles of the last inference, number of inferences since power-up, modulo 65536)."""
    cycles, count = _unpack(CYCLES_FORMAT, payload, "CYCLES reply")
    return cycles, count


def _unpack(form: struct.Struct, payload: bytes, what: str) -> tuple[int, ...]:
    if len(payload) != form.size:
        raise ParseError(what, "", f"{len(payload)} bytes", f"{form.size}", "Another protocol version?")
    return form.unpack(payload)
