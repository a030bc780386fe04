"""A fixed piece of work by which runs made at different times can be told to be comparable, or not."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

import numpy as np

# Fits the second-level cache of every CPU of the last ten years, so that memory and neighbours' cache use play no part.
HASHED_BYTES = 256 * 1024
HASHES = 2
# Three float32 vectors of this length fill a first-level cache of 48 KiB.
VECTOR_LENGTH = 4096
VECTOR_ROUNDS = 250


def time_reference(repeats: int, clock: Callable[[], int] = time.perf_counter_ns) -> list[int]:
    """Nanoseconds of `repeats` runs of the reference kernel, after one that is not timed.

    The kernel hashes a fixed buffer with SHA-256 (one long chain of dependent steps: it follows the clock) and
    multiplies and adds fixed vectors (wide and independent: it follows how much of the core's arithmetic we get when
    a hidden sibling shares it). It runs on one thread, touches no memory beyond the core's own caches, takes about
    a millisecond, and gives the same result everywhere. It does not follow memory bandwidth. OpenSSL and NumPy do
    the work, so it compares runs of one environment, as results that are compared must be anyway.
    """
    kernel = _make_kernel()
    kernel()
    return [_time_once(kernel, clock) for _ in range(repeats)]


def _time_once(kernel: Callable[[], object], clock: Callable[[], int]) -> int:
    begin = clock()
    kernel()
    return clock() - begin


def _make_kernel() -> Callable[[], object]:
    block = bytes(range(256)) * (HASHED_BYTES // 256)
    factor = np.linspace(0.5, 1.5, VECTOR_LENGTH, dtype=np.float32)
    value, result = np.ones(VECTOR_LENGTH, np.float32), np.empty(VECTOR_LENGTH, np.float32)

    def run_kernel() -> None:
        for _ in range(HASHES):
            hashlib.sha256(block).digest()
        for _ in range(VECTOR_ROUNDS):
            np.multiply(value, factor, out=result)
            np.add(result, factor, out=result)

    return run_kernel
