"""The budget and its links against cases worked by hand, the verb, and the engine that is modelled."""

import json
import sys

import numpy as np
import pytest
from boards import INPUT, OUTPUT, NumberBoard
from click.testing import CliRunner
from msgspec.structs import replace

from enginebench.core.errors import BackendUnavailable, FeedError, ParseError, UsageError
from enginebench.core.records import Artifact, EngineSpec, MeasureSpec
from enginebench.core.store import encode
from enginebench.report.bench import describe_bench
from enginebench.stats.stages import describe_stages
from enginebench_fpga import engine as module
from enginebench_fpga import verb
from enginebench_fpga.budget import BudgetSpec, Transfer, command, compute_budget
from enginebench_fpga.engine import FpgaSimBackend
from enginebench_fpga.links import NAMED, parse_link
from samples import make_result

# 64 bytes in, 10 out, at 100,000 bytes/s: 0.64 ms and 0.1 ms.
PLAIN = BudgetSpec(
    pre=0.1,
    copy_in=Transfer(link=parse_link("1e5"), item_bytes=64),
    compute=0.2,
    copy_back=Transfer(link=parse_link("1e5"), item_bytes=10),
    post=0.06,
    baseline_ms=2.2,
)


def test_terms_by_hand_add_up():
    spec = BudgetSpec(pre=1, copy_in=2, compute=4, copy_back=2, post=1, baseline_ms=20)
    budget = compute_budget(spec)
    assert budget.terms_ms == {"pre": 1, "copy_in": 2, "compute": 4, "copy_back": 2, "post": 1}
    assert (budget.total_ms, budget.speedup, budget.speedup_bound) == (10, 2, pytest.approx(20 / 6))
    assert budget.shares == {"pre": 0.1, "copy_in": 0.2, "compute": 0.4, "copy_back": 0.2, "post": 0.1}
    assert (budget.throughput_serial_per_s, budget.throughput_pipelined_per_s) == (100, 250)
    assert (budget.bottleneck, budget.compute_gain_bound) == ("compute", pytest.approx(10 / 6))
    assert budget.break_even_bytes_per_s is None and "no copy" in budget.notes[0]
    assert budget.curve == ()


def test_latencies_leave_less_for_the_bytes():
    link = parse_link("1e5+100")  # 0.1 ms each way
    spec = replace(PLAIN, copy_in=Transfer(link=link, item_bytes=64), copy_back=Transfer(link=link, item_bytes=10))
    assert compute_budget(spec).break_even_bytes_per_s == pytest.approx(74 / 1.64e-3)


def test_batch_spreads_what_a_call_costs_once():
    # A call costs 1 ms, an item 0.125 ms, on the baseline 0.375 ms: 1 + b/8 <= 3b/8 from b = 4.
    spec = BudgetSpec(call_ms=1.0, compute=0.125, baseline_ms=0.375)
    budget = compute_budget(spec)
    assert (budget.break_even_batch, budget.speedup) == (4, pytest.approx(0.375 / 1.125))
    eight = compute_budget(replace(spec, batch=8))
    assert (eight.total_ms, eight.per_item_ms, eight.speedup) == (2.0, 0.25, 1.5)
    # With compute at zero the call still costs its 1 ms.
    assert (eight.speedup_bound, eight.compute_gain_bound) == (3.0, 2.0)
    copy = Transfer(link=parse_link("1000"), item_bytes=2, frame_bytes=6)
    assert compute_budget(BudgetSpec(copy_in=copy, batch=3)).total_ms == pytest.approx(12.0)


def test_uart_of_the_digits_network():
    # 70 bytes there, 16 back at 115200 baud: 86 * 10 / 115200 s; 351 cycles at 12 MHz.
    link = parse_link("uart:115200+usb:1")
    spec = BudgetSpec(
        copy_in=Transfer(link=link, item_bytes=64, frame_bytes=6),
        compute=351 / 12e3,
        copy_back=Transfer(link=link, item_bytes=10, frame_bytes=6),
        baseline_ms=0.022,
    )
    budget = compute_budget(spec)
    assert budget.total_ms == pytest.approx(860 / 115.2 + 1 + 0.02925)
    assert budget.break_even_bytes_per_s is None and "no link rate" in budget.notes[0]
    assert budget.break_even_batch is None and "no batch" in budget.notes[1]


