"""Summaries against figures that can be done by hand."""

import math

import pytest
from scipy import stats

from enginebench.core.errors import MeasurementError
from enginebench.core.records import Block, Mark, Measurement
from enginebench.stats.summary import estimate_p50, share_marked, summarize


def make(latency_ns: list[int], *, marks: dict[tuple[int, int], tuple[Mark, ...]] | None = None, **more: object):
    blocks = tuple(
        Block(start=a, stop=b, duration_ns=sum(latency_ns[a:b]), marks=m) for (a, b), m in (marks or {}).items()
    )
    return Measurement(clock="host", latency_ns=latency_ns, blocks=blocks, stop_rule="settled", **more)


def test_p50_is_the_geometric_mean_of_process_medians_with_t_over_their_logs() -> None:
    medians = [1_000_000, 1_100_000, 900_000, 1_050_000]
    found = estimate_p50([make([m - 50_000, m, m + 70_000]) for m in medians])
    logs = [math.log(m / 1e6) for m in medians]
    interval = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert found.value == pytest.approx(stats.gmean(medians) / 1e6)
    assert (found.low, found.high) == pytest.approx((math.exp(interval.low), math.exp(interval.high)))
    assert (found.n, found.level, found.supported) == (4, 0.95, True)


def test_single_process_has_no_interval() -> None:
    found = estimate_p50([make([2_000_000, 4_000_000])])
    assert (found.value, found.low, found.high, found.supported) == (pytest.approx(3.0), None, None, False)


def test_counts_mean_and_throughput() -> None:
    summary = summarize([make([1_000_000, 3_000_000]), make([]), make([2_000_000, 2_000_000])], batch=8)
    assert (summary.n, summary.processes) == (4, 2)
    assert summary.mean.value == pytest.approx(2.0)
    assert summary.throughput_per_s == pytest.approx(8 / 0.002)


def test_marked_samples_are_kept_and_counted() -> None:
    latency = [1_000_000] * 6 + [9_000_000] * 4
    measured = make(latency, marks={(6, 10): ("foreign_cpu",), (0, 2): ()})
    summary = summarize([measured] * 3)
    assert summary.marked_share == pytest.approx(0.4)
    assert share_marked([measured], "throttled") == 0
    assert summary.n == 30
    assert summary.p50_unmarked is not None and summary.p50_unmarked.value == pytest.approx(1.0)
    assert summary.p95.value == pytest.approx(9.0)


def test_all_marked_leaves_nothing_unmarked() -> None:
    assert summarize([make([1000, 1000], marks={(0, 2): ("throttled",)})]).p50_unmarked is None


def test_device_times_are_a_field_of_their_own() -> None:
    both = [make([5_000_000], device_ns=[4_000_000], enqueue_ns=[0]) for _ in range(2)]
    summary = summarize(both)
    assert summary.p50_device is not None and summary.p50_device.value == pytest.approx(4.0)
    assert summary.enqueue is None
    assert summarize([both[0], make([5_000_000])]).p50_device is None


def test_pipelined_throughput_and_further_percentiles() -> None:
    summary = summarize([make(list(range(1000, 2000)), throughput_pipelined_per_s=50.0)], percentiles=[99.9])
    assert summary.throughput_pipelined_per_s == 50.0
    assert summary.percentiles["99.9"].value == pytest.approx(1998e-6)
    assert not summary.percentiles["99.9"].supported


def test_nothing_measured_and_no_time_are_errors() -> None:
    with pytest.raises(MeasurementError, match="none of 1 processes"):
        summarize([make([])])
    with pytest.raises(MeasurementError, match="above zero"):
        summarize([make([0, 0, 0])])
