"""What `enginebench --help` costs beyond Python itself: CPU milliseconds of the process, alternating with bare Python.

python benchmarks/help_cost.py
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

LIMIT_MS = 100.0
PAIRS = 15


def cpu_ms(command: list[str]) -> float:
    """CPU milliseconds (user and system) of one run of `command`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)  # in microseconds, where os.times counts ticks of 10 ms
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def main() -> int:
    bare = [sys.executable, "-c", "pass"]
    shown = [sys.executable, "-m", "enginebench", "--help"]
    cpu_ms(shown)  # writes the byte code
    extra = sorted(cpu_ms(shown) - cpu_ms(bare) for _ in range(PAIRS))
    median = statistics.median(extra)
    verdict = "met" if median <= LIMIT_MS else "NOT met"
    print(
        f"enginebench --help: {median:.0f} ms CPU beyond bare Python (median of {PAIRS} pairs, {extra[0]:.0f} to "
        f"{extra[-1]:.0f}); limit {LIMIT_MS:.0f} ms: {verdict}"
    )
    return 0 if median <= LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
