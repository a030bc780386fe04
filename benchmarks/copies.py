"""What the bytes of a request cost: copied into a batch from a pool of samples, or after another process wrote them.

python benchmarks/copies.py 150528          # bytes of a request, such as 224 x 224 pixels

It says why `load` hands over the number of a sample (docs/load.md). Both processes are alone on their cores.
"""

import mmap
import os
import sys
import time

import numpy as np

COUNT, SKIPPED, BATCH = 4000, 200, 32
CORES = sorted(os.sched_getaffinity(0))


def show(name: str, took_ns: list[int]) -> None:
    took = np.array(took_ns[SKIPPED:]) / 1e3
    print(f"{name}: median {np.median(took):.1f} us, mean {took.mean():.1f} us", flush=True)


def fill(batches: list[np.ndarray], index: int, sample: np.ndarray) -> int:
    """Copies a sample to its place in the batch; how long that took."""
    place, begin = batches[index // BATCH % len(batches)][index % BATCH], time.perf_counter_ns()
    place[...] = sample
    return time.perf_counter_ns() - begin


def time_pool(batches: list[np.ndarray], pool: int, size: int) -> None:
    rng = np.random.default_rng(0)
    samples = rng.integers(0, 256, (pool, size), np.uint8)
    order = rng.integers(0, pool, COUNT)
    show(f"from a pool of {pool}", [fill(batches, i, samples[k]) for i, k in enumerate(order)])


def time_ring(batches: list[np.ndarray], slots: int, ahead: int, size: int) -> None:
    """The writer is at most `ahead` requests before the reader."""
    memory = mmap.mmap(-1, slots * size + mmap.PAGESIZE)
    ring = np.frombuffer(memory, np.uint8, slots * size).reshape(slots, size)
    written_read = np.frombuffer(memory, np.int64, 2, offset=slots * size)
    ring[:] = 1
    if (writer := os.fork()) == 0:
        os.sched_setaffinity(0, {CORES[len(CORES) // 2]})
        samples, took = np.random.default_rng(0).integers(0, 256, (64, size), np.uint8), []
        for i in range(COUNT):
            while i - written_read[1] >= ahead:
                pass
            begin = time.perf_counter_ns()
            ring[i % slots] = samples[i % 64]
            took.append(time.perf_counter_ns() - begin)
            written_read[0] = i + 1
        show(f"writing into a ring of {slots}", took)
        os._exit(0)
    took = []
    for i in range(COUNT):
        while written_read[0] < min(COUNT, i + ahead):
            pass
        took.append(fill(batches, i, ring[i % slots]))
        written_read[1] = i + 1
    os.waitpid(writer, 0)
    show(f"from a ring of {slots}, {ahead} requests behind", took)


def main() -> None:
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 150_528
    os.sched_setaffinity(0, {CORES[0]})
    batches = [np.zeros((BATCH, size), np.uint8) for _ in range(3)]
    for pool in (64, 4096):
        time_pool(batches, pool, size)
    for slots, ahead in ((64, 4), (2048, 64), (2048, 1000)):
        time_ring(batches, slots, ahead, size)


if __name__ == "__main__":
    main()
