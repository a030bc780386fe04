"""The memory of this process, and its peak in each phase of a trial."""

import re
import sys
from pathlib import Path

from enginebench.core.records import MemoryPhases
from enginebench.measure.topology import read_system_file


class MemoryWatch:
    """Notes the peak of each phase of this process: `end` them in the order of `MemoryPhases`."""

    def __init__(self) -> None:
        self.peak_bytes: int | None = None  # of all phases that have ended
        self._peaks: dict[str, int] = {}
        self._resets = True

    def end(self, phase: str) -> None:
        """End a phase; the peak of the next one starts from what is resident now."""
        peak = peak_memory_bytes()
        if peak is None:
            return
        self.peak_bytes = max(peak, self.peak_bytes or 0)
        if self._resets:
            self._peaks[phase] = peak
        # Where the peak cannot be set back, a later phase would show that of an earlier one as its own.
        self._resets = self._resets and reset_peak_memory()

    def describe(self) -> MemoryPhases:
        return MemoryPhases(
            before_bytes=self._peaks.get("before"),
            import_bytes=self._peaks.get("import"),
            load_bytes=self._peaks.get("load"),
            first_run_bytes=self._peaks.get("first_run"),
            steady_bytes=self._peaks.get("steady"),
            proportional_bytes=read_proportional_memory(),
        )


def peak_memory_bytes() -> int | None:
    """Return the peak resident memory of this process, in bytes; None where the system does not report it.

    On Linux not `ru_maxrss`: that figure survives exec, so a small child of a large parent would show the parent's.
    """
    match = re.search(r"^VmHWM:\s+(\d+) kB$", read_system_file(Path("/proc/self/status")) or "", re.MULTILINE)
    if match:
        return int(match[1]) * 1024
    if sys.platform == "darwin":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
    return None


def reset_peak_memory() -> bool:
    """Let the peak of this process start again from what is resident now; False where the system has no such thing.

    Source: `clear_refs` in Documentation/filesystems/proc.rst of Linux.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def read_proportional_memory() -> int | None:
    """Return the proportional set size of this process, in bytes: a page that n processes share counts as 1/n of it."""
    match = re.search(r"^Pss:\s+(\d+) kB$", read_system_file(Path("/proc/self/smaps_rollup")) or "", re.MULTILINE)
    return int(match[1]) * 1024 if match else None
