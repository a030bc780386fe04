"""Reading what yosys and nextpnr write; synthesis of a small design for real, place and route by a stand-in."""

import json
import shutil

import pytest

from bench import Echo
from enginebench.core.errors import BackendUnavailable, ParseError, UsageError
from enginebench.features.fpga import synth
from enginebench.features.fpga.compiled import convert_rtlil
from enginebench.features.fpga.gateware.device import Device
from enginebench.features.fpga.synth import count_cells, find_misfit, find_part, read_fmax, read_utilization, synthesize
from enginebench.features.fpga.toolchain import convert_verilog, run_tool
from networks import make_network

REPORT = {
    "fmax": {"clk": {"achieved": 42.5, "constraint": 48.0}},
    "utilization": {"ICESTORM_LC": {"available": 5280, "used": 134}},
}


@pytest.fixture(scope="module")
def synthesized(tmp_path_factory):
    """What yosys really makes of the echo, once."""
    folder = tmp_path_factory.mktemp("netlist")
    (folder / "design.il").write_text(convert_rtlil(Echo(12)))
    script = f"read_rtlil design.il; {find_part('up5k').synth} -top top -json netlist.json"
    return folder / "netlist.json", script, run_tool("yosys", ["-p", script], folder)


def stand_in(reports, synthesized):
    """run_tool that knows the answer of yosys and takes place and route from `reports`."""
    netlist, script, log = synthesized

    def run(tool, args, folder):
        if tool == "yosys":
            assert args == ["-p", script]
            shutil.copy(netlist, folder / "netlist.json")
            return log
        seed = int(args[args.index("--seed") + 1])
        found = reports[seed]
        if isinstance(found, str):
            raise BackendUnavailable(f"nextpnr failed with exit code 255: {found}")
        (folder / args[args.index("--report") + 1]).write_text(json.dumps(found))
        return f"log of seed {seed}"

    return run


def speed(mhz):
    return REPORT | {"fmax": {"clk": {"achieved": mhz}}}


def synthesize_echo(monkeypatch, tmp_path, synthesized, reports):
    monkeypatch.setattr(synth, "run_tool", stand_in(reports, synthesized))
    how = {"lanes": 1, "multiplier_bits": 16, "divisor": 12, "seeds": (1, 2, 3)}
    return synthesize(convert_rtlil(Echo(12)), find_part("up5k"), tmp_path / "é out", **how)


def test_fmax_is_the_median_of_the_seeds_and_logs_are_kept(monkeypatch, tmp_path, synthesized):
    found = synthesize_echo(monkeypatch, tmp_path, synthesized, {1: speed(40.0), 2: speed(50.0), 3: speed(42.0)})
    assert (found.fmax_mhz, found.fmax_best_mhz, found.fits) == (42.0, 50.0, True)
    assert (found.logic_used, found.logic_available, found.dsps) == (134, 5280, 0)
    assert 50 < found.luts < 200 and 50 < found.ffs < 150
    logs = {path.name for path in (tmp_path / "é out").iterdir()}
    assert {"yosys.log", "nextpnr-1.log", "nextpnr-2.log", "nextpnr-3.log", "report-1.json", "design.il"} <= logs


def test_design_that_does_not_fit_is_an_answer(monkeypatch, tmp_path, synthesized):
    words = "ERROR: Unable to place cell 'x', no BELs remaining to implement cell type 'ICESTORM_DSP'"
    found = synthesize_echo(monkeypatch, tmp_path, synthesized, {1: words, 2: words, 3: words})
    assert (found.fits, found.fmax_mhz, found.logic_used) == (False, None, None)
    assert "ICESTORM_DSP" in found.placements[0].reason


def test_other_failures_are_errors(monkeypatch, tmp_path, synthesized):
    with pytest.raises(BackendUnavailable, match="out of memory"):
        synthesize_echo(monkeypatch, tmp_path, synthesized, {1: "out of memory"})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ERROR: Unable to place cell 'a', no BELs remaining to implement cell type 'DP16KD'", True),
        ("ERROR: Unable to find legal placement for all cells, design is probably at utilisation limit.", True),
        ("ERROR: Max frequency for clock 'clk': 20 MHz (FAIL at 48 MHz)", False),
        ("all is well", False),
    ],
)
def test_reasons_of_nextpnr(line, reason):
    assert (find_misfit(f"Info: x\n{line}\n") is not None) == reason


def test_report_without_a_clock_is_named(tmp_path):
    for report in ({}, {"fmax": {}}, {"fmax": {"clk": {}}}, {"fmax": 3}):
        with pytest.raises(ParseError, match="fmax"):
            read_fmax(tmp_path / "report.json", report)
    assert read_fmax(tmp_path / "r", {"fmax": {"a": {"achieved": 3.0}, "b": {"achieved": 2.0}}}) == 2.0
    assert read_utilization({}, "ICESTORM_LC") == (None, None)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"modules": {"top": 3}}'])
def test_broken_netlist_is_named(text, tmp_path):
    path = tmp_path / "netlist.json"
    path.write_text(text)
    with pytest.raises(ParseError, match=r"netlist\.json"):
        count_cells(path)


def test_unknown_part_is_refused():
    with pytest.raises(UsageError, match="ecp5-25k"):
        find_part("xc7a35t")


def test_verilog_has_the_pins():
    text = convert_verilog(convert_rtlil(Device(make_network((6, 5, 3), bits=16), 4, 12)))
    head = text[text.index("module top(") :].splitlines()[0]
    assert all(pin in head for pin in ("clk", "rst", "rx", "tx", "computing"))
    assert "always @*" not in text
