"""Lifts each feature out of a copy of the checkout, and shows that what is left works.

    python tools/lift_out.py [NAME...] [--tests]

In the copy the feature's folder is gone, the lines of `features/__init__.py` that name it, and its tests: folders of
its name, and files that import it. Then every module is imported, `--help` printed, and `run` done over the engine
`fake`; the checker of types reads a copy in which all the features are gone that were named, since one by one they
would take its time each. With --tests also the unit and smoke tests of each copy.
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
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FEATURES = Path("src/enginebench/features")
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".*_cache", "site", "build", "dist")
GRAPH = "src/enginebench/models/data/digits-mlp.onnx"
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
    failed = [name for name in names if not try_without([name], types=len(names) == 1, tests=asked.tests)]
    if len(names) > 1 and not try_without(names, types=True, tests=False):
        failed.append("all of them")
    print(f"lifted out: {len(names)}; failed: {', '.join(failed) or 'none'}")
    return bool(failed)


def try_without(names: list[str], *, types: bool, tests: bool) -> bool:
    """Whether everything works in a copy without these features."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        shutil.copytree(ROOT, copy, ignore=LEFT_OUT, symlinks=True)
        gone = sum(lift(copy, name) for name in names)
        print(f"without {', '.join(names)} ({gone} files of tests gone):", flush=True)
        python = [sys.executable, "-W", "error::ImportWarning"]
        run = ["-m", "enginebench", "run", GRAPH, "--engines", "fake", "--baseline", "fake", "--quick"]
        steps = {
            "imports": [*python, "-c", IMPORTS],
            "help": [*python, "-m", "enginebench", "--help"],
            "run": [*python, *run, "--out", str(Path(folder) / "run")],
        }
        if types:
            steps["types"] = [sys.executable, "-m", "mypy", "--cache-dir", str(ROOT / ".mypy_cache" / "lifted")]
        if tests:
            steps["tests"] = [sys.executable, "tools/run_tests.py", "unit", "smoke", "--", "-q"]
        done = [do(step, command, copy) for step, command in steps.items()]
        return all(done)


def lift(copy: Path, name: str) -> int:
    """Takes a feature out of a copy; the number of files of tests that went with it."""
    shutil.rmtree(copy / FEATURES / name)
    listed = copy / FEATURES / "__init__.py"
    lines = listed.read_text("utf-8").splitlines(keepends=True)
    kept = [line for line in lines if f'"{name}"' not in line and f"features.{name}." not in line]
    if kept[-1].startswith("if TYPE_CHECKING"):
        kept.append("    pass\n")
    listed.write_text("".join(kept), "utf-8")
    names_it = re.compile(rf"enginebench\.features\.{name}\b|enginebench\.features import .*\b{name}\b")
    tests = [path for path in copy.joinpath("tests").rglob("*.py") if path.is_file()]
    found = [p for p in tests if name in p.relative_to(copy).parts or names_it.search(p.read_text("utf-8"))]
    for path in found:
        path.unlink()
    return len(found)


def do(step: str, command: list[str], copy: Path) -> bool:
    """Whether a step ends well; prints its time, and what it said if it does not."""
    began = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(copy / "src")}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    print(f"  {step}: {'ok' if done.returncode == 0 else 'FAILED'}, {time.monotonic() - began:.1f} s", flush=True)
    if done.returncode:
        print("\n".join((done.stdout + done.stderr).splitlines()[-40:]), flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
