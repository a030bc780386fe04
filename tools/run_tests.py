"""Runs tiers of the tests: those marked `serial` one by one, then the others side by side.

    python tools/run_tests.py TIER... [-- PYTEST OPTIONS AND PATHS]

A tier is a folder of `tests/`, or the tests of a package in `plugins/`. Where the options name tests (a path, or
PATH::NAME), these run in place of the tiers. Ends with the first code of pytest that is neither 0 nor 5 (nothing
selected), with 5 where no pass selected a test.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Many tests wait (for traffic, a cluster, a turn) while others have work, so no fewer than four; eight are enough.
WORKERS = min(8, max(4, os.cpu_count() or 1))
PASSES = {"serial": ["-m", "serial"], "side by side": ["-m", "not serial", "-n", str(WORKERS), "--dist", "worksteal"]}


def main(arguments: list[str]) -> int:
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    tiers, options = arguments[:cut], arguments[cut + 1 :]
    folders = list_tiers()
    if unknown := [tier for tier in tiers if tier not in folders]:
        raise SystemExit(f"no tier {unknown[0]}; the tiers are {', '.join(sorted(folders))}")
    named = any((ROOT / option.partition("::")[0]).exists() for option in options if not option.startswith("-"))
    chosen = [] if named else [folders[tier] for tier in tiers]
    # To collect a tier takes longer than its few serial tests.
    serial = [path for at in chosen for path in at.rglob("test_*.py") if "mark.serial" in path.read_text("utf-8")]
    codes = [
        run_pass(name, [*selected, *map(str, serial if name == "serial" else chosen), *options])
        for name, selected in PASSES.items()
        if named or name != "serial" or serial
    ]
    failed = [code for code in codes if code not in (0, 5)]
    return failed[0] if failed else min(codes)


def list_tiers() -> dict[str, Path]:
    """Return the folder of each tier: those of `tests` that hold tests, and the tests of each package in `plugins`."""
    own = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")}
    packages = {path.parent.name: path for path in ROOT.glob("plugins/*/tests")}
    return {tier: ROOT / "tests" / tier for tier in own} | packages


def run_pass(name: str, options: list[str]) -> int:
    """The exit code of one run of pytest; prints what it took."""
    began = time.monotonic()
    code = subprocess.run([sys.executable, "-m", "pytest", *options], cwd=ROOT, check=False).returncode
    print(f"-- tests, {name}: {time.monotonic() - began:.0f} s", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
