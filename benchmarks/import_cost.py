"""What `import enginebench` costs beyond Python itself: CPU milliseconds of the process, alternating with bare Python.

python benchmarks/import_cost.py
"""

from __future__ import annotations

import statistics
import sys

from help_cost import PAIRS, cpu_ms

LIMIT_MS = 30.0


def main() -> int:
    bare = [sys.executable, "-c", "pass"]
    imported = [sys.executable, "-c", "import enginebench"]
    cpu_ms(imported)  # writes the byte code
    extra = sorted(cpu_ms(imported) - cpu_ms(bare) for _ in range(PAIRS))
    median = statistics.median(extra)
    verdict = "met" if median <= LIMIT_MS else "NOT met"
    print(
        f"import enginebench: {median:.0f} ms CPU beyond bare Python (median of {PAIRS} pairs, {extra[0]:.0f} to "
        f"{extra[-1]:.0f}); limit {LIMIT_MS:.0f} ms: {verdict}"
    )
    return 0 if median <= LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())
