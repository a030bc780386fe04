"""Reading what yosys and nextpnr write; synthesis of a small design for real, place and route by a stand-in."""

import json
import shutil

import pytest
from click.testing import CliRunner
from networks import Echo

from enginebench.core.errors import BackendUnavailable, ParseError, UsageError
from enginebench_fpga import synth
from enginebench_fpga import verb as workflow
from enginebench_fpga.compiled import convert_rtlil
from enginebench_fpga.synth import find_part, synthesize
from enginebench_fpga.toolchain import run_tool
from enginebench_fpga.verb import command, format_synthesis

REPORT = {"fmax": {"clk": {"achieved": 42.5}}, "utilization": {"ICESTORM_LC": {"available": 5280, "used": 134}}}


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


def test_what_cannot_be_placed_is_an_answer_and_other_failures_are_errors(monkeypatch, tmp_path, synthesized):
    words = "ERROR: Unable to place cell 'x', no BELs remaining to implement cell type 'ICESTORM_DSP'"
    found = synthesize_echo(monkeypatch, tmp_path, synthesized, {1: words, 2: words, 3: words})
    assert (found.fits, found.fmax_mhz, found.logic_used) == (False, None, None)
    assert "ICESTORM_DSP" in found.placements[0].reason
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
    assert (synth.find_misfit(f"Info: x\n{line}\n") is not None) == reason


def test_unknown_parts_and_reports_without_a_clock_are_named(tmp_path):
    for report in ({}, {"fmax": {}}, {"fmax": {"clk": {}}}, {"fmax": 3}):
        with pytest.raises(ParseError, match="fmax"):
            synth.read_fmax(tmp_path / "report.json", report)
    assert synth.read_fmax(tmp_path / "r", {"fmax": {"a": {"achieved": 3.0}, "b": {"achieved": 2.0}}}) == 2.0
    assert synth.read_utilization({}, "ICESTORM_LC") == (None, None)
    with pytest.raises(UsageError, match="ecp5-25k"):
        find_part("xc7a35t")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"modules": {"top": 3}}'])
def test_broken_netlist_is_named(text, tmp_path):
    path = tmp_path / "netlist.json"
    path.write_text(text)
    with pytest.raises(ParseError, match=r"netlist\.json"):
        synth.count_cells(path)


# The verbs of `fpga`, as a user calls them.


def run(*args):
    """What a verb prints on stdout, or the error that the command line turns into an exit code."""
    answer = CliRunner().invoke(command, [str(a) for a in args], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def test_simulate_prints_one_document(quantized, cache_dir):
    args = ("--lanes", 16, "--divisor", 1, "--n", 1, "--cache", cache_dir)
    found = json.loads(run("simulate", quantized, *args, "--json"))
    assert found["schema"] == "enginebench.fpga.simulate/1"
    assert (found["n"], found["lanes"], found["mismatches"]) == (1, 16, 0)
    assert (found["cycles_per_inference"], found["ideal_cycles"], found["clock_mhz"]) == (180, 160, 12.0)
    assert (found["latency_us"], found["top1"]) == (15.0, 1.0)
    assert found["transaction_cycles"] == found["predicted_transaction_cycles"]
    assert found["differs_from_onnxruntime"] == []


def test_verilog_is_written_with_its_pins(quantized, tmp_path):
    out = tmp_path / "ein Gerät.v"
    run("verilog", quantized, "--lanes", 4, "--out", out)
    text = out.read_text()
    head = text[text.index("module top(") :].splitlines()[0]
    assert all(pin in head for pin in ("clk", "rst", "rx", "tx", "computing"))
    assert "always @*" not in text


def make_synthesis(**changes):
    fields = {
        "part": "ice40up5k",
        "lanes": 8,
        "multiplier_bits": 16,
        "divisor": 12,
        "luts": 10,
        "ffs": 20,
        "logic_used": 30,
        "logic_available": 40,
        "dsps": 1,
        "brams": 2,
        "fmax_mhz": 33.0,
        "fmax_best_mhz": 35.5,
        "fits": True,
        "tools": {},
        "out": "there",
        "placements": (synth.Placement(seed=1, fits=True, fmax_mhz=33.0, reason=None, log="nextpnr-1.log"),),
    }
    return synth.Synthesis(**(fields | changes))


def test_synth_passes_on_what_was_asked_and_says_what_does_not_fit(monkeypatch, tmp_path):
    asked = {}

    def synthesize_model(model, **given):
        asked.update(given)
        return make_synthesis()

    monkeypatch.setattr(workflow, "synthesize_model", synthesize_model)
    found = json.loads(run("synth", "--part", "up5k", "--lanes", 4, "--seeds", 5, "--out", tmp_path, "--json"))
    assert (found["fmax_mhz"], found["fits"], found["luts"]) == (33.0, True, 10)
    assert (asked["part"], asked["lanes"], asked["seeds"], asked["out_dir"]) == ("up5k", 4, 5, tmp_path)
    assert "median 33.0 MHz, best 35.5" in run("synth", "--part", "up5k")
    failed = synth.Placement(seed=1, fits=False, fmax_mhz=None, reason="no DSPs left", log="x")
    text = format_synthesis(make_synthesis(fits=False, fmax_mhz=None, fmax_best_mhz=None, placements=(failed,)))
    assert "does not fit: no DSPs left" in text
