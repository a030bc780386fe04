"""Which of our modules the parent calls on the way of one quick run with a fake engine, and which call each other.

A module counts if one of its functions is called, not if it is only imported; what a child calls does not count. The
limit is for `runs`, the folder in which the other layers meet. The figures are counts, the same on every machine.

    python benchmarks/called_modules.py [--functions]

The chapter "How a request travels" of docs/architecture.md rests on this.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType

import enginebench
from enginebench import door

SOURCES = f"{Path(enginebench.__file__).parent}{os.sep}"
ARGUMENTS = ("run", "digits-mlp", "--engines", "fake", "--quick", "--out", "out")
LIMIT = 25
MODULE = "<module>"


class Trace:
    """Calls of our functions: how often each was called, and from which module to which."""

    def __init__(self) -> None:
        self.functions: Counter[tuple[str, str]] = Counter()
        self.between: Counter[tuple[str, str]] = Counter()

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        """Note a call, as sys.setprofile reports it; what an import runs is no call, nor is a nameless part of one."""
        nameless = frame.f_code.co_name.startswith("<")  # a module, a lambda, a comprehension
        if event != "call" or nameless or not frame.f_code.co_filename.startswith(SOURCES):
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(SOURCES):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_name == MODULE:
            return
        module = name_module(frame)
        self.functions[module, frame.f_code.co_name] += 1
        if caller is not None and name_module(caller) != module:
            self.between[name_module(caller), module] += 1

    def list_modules(self) -> list[str]:
        """List the modules of Python with a function that was called; a template of a page is none."""
        return sorted({module for module, _ in self.functions if module.endswith(".py")})


def name_module(frame: FrameType) -> str:
    return frame.f_code.co_filename.removeprefix(SOURCES).replace(os.sep, "/")


def trace_run() -> Trace:
    """Trace one run in a folder of its own, without what it prints."""
    trace, home = Trace(), Path.cwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()) as said:
        os.chdir(folder)
        threading.setprofile(trace.note)
        sys.setprofile(trace.note)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                door.main(list(ARGUMENTS))
        except SystemExit as ended:
            if ended.code:
                raise RuntimeError(f"the run ended with exit code {ended.code}: {said.getvalue()}") from ended
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            os.chdir(home)
    return trace


def main() -> int:
    parser = argparse.ArgumentParser(description="Count the modules on the way of one run.")
    parser.add_argument("--functions", action="store_true", help="name the called functions, too")
    options = parser.parse_args()
    trace = trace_run()
    modules = trace.list_modules()
    for module in modules:
        called = {name: count for (file, name), count in trace.functions.items() if file == module}
        names = ": " + ", ".join(sorted(called)) if options.functions else ""
        print(f"{module:36} {len(called):3} functions, {sum(called.values()):6} calls{names}")
    print("\nmodules that call each other, as by a function that one hands to the other:")
    for (one, other), count in sorted(trace.between.items()):
        if one < other and trace.between[other, one] and {one, other} <= set(modules):
            print(f"  {one} -> {other} {count}, back {trace.between[other, one]}")
    layers = Counter(module.partition("/")[0] for module in modules)
    print("\n" + ", ".join(f"{layer} {count}" for layer, count in layers.most_common()) + f"; together {len(modules)}")
    met = layers["runs"] <= LIMIT
    print(f"runs: {layers['runs']} modules (limit {LIMIT}){'' if met else ': NOT met'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
