"""Verdicts, by hand and by simulation; and what must not be compared."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from scipy import stats

from enginebench.core.records import Artifact, EngineSpec, Measurement, MeasureSpec, Result, TensorSpec
from enginebench.stats.compare import choose_clock, comparable, compare, compare_apart, count_needed, decide_verdict
from enginebench.stats.intervals import Spread
from samples import make_machine
from samples import make_result as make_row

MACHINE = make_machine()


def make_side(medians: Sequence[float], **more: Any) -> list[Measurement]:
    """One process for each median in ms."""
    fields = {"clock": "host", "blocks": (), "stop_rule": "settled"} | more
    return [Measurement(latency_ns=[round(m * 1e6)] * 3, trial=i, **fields) for i, m in enumerate(medians)]


BASE = [10.0, 10.2, 9.9, 10.1, 10.3, 9.8, 10.0]
CAND = [9.0, 9.3, 8.8, 9.2, 9.1, 8.9, 9.05]


def test_ratio_is_that_of_scipys_paired_test() -> None:
    found = compare(make_side(BASE), make_side(CAND))
    expected = stats.ttest_rel(np.log(BASE), np.log(CAND)).confidence_interval(0.95)
    assert found.verdict == "faster" and found.ratio is not None
    assert found.ratio.value == pytest.approx(stats.gmean(BASE) / stats.gmean(CAND))
    assert (found.ratio.low, found.ratio.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))
    assert (found.ratio.n, found.trials_needed, found.clock) == (7, None, "host")


def test_runs_made_apart_use_welch() -> None:
    found = compare_apart(make_side(BASE), make_side([*CAND, 9.4]))
    expected = stats.ttest_ind(np.log(BASE), np.log([*CAND, 9.4]), equal_var=False).confidence_interval(0.95)
    assert found.verdict == "faster" and found.ratio is not None
    assert (found.ratio.low, found.ratio.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))


@given(st.floats(-0.5, 0.5), st.floats(0, 0.1), st.integers(6, 40))
def test_verdicts_are_where_the_intervals_lie(mean: float, error: float, n: int) -> None:
    spread = Spread(mean=mean, error=error, freedom=n - 1, n=n)
    m = math.log(1.02)
    wide, narrow = (stats.t.ppf(p, n - 1) * error for p in (0.975, 0.95))
    if min(abs(abs(mean) - m - wide), abs(abs(mean) + narrow - m)) < 1e-9:
        return
    expected = "not_shown"
    if mean - wide > m:
        expected = "faster"
    elif mean + wide < -m:
        expected = "slower"
    elif abs(mean) + narrow < m:
        expected = "equivalent"
    assert decide_verdict(spread, 0.02)[0] == expected


def test_five_trials_give_no_verdict_and_say_so() -> None:
    found = compare(make_side(BASE[:5]), make_side(CAND[:5]))
    assert (found.verdict, found.trials_needed) == ("not_shown", 6)
    assert "5 of the 6 trials" in found.reasons[0]
    assert compare(make_side(BASE[:6]), make_side(CAND[:6])).verdict == "faster"


def test_interleaved_drift_cancels() -> None:
    # The machine halves its speed midway: neighbours see it alike.
    slow = [1, 1, 1, 1, 2, 2, 2, 2]
    found = compare(make_side([10 * s for s in slow]), make_side([8 * s for s in slow]))
    assert found.verdict == "faster" and found.ratio is not None and found.ratio.low == pytest.approx(1.25)
    assert compare_apart(make_side([10 * s for s in slow]), make_side([8 * s for s in slow])).verdict == "not_shown"


def test_trial_without_partner_is_left_out_and_named() -> None:
    found = compare(make_side(BASE), make_side(CAND)[1:])
    assert found.ratio is not None and found.ratio.n == 6
    assert "1 trials" in found.reasons[0]


def test_needed_trials_by_hand() -> None:
    # s = 5 %, observed mean 6 % beyond the margin; by the noncentral t the power at that k is near 80 %.
    spread = Spread(mean=math.log(1.02) + 0.06, error=0.05 / math.sqrt(6), freedom=5, n=6)
    k = count_needed(spread, 0.02)
    assert k is not None
    power = 1 - stats.nct.cdf(stats.t.ppf(0.975, k - 1), k - 1, 0.06 / 0.05 * math.sqrt(k))
    assert 0.75 < power < 0.88
    assert count_needed(replace(spread, mean=math.log(1.02)), 0.02) is None
    assert count_needed(replace(spread, error=None), 0.02) == 6


@pytest.mark.parametrize(
    ("base", "cand", "expected"),
    [
        ({"clock": "host"}, {"clock": "host", "device_ns": [1]}, "host"),
        ({"clock": "modelled"}, {"clock": "modelled"}, "modelled"),
        ({"clock": "host", "device_ns": [1]}, {"clock": "device", "device_ns": [1]}, "device"),
        ({"clock": "host", "device_ns": [1]}, {"clock": "device"}, "device"),
        ({"clock": "device"}, {"clock": "device"}, "device"),
        ({"clock": "tool"}, {"clock": "tool"}, "tool"),
    ],
)
def test_clock_that_both_sides_share(base: dict[str, Any], cand: dict[str, Any], expected: str) -> None:
    clock, times, why_not = choose_clock(make_side([1], **base), make_side([1], **cand))
    assert (clock, times is not None, why_not) == (expected, True, "")


def test_device_times_are_compared_against_a_device_clock() -> None:
    base = make_side([10.0] * 6, device_ns=[8_000_000] * 3)
    found = compare(base, make_side([9.0] * 6, clock="device", device_ns=[4_000_000] * 3))
    assert found.ratio is not None and found.ratio.value == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("base", "cand", "reason"),
    [("host", "device", "base has no device times"), ("host", "modelled", "modelled"), ("tool", "host", "differ")],
)
def test_unlike_clocks_are_not_compared(base: Any, cand: Any, reason: str) -> None:
    for method in (compare, compare_apart):
        found = method(make_side(BASE, clock=base), make_side(CAND, clock=cand))
        assert (found.verdict, found.ratio) == ("not_comparable", None)
        assert reason in found.reasons[0]


def test_nothing_measured_is_not_comparable() -> None:
    assert compare([], []).verdict == "not_comparable"
    assert compare(make_side(BASE), []).verdict == "not_comparable"
    assert compare_apart(make_side(BASE), []).verdict == "not_comparable"


def make_result(**changes: Any) -> Result:
    spec = TensorSpec(name="x", dtype="float32", shape=("batch", 3, 8, 8))
    artifact = Artifact(
        kind="onnx", model="m", path="m.onnx", sha256="0", files=(), inputs=(spec,), outputs=(), preprocess_sha256="p"
    )
    fields = {"measurements": tuple(make_side(BASE, reference_ns=[1000, 1001])), "artifacts": (artifact,)}
    return replace(make_row("ort"), **{"machine": MACHINE, "measure": MeasureSpec(), **fields, **changes})


def _with_shape(*shape: int | str, dtype: str = "float32") -> tuple[Artifact, ...]:
    return tuple(replace(a, inputs=(TensorSpec(name="x", dtype=dtype, shape=shape),)) for a in make_result().artifacts)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"engine": EngineSpec(backend="ort", batch=8)}, "batch: 1 against 8"),
        ({"engine": EngineSpec(backend="ort", threads=2)}, "threads: 1 against 2"),
        ({"engine": EngineSpec(backend="ort", device="cuda:0")}, "device: cpu against cuda:0"),
        ({"measure": MeasureSpec(scope="io")}, "scope: compute against io"),
        ({"measure": MeasureSpec(scope="pipelined")}, "scope: compute against pipelined"),
        ({"measure": MeasureSpec(cache="cold")}, "cache: hot against cold"),
        ({"artifacts": _with_shape("n", 3, 9, 9)}, "input shapes: 1x3x8x8 against 1x3x9x9"),
        ({"artifacts": _with_shape("n", 3, 8, 8, dtype="uint8")}, "1x3x8x8 against 1x3x8x8 in bytes"),
        ({"artifacts": (replace(make_result().artifacts[0], preprocess_sha256="q"),)}, "preprocess hash"),
        ({"machine": replace(MACHINE, cpu_model="EPYC")}, "cpu model: Xeon against EPYC"),
        ({"machine": replace(MACHINE, governor="powersave")}, "governor: performance against powersave"),
        ({"machine": replace(MACHINE, jetson={"power_mode": "15W"})}, "jetson"),
        ({"measurements": tuple(make_side(BASE, reference_ns=[1031]))}, "1.030 times as long"),
        ({"measurements": tuple(make_side(BASE))}, "without the reference kernel"),
        ({"measurements": tuple(make_side(BASE, clock="device", reference_ns=[1000]))}, "clocks differ"),
    ],
)
def test_unlike_configurations_are_not_comparable(changes: dict[str, Any], reason: str) -> None:
    reasons = comparable(make_result(), make_result(**changes), 0.02)
    assert any(reason in found for found in reasons), reasons


def test_neighbours_need_no_reference_kernel_and_are_of_one_processor() -> None:
    assert comparable(make_result(), make_result(measurements=tuple(make_side(CAND))), neighbours=True) == []
    for change, told in (
        ({"cpu_model": "EPYC"}, ["cpu model: Xeon against EPYC"]),
        ({"cores_physical": 1 + MACHINE.cores_physical}, [f"cores physical: {MACHINE.cores_physical} against"]),
        ({"governor": "powersave"}, []),  # that may be changed while a run goes on
    ):
        other = make_result(machine=replace(MACHINE, **change))
        found = comparable(make_result(), other, neighbours=True)
        assert [reason[: len(text)] for reason, text in zip(found, told, strict=True)] == told


def test_reference_within_the_margin_is_the_same_machine() -> None:
    moved = make_result(measurements=tuple(make_side(BASE, reference_ns=[1015])))
    assert comparable(make_result(), moved, 0.02) == []
    assert comparable(make_result(), moved, 0.01) != []
