"""Rows as the contract names them, baselines, outputs, the Pareto front, batches and builds."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from enginebench.core.records import Block, Build, LayerTime, Result, ResultWarning
from enginebench.report.run.rows import Row, RunDocument, describe_row, describe_run
from enginebench.report.run.sections import find_largest, format_builds, format_largest, list_batches, make_builds
from enginebench.stats.assessment import assess_result, find_baseline
from enginebench.stats.ranking import Rules
from reports import write_markdown, write_page
from samples import make_drift, make_estimate, make_result, make_run


def run(results: list[Result], **more: Any) -> RunDocument:
    return describe_run(model="m", machine=None, spec={}, results=results, rules=Rules(**more))


AGREE = make_drift(1e-6)


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
    assert find_baseline(first, [replace(wanted, status="failed"), first]) is first, "though it has samples"
    assert find_baseline(other, [other, make_result("ort", "int8")], "ort").engine.precision == "int8"  # type: ignore[union-attr]
    assert find_baseline(first, [make_result("openvino", status="skipped"), first], "openvino") is None
    assert find_baseline(make_result(batch=3), results) is None
    relabelled = replace(make_result("pytorch", "int8"), engine=wanted.engine)  # its graph is still in INT8
    assert find_baseline(wanted, [relabelled, wanted]) is wanted


def test_a_check_of_a_part_of_the_samples_is_warned_about() -> None:
    whole = describe_row(assess_result(make_result(drift=replace(AGREE, n=32, n_requested=32)), None))
    part = describe_row(assess_result(make_result(drift=replace(AGREE, n=4, n_requested=32)), None))
    assert "partly_compared" not in {c.code for c in whole.warnings}
    (warning,) = (c for c in part.warnings if c.code == "partly_compared")
    assert "4 of 32 samples" in warning.message


def test_warning_of_some_processes_stands_once_with_their_number() -> None:
    warning = ResultWarning(code="foreign_cpu", message="0.4 cores", advice="stop it")
    result = make_result(warnings=(ResultWarning(code="random_weights", message="random"),) * 2)
    noisy = tuple(replace(m, warnings=(warning,) if m.trial < 3 else ()) for m in result.measurements)
    found = describe_row(assess_result(replace(result, measurements=noisy), None)).warnings
    assert [c.message for c in found] == ["random", "0.4 cores (3 of 10 trials)"]


def test_fastest_must_agree_and_may_be_unfinished() -> None:
    document = run(
        [
            make_result(median_ms=20),
            make_result("ort", median_ms=10, drift=AGREE, seed=1),
            make_result("openvino", median_ms=5, drift=make_drift(9.0, passed=False, centred=0.5), seed=2),
            make_result("pytorch-compile", median_ms=4, seed=3),
            make_result("ort", "fp16", median_ms=3, drift=AGREE, status="partial", seed=4),
        ]
    )
    assert document.fastest is not None and document.recommended == document.fastest
    assert (document.fastest.id, document.fastest.verdict, document.fastest.tied_with) == ("ort-fp16-b1", "faster", ())


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


def test_pareto_front() -> None:
    ort = make_result("ort", median_ms=10, accuracy=0.99, drift=AGREE)
    int8 = make_result("ort", "int8", median_ms=5, accuracy=0.97, drift=AGREE)
    other = make_result("openvino", "int8", median_ms=6, accuracy=0.96, drift=AGREE)
    failed = make_result("openvino", status="failed")
    rows = run([make_result(median_ms=20, accuracy=0.99), ort, int8, other, failed]).rows
    assert [row.pareto for row in rows] == [False, True, True, False, False]


def test_an_invalid_configuration_is_on_no_front() -> None:
    fast = make_result("ort", median_ms=5, drift=AGREE, seed=1)
    whole = Block(start=0, stop=len(fast.measurements[0].latency_ns), duration_ns=1, marks=("throttled",))
    marked = tuple(replace(m, blocks=(whole,)) for m in fast.measurements)
    rows = run([make_result(median_ms=20), replace(fast, measurements=marked)]).rows
    assert [(row.validity, row.pareto) for row in rows] == [("valid", True), ("invalid", False)]


def test_kernels_that_were_slower_under_the_profiler_are_warned_about() -> None:
    row = make_result()
    kernels = tuple(LayerTime(name=n, mean_ns=3e6, median_ns=3e6, precision="fp16", kind="kernel") for n in "ab")
    for device_ns, factor in ((6_000_000, None), (4_000_000, "1.50 times")):
        timed = tuple(replace(m, device_ns=[device_ns] * len(m.latency_ns)) for m in row.measurements)
        (found,) = run([replace(row, measurements=timed, layers=kernels)]).rows
        warnings = [c.message for c in found.warnings if c.code == "disturbed_profile"]
        assert bool(warnings) is bool(factor) and all(str(factor) in text for text in warnings)
    (unknown,) = run([replace(row, layers=kernels)]).rows
    assert not unknown.warnings


def test_pareto_without_labels_goes_by_centred_cosine() -> None:
    int8 = make_result("ort", "int8", median_ms=5, drift=make_drift(0.1, centred=0.95))
    rows = run([make_result(median_ms=20), make_result("ort", median_ms=10, drift=AGREE), int8]).rows
    assert [row.pareto for row in rows] == [False, True, True]


def make_rows() -> list[Row]:
    """`a` at batches 8, 1 and 32, the last out of memory; `b` at one batch only."""
    template = make_run().rows[0]

    def make(engine: str, batch: int, p99_ms: float | None) -> Row:
        row = replace(template, engine=engine, batch=batch)
        if p99_ms is None:
            return replace(row, p50_ms=None, p99_ms=None, throughput_per_s=None, status="failed")
        p50, p99 = make_estimate(p99_ms / 2), make_estimate(p99_ms)
        return replace(row, p50_ms=p50, p99_ms=p99, throughput_per_s=1000 * batch / p99_ms, status="ok")

    return [make("a", 8, 4.0), make("a", 1, 1.0), make("a", 32, None), make("b", 1, 2.0)]


def test_the_largest_batch_keeps_to_the_limit() -> None:
    for limit, largest in ((0.5, None), (1.0, 1), (3.9, 1), (4.0, 8), (100.0, 8)):
        (series,) = list_batches(make_rows())
        assert getattr(find_largest(series, limit), "batch", None) == largest
    assert format_largest(list_batches(make_rows()), 4.0) == ["a fp32: batch 8 is the largest within p99 4 ms."]
    assert format_largest(list_batches(make_rows()), 0.5) == ["a fp32: no batch that was measured within p99 0.5 ms."]
    assert format_largest(list_batches(make_rows()), None) == []


def test_an_invalid_batch_keeps_to_no_limit() -> None:
    rows = [replace(row, validity="invalid") if row.batch == 8 else row for row in make_rows()]
    series = list_batches(rows)
    assert format_largest(series, 4.0) == ["a fp32: batch 1 is the largest within p99 4 ms."]
    none = list_batches([replace(row, validity="invalid") for row in make_rows()])
    assert format_largest(none, 4.0) == ["a fp32: only batches whose configurations are disturbed meet p99 4 ms."]


def make_document(between: float, hashes: str, processes: int = 3) -> RunDocument:
    """A run with a row that was built once, and one that was built as often as there are letters."""
    rng = np.random.default_rng(1)
    factors = np.exp(between * rng.standard_normal(len(hashes)))
    base, cand = make_result("pytorch"), make_result("openvino")
    assert base.measurements and cand.measurements
    first = cand.measurements[0]
    measurements = tuple(
        replace(
            first,
            latency_ns=[round(x * factors[i % len(hashes)] * (1 + 0.001 * (i % 5))) for x in first.latency_ns],
            trial=i,
            build=i % len(hashes),
        )
        for i in range(processes * len(hashes))
    )
    builds = tuple(Build(artifact=None, build_s=12.0, fingerprint=letter, max_abs_diff=1e-4) for letter in hashes)  # type: ignore[arg-type]
    built: Result = replace(cand, measurements=measurements, builds=builds)
    return describe_run(model="m", machine=None, spec={}, results=[base, built])


def test_builds_that_differ_are_reported_with_interval_cost_and_gain() -> None:
    document = make_document(0.05, "abcdef")
    first, second = format_builds(document.rows)
    assert "its 6 builds differ: " in first and "between processes of one build" in first
    assert second.startswith("The best of 6 gains") and "the 5 builds more cost 60.0 s, which it saves" in second
    (table,) = make_builds(document.rows)
    texts = {column.title: column.text(table.rows[0]) for column in table.columns}  # type: ignore[union-attr]
    assert (texts["builds"], texts["different"]) == ("6", "6") and " to " in texts["p50 ms"]
    (sentence,) = format_builds(make_document(0.0, "aaaa").rows)
    assert sentence.endswith("all 4 builds are identical by their hash.")


def test_what_is_not_shown_is_not_claimed() -> None:
    first, second = format_builds(make_document(0.0, "abab").rows)
    assert "do not differ significantly" in first and "did not gain significantly" in second and "saves" not in second
    (sentence,) = format_builds(make_document(0.0, "ab", processes=1).rows)
    assert "inconclusive" in sentence


@pytest.mark.parametrize("render", [write_markdown, write_page])
def test_page_and_markdown_have_the_section_only_where_there_are_builds(render) -> None:  # type: ignore[no-untyped-def]
    text = render(make_document(0.05, "abcd"))
    assert "Builds" in text and "best gains" in text and "never compare one build with one build" in text
    plain = describe_run(model="m", machine=None, spec={}, results=[make_result("pytorch"), make_result("ort")])
    assert "best gains" not in render(plain)
