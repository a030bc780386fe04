"""Assess whether the samples of a configuration are valid, with a warning for everything that disturbed them."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import geometric_mean
from typing import NamedTuple, get_args

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.records import Block, Estimate, Mark, Measurement, RatioValidity, ResultWarning, Validity
from enginebench.core.warnings import make_warning
from enginebench.stats.compare import MIN_TRIALS
from enginebench.stats.intervals import is_correlated
from enginebench.stats.quantiles import median, min_samples
from enginebench.stats.summary import share_marked
from enginebench.stats.trials import condense_trial, count_timed, take_figures

# More than a fifth of the samples marked: p50 with and without them can then lie a whole quintile apart.
SUSPECT_SHARE = 0.2
# Half of the samples marked: the median itself may be one of them (its breakdown point).
INVALID_SHARE = 0.5
# A neighbour that takes less than half of a core leaves the engine the larger part of each core that it shares with it,
# and neighbouring trials share the neighbour: worth a warning, not a verdict.
SPOILING_CORES = 0.5
# One sample in a hundred marked is enough to make up all of what lies beyond p99.
VISIBLE_SHARE = 0.01
# A median that is one part in twenty our own call is not the engine's alone.
CALL_SHARE = 0.05
# Virtual machines were seen to have two speed states, 1.5 apart, that last for seconds. Halfway between (on a log
# scale, sqrt(1.5) = 1.22) parts one state with noise from both states.
SPEED_RATIO = 1.2
# Source: trtexec, which warns where the median enqueue time is above this share of the median GPU time.
ENQUEUE_SHARE = 0.8
# A host 1.2 times slower (SPEED_RATIO) moves such a latency by a tenth of a fifth: 2 %, which is the verdicts' margin.
DEVICE_PACED_SHARE = 0.9
# The verdicts' margin. Graphs of fixed kernels repeat within 0.7 % on an H200; rows whose host works before each launch
# were seen to differ by 5 %. CPUs of shared machines differ as a rule, and a configuration's interval shows how much.
HALVES_RATIO = 1.02
# Two sides that others slowed by factors further apart than the two speed states of virtual machines (above) were not
# disturbed alike: measured with two busy loops beside, one engine was slowed 100 times and another 4 times.
STARVED_RATIO = 1.5
# Beside loops that kept every core busy ONNX Runtime was slowed up to 5.3 times and OpenVINO 2, but PyTorch 100 times
# and more: its trials record the least that a call takes.
UNSEEN_RATIO = 6.0
# The shortest time slice of Linux's scheduler on two CPUs: a shorter call did not wait for a thread to get its turn.
SLICE_NS = 1_500_000
# Fewer undisturbed samples do not show a trial's undisturbed time, nor do fewer such trials show that of the others.
QUIET_SHARE = 0.1
# Upper end of a ratio's interval over its lower end: up to here `good`, up to there `medium`. The verdicts' margin of
# 2 % is decided long before; beyond a factor of two an interval does not even give the order of magnitude.
NARROW_RATIO = 1.25
WIDE_RATIO = 2.0
# Chances with which independent trials show as much autocorrelation: below the first, the usual 5 %, a ratio is no
# longer `good`, below the second it is `low`.
CORRELATED = 0.05
SURELY_CORRELATED = 0.01

# Times from which no recommendation and no chart of the best is made.
UNUSABLE: tuple[Validity, ...] = ("invalid", "implausible")


def assess_samples(measurements: Sequence[Measurement]) -> tuple[Validity, list[ResultWarning]]:
    """Return (validity, warnings) of a configuration, from its samples alone.

    `implausible`: no correct engine takes so little time, or the work was not done in each timed call. `invalid`: no
    samples, or more than half of them marked, not counting blocks in which others took less than half a core; or more
    than half of the processes left work outside of the timed calls. `suspect`: more than a fifth marked, warm-up not
    settled in more than a fifth of the processes, the machine's speed changed between processes, or, on a GPU, one half
    of the processes disagrees with the other. Warnings that trials carry themselves are stored with them.
    """
    kept = [condense_trial(m) for m in measurements if m.latency_ns]
    if not kept:
        return "invalid", []
    drifting = list(_find_drift(kept))
    own: Validity = "valid"
    if is_implausible(kept):
        own = "implausible"
    elif hides_work(kept):
        own = "invalid"
    elif drifting or _share_unsettled(kept) > SUSPECT_SHARE:
        own = "suspect"
    warnings = [*list_mark_warnings(kept), *_list_trial_warnings(kept), *list_enqueue_warnings(kept), *drifting]
    return find_worst([assess_marks(kept), own]), warnings


def hides_work(measurements: Sequence[Measurement]) -> bool:
    """Whether most trials left a part of the work outside of the timed calls: their times are not those of the
    model."""
    hidden = sum(any(warning.code == "work_outside_run" for warning in m.warnings) for m in measurements)
    return hidden > INVALID_SHARE * len(measurements) or is_implausible(measurements)


def is_implausible(measurements: Sequence[Measurement]) -> bool:
    """Whether no correct engine has such times: by the outputs of one trial, or by the times of most."""
    implausible = [[c.template for c in m.warnings if c.code == "implausible_time"] for m in measurements]
    wrong = any("implausible_time.outputs" in templates for templates in implausible)
    return wrong or sum(map(bool, implausible)) > INVALID_SHARE * len(measurements)


def explain_implausible(measurements: Sequence[Measurement]) -> str:
    """Explain implausible times; "" where they are plausible."""
    if not is_implausible(measurements):
        return ""
    return next(c.message for m in measurements for c in m.warnings if c.code == "implausible_time")


class RatioAssessment(Struct, frozen=True):
    """The validity of the ratio of two sides, apart from the validity of the times themselves."""

    validity: RatioValidity
    reason: str  # why it is not `good`
    bias: float | None = None  # by how much more others slowed the base than the candidate; None: not known
    uncertainty: float = 1.0  # the factor by which that may be wrong, either way
    least: float = 0.0  # the smallest ratio of a pair, without what others cost where that is known
    alike: bool = False  # both sides were disturbed alike, so that the interval covers all uncertainty


def assess_ratio_validity(
    base: Sequence[Measurement],
    cand: Sequence[Measurement],
    ratio: Estimate,
    names: tuple[str, str],
    autocorrelation: float | None = None,
    *,
    steered: bool = False,
) -> RatioAssessment:
    """Assess the validity of a ratio. A disturbance of both sides alike is in its interval already.

    The validity is `not_given` where no interval would cover the ratio that the user would see: a side's times are
    implausible or leave out a part of its work; other programs slowed one side far more than the other, or by an
    unknown amount; or they ran beside one side all the time, and one trial each has no interval to cover that cost.
    """
    for side, name in zip((base, cand), names, strict=True):
        if is_implausible(side):
            return RatioAssessment("not_given", f"the times of {name} are implausible")
        if hides_work(side):
            return RatioAssessment("not_given", f"the times of {name} are those of a part of its work")
    trials = [measure_trials(side) for side in (base, cand)]
    slowed, separable = [estimate_slowdown(side) for side in trials], all(t.alone_ns for side in trials for t in side)
    times = [{t.trial: t.alone_ns if separable and t.alone_ns else t.median_ns for t in side} for side in trials]
    least = min((times[0][i] / times[1][i] for i in times[0].keys() & times[1].keys()), default=0.0)
    if slowed[0] is None or slowed[1] is None:
        busy = names[slowed.index(None)]
        why = f"other programs slowed {busy}, and how much is not known"
        least, uncertainty = _bound_ratio(base, cand, trials[0] if slowed[0] else (), steered=steered)
        return RatioAssessment("not_given", why, uncertainty=uncertainty, least=least)
    bias = slowed[0] / slowed[1]
    apart = max(bias, 1 / bias)
    assessment = RatioAssessment(
        "good", "", bias, STARVED_RATIO if any(t.unsure for side in trials for t in side) else 1.0, least
    )
    if apart > STARVED_RATIO:
        first, second = names if bias > 1 else names[::-1]
        why = f"other programs slowed {first} far more than {second}"
        return replace(assessment, validity="not_given", reason=why)
    marked = [share_marked(side) for side in (base, cand)]
    if ratio.low is None and assessment.uncertainty > 1 and max(marked) - min(marked) > SUSPECT_SHARE:
        busy = names[marked.index(max(marked))]
        return replace(assessment, validity="not_given", reason=f"other programs ran beside {busy} alone, in 1 trial")
    unsettled = max(_share_unsettled(side) for side in (base, cand))
    widened = widen_ratio(ratio, assessment)
    validity, why = grade_ratio(widened, marked, autocorrelation, apart=apart, unsettled=unsettled)
    alike = assessment.uncertainty == 1 and disturbed_alike(marked, apart)
    return replace(assessment, validity=validity, reason=why, alike=alike)


def disturbed_alike(marked: Sequence[float], apart: float = 1.0) -> bool:
    """Whether neither side was slowed, or marked, noticeably more than the other."""
    return apart <= SPEED_RATIO and max(marked) - min(marked) <= SUSPECT_SHARE


def grade_ratio(
    ratio: Estimate,
    marked: Sequence[float],
    autocorrelation: float | None,
    *,
    apart: float = 1.0,
    unsettled: float = 0.0,
) -> tuple[RatioValidity, str]:
    """Return (`good`, `medium` or `low`, why it is not `good`) for a ratio; `marked`: the disturbed fraction of each
    side."""
    resemble = f"neighbouring trials resemble each other, autocorrelation {autocorrelation or 0.0:.2f}"
    width = ratio.high / ratio.low if ratio.high is not None and ratio.low else None
    warnings: list[tuple[bool, RatioValidity, str]] = [
        (width is None, "low", "1 trial each, no interval"),
        (width is not None and width > WIDE_RATIO, "low", "wide interval"),
        (not disturbed_alike(marked, apart), "low", "other programs slowed one side more than the other"),
        (is_correlated(autocorrelation, ratio.n, SURELY_CORRELATED), "low", resemble),
        (ratio.n < MIN_TRIALS, "medium", "few trials"),
        (width is not None and width > NARROW_RATIO, "medium", "wide interval"),
        (is_correlated(autocorrelation, ratio.n, CORRELATED), "medium", resemble),
        (max(marked) > SUSPECT_SHARE, "medium", f"{max(marked):.0%} of the samples disturbed"),
        (unsettled > SUSPECT_SHARE, "medium", "warm-up had not settled"),
    ]
    return next(((validity, why) for holds, validity, why in warnings if holds), ("good", ""))


def widen_ratio(ratio: Estimate, assessment: RatioAssessment) -> Estimate:
    """Widen the interval of a ratio so that it includes the ratio without what slowed one side more than the other."""
    if ratio.low is None or ratio.high is None or assessment.bias is None:
        return ratio
    low, high = min(ratio.low, ratio.low / assessment.bias), max(ratio.high, ratio.high / assessment.bias)
    return replace(ratio, low=low / assessment.uncertainty, high=high * assessment.uncertainty)


class TrialMedian(NamedTuple):
    """The median of a trial, and the median without other programs; None: it cannot be estimated."""

    trial: int
    median_ns: float
    alone_ns: float | None
    unsure: bool = False  # by calls beside others, which may have slowed these, too, or by less than half of the trials


def measure_trials(measurements: Sequence[Measurement]) -> list[TrialMedian]:
    """Return each trial with the median of its samples in blocks without marks of other programs.

    If it has next to none, that of the other trials is taken; if these have none either, that of calls shorter than any
    wait for a turn.
    """
    kept = [(m, median(m.latency_ns)) for m in measurements if m.latency_ns]
    quiet = [_find_quiet(m, middle) for m, middle in kept]
    quiet_ns = [ns for ns in quiet if ns is not None]
    if len(quiet_ns) > QUIET_SHARE * len(kept):
        best: float | None = geometric_mean(quiet_ns)
    else:
        least = _find_quickest(measurements)
        best = least if least <= SLICE_NS else None
    unsure = 2 * len(quiet_ns) < len(kept)
    return [TrialMedian(m.trial, middle, ns or best, unsure) for (m, middle), ns in zip(kept, quiet, strict=True)]


def _find_quiet(measurement: Measurement, middle: float) -> float | None:
    """Return the median of the samples beside which no other program ran, if these are more than a tenth."""
    figures = take_figures(measurement)
    # On what its times depend on: of work that is the GPU's, not the CPU.
    quiet = figures.beside_no_gpu_user if _ignores_host(measurement) else figures.beside_nobody
    if quiet is None:
        return middle
    return quiet.median_ns if quiet.fraction > QUIET_SHARE else None


def estimate_slowdown(trials: Sequence[TrialMedian]) -> float | None:
    """Estimate how many times slower other programs made a side, as a geometric mean; None: that is unknown."""
    slowed = [trial.median_ns / trial.alone_ns for trial in trials if trial.alone_ns]
    return max(1.0, geometric_mean(slowed)) if len(slowed) == len(trials) else None


def _bound_ratio(
    base: Sequence[Measurement], cand: Sequence[Measurement], trials: Sequence[TrialMedian], *, steered: bool
) -> tuple[float, float]:
    """Return (how many times slower the base is at least, the factor by which that may be wrong), whatever others cost.

    The least that its calls can take is compared with calls of the candidate that were hardly slowed, in half of its
    trials: CPU time, too, is longer beside others (18 to 30 ms were seen). Where that least is unknown, all trials of
    one side are compared with all of the other; with fewer than six that is chance, and nothing limits by how much
    a base that is `steered` by Python is slowed.
    """
    least = [t.alone_ns for t in trials if t.alone_ns] or [m.least_ns for m in base if m.least_ns is not None]
    if least:
        quick = median([_find_quickest([m]) for m in cand if m.latency_ns])
        return min(least) / quick, STARVED_RATIO if len(least) >= MIN_TRIALS else WIDE_RATIO
    times = [[median(m.latency_ns) for m in side if m.latency_ns] for side in (base, cand)]
    unsafe = min(map(len, times)) < MIN_TRIALS or steered
    return 0.0 if unsafe else min(times[0]) / max(times[1]), UNSEEN_RATIO


def _find_quickest(measurements: Sequence[Measurement]) -> float:
    """Return the 5th percentile of the times of trials, each with the same weight."""
    return float(np.percentile(np.concatenate([take_figures(m).ladder_ns for m in measurements if m.latency_ns]), 5))


def _share_unsettled(measurements: Sequence[Measurement]) -> float:
    return _count_unsettled(measurements) / len(measurements)


def _count_unsettled(measurements: Sequence[Measurement]) -> int:
    """Count trials whose warm-up had not settled, or settled at another speed than the last: the first half of the
    samples took far longer than the second, so that the median may be of either."""
    return sum(m.warmup_settled is False or _gets_faster(m) for m in measurements)


def _gets_faster(measurement: Measurement) -> bool:
    halves = take_figures(measurement).halves_ns if measurement.latency_ns else None
    return halves is not None and halves[0] > SPEED_RATIO * halves[1]


def assess_marks(measurements: Sequence[Measurement]) -> Validity:
    """Assess samples by their marks alone: `invalid` where too many are in blocks whose median itself is affected."""
    total = sum(map(count_timed, measurements))
    if sum(b.stop - b.start for m in measurements for b in m.blocks if _is_spoilt(b)) > INVALID_SHARE * total:
        return "invalid"
    return "suspect" if share_marked(measurements) > SUSPECT_SHARE else "valid"


def find_worst(validities: Iterable[Validity]) -> Validity:
    """Return the worst of several verdicts; `valid` where there is none."""
    return max(validities, key=get_args(Validity).index, default="valid")


def _is_spoilt(block: Block) -> bool:
    if "foreign_cpu" not in block.marks or len(block.marks) > 1:
        return bool(block.marks)
    return block.foreign_cpu_cores is None or block.foreign_cpu_cores >= SPOILING_CORES


def list_mark_warnings(measurements: Sequence[Measurement]) -> Iterator[ResultWarning]:
    """Yield one warning for each thing that disturbed more samples than a percentile hides."""
    shares = {mark: share_marked(measurements, mark) for mark in get_args(Mark)}
    if shares["foreign_cpu"] > VISIBLE_SHARE:
        yield make_warning("foreign_cpu", share=shares["foreign_cpu"])
    if shares["foreign_gpu"] > VISIBLE_SHARE:
        yield make_warning("foreign_gpu", share=shares["foreign_gpu"])
    if shares["throttled"] > VISIBLE_SHARE:
        yield make_warning("throttled", what="the device was throttled", share=shares["throttled"])
    if shares["low_clock"] > VISIBLE_SHARE:
        yield make_warning("throttled", what="the clock was low", share=shares["low_clock"])
    if shares["cold_start"] > VISIBLE_SHARE:
        yield make_warning("not_settled.cold_start", share=shares["cold_start"])


def _list_trial_warnings(measurements: Sequence[Measurement]) -> Iterator[ResultWarning]:
    """Warn of too few trials, our own share of a call, warm-up, and the limit that ended a single trial."""
    processes, n = len(measurements), sum(map(count_timed, measurements))
    if processes < MIN_TRIALS:
        yield make_warning("too_few_trials", n=processes, needed=MIN_TRIALS)
    if n < min_samples(0.99):
        yield make_warning("too_few_samples", n=n, units="samples", percentile="99", needed=min_samples(0.99))
    overheads = [(m.call_overhead_ns, median(m.latency_ns)) for m in measurements if m.call_overhead_ns is not None]
    shares = [overhead / latency for overhead, latency in overheads if latency > 0]
    if shares and median(shares) > CALL_SHARE:
        yield make_warning("call_overhead", share=median(shares))
    if unsettled := _count_unsettled(measurements):
        yield make_warning("not_settled.warmup", unsettled=unsettled, total=processes)
    # One process must carry its median alone; of several the spread between them shows what was not settled.
    if processes == 1 and measurements[0].stop_rule in ("time_limit", "sample_limit"):
        yield make_warning("not_settled", when="at the limit of time or samples")


def list_enqueue_warnings(measurements: Sequence[Measurement]) -> Iterator[ResultWarning]:
    """Warn where launching takes as long as computing: the host is timed, and the GPU waits for it."""
    launched = [m for m in measurements if m.enqueue_ns and m.device_ns and median(m.device_ns) > 0]
    shares = [median(m.enqueue_ns or ()) / median(m.device_ns or ()) for m in launched]
    if shares and median(shares) > ENQUEUE_SHARE:
        yield make_warning("enqueue_bound", share=median(shares))


def _find_drift(measurements: Sequence[Measurement]) -> Iterator[ResultWarning]:
    """Warn where the machine's speed changed, or a GPU's trials fall into two groups."""
    references = [median(m.reference_ns) for m in measurements if m.reference_ns and not _ignores_host(m)]
    if _ratio(references) > SPEED_RATIO:
        yield _make_drift("the time of the reference kernel", [ns / 1e6 for ns in references], "ms")
    clocks = [median(mhz) for m in measurements if (mhz := [b.sm_clock_mhz for b in m.blocks if b.sm_clock_mhz])]
    if _ratio(clocks) > SPEED_RATIO:
        yield _make_drift("the GPU clock", clocks, "MHz")
    # Even and odd processes are the same engine, measured twice.
    if (halves := compare_halves([m for m in measurements if m.device_ns])) and halves > HALVES_RATIO:
        yield make_warning("uneven_processes", difference=halves - 1)


def _make_drift(what: str, values: Sequence[float], unit: str) -> ResultWarning:
    return make_warning("clock_drift", what=what, ratio=_ratio(values), low=min(values), high=max(values), unit=unit)


def compare_halves(measurements: Sequence[Measurement]) -> float | None:
    """Return the p50 of even and of odd processes, the larger over the smaller; None with too few of them."""
    if len(measurements) < MIN_TRIALS:
        return None
    halves = [[median(m.latency_ns) for m in measurements if m.trial % 2 == odd] for odd in (0, 1)]
    return _ratio([geometric_mean(half) for half in halves if half])


def _ignores_host(measurement: Measurement) -> bool:
    """Whether the host's speed is not in the latency: it is modelled, or nearly all of it a device's own time, which
    does not wait for launches."""
    if measurement.clock == "modelled" or not (measurement.device_ns and measurement.latency_ns):
        return measurement.clock == "modelled"
    device_ns = median(measurement.device_ns)
    launched = not measurement.enqueue_ns or median(measurement.enqueue_ns) <= ENQUEUE_SHARE * device_ns
    return launched and device_ns >= DEVICE_PACED_SHARE * median(measurement.latency_ns)


def _ratio(values: Sequence[float]) -> float:
    return max(values) / min(values) if values and min(values) > 0 else 1.0