def test_half_duplex_copies_share_the_link():
    usb2 = parse_link("usb2")
    spec = BudgetSpec(copy_in=Transfer(link=usb2, item_bytes=53248), copy_back=Transfer(link=usb2, item_bytes=53248))
    budget = compute_budget(spec)
    assert (budget.bottleneck, budget.throughput_pipelined_per_s) == ("copies", pytest.approx(1e3 / 2.25))


@pytest.mark.parametrize(
    ("text", "size", "seconds"),
    [
        ("uart:115200", 69, 69 * 10 / 115200),
        ("uart:921600", 64, 640 / 921600),
        ("uart:3000000", 3, 1e-5),
        ("1e6+50", 1000, 1e-3 + 50e-6),
        ("1e+6", 1000, 1e-3),
        ("1e+6+50", 1000, 1e-3 + 50e-6),
        ("2000000", 1, 5e-7),
        ("1000+0", 1, 1e-3),
        ("usb2", 53248, 1e-3 + 125e-6),
        ("usb3", 1025, 125e-6 + (1024 + 32 + 1 + 32) / 500e6),
        ("eth100", 1, (18 + 66) * 8 / 100e6),  # the shortest frame: 84 bytes with gap and preamble
        ("eth100", 1472, 1538 * 8 / 100e6),  # the longest
        ("eth1g", 2944, 2 * 1538 * 8 / 1e9),
        ("pcie3x4", 256, 1e-6 + 280 / (8e9 * 4 * 128 / 130 / 8)),
    ],
)
def test_transfer_takes_what_framing_and_latency_say(text, size, seconds):
    assert float(parse_link(text).transfer_s(size)) == pytest.approx(seconds, rel=1e-12)


def test_rate_of_payload_leaves_framing_out_and_nothing_takes_no_time():
    assert parse_link("eth100").payload_bytes_per_s == pytest.approx(12.5e6 * 1472 / 1538)
    assert parse_link("uart:115200").payload_bytes_per_s == 11520
    assert not any(float(link.transfer_s(0)) for link in NAMED.values())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "uart",
        "uart:",
        "uart:0",
        "uart:-5",
        "uart:x",
        "eth",
        "1e6+",
        "+5",
        "0+5",
        "nan+1",
        "inf",
        "1e6+-1",
        "uart:9600+usb:",
        "uart:9600+usb:0",
        "usb9",
        "1e-9",
        "1e300",
        "é",
    ],
)
def test_what_is_no_link_is_named_with_the_known_ones(text):
    with pytest.raises(UsageError, match="eth1g"):
        parse_link(text)


def ask(*args):
    """The JSON document, or the error that the command line turns into an exit code."""
    answer = CliRunner().invoke(command, [*map(str, args), "--json"], catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return json.loads(answer.stdout)


def make_row(latency_ns=(2_000_000, 4_000_000, 9_000_000), batch=2):
    row = make_result("fake", batch=batch, processes=1)
    return replace(row, measurements=(replace(row.measurements[0], latency_ns=list(latency_ns)),))


def test_term_of_a_stored_configuration_is_of_one_item(tmp_path):
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
    whole = json.loads(stages.read_bytes())
    for damage in ({"batch": 0}, {"stages": []}, {"stages": [{**whole["stages"][0], "p50_ms": -1.0}]}):
        stages.write_text(json.dumps(whole | damage))
        with pytest.raises(ParseError, match="a batch, and times of"):
            ask("--from", stages)


@pytest.mark.parametrize(
    "text", ["", "{", '{"schema": "enginebench.baselines/1"}', '{"schema": "enginebench.stages/1"}', "[" * 100_000]
)
def test_what_holds_no_time_is_named(tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ParseError, match=r"x\.json"):
        ask("--from", path)


def test_configuration_without_samples_is_named(tmp_path):
    path = tmp_path / "row.json"
    path.write_bytes(encode(replace(make_row(), measurements=(), status="failed")))
    with pytest.raises(ParseError, match="failed"):
        ask("--from", path)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--bytes-in", 1], "no link"),
        (["--link", "usb2"], "carries nothing"),
        (["--bytes-in", 1, "--link", "usb2", "--t-copy-in-ms", 1], "keep one"),
        (["--t-compute-ms", 1, "--baseline-ms", 1, "--baseline-from", "x"], "keep one"),
    ],
)
def test_contradictions_are_refused(args, said):
    with pytest.raises(UsageError, match=said):
        ask(*args)


