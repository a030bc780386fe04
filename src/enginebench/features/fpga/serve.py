"""A simulated board on a pseudo-terminal: the real design behind a line that runs at its real rate.

Time is that of the wall. A byte takes ten bits of the baud rate each way, and the engine its cycles at the clock. The
simulation itself runs at a small divisor, and stands still while nothing happens on the line.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from enginebench.core.errors import BackendUnavailable
from enginebench.features.fpga import waves

if TYPE_CHECKING:
    from enginebench.features.fpga.waves import Wave

# The smallest divisor at which bits are sampled in their middle; the fewer cycles a byte has, the faster it runs.
DIVISOR = 4
# The design reacts to a byte within a dozen cycles; a quantum in which nothing happens means that it rests.
QUANTUM_CYCLES = 64
READ_BYTES = 4096
IDLE_POLL_S = 0.1  # how soon `stop` is noticed


class Pins(Protocol):
    """A device under simulation: (tx, computing) for each cycle of rx."""

    def run(self, rx: Wave) -> tuple[Wave, Wave]: ...


class PacedDevice:
    """A simulated device on the wall's clock; nothing here waits.

    Args:
        timeout_cycles: pause after which the design gives up an unfinished frame.
    """

    def __init__(self, pins: Pins, baud: float, clock_hz: float, timeout_cycles: int) -> None:
        self._pins = pins
        self._byte_s = waves.FRAME_BITS / baud
        self._clock_hz = clock_hz
        self._timeout_cycles = timeout_cycles
        self._arrivals: deque[tuple[float, int]] = deque()
        self._releases: deque[tuple[float, int]] = deque()
        self._in_free = self._out_free = -np.inf
        self._paused_at: float | None = None  # when the pause after the last byte becomes too long
        self.inferences = 0
        self.lag_s = 0.0  # how far simulation fell behind the line at worst

    def receive(self, data: bytes, now_s: float) -> None:
        """Takes what the host wrote; each byte arrives when the line has carried it."""
        for byte in data:
            self._in_free = max(self._in_free, now_s) + self._byte_s
            self._arrivals.append((self._in_free, byte))

    def advance(self, now_s: float) -> bytes:
        """What has reached the host by `now_s`."""
        while self._arrivals and self._arrivals[0][0] <= now_s:
            arrived, byte = self._arrivals.popleft()
            self.lag_s = max(self.lag_s, now_s - arrived)
            if self._paused_at is not None and arrived - self._byte_s >= self._paused_at:
                self._send(self._pins.run(waves.rest(self._timeout_cycles + QUANTUM_CYCLES)), arrived)
            self._paused_at = arrived + self._timeout_cycles / self._clock_hz
            self._step(bytes([byte]), arrived)
        data = bytearray()
        while self._releases and self._releases[0][0] <= now_s:
            data.append(self._releases.popleft()[1])
        return bytes(data)

    def find_next(self) -> float | None:
        """When something happens next, or None if nothing will."""
        times = [queue[0][0] for queue in (self._arrivals, self._releases) if queue]
        return min(times, default=None)

    def _step(self, data: bytes, now_s: float) -> None:
        """One byte in; then on until the design rests."""
        tx, computing = self._pins.run(waves.encode_bytes(data, DIVISOR))
        pieces = [(tx, computing)]
        while not self._rests(*pieces[-1]):
            pieces.append(self._pins.run(waves.rest(QUANTUM_CYCLES)))
        self._send((waves.join(p[0] for p in pieces), waves.join(p[1] for p in pieces)), now_s)

    @staticmethod
    def _rests(tx: Wave, computing: Wave) -> bool:
        return len(tx) == QUANTUM_CYCLES and not computing.any() and bool(tx.all())

    def _send(self, found: tuple[Wave, Wave], now_s: float) -> None:
        tx, computing = found
        cycles = int(computing.sum())
        self.inferences += cycles > 0
        start = now_s + cycles / self._clock_hz
        for byte in waves.decode_bytes(tx, DIVISOR):
            self._out_free = max(self._out_free, start) + self._byte_s
            self._releases.append((self._out_free, byte))


def serve_terminal(
    device: PacedDevice,
    on_ready: Callable[[str], None],
    stop: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Serves a device on a new pseudo-terminal until `stop` says so; `on_ready` gets its path."""
    try:
        import tty

        host, board = os.openpty()
    except (ImportError, OSError, AttributeError) as error:
        raise BackendUnavailable(f"this system offers no pseudo-terminal: {error}") from error
    try:
        # Raw, and held open here: the device does not notice when a program closes its end and another one opens it.
        tty.setraw(board)
        on_ready(os.ttyname(board))
        while not stop():
            due = device.find_next()
            wait_s = IDLE_POLL_S if due is None else min(max(0.0, due - clock()), IDLE_POLL_S)
            readable, _, _ = select.select([host], [], [], wait_s)
            if readable:
                device.receive(os.read(host, READ_BYTES), clock())
            if data := device.advance(clock()):
                os.write(host, data)
    finally:
        os.close(host)
        os.close(board)
