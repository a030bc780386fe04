"""The data caches of a CPU, as Linux lists them, and a set of inputs that they cannot hold, for scope `io`."""

import math
import re
from pathlib import Path
from typing import NamedTuple

from enginebench.core.protocols import Feeds
from enginebench.measure.topology import ROOT, parse_cpu_list, read_int, read_system_file

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# Real replacement is not strictly least recently used, and inner caches may hold lines that the last one does not:
# once the cache's size would still leave hits.
CACHE_MULTIPLE = 2
MAX_SET_BYTES = 256 * 1024 * 1024
# Where the size of the cache is unknown; larger than the last-level caches of today's desktop CPUs.
UNKNOWN_CACHE_BYTES = 96 * 1024 * 1024
# A dict with one entry (184), an array object (112) and its place in the list (8) are read along with each input.
OBJECT_BYTES = 300


class DataCache(NamedTuple):
    """One level of a CPU's data caches: the size of one cache, and the number of CPUs that share it."""

    level: int
    size_bytes: int
    shared_by: int

    def count_bytes(self, threads: int) -> int:
        """Return the bytes of this level that `threads` have together, each on a CPU of its own.

        The CPUs of one cache are filled before those of the next.
        """
        return self.size_bytes * -(-threads // self.shared_by)


def read_caches(cpu: int = 0, root: Path = ROOT) -> tuple[DataCache, ...]:
    """Return the data caches of a CPU, innermost first; empty where the system does not list them.

    Source: Linux Documentation/ABI/testing/sysfs-devices-system-cpu, `cache/index*`.
    """
    caches = []
    for folder in sorted((root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")):
        level, size = read_int(folder / "level"), read_size(read_system_file(folder / "size") or "")
        if level and size and read_system_file(folder / "type") in ("Data", "Unified", None):
            sharing_cpus = parse_cpu_list(read_system_file(folder / "shared_cpu_list") or "")
            caches.append(DataCache(level, size, max(1, len(sharing_cpus))))
    return tuple(sorted(caches))


def read_size(text: str) -> int | None:
    """Return the bytes that `32K` or `1M` stands for; None for any other text."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    return int(match[1]) * _UNITS[match[2]] if match else None


def rotating_count(input_bytes: int, last_level_cache_bytes: int | None) -> int:
    """Return the number of inputs whose set is twice as large as the last-level cache; at least 2.

    Their Python objects are counted. The set stays within 256 MiB unless the cache is larger (96 MiB is assumed where
    its size is unknown): then it is just larger than the cache.
    """
    cache = UNKNOWN_CACHE_BYTES if last_level_cache_bytes is None else last_level_cache_bytes
    bytes_per_input = input_bytes + OBJECT_BYTES
    set_bytes = min(CACHE_MULTIPLE * cache, max(MAX_SET_BYTES, cache + bytes_per_input))
    return max(2, math.ceil(set_bytes / bytes_per_input))


def rotate_feeds(feeds: Feeds, count: int) -> list[Feeds]:
    """Return `count` copies of `feeds`, each at its own address; all copies of an input lie in one array, in order."""
    import numpy as np

    shapes = {name: array.shape for name, array in feeds.items()}
    stacked = {name: np.repeat(np.ascontiguousarray(array)[np.newaxis], count, axis=0) for name, array in feeds.items()}
    return [{name: stacked[name][i : i + 1].reshape(shape) for name, shape in shapes.items()} for i in range(count)]
