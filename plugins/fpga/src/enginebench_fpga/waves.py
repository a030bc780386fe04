"""UART lines as arrays: one sample a clock cycle, 0 or 1. Plain NumPy, so that no simulator spends time on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from enginebench.core.errors import MeasurementError
from enginebench_fpga.frames import FRAME_BITS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Wave: TypeAlias = NDArray[np.uint8]


def encode_bytes(data: bytes, divisor: int, gap_cycles: int = 0) -> Wave:
    """The line while `data` is sent: start bit, eight data bits (least significant first), stop bit, gap."""
    frames = np.ones((len(data), FRAME_BITS), dtype=np.uint8)
    frames[:, 0] = 0
    frames[:, 1:9] = np.unpackbits(np.frombuffer(data, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    samples = np.repeat(frames, divisor, axis=1)
    return np.pad(samples, ((0, 0), (0, gap_cycles)), constant_values=1).reshape(-1)


def rest(cycles: int) -> Wave:
    return np.ones(cycles, dtype=np.uint8)


def decode_timed(wave: Wave, divisor: int) -> tuple[bytes, list[int]]:
    """(bytes on a line that a transmitter drove, cycle at which each one's start bit begins)."""
    lows = np.flatnonzero(np.asarray(wave) == 0)
    middle = np.arange(FRAME_BITS) * divisor + divisor // 2
    data, starts, after = bytearray(), [], 0
    while (place := np.searchsorted(lows, after)) < len(lows):
        start = int(lows[place])
        if start + FRAME_BITS * divisor > len(wave):
            raise MeasurementError(f"the line ends {len(wave) - start} cycles into a byte; simulate longer")
        bits = wave[start + middle]
        if not bits[9]:
            raise MeasurementError(f"the byte at cycle {start} has no stop bit; is the divisor {divisor}?")
        data.append(int(np.packbits(bits[1:9], bitorder="little")[0]))
        starts.append(start)
        after = start + FRAME_BITS * divisor
    return bytes(data), starts
