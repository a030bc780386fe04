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
    """One level: the size of one such cache, and how many CPUs share it."""

    level: int
    size_bytes: int
    shared_by: int

    def count_bytes(self, threads: int) -> int:
        """Bytes of this level that threads on CPUs of their own have together: they fill one cache after the other."""
        return self.size_bytes * -(-threads // self.shared_by)


def read_caches(cpu: int = 0, root: Path = ROOT) -> tuple[DataCache, ...]:
    """The data caches of a CPU, innermost first; empty where the system does not list them.

    Source: Linux Documentation/ABI/testing/sysfs-devices-system-cpu, `cache/index*`.
    """
    found = []
    for folder in sorted((root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")):
        level, size = read_int(folder / "level"), read_size(read_system_file(folder / "size") or "")
        if level and size and read_system_file(folder / "type") in ("Data", "Unified", None):
            shared = parse_cpu_list(read_system_file(folder / "shared_cpu_list") or "")
            found.append(DataCache(level, size, max(1, len(shared))))
    return tuple(sorted(found))


def read_size(text: str) -> int | None:
    """Bytes of `32K`, `1M`; None of anything else."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    return int(match[1]) * _UNITS[match[2]] if match else None


def rotating_count(input_bytes: int, last_level_cache_bytes: int | None) -> int:
    """How many inputs make a set of twice the last-level cache, their Python objects counted; at least 2.

    It stays within 256 MiB unless the cache (of 96 MiB if it is unknown) is larger: then it is just larger than that.
    """
    cache = UNKNOWN_CACHE_BYTES if last_level_cache_bytes is None else last_level_cache_bytes
    each = input_bytes + OBJECT_BYTES
    wanted = min(CACHE_MULTIPLE * cache, max(MAX_SET_BYTES, cache + each))
    return max(2, math.ceil(wanted / each))


def rotate_feeds(feeds: Feeds, count: int) -> list[Feeds]:
    """`count` copies of `feeds`, each at its own address; those of an input lie behind one another in one array."""
    import numpy as np

    stacked = {name: np.repeat(np.ascontiguousarray(array)[np.newaxis], count, axis=0) for name, array in feeds.items()}
    return [{name: rows[i : i + 1].reshape(feeds[name].shape) for name, rows in stacked.items()} for i in range(count)]
