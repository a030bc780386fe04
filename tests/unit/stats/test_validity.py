"""What disturbed times and ratios are worth."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from enginebench.core.records import Artifact, Block, Mark, Measurement, Result, ResultWarning
from enginebench.core.warnings import make_warning
from enginebench.report.bench import describe_bench, format_conclusion
from enginebench.report.run.head import format_head
from enginebench.report.run.rows import describe_run
from enginebench.stats.assessment import compare_configurations
from enginebench.stats.compare import compare
from enginebench.stats.diff import compare_outputs, diff_results
from enginebench.stats.drift import default_limits
from enginebench.stats.validity import (
    STARVED_RATIO,
    assess_ratio_validity,
    assess_samples,
    estimate_slowdown,
    measure_trials,
)
from samples import make_drift, make_result
from scripts import load_script


def make(n: int = 100, *, marked: int = 0, mark: Mark = "foreign_cpu", **more: Any) -> Measurement:
    blocks = (Block(start=0, stop=marked, duration_ns=1, marks=(mark,)),) if marked else ()
    fields: dict[str, Any] = {"clock": "host", "warmup_settled": True, "reference_ns": [1000], "blocks": blocks} | more
    return Measurement(latency_ns=[1_000_000] * n, stop_rule="settled", **fields)


def codes(measurements: list[Measurement]) -> tuple[str, list[str]]:
    validity, warnings = assess_samples(measurements)
    assert all(c.advice for c in warnings)
    return validity, [c.code for c in warnings]


def test_a_clean_configuration_no_samples_and_a_single_process_that_ran_out_of_time() -> None:
    assert codes([make()] * 10) == ("valid", [])
    assert codes([])[0] == "invalid"
    assert codes([make(0)]) == ("invalid", [])
    assert codes([replace(make(400), stop_rule="time_limit")])[1] == ["too_few_trials", "not_settled"]


@pytest.mark.parametrize(
    ("marked", "validity"),
    [(1, "valid"), (20, "valid"), (21, "suspect"), (50, "suspect"), (51, "invalid"), (100, "invalid")],
)
@pytest.mark.parametrize(
    ("mark", "code"),
    [
        ("foreign_cpu", "foreign_cpu"),
        ("foreign_gpu", "foreign_gpu"),
        ("throttled", "throttled"),
        ("low_clock", "throttled"),
        ("cold_start", "not_settled"),
    ],
)
def test_marked_samples(marked: int, validity: str, mark: Mark, code: str) -> None:
    assert codes([make(marked=marked, mark=mark)] * 10) == (validity, [code] if marked > 1 else [])


@pytest.mark.parametrize(
    ("processes", "n", "expected"),
    [
        (1, 368, ["too_few_trials"]),
        (1, 367, ["too_few_trials", "too_few_samples"]),
        (5, 100, ["too_few_trials"]),
        (6, 100, []),
        (6, 61, ["too_few_samples"]),
    ],
)
def test_counts(processes: int, n: int, expected: list[str]) -> None:
    assert codes([make(n)] * processes) == ("valid", expected)


@pytest.mark.parametrize(("overhead_ns", "expected"), [(50_000, []), (50_001, ["call_overhead"]), (None, [])])
def test_call_overhead_above_five_per_cent(overhead_ns: float | None, expected: list[str]) -> None:
    assert codes([make(call_overhead_ns=overhead_ns)] * 10)[1] == expected


@pytest.mark.parametrize("settled", [False, True])  # or at a speed that lasted for some of the samples
@pytest.mark.parametrize(("unsettled", "validity"), [(1, "valid"), (2, "valid"), (3, "suspect")])
def test_warmup_that_did_not_settle(unsettled: int, validity: str, settled: bool) -> None:
    one = make(warmup_settled=settled)
    one = replace(one, latency_ns=[1_500_000] * 70 + [1_000_000] * 30) if settled else one
    side = [one] * unsettled + [make()] * (10 - unsettled)
    assert codes(side) == (validity, ["not_settled"])


def test_speed_that_changed_between_processes() -> None:
    assert codes([make()] * 9 + [make(reference_ns=[1199])])[0] == "valid"
    assert codes([make()] * 9 + [make(reference_ns=[1201])]) == ("suspect", ["clock_drift"])
    modelled = [make(clock="modelled")] * 9 + [make(clock="modelled", reference_ns=[1201])]
    assert "clock_drift" not in codes(modelled)[1]
    clocks = [(Block(start=0, stop=1, duration_ns=1, sm_clock_mhz=mhz),) for mhz in (1980, 1500)]
    assert codes([make(blocks=clocks[0])] * 9 + [make(blocks=clocks[1])]) == ("suspect", ["clock_drift"])


def test_a_drift_names_both_ends_with_their_unit() -> None:
    clocks = [(Block(start=0, stop=1, duration_ns=1, sm_clock_mhz=mhz),) for mhz in (1980, 1500)]
    for side, ends in (
        ([make(reference_ns=[2_000_000]), make(reference_ns=[3_000_000])], "lowest 2, highest 3 ms"),
        ([make(blocks=clocks[0]), make(blocks=clocks[1])], "lowest 1500, highest 1980 MHz"),
    ):
        messages = [warning.message for warning in assess_samples(side)[1] if warning.code == "clock_drift"]
        assert len(messages) == 1 and messages[0].endswith(ends)


@pytest.mark.parametrize(("hidden", "expected"), [(5, "valid"), (6, "invalid"), (10, "invalid")])
def test_times_of_a_part_of_the_work_are_invalid(hidden: int, expected: str) -> None:
    lazy = make(warnings=(make_warning("work_outside_run", share=0.98),))
    assert assess_samples([lazy] * hidden + [make()] * (10 - hidden))[0] == expected


@pytest.mark.parametrize(
    ("template", "trials", "expected"),
    [
        ("implausible_time.repeated", 5, "valid"),  # somebody may disturb half of them
        ("implausible_time.repeated", 6, "implausible"),
        ("implausible_time.outputs", 1, "implausible"),  # no disturbance changes outputs
    ],
)
def test_times_without_the_work_are_implausible(template: str, trials: int, expected: str) -> None:
    figures = {"first_ms": 1.0, "again_ms": 0.1} if "repeated" in template else {"share": 0.5}
    short = make(warnings=(make_warning(template, **figures),))
    assert assess_samples([short] * trials + [make()] * (10 - trials))[0] == expected


def make_row(side: Sequence[Measurement]) -> Result:
    return replace(make_result(), measurements=tuple(side), drift=None)


NAMES = ("pytorch fp32", "ort fp32")
TRIALS, CALLS = 10, 200


def make_side(
    quiet_ms: float,
    *,
    slowed: Sequence[float] = (1.0,) * TRIALS,
    marked: float = 0.0,
    mark: Mark = "foreign_cpu",
    seed: int = 0,
    burst: float = 0.0,
) -> list[Measurement]:
    """Trials of calls of `quiet_ms`, in the marked part at the end of each longer by the factor in `slowed`.

    `burst`: the part of the marked calls that nothing slows, because they ended within their time slice.
    """
    rng = np.random.default_rng(seed)
    found = []
    for i, factor in enumerate(slowed):
        times = quiet_ms * 1e6 * np.exp(rng.normal(0, 0.02, CALLS)) * np.exp(rng.normal(0, 0.01))
        start = round(CALLS * (1 - marked))
        times[start:] *= np.where(rng.random(CALLS - start) < burst, 1.0, factor)
        blocks = [Block(start=0, stop=start, duration_ns=1)] if start else []
        blocks += [Block(start=start, stop=CALLS, duration_ns=1, marks=(mark,))] if start < CALLS else []
        found.append(replace(make(blocks=tuple(blocks), trial=i), latency_ns=np.rint(times).astype(int).tolist()))
    return found


def assess_result(base: list[Measurement], cand: list[Measurement]) -> tuple[str, str]:
    ratio = compare(base, cand).ratio
    assert ratio is not None
    assessment = assess_ratio_validity(base, cand, ratio, NAMES)
    return assessment.validity, assessment.reason


def slowdown(side: list[Measurement]) -> float | None:
    return estimate_slowdown(measure_trials(side))


def test_a_slow_call_beside_others_cannot_be_distinguished_from_a_starved_one() -> None:
    base, cand = make_side(600, marked=1.0), make_side(5, seed=1)
    assert slowdown(base) is None
    validity, why = assess_result(base, cand)
    assert validity == "not_given" and "how much is not known" in why


def test_short_calls_beside_others_all_the_time_leave_a_warning() -> None:
    """They did not wait for a turn, but may have been slowed otherwise: the interval allows for that."""
    base, cand = (make_row(make_side(ms, marked=1.0, seed=i)) for i, ms in enumerate((1.0, 0.25)))
    found = compare_configurations(base, replace(cand, id="cand"))
    assert found.ratio_validity == "low" and found.ratio is not None and found.ratio.low is not None
    assert found.ratio.low < 4 / 1.4 and (found.ratio.high or 0) > 4 * 1.4 and found.verdict == "faster"


def test_a_single_trial_beside_others_that_ran_beside_one_side_alone_gives_no_ratio() -> None:
    """All of its calls may be slower, and no interval allows for that; beside both it is the usual one."""
    busy, quiet, also = (
        make_side(ms, slowed=[1.0], marked=m, seed=i)
        for i, (ms, m) in enumerate(((0.3, 1.0), (0.01, 0.0), (0.01, 1.0)))
    )
    assert assess_result(busy, quiet) == ("not_given", "other programs ran beside pytorch fp32 alone, in 1 trial")
    assert assess_result(quiet, busy)[1] == "other programs ran beside ort fp32 alone, in 1 trial"
    assert assess_result(busy, also) == ("low", "1 trial each, no interval")


def test_one_side_throttled_lowers_the_ratio() -> None:
    """The fastest engine draws the most power: that its clock falls is its own doing."""
    hot = make_side(20, marked=0.9, mark="throttled")
    assert assess_result(hot, make_side(5, seed=1)) == ("low", "other programs slowed one side more than the other")
    assert assess_result(hot, make_side(5, marked=0.9, mark="throttled", seed=1))[0] == "medium"


def test_work_of_a_gpu_is_not_slowed_by_others_on_the_cpu() -> None:
    side = [replace(m, device_ns=m.latency_ns) for m in make_side(20, marked=1.0)]
    assert slowdown(side) == 1.0
    busy = [replace(m, device_ns=m.latency_ns) for m in make_side(20, marked=1.0, mark="foreign_gpu")]
    assert slowdown(busy) is None


@pytest.mark.parametrize(
    ("trials", "sd", "expected"),
    [(1, 0.0, "low"), (3, 0.001, "medium"), (10, 0.001, "good"), (10, 0.25, "medium"), (10, 0.9, "low")],
)
def test_trials_and_width_set_the_level(trials: int, sd: float, expected: str) -> None:
    rng = np.random.default_rng(3)
    base = make_side(20)[:trials]
    cand = [
        replace(m, latency_ns=[round(ns * f) for ns in m.latency_ns])
        for m, f in zip(make_side(5, seed=1), np.exp(rng.normal(0, sd, TRIALS)), strict=True)
    ][:trials]
    assert assess_result(base, cand)[0] == expected
    assert trials < 10 or assess_result(base, cand[:3])[0] != "good"  # pairs count


@pytest.mark.parametrize(
    ("base_ms", "marked", "factor", "seed", "validity"),
    [(5, 0.6, 1.35, 1, "low"), (5 * 1.028, 0.2, 1.3, 5, "good"), (5 * 0.979, 0.2, 1.3, 0, "good")],
)
def test_the_interval_holds_what_slowed_one_side_more(base_ms, marked, factor, seed, validity) -> None:
    """Nearly the same engine twice, one beside others: neither faster nor equivalent, by the whole interval."""
    sides = make_side(base_ms, marked=marked, slowed=[factor] * TRIALS), make_side(5, marked=marked, seed=seed)
    base, cand = map(make_row, sides)
    assert factor > 1.3 or compare(*sides).verdict == ("faster" if seed else "equivalent")
    found = compare_configurations(base, replace(cand, id="cand"))
    assert (found.verdict, found.ratio_validity, found.clear) == ("not_shown", validity, False)
    assert found.ratio is not None and found.ratio.low is not None and found.ratio.high is not None
    assert any(found.ratio.low < edge < found.ratio.high for edge in (1 / 1.02, 1.02))


def test_a_wide_interval_beyond_the_margin_names_the_faster_one() -> None:
    # Both sides vary alike, so that the interval is all that there is to doubt, and the verdict has it already.
    base, cand = make_side(6.17, slowed=[1.0] * 6), make_side(2.43, slowed=[1.0] * 6, seed=1)
    factors = (1.0, 1.8, 0.6, 1.7, 0.65, 1.2)
    cand = [replace(m, latency_ns=[round(f * ns) for ns in m.latency_ns]) for m, f in zip(cand, factors, strict=True)]
    found = compare_configurations(make_row(base), make_row(cand))
    assert (found.ratio_validity, found.ratio_reason) == ("low", "wide interval")
    assert found.verdict == "faster"
    assert found.clear


def test_times_of_a_part_of_the_work_have_no_ratio() -> None:
    hidden = ResultWarning(code="work_outside_run", message="run leaves 90% of its work")
    lazy = make_row([replace(m, warnings=(hidden,)) for m in make_side(1)])
    found = compare_configurations(make_row(make_side(20)), replace(lazy, id="lazy"))
    assert (found.verdict, found.ratio, found.ratio_validity) == ("not_comparable", None, "not_given")
    assert "those of a part of its work" in found.ratio_reason


def test_who_is_faster_may_be_clear_where_no_ratio_is_given() -> None:
    """By all pairs, where every other trial starves; not by calls that would be the faster ones undisturbed."""
    ort = make_row(make_side(0.4, marked=1.0, burst=0.2, seed=1))
    some = make_row(make_side(1.2, marked=1.0, burst=0.2, slowed=[1, 900] * 5))
    found = compare_configurations(some, replace(ort, id="ort"))
    assert found.ratio_validity == "not_given" and found.clear
    quicker = make_row(make_side(0.3, marked=1.0, burst=0.2, slowed=[900.0] * TRIALS))
    found = compare_configurations(quicker, replace(ort, id="ort"))
    assert found.ratio_validity == "not_given" and not found.clear
    told = tell(quicker, ort)
    why = "other programs slowed pytorch fp32 far more than ort fp32"
    # Not "what you have" where each of its trials took longer.
    assert told[0].startswith("ort fp32   399 us")
    assert told[1] == f"no verdict against pytorch fp32 ({why}); ort fp32 was faster in every trial"


def tell(pytorch: Result, ort: Result) -> tuple[str, ...]:
    """The lines of USE."""
    sides = zip((make_result(name, drift=make_drift(1e-6)) for name in ("pytorch", "ort")), (pytorch, ort), strict=True)
    rows = [replace(row, measurements=of.measurements, artifacts=of.artifacts) for row, of in sides]
    return format_head(describe_run(model="m", machine=None, spec={}, results=rows))[0].lines


def test_a_starved_baseline_leaves_the_tie_where_each_trial_of_another_is_faster() -> None:
    """As was measured beside others: 84 to 372 ms in each trial, the other one 5 to 10 ms."""
    times = (211, 146, 84, 293, 361, 372), (6.1, 6.8, 9.9, 6, 6, 5.1)
    pytorch, ort = (make_row(make_side(1, slowed=ms, marked=1.0)) for ms in times)
    module = Artifact(kind="torch", model="m", path="", sha256="", files=(), inputs=(), outputs=())
    pytorch = replace(pytorch, artifacts=(module,))
    line = tell(pytorch, ort)[1]
    assert line.startswith("no verdict against pytorch fp32 (")
    assert line.endswith("; ort fp32 was faster in every trial")
    # Nothing limits what others cost PyTorch, which may be as fast; they never cost ONNX Runtime so much.
    cand, slow = (
        replace(row, id=row.engine.backend, engine=replace(row.engine, backend=name), artifacts=())
        for row, name in ((ort, "openvino"), (pytorch, "ort"))
    )
    assert not compare_configurations(pytorch, replace(cand, id="cand")).clear
    assert compare_configurations(slow, replace(cand, id="cand")).clear
    few = [replace(row, measurements=row.measurements[:5]) for row in (slow, cand)]
    assert not compare_configurations(few[0], replace(few[1], id="cand")).clear


def test_simulated_neighbours_give_no_false_ratio() -> None:
    """Of 200 pairs beside neighbours that slow each side as they like, every ratio that is given holds the quiet one
    within what is printed of it, or within the factor that its validity allows."""
    rng = np.random.default_rng(7)
    given = 0
    for seed in range(200):
        factors = [float(np.exp(abs(rng.normal(0, 1.5)))) for _ in range(2)]
        base, cand = (
            make_side(ms, slowed=[factor] * TRIALS, marked=1.0, burst=0.2, seed=10 * seed + i)
            for i, (ms, factor) in enumerate(zip((1.0, 0.25), factors, strict=True))
        )
        validity, _ = assess_result(base, cand)
        apart = max(factors[0] / factors[1], factors[1] / factors[0])
        assert (validity == "not_given") == (apart > STARVED_RATIO) or abs(apart - STARVED_RATIO) < 0.1
        given += validity != "not_given"
    assert given > 20


def test_a_gate_goes_by_the_ratio_and_not_by_single_times() -> None:
    drift = replace(make_drift(1e-6), reference="base", limits=default_limits("fp32"))
    base = replace(make_result(), id="base", measurements=tuple(make_side(1.0, marked=0.8)), drift=None)
    slower = replace(base, id="cand", measurements=tuple(make_side(1.3, marked=0.8, seed=1)), drift=drift)
    (row,) = diff_results([base], [slower], neighbours=True, same_inputs=True).rows
    assert (row.verdict, row.ratio_validity) == ("slower", "medium") and "slower" in row.failures
    comparison = describe_bench([base, slower]).comparison
    assert comparison is not None and comparison.verdict == "slower" and comparison.ratio_validity == "medium"
    starved = replace(slower, measurements=tuple(make_side(0.9, slowed=[80.0] * TRIALS, marked=1.0, burst=0.2, seed=1)))
    (row,) = diff_results([base], [starved], neighbours=True, same_inputs=True).rows
    assert (row.verdict, row.ratio, row.ratio_validity) == ("not_comparable", None, "not_given")
    comparison = describe_bench([base, starved]).comparison
    assert comparison is not None and "far more than" in format_conclusion(comparison)


def test_two_models_that_vary_are_not_held_against_each_other() -> None:
    varies = ResultWarning(code="outputs_vary", message="varies", figures={"row": "base"})
    base = replace(make_result(), id="base", warnings=(varies,), drift=None)
    gross = replace(make_drift(9.0, passed=False, centred=0.2), reference="base")
    cand = replace(make_result(seed=1), id="cand", drift=gross)
    assert compare_outputs(base, cand) == (None, "the model gives different outputs for the same inputs each time")
    assert compare_outputs(replace(base, warnings=()), cand)[0] is False


@pytest.mark.parametrize("others", [others.__name__ for others in load_script("benchmarks/disturbed.py").OTHERS])
def test_simulated_runs_name_the_right_one_and_hold_the_quiet_ratio(others: str) -> None:
    """A few runs of `benchmarks/disturbed.py`, which has the figures of 40 each."""
    runs, script = 4, load_script("benchmarks/disturbed.py")
    found = script.simulate(getattr(script, others), runs, seed=2)
    assert (found.false_winners, found.right, found.wrong) == (0, runs, 0)
    assert 4 * found.held >= 3 * found.given
    assert found.given == 2 * runs or others not in ("nobody", "speeds", "bursts", "turns")
