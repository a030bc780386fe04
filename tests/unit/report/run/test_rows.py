"""Rows as the contract names them, baselines, answers, the Pareto front."""

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from enginebench.core.records import Block, Caveat, LayerTime, Result
from enginebench.core.store import encode
from enginebench.report.run.rows import RunDocument, describe_row, describe_run
from enginebench.stats.ranking import Rules
from enginebench.stats.standing import find_baseline, weigh
from samples import make_drift, make_result, make_run

CONTRACT = """id, engine, precision, requested_precision, recipe, batch, scope, cache, device, threads, weights, clock,
modelled, status, reason, validity, n, processes, p50_ms, p99_ms, mean_ms, p50_device_ms, enqueue_ms, throughput_per_s,
throughput_pipelined_per_s, speedup, max_abs_diff, cosine, centred_cosine, top1_agreement, scores,
effective_precision, build_s, size_bytes, peak_memory_bytes, energy_mj, pareto, caveats, result"""


def run(results: list[Result], **more: Any) -> RunDocument:
    return describe_run(model="m", machine=None, spec={}, results=results, rules=Rules(**more))


AGREE = make_drift(1e-6)


def test_json_has_every_field_of_the_contract() -> None:
    document = msgspec.json.decode(encode(make_run()))
    assert document["schema"] == "enginebench.run/1"
    assert {"model", "machine", "spec", "rows", "fastest", "recommended"} <= set(document)
    assert {name.strip() for name in CONTRACT.split(",")} <= set(document["rows"][0])
    assert set(document["rows"][0]["p50_ms"]) == {"value", "low", "high", "level", "n", "method", "supported"}
    assert {"id", "engine", "precision", "batch", "speedup"} <= set(document["fastest"])


def test_baseline_is_pytorch_fp32_of_the_same_kind() -> None:
    first, other = make_result("ort"), make_result("pytorch", "fp16")
    wanted, batch = make_result("pytorch"), make_result("pytorch", batch=8)
    tuned = make_result("pytorch:channels_last=1")
    results = [first, other, tuned, wanted, batch]
    assert find_baseline(first, results) is wanted
    assert find_baseline(batch, results) is batch
    assert find_baseline(first, [first, other]) is first
    assert find_baseline(first, results, "ort") is first
    assert find_baseline(first, [make_result("pytorch", status="failed"), first]) is first
    assert find_baseline(make_result(batch=3), results) is None


def test_speedup_of_the_baseline_is_one_and_of_others_their_ratio() -> None:
    rows = run([make_result(median_ms=20), make_result("ort", median_ms=10, seed=1)]).rows
    assert rows[0].speedup is not None and rows[1].speedup is not None
    assert (rows[0].speedup.value, rows[0].speedup.low) == (1.0, 1.0)
    assert rows[1].speedup.value == pytest.approx(2.0, rel=0.03)
    assert (rows[1].baseline, rows[1].verdict) == ("pytorch-fp32-b1", "faster")


def test_unlike_clock_leaves_the_speedup_empty_with_the_reason() -> None:
    tool = make_result("trtexec")
    tool = replace(tool, measurements=tuple(replace(m, clock="device") for m in tool.measurements))
    row = run([make_result(), tool]).rows[1]
    assert row.speedup is None and "no device times" in (row.speedup_reason or "")


def test_a_check_of_a_part_of_the_samples_is_doubted() -> None:
    whole = describe_row(weigh(make_result(drift=replace(AGREE, n=32, asked=32)), None))
    part = describe_row(weigh(make_result(drift=replace(AGREE, n=4, asked=32)), None))
    assert "partly_compared" not in {c.code for c in whole.caveats}
    (doubt,) = (c for c in part.caveats if c.code == "partly_compared")
    assert "4 of 32 samples" in doubt.message


def test_caveat_of_some_processes_stands_once_with_their_number() -> None:
    doubt = Caveat(code="foreign_cpu", message="0.4 cores", advice="stop it")
    result = make_result(caveats=(Caveat(code="random_weights", message="random"),) * 2)
    noisy = tuple(replace(m, caveats=(doubt,) if m.repetition < 3 else ()) for m in result.measurements)
    found = describe_row(weigh(replace(result, measurements=noisy), None)).caveats
    assert [c.message for c in found] == ["random", "0.4 cores (3 of 10 trials)"]


