"""The figures of a row, tails included, and those of stages."""

import math

import numpy as np
import pytest
from msgspec.structs import replace
from scipy import signal, stats

from enginebench.core.errors import MeasurementError
from enginebench.core.records import Block, EngineSpec, Mark, Measurement
from enginebench.stats.quantiles import (
    autocorrelation_time,
    bound_rank,
    count_effective,
    estimate_tails,
    median,
    min_samples,
    size_blocks,
)
from enginebench.stats.queueing import strict_min_samples
from enginebench.stats.stages import STAGES, DeviceMedians, describe_stages
from enginebench.stats.summary import share_marked, summarize


def make(latency_ns: list[int], *, marks: dict[tuple[int, int], tuple[Mark, ...]] | None = None, **more: object):
    blocks = tuple(
        Block(start=a, stop=b, duration_ns=sum(latency_ns[a:b]), marks=m) for (a, b), m in (marks or {}).items()
    )
    return Measurement(clock="host", latency_ns=latency_ns, blocks=blocks, stop_rule="settled", **more)


@pytest.mark.parametrize("n", [1, 2, 3, 10, 11, 3000])
@pytest.mark.parametrize("strange", [(), (math.inf,), (-math.inf,), (math.nan,), (0.0, 0.0)])
def test_the_median_is_that_of_numpy_to_the_last_bit(n: int, strange: tuple[float, ...]) -> None:
    rng = np.random.default_rng(n)
    for values in (rng.standard_normal(n), rng.integers(0, 4, n), np.full(n, 1e308)):
        given = rng.permutation(np.concatenate([values, strange]))
        with np.errstate(over="ignore", invalid="ignore"):
            assert np.array_equal(median(given), np.median(given), equal_nan=True)
            assert np.array_equal(median(list(given)), np.median(given), equal_nan=True)


def test_counts_mean_throughput_and_percentiles_of_what_was_measured() -> None:
    summary = summarize([make([1_000_000, 3_000_000]), make([]), make([2_000_000, 2_000_000])], batch=8)
    assert (summary.n, summary.processes) == (4, 2)
    assert summary.mean.value == pytest.approx(2.0)
    assert summary.throughput_per_s == pytest.approx(8 / 0.002)
    # Of 7.9 us on the GPU, one every 32.5 us: what lies between queries is not in their latencies.
    counted = make([7_948] * 9, throughput_pipelined_per_s=30_760.0)
    assert summarize([counted]).throughput_per_s == 30_760
    # A board is modelled with one inference behind the other, whatever it could overlap.
    modelled = summarize([replace(counted, clock="modelled")])
    assert modelled.throughput_per_s == pytest.approx(1e9 / 7_948)
    assert modelled.throughput_pipelined_per_s == 30_760
    summary = summarize([make(list(range(1000, 2000)), throughput_pipelined_per_s=50.0)], percentiles=[99.9])
    assert summary.throughput_pipelined_per_s == 50.0
    assert summary.percentiles["99.9"].value == pytest.approx(1998e-6)
    assert not summary.percentiles["99.9"].supported
    with pytest.raises(MeasurementError, match="none of 1 processes"):
        summarize([make([])])


def test_marked_samples_are_kept_and_counted() -> None:
    latency = [1_000_000] * 6 + [9_000_000] * 4
    measured = make(latency, marks={(6, 10): ("foreign_cpu",), (0, 2): ()})
    summary = summarize([measured] * 3)
    assert summary.marked_share == pytest.approx(0.4)
    assert share_marked([measured], "throttled") == 0
    assert summary.n == 30
    assert summary.p50_unmarked is not None and summary.p50_unmarked.value == pytest.approx(1.0)
    assert summary.p95.value == pytest.approx(9.0)
    assert summarize([make([1000, 1000], marks={(0, 2): ("throttled",)})]).p50_unmarked is None


def make_series(correlation: float, processes: int, n: int, seed: int = 0) -> list[np.ndarray]:
    """Times around 1 whose logs are an autoregression of order one."""
    rng = np.random.default_rng(seed)
    series = []
    for _ in range(processes):
        x, values = rng.normal(), []
        for step in rng.normal(0, np.sqrt(1 - correlation**2), n):
            x = correlation * x + step
            values.append(x)
        series.append(np.exp(0.02 * np.array(values)))
    return series


