"""The host's side: talks to a board over a serial port, with time-outs, retries and checks of every byte."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from enginebench.core.engine_api import Closing
from enginebench.core.errors import BackendUnavailable, FeedError, MeasurementError, explaining, importing
from enginebench_fpga import INSTALL
from enginebench_fpga.frames import (
    BANKS,
    LARGEST_PAYLOAD,
    PROTOCOL_VERSION,
    Answer,
    Command,
    Info,
    Status,
    pack_request,
    split_answers,
    unpack_cycles,
    unpack_info,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Clock: TypeAlias = Callable[[], float]

# The longest transfer is 261 bytes each way: 45 ms at 115200 baud. USB-serial adapters add 16 ms, the system some more.
TIMEOUT_S = 0.5
RETRIES = 3
# What a retry may cure: a bit that flipped on the line, or banks that are full because an answer was lost.
CURABLE = (Status.BAD_CRC, Status.BUSY)


class SerialLine:
    """A serial port. What is read or written raises a `MeasurementError` once the port is gone."""

    def __init__(self, port: str, baud: int) -> None:
        with importing("pyserial", INSTALL):
            import serial
        refusal = f"the serial port {port} cannot be opened at {baud} baud"
        with explaining(BackendUnavailable, refusal, ValueError, OSError):  # pyserial's own are of OSError
            self._port = serial.Serial(port, baud, timeout=0, write_timeout=TIMEOUT_S)

    def write(self, data: bytes) -> None:
        with explaining(MeasurementError, f"the serial port {self._port.port} takes no bytes", OSError):
            self._port.write(data)

    def read(self, timeout_s: float) -> bytes:
        """Return the bytes that have arrived; waits for the first, and returns none if none came in time."""
        with explaining(MeasurementError, f"the serial port {self._port.port} is gone", OSError):
            self._port.timeout = timeout_s
            first: bytes = self._port.read(1)
            return first + self._port.read(self._port.in_waiting) if first else first

    def close(self) -> None:
        self._port.close()


class Board(Closing):
    """A board that runs the design.

    Args:
        retries: further attempts after the first.
        clock: seconds that only go forward.
    """

    def __init__(
        self, line: SerialLine, timeout_s: float = TIMEOUT_S, retries: int = RETRIES, clock: Clock = time.monotonic
    ) -> None:
        self._line, self._timeout_s, self._retries, self._clock = line, timeout_s, retries, clock
        self._sequence = 0
        self._pending, self._answers = b"", list[Answer]()
        self.retried = 0  # requests that had to be sent again since the board was opened

    def echo(self, data: bytes) -> bytes:
        """`data`, having been to the board and back."""
        return self.transact(Command.ECHO, data)

    def read_info(self) -> Info:
        """Return the board's own description: lanes, sizes, checksum of the network, frames dropped."""
        info = unpack_info(self.transact(Command.INFO))
        if info.version != PROTOCOL_VERSION:
            raise MeasurementError(f"the board speaks protocol {info.version}; this driver speaks {PROTOCOL_VERSION}")
        return info

    def read_cycles(self) -> int:
        """Clock cycles of the last inference, counted by the board."""
        return unpack_cycles(self.transact(Command.CYCLES))[0]

    def infer(self, inputs: NDArray[np.int8]) -> bytes:
        return self.transact(Command.INFER, np.asarray(inputs, np.int8).tobytes())

    def infer_all(self, rows: Sequence[NDArray[np.int8]]) -> list[bytes]:
        """The replies to many inputs; the next one travels while the board computes."""
        answers: dict[int, bytes] = {}
        in_flight: dict[int, int] = {}  # sequence number -> row
        waiting = deque(range(len(rows)))
        while waiting or in_flight:
            while waiting and len(in_flight) < BANKS:
                row = waiting.popleft()
                in_flight[self._send(Command.INFER, np.asarray(rows[row], np.int8).tobytes())] = row
            answer = self._receive(set(in_flight))
            if answer is not None and answer.status == Status.OK:
                answers[in_flight.pop(answer.sequence)] = answer.payload
                continue
            # Something was lost or refused: what is in flight is asked again, one by one, with retries.
            self.retried += len(in_flight)
            answers |= {row: self.infer(rows[row]) for row in in_flight.values()}
            in_flight.clear()
        return [answers[row] for row in range(len(rows))]

    def transact(self, command: int, payload: bytes = b"") -> bytes:
        """The payload of the answer to one request, sent again where that may help.

        Raises:
            FeedError: the payload is too long, or the board says that its length is wrong.
            MeasurementError: no valid answer came, or the board does not know the command.
        """
        if len(payload) > LARGEST_PAYLOAD:
            raise FeedError(f"a payload of {len(payload)} bytes; a frame carries at most {LARGEST_PAYLOAD}")
        said = "nothing"
        for attempt in range(self._retries + 1):
            if attempt:
                self.retried += 1
            answer = self._receive({self._send(command, payload)})
            if answer is None:
                continue
            if answer.status == Status.OK:
                return answer.payload
            known = answer.status in list(Status)
            said = Status(answer.status).name.lower().replace("_", " ") if known else f"status {answer.status}"
            if answer.status == Status.BAD_LENGTH:
                raise FeedError(f"the board refused {len(payload)} bytes for command {command}: {said}")
            if answer.status not in CURABLE:
                break
        raise MeasurementError(
            f"command {command} failed: the board replied {said} in {self._timeout_s:g} s, {attempt + 1} attempts. "
            "Check the port, the baud rate and the wiring"
        )

    def close(self) -> None:
        self._line.close()

    def _send(self, command: int, payload: bytes) -> int:
        """Sends a request; returns its sequence number."""
        self._sequence = (self._sequence + 1) & 0xFF
        self._line.write(pack_request(command, self._sequence, payload))
        return self._sequence

    def _receive(self, sequences: set[int]) -> Answer | None:
        """The next answer to one of these requests, or None in time. Answers to older ones are let go."""
        deadline = self._clock() + self._timeout_s
        while True:
            found, self._pending = split_answers(self._pending)
            self._answers += found
            while self._answers:
                answer = self._answers.pop(0)
                # After a bad CRC the sequence number is not to be believed either.
                if answer.sequence in sequences or answer.status == Status.BAD_CRC:
                    return answer
            left = deadline - self._clock()
            if left <= 0:
                self._pending = b""
                return None
            self._pending += self._line.read(left)


def open_board(port: str, baud: int, timeout_s: float = TIMEOUT_S, retries: int = RETRIES) -> Board:
    """The board at a serial port."""
    return Board(SerialLine(port, baud), timeout_s, retries)
