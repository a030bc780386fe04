"""Lifts each feature out of a copy of the checkout, and shows that what is left works.

    python tools/lift_out.py [NAME...] [--tests]

In the copy the feature's folder is gone, and its tests: folders of its name, and files that import it; then
tools/option_tables.py writes anew what names it. Every module is imported, `--help` printed, `run` done over the
engine `fake`, and the checker of types passes; so, too, where all of them are gone that were named. With --tests also
the unit and smoke tests of each copy.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FEATURES = Path("src/enginebench/features")
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".*_cache", "site", "build", "dist")
GRAPH = "src/enginebench/models/data/digits-mlp.onnx"
# Of what a step said that failed.
LINES = 60
# A module that needs a package which is not installed here is not judged.
IMPORTS = """
import importlib, pkgutil, enginebench
for found in pkgutil.walk_packages(enginebench.__path__, "enginebench."):
    if found.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(found.name)
    except ImportError as error:
        if (error.name or "enginebench").split(".")[0] == "enginebench":
            raise
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Lift features out of a copy of the checkout.")
    known = sorted(path.parent.name for path in ROOT.joinpath(FEATURES).glob("*/__init__.py"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}; all if none is given")
    parser.add_argument("--tests", action="store_true", help="also run the unit and smoke tests of each copy")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(known):
        parser.error(f"no feature {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    names = asked.names or known
    copies = [[name] for name in names] + ([names] if len(names) > 1 else [])
    with ThreadPoolExecutor(1 if asked.tests else os.cpu_count()) as pool:  # tests have their own workers
        tried = pool.map(lambda gone: try_without(gone, tests=asked.tests), copies)
        failed = [" ".join(gone) for gone, works in zip(copies, tried, strict=True) if not works]
    print(f"copies: {len(copies)}; failed: {', '.join(failed) or 'none'}")
    return bool(failed)


def try_without(names: list[str], *, tests: bool) -> bool:
    """Whether everything works in a copy without these features; prints each step with its time."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=LEFT_OUT, symlinks=True)
        gone = sum(lift(copy, name) for name in names)
        said = [f"without {', '.join(names)} ({gone} files of tests gone):"]
        python = [sys.executable, "-W", "error::ImportWarning"]
        run = ["-m", "enginebench", "run", GRAPH, "--engines", "fake", "--baseline", "fake", "--quick"]
        steps = {
            "tables": [*python, "tools/option_tables.py"],
            "imports": [*python, "-c", IMPORTS],
            "help": [*python, "-m", "enginebench", "--help"],
            "run": [*python, *run, "--out", str(Path(folder) / "run")],
            # What one copy learns of the modules, the next need not.
            "types": [sys.executable, "-m", "mypy", "--cache-dir", str(ROOT / ".mypy_cache" / "lifted")],
        }
        if tests:
            steps["tests"] = [sys.executable, "tools/run_tests.py", "unit", "smoke", "--", "-q", "--tb=short", "-rfE"]
        works = True
        for step, command in steps.items():
            began = time.monotonic()
            done = do(command, copy)
            took = f"{time.monotonic() - began:.1f} s"
            said.append(f"  {step}: {'FAILED' if done.returncode else 'ok'}, {took}")
            if done.returncode:
                works, said = False, [*said, *(done.stdout + done.stderr).splitlines()[-LINES:]]
        print("\n".join(said), flush=True)
        return works


def lift(copy: Path, name: str) -> int:
    """Takes a feature out of a copy; the number of files of tests that went with it."""
    shutil.rmtree(copy / FEATURES / name)
    names_it = re.compile(rf"^\s*from enginebench\.features(?:\.{name}\b| import .*\b{name}\b)", re.MULTILINE)
    tests = [path for path in copy.joinpath("tests").rglob("*.py") if path.is_file()]
    found = [p for p in tests if name in p.relative_to(copy).parts or names_it.search(p.read_text("utf-8"))]
    for path in found:
        path.unlink()
    return len(found)


def do(command: list[str], copy: Path) -> subprocess.CompletedProcess[str]:
    """A command in the copy, whose sources it imports."""
    environment = {**os.environ, "PYTHONPATH": str(copy / "src")}
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
