"""The verb `budget`: what is given by hand, in bytes, and stored; and what is refused."""

import json

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from enginebench.core.errors import ParseError, UsageError
from enginebench.core.records import Block, EngineSpec, Measurement, MeasureSpec, Result
from enginebench.core.store import encode
from enginebench.features.fpga.budget_verb import command
from enginebench.report.bench import describe_bench
from enginebench.stats.stages import describe_stages

LINK = ["--bytes-in", "64", "--bytes-out", "10", "--link", "1e5"]


def ask(*args):
    """The JSON document, or the error that the command line turns into an exit code."""
    return json.loads(run(*args, "--json"))


def run(*args):
    answer = CliRunner().invoke(command, [str(a) for a in args])
    if answer.exception and not isinstance(answer.exception, SystemExit):
        raise answer.exception
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def make_row(latency_ns=(2_000_000, 4_000_000, 9_000_000), batch=2):
    measured = Measurement(
        clock="host",
        latency_ns=list(latency_ns),
        blocks=(Block(start=0, stop=len(latency_ns), duration_ns=1),),
        stop_rule="iterations",
    )
    return Result(
        id="r",
        model="m",
        engine=EngineSpec(backend="fake", batch=batch),
        measure=MeasureSpec(),
        requested_precision="fp32",
        status="ok",
        measurements=(measured,),
    )


def test_terms_by_hand():
    budget = ask("--t-pre-ms", 1, "--t-copy-in-ms", 2, "--t-compute-ms", 4, "--t-copy-back-ms", 2, "--t-post-ms", 1)
    assert budget["schema"] == "enginebench.budget/1"
    assert (budget["total_ms"], budget["throughput_pipelined_per_s"], budget["speedup"]) == (10, 250, None)


def test_bytes_over_a_link_and_a_baseline():
    budget = ask(*LINK, "--t-compute-ms", 0.26, "--baseline-ms", 2)
    assert budget["total_ms"] == pytest.approx(1.0)
    assert budget["speedup"] == pytest.approx(2.0)
    assert budget["break_even_bytes_per_s"] == pytest.approx(74 / 1.74e-3)


def test_table_says_what_bounds_the_call():
    text = run(*LINK, "--t-compute-ms", 0.26, "--baseline-ms", 2)
    assert "copy_in" in text and "64.0%" in text
    assert "speed-up over 2 ms per item: 2x; at most 2.703x" in text
    assert "breaks even from a batch of 1" in text


def test_term_of_a_stored_row_is_of_one_item(tmp_path):
    path = tmp_path / "eine Zeile é.json"
    path.write_bytes(encode(make_row()))
    assert ask("--from", path)["terms_ms"]["compute"] == pytest.approx(2.0)
    assert ask("--from", path, "--t-compute-ms", 1)["terms_ms"]["compute"] == 1.0
    assert ask("--t-compute-ms", 1, "--baseline-from", path)["speedup"] == pytest.approx(2.0)


def test_terms_of_bench_and_of_stages(tmp_path):
    bench, stages = tmp_path / "bench.json", tmp_path / "stages.json"
    bench.write_bytes(encode(describe_bench([make_row()])))
    names = {"decode": 3, "preprocess": 1, "copy_in": 0.5, "compute": 2, "copy_out": 0.25, "postprocess": 0.125}
    stages.write_bytes(
        encode(
            describe_stages(
                model="m",
                engine=EngineSpec(backend="ort", batch=2),
                stages_ns={name: [int(time * 1e6)] for name, time in names.items()},
                device_ns={},
                overlapped_per_s=1.0,
                decoders=1,
                lanes=1,
                images="generated",
                image_bytes=[1],
            )
        )
    )
    assert ask("--from", bench)["terms_ms"]["compute"] == pytest.approx(2.0)
    terms = {"pre": 2.0, "copy_in": 0.25, "compute": 1.0, "copy_back": 0.125, "post": 0.0625}
    assert ask("--from", stages)["terms_ms"] == terms


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"schema": "enginebench.baselines/1"}', '{"schema": "enginebench.stages/1"}', "[" * 100_000],
)  # fmt: skip
def test_what_holds_no_time_is_named(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ParseError, match=r"x\.json"):
        ask("--from", path)


def test_row_without_samples_is_named(tmp_path):
    path = tmp_path / "row.json"
    path.write_bytes(encode(replace(make_row(), measurements=(), status="failed")))
    with pytest.raises(ParseError, match="failed"):
        ask("--from", path)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "no term is given"),
        (["--bytes-in", 1], "no link"),
        (["--link", "usb2"], "carries nothing"),
        (["--bytes-in", 1, "--link", "usb2", "--t-copy-in-ms", 1], "keep one"),
        (["--t-compute-ms", 1, "--baseline-ms", 1, "--baseline-from", "x"], "keep one"),
        (["--bytes-in", 1, "--link", "tin can"], "unknown link"),
    ],
)
def test_contradictions_are_refused(args, said):
    with pytest.raises(UsageError, match=said):
        ask(*args)


def test_copies_are_many():
    shown = CliRunner().invoke(command, ["--link", "usb2", "--bytes-in", "1000000"]).output
    assert "(copies set the pace)" in " ".join(shown.split())
    shown = CliRunner().invoke(command, ["--t-compute-ms", "3"]).output
    assert "(compute sets the pace)" in " ".join(shown.split())