SPEC = EngineSpec(backend="fpga-sim", precision="int8")


@pytest.fixture
def artifact(tmp_path):
    path = tmp_path / "é model.onnx"
    path.write_bytes(b"graph")
    return Artifact(
        kind="onnx", model="m", path=str(path), sha256="a" * 64, files=(), inputs=(INPUT,), outputs=(OUTPUT,)
    )


@pytest.fixture
def opened(monkeypatch):
    """(boards that were opened, options and caches that were asked for)"""
    boards, asked = [], []

    def make_board(artifact, options, cache_dir):
        asked.append((artifact.path, dict(options), cache_dir))
        boards.append(NumberBoard())
        return boards[-1]

    monkeypatch.setattr(module, "make_simulated_board", make_board)
    return boards, asked


def test_measurement_is_modelled_and_says_so(opened, artifact, tmp_path):
    backend = FpgaSimBackend(tmp_path)
    measured = backend.measure(artifact, SPEC, MeasureSpec(iters=7))
    assert (measured.clock, measured.latency_ns) == ("modelled", [1350] * 7)
    assert (measured.h2d_ns, measured.device_ns, measured.d2h_ns) == ([300] * 7, [1000] * 7, [50] * 7)
    assert measured.throughput_pipelined_per_s == 1e6
    assert [c.code for c in measured.warnings] == ["modelled"]
    assert len(backend.measure(artifact, SPEC, MeasureSpec()).latency_ns) >= 368
    assert all(board.closed for board in opened[0])


def test_design_keeps_its_chain(opened, artifact, tmp_path):
    assert FpgaSimBackend(None).probe().available
    built = FpgaSimBackend(None).build(artifact, SPEC, tmp_path)
    assert (built.kind, built.precision, built.parent_sha256, built.sha256) == ("design", "int8", "a" * 64, "d" * 64)
    assert opened[1][0][2] == tmp_path / "cache"
    assert [c.code for c in built.warnings] == ["modelled"]
    FpgaSimBackend(None).measure(built, SPEC, MeasureSpec(iters=1))


def test_engine_outputs_what_the_board_outputs(opened, artifact, tmp_path):
    with FpgaSimBackend(tmp_path).load(artifact, SPEC) as engine:
        for use in (lambda: engine.run, engine.fetch):
            with pytest.raises(UsageError, match="bind"):
                use()
        given = np.array([[1, 2], [3, 4]], np.float32)
        engine.bind({"x": given})
        given[:] = 0
        engine.run()
        assert engine.fetch()["y"].tolist() == [[3], [7]]
        assert engine.effective_precision() == {"int8": 1.0}
        with pytest.raises(FeedError, match="'x'"):
            engine.bind({"x": np.zeros((1, 3), np.float32)})
    engine.close()
    with pytest.raises(UsageError, match="closed"):
        engine.fetch()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"precision": "fp32"}, BackendUnavailable),
        ({"batch": 8}, BackendUnavailable),
        ({"device": "cuda:0"}, BackendUnavailable),
        ({"options": {"speed": "11"}}, UsageError),
        ({"options": {"part": "xc7"}}, UsageError),
    ],
)
def test_what_it_cannot_do_is_refused(change, error, opened, artifact, tmp_path):
    with pytest.raises(error):
        FpgaSimBackend(tmp_path).build(artifact, replace(SPEC, **change), tmp_path)
    assert not opened[0]


def test_missing_package_is_named(artifact, tmp_path, monkeypatch):
    def make_board(*args):
        raise ModuleNotFoundError("No module named 'amaranth'", name="amaranth")

    monkeypatch.setattr(module, "make_simulated_board", make_board)
    with pytest.raises(BackendUnavailable, match=r"pip install \./plugins/fpga"):
        FpgaSimBackend(tmp_path).load(artifact, SPEC)


def test_without_onnx_runtime_a_simulation_is_compared_with_nothing(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "enginebench.models.precision.graph", raising=False)
    assert verb._run_onnxruntime(tmp_path / "m.onnx", None, np.zeros((1, 64), np.float32)) is None