def test_fastest_must_agree() -> None:
    document = run(
        [
            make_result(median_ms=20),
            make_result("ort", median_ms=10, drift=AGREE, seed=1),
            make_result("openvino", median_ms=5, drift=make_drift(9.0, passed=False), seed=2),
            make_result("pytorch-compile", median_ms=4, seed=3),
            make_result("ort", "fp16", median_ms=3, drift=AGREE, status="partial", seed=4),
        ]
    )
    assert document.fastest is not None and document.recommended == document.fastest
    assert (document.fastest.id, document.fastest.verdict, document.fastest.tied_with) == ("ort-fp32-b1", "faster", ())


def test_fastest_names_whom_it_did_not_beat() -> None:
    rows = [make_result(median_ms=20), make_result("ort", median_ms=10, drift=AGREE, seed=1)]
    rows.append(make_result("openvino", median_ms=10.05, drift=AGREE, seed=2))
    fastest = run(rows).fastest
    assert fastest is not None and len(fastest.tied_with) == 1


def test_baseline_can_be_the_fastest() -> None:
    document = run([make_result(median_ms=5), make_result("ort", median_ms=10, drift=AGREE)])
    assert document.fastest is not None and document.fastest.id == "pytorch-fp32-b1"


def test_nothing_measured_has_no_answer() -> None:
    document = run([make_result(status="failed"), make_result("ort", status="skipped")])
    assert (document.fastest, document.recommended) == (None, None)
    assert run([]).rows == ()


@pytest.mark.parametrize(("drop", "expected"), [(None, "ort-fp32-b1"), (0.01, "ort-fp32-b1"), (0.02, "ort-int8-b1")])
def test_recommended_keeps_the_accuracy_limit(drop: float | None, expected: str) -> None:
    rows = [
        make_result(median_ms=20, accuracy=0.98),
        make_result("ort", median_ms=10, drift=AGREE, accuracy=0.98, seed=1),
        make_result("ort", "int8", median_ms=5, drift=AGREE, accuracy=0.96, seed=2),
    ]
    document = run(rows, max_metric_drop=drop)
    assert document.fastest is not None and document.fastest.id == "ort-int8-b1"
    assert document.recommended is not None and document.recommended.id == expected
    assert document.recommended_by == "metric"


def test_recommended_keeps_the_p99_limit() -> None:
    rows = [make_result(median_ms=20), make_result("ort", median_ms=10, drift=AGREE)]
    assert run(rows, p99_limit_ms=5).recommended is None
    assert run(rows, p99_limit_ms=15).recommended == run(rows).fastest


def test_pareto_front() -> None:
    rows = run(
        [
            make_result(median_ms=20, accuracy=0.99),
            make_result("ort", median_ms=10, accuracy=0.99, drift=AGREE),
            make_result("ort", "int8", median_ms=5, accuracy=0.97, drift=AGREE),
            make_result("openvino", "int8", median_ms=6, accuracy=0.96, drift=AGREE),
            make_result("openvino", status="failed"),
        ]
    ).rows
    assert [row.pareto for row in rows] == [False, True, True, False, False]


def test_an_invalid_row_is_on_no_front() -> None:
    fast = make_result("ort", median_ms=5, drift=AGREE, seed=1)
    marked = tuple(
        replace(m, blocks=(Block(start=0, stop=len(m.latency_ns), duration_ns=1, marks=("throttled",)),))
        for m in fast.measurements
    )
    rows = run([make_result(median_ms=20), replace(fast, measurements=marked)]).rows
    assert [(row.validity, row.pareto) for row in rows] == [("valid", True), ("invalid", False)]


def test_kernels_that_were_slower_under_the_profiler_are_doubted() -> None:
    row = make_result()
    kernels = tuple(LayerTime(name=n, mean_ns=3e6, median_ns=3e6, precision="fp16", kind="kernel") for n in "ab")
    for device_ns, factor in ((6_000_000, None), (4_000_000, "1.50 times")):
        timed = tuple(replace(m, device_ns=[device_ns] * len(m.latency_ns)) for m in row.measurements)
        (found,) = run([replace(row, measurements=timed, layers=kernels)]).rows
        doubts = [c.message for c in found.caveats if c.code == "disturbed_profile"]
        assert bool(doubts) is bool(factor) and all(str(factor) in text for text in doubts)
    (unknown,) = run([replace(row, layers=kernels)]).rows
    assert not unknown.caveats


def test_pareto_without_labels_goes_by_centred_cosine() -> None:
    rows = run(
        [
            make_result(median_ms=20),
            make_result("ort", median_ms=10, drift=AGREE),
            make_result("ort", "int8", median_ms=5, drift=make_drift(0.1, centred=0.95)),
        ]
    ).rows
    assert [row.pareto for row in rows] == [False, True, True]