@pytest.mark.parametrize(("q", "n"), [(0.5, 6), (0.9, 36), (0.95, 72), (0.99, 368), (0.999, 3688)])
def test_min_samples(q: float, n: int) -> None:
    assert min_samples(q) == n
    assert q**n <= 0.025 < q ** (n - 1)


@pytest.mark.parametrize(
    ("q", "exceedances", "n"), [(0.99, 0, 459), (0.99, 1, 662), (0.99, 10, 2010), (0.9, 0, 44), (0.9, 1, 64)]
)
def test_strict_rule_is_that_of_loadgen(q: float, exceedances: int, n: int) -> None:
    assert strict_min_samples(q, exceedances) == n
    assert stats.binom.cdf(exceedances, n, 1 - q) <= 0.01 < stats.binom.cdf(exceedances, n - 1, 1 - q)


@pytest.mark.parametrize(("correlation", "expected"), [(0.0, 1.0), (0.5, 3.0), (0.9, 19.0)])
def test_autocorrelation_time_of_an_autoregression(correlation: float, expected: float) -> None:
    # (1 + r) / (1 - r) in closed form; the estimate from 80,000 samples deviates by 7 % at r = 0.9.
    found = autocorrelation_time(make_series(correlation, 4, 20_000))
    assert found == pytest.approx(expected, rel=0.25)


def test_processes_that_differ_show_as_correlation_and_equal_or_single_samples_do_not() -> None:
    same = make_series(0.0, 8, 300)
    apart = [s * (1 + 0.5 * (i % 2)) for i, s in enumerate(same)]
    assert autocorrelation_time(apart) > 100 > autocorrelation_time(same)
    assert autocorrelation_time([np.full(50, 3.0)]) == 1
    assert autocorrelation_time([np.array([3.0])]) == 1
    with pytest.raises(MeasurementError):
        autocorrelation_time([])


def test_blocks_hold_every_sample_once_and_cross_no_process() -> None:
    assert size_blocks([25, 0, 3], 10) == [13, 12, 3]
    assert size_blocks([], 10) == []
    estimate = estimate_tails([np.linspace(1, 2, 500)], [0.99])[0]  # a trend: all of it is one block
    assert (estimate.low, estimate.high, estimate.supported) == (None, None, False)
    assert "too few" in estimate.method


@pytest.mark.parametrize(("n", "supported"), [(367, False), (368, True)])
def test_p99_is_supported_from_368_samples(n: int, supported: bool) -> None:
    samples = np.random.default_rng(0).permutation(np.linspace(1.0, 1.1, n))
    estimate = estimate_tails([samples], [0.99], time=1.0)[0]
    assert (estimate.n, estimate.supported) == (n, supported)
    assert estimate.low is not None and estimate.high is not None
    assert estimate.low <= estimate.value <= estimate.high


def test_interval_of_many_samples_agrees_with_order_statistics() -> None:
    samples = np.exp(0.02 * np.random.default_rng(1).normal(size=100_000))
    estimate = estimate_tails([samples], [0.99], time=1.0)[0]
    ordered, ranks = np.sort(samples), stats.binom.ppf([0.025, 0.975], 100_000, 0.99).astype(int)
    low, high = ordered[ranks]
    assert estimate.low == pytest.approx(low, abs=0.3 * (high - low))
    assert estimate.high == pytest.approx(high, abs=0.3 * (high - low))


def test_ranks_of_an_interval_are_those_of_clopper_and_pearson() -> None:
    exact = stats.binomtest(990, 1000).proportion_ci(0.95, method="exact")
    assert bound_rank(1000, 0.99, 1000.0, 0.95) == (math.ceil(1000 * exact.low), math.ceil(1000 * exact.high))
    low, high = bound_rank(100_000, 0.99, 1000.0, 0.95)  # a hundred that say as much as one: as wide as of a thousand
    assert (low, high) == (math.ceil(100_000 * exact.low), math.ceil(100_000 * exact.high))
    assert bound_rank(10, 1.0, 10.0, 0.95)[1] == 10


