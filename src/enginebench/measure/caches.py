"""The data caches of a CPU, as Linux lists them."""

import re
from pathlib import Path
from typing import NamedTuple

from enginebench.measure.topology import ROOT, parse_cpu_list, read_int, read_text

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


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
        level, size = read_int(folder / "level"), read_size(read_text(folder / "size") or "")
        if level and size and read_text(folder / "type") in ("Data", "Unified", None):
            shared = parse_cpu_list(read_text(folder / "shared_cpu_list") or "")
            found.append(DataCache(level, size, max(1, len(shared))))
    return tuple(sorted(found))


def read_size(text: str) -> int | None:
    """Bytes of `32K`, `1M`; None of anything else."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    return int(match[1]) * _UNITS[match[2]] if match else None
