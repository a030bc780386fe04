"""What `enginebench --help` costs beyond Python itself: CPU milliseconds of the process, alternating with bare Python.

python benchmarks/help_cost.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

LIMIT_MS = 100.0
PAIRS = 15


def cpu_ms(command: list[str]) -> float:
    """CPU milliseconds (user and system) of one run of `command`."""
    before = os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    return 1000 * (after.children_user - before.children_user + after.children_system - before.children_system)


def main() -> int:
    bare = [sys.executable, "-c", "pass"]
    shown = [sys.executable, "-m", "enginebench", "--help"]
    cpu_ms(shown)  # writes the byte code
    extra = sorted(cpu_ms(shown) - cpu_ms(bare) for _ in range(PAIRS))
    median = statistics.median(extra)
    verdict = "met" if median <= LIMIT_MS else "NOT met"
    print(f"enginebench --help: {median:.0f} ms CPU beyond bare Python (median of {PAIRS} pairs, {extra[0]:.0f} to "
          f"{extra[-1]:.0f}); limit {LIMIT_MS:.0f} ms: {verdict}")  # fmt: skip
    return 0 if median <= LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