def test_samples_that_come_in_lumps_count_as_fewer() -> None:
    rng = np.random.default_rng(3)
    independent = rng.random(10_000)
    # Each block is slow as a whole or not at all: then a block says no more than one sample.
    lumps = np.repeat(rng.random(100), 100)
    assert count_effective(independent, [100] * 100, 0.9, 0.95) == pytest.approx(10_000, rel=0.25)
    assert count_effective(lumps, [100] * 100, 0.9, 0.95) == pytest.approx(100, rel=0.1)
    assert count_effective(np.full(2_000, 3.0), [100] * 20, 3.0, 0.95) <= 2_000  # equal times: no more than there are


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_interval_of_p99_covers_about_what_it_says(correlation: float) -> None:
    truth, hits = np.exp(0.02 * stats.norm.ppf(0.99)), 0
    rng = np.random.default_rng(8)
    for _ in range(100):
        steps = rng.normal(0, np.sqrt(1 - correlation**2), (4, 1500))
        steps[:, 0] /= np.sqrt(1 - correlation**2)
        found = estimate_tails([*np.exp(0.02 * signal.lfilter([1], [1, -correlation], steps))], [0.99])[0]
        assert found.low is not None and found.high is not None
        hits += found.low <= truth <= found.high
    assert hits >= 87  # of 95; three standard errors below it are 88, and blocks are cut from correlated samples


def test_p50_of_trials_that_resemble_the_ones_before_is_less_sure() -> None:
    steady = [1.00, 1.03, 0.98, 1.02, 0.97, 1.01, 1.00, 0.99]
    drifting, alternating = sorted(steady), [sorted(steady)[i] for i in (0, 7, 1, 6, 2, 5, 3, 4)]
    # As stored after a continued run: what counts is the number of a trial.
    sides = [[make([int(1e6 * ms)], trial=i) for i, ms in enumerate(side)][::-1] for side in (drifting, alternating)]
    wide, plain = (summarize(side).p50 for side in sides)
    assert wide.low is not None and wide.high is not None and plain.low is not None and plain.high is not None
    assert wide.value == pytest.approx(plain.value)
    assert np.log(wide.high / wide.low) > 1.3 * np.log(plain.high / plain.low)


MS = 1_000_000
TIMES = {
    "decode": [4 * MS, 6 * MS],
    "preprocess": [3 * MS] * 2,
    "copy_in": [MS] * 2,
    "compute": [2 * MS] * 2,
    "copy_out": [MS // 2] * 2,
    "postprocess": [MS // 2] * 2,
}


def describe(**kwargs: object) -> object:
    engine = EngineSpec(backend="pytorch", options={"wait": "spin"}, device="cuda:0", precision="fp16", batch=4)
    fields = {
        "model": "m",
        "engine": engine,
        "stages_ns": TIMES,
        "device_ns": {},
        "overlapped_per_s": 1000.0,
        "decoders": 8,
        "lanes": 2,
        "images": "generated",
        "image_bytes": [110, 90, 130],
    }
    return describe_stages(**(fields | kwargs))  # type: ignore[arg-type]


def test_shares_are_of_the_means_and_rates_of_their_sum() -> None:
    document = describe()
    assert [s.name for s in document.stages] == list(STAGES)
    assert sum(s.share for s in document.stages) == pytest.approx(1.0)
    decode = document.stages[0]
    assert (decode.p50_ms, decode.p99_ms, decode.mean_ms, decode.share) == (5.0, 6.0, 5.0, pytest.approx(5 / 12))
    assert (document.total_p50_ms, document.total_p99_ms) == (12.0, 13.0)
    assert document.serial_per_s == pytest.approx(4 / 0.012)
    assert document.overlap_gain == pytest.approx(1000.0 / (4 / 0.012))
    assert document.image_bytes == {"min": 90, "median": 110, "max": 130}
    assert (document.engine, document.precision, document.batches) == ("pytorch:wait=spin", "fp16", 2)
    assert document.device_times is None  # the device has a clock of its own
    found = describe(device_ns={"h2d": [MS, 3 * MS], "compute": [MS], "d2h": [5]})
    assert found.device_times == DeviceMedians(h2d_ms=2.0, compute_ms=1.0, d2h_ms=5e-6)


@pytest.mark.parametrize(("overlapped", "beaten"), [(2000.0, False), (2039.0, False), (2100.0, True)])
def test_a_pipeline_cannot_be_faster_than_its_slower_side(overlapped: float, beaten: bool) -> None:
    found = describe(overlapped_per_s=overlapped, stages_ns={name: times * 184 for name, times in TIMES.items()})
    assert [c.figures["share"] for c in found.warnings if c.code == "beats_bound"] == ([1.05] if beaten else [])
