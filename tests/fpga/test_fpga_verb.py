"""The verbs of `fpga`, as a user calls them."""

import json

from click.testing import CliRunner

from enginebench.features.fpga import verb as workflow
from enginebench.features.fpga.synth import Placement, Synthesis
from enginebench.features.fpga.verb import command, format_synthesis


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


def test_verilog_is_written(quantized, tmp_path):
    out = tmp_path / "ein Gerät.v"
    run("verilog", quantized, "--lanes", 4, "--out", out)
    assert "module top(" in out.read_text()


def make_synthesis(**changes):
    fields = {
        "part": "ice40up5k", "lanes": 8, "multiplier_bits": 16, "divisor": 12,
        "luts": 10, "ffs": 20, "logic_used": 30, "logic_available": 40,
        "dsps": 1, "brams": 2, "fmax_mhz": 33.0, "fmax_best_mhz": 35.5, "fits": True, "tools": {}, "out": "there",
        "placements": (Placement(seed=1, fits=True, fmax_mhz=33.0, reason=None, log="nextpnr-1.log"),),
    }  # fmt: skip
    return Synthesis(**(fields | changes))


def test_synth_passes_on_what_was_asked(monkeypatch, tmp_path):
    asked = {}

    def synthesize_model(model, **given):
        asked.update(given)
        return make_synthesis()

    monkeypatch.setattr(workflow, "synthesize_model", synthesize_model)
    found = json.loads(run("synth", "--part", "up5k", "--lanes", 4, "--seeds", 5, "--out", tmp_path, "--json"))
    assert (found["fmax_mhz"], found["fits"], found["luts"]) == (33.0, True, 10)
    assert (asked["part"], asked["lanes"], asked["seeds"], asked["out_dir"]) == ("up5k", 4, 5, tmp_path)
    assert "median 33.0 MHz, best 35.5" in run("synth", "--part", "up5k")


def test_synth_says_what_does_not_fit():
    failed = Placement(seed=1, fits=False, fmax_mhz=None, reason="no DSPs left", log="x")
    text = format_synthesis(make_synthesis(fits=False, fmax_mhz=None, fmax_best_mhz=None, placements=(failed,)))
    assert "does not fit: no DSPs left" in text
