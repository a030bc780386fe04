"""Random results that a run could have stored: every status, clock, doubt, and every way to be compared or not."""

from functools import cache, lru_cache
from typing import Any, get_args

from hypothesis import strategies as st

from enginebench.core import records
from enginebench.core.precisions import OTHER, REORDER, UNKNOWN
from enginebench.core.records import (
    Drift,
    EngineSpec,
    Measurement,
    OutputDrift,
    Precision,
    Result,
    ResultWarning,
    Score,
)
from enginebench.stats.drift import default_limits
from enginebench.stats.effective import check_precision
from enginebench.stats.metrics.scores import estimate_share

BACKENDS = ("pytorch", "pytorch", "ort", "openvino", "trtexec", "fpga-sim")
SAMPLES = 32
# A child that died before the last process leaves the samples of those before it.
STATUSES: tuple[records.Status, ...] = ("ok", "ok", "ok", "ok", "partial", "failed", "skipped")
MISSING = "a-row-that-is-not-there"
FAILED = ResultWarning(code="failed_proof", message="the record that would prove it failed", advice="take it as asked")


@lru_cache(maxsize=None, typed=True)
def one_of(*values: Any) -> st.SearchStrategy[Any]:
    """`sampled_from`, made once for all draws: each strategy is checked when it is drawn from for the first time."""
    return st.sampled_from(values)


@st.composite
def runs(draw: st.DrawFn, most: int = 5) -> list[Result]:
    """The rows of one run, in the order of its plan."""
    ids = [f"row-{i}" for i in range(draw(st.integers(1, most)))]
    return [draw(results(i, ids)) for i in range(len(ids))]


@st.composite
def results(draw: st.DrawFn, place: int, ids: list[str]) -> Result:
    """One row. Its option `i` makes its name in sentences its own."""
    asked = draw(one_of("fp32", "fp32", "tf32", "fp16", "int8"))
    shares, warnings = draw(proofs())
    ran, judged = (asked, warnings) if warnings else check_precision(asked, shares)
    backend = draw(one_of(*BACKENDS))
    status = draw(one_of(*STATUSES))
    return Result(
        id=ids[place],
        model=draw(one_of("m", "m", "m", "another")),
        engine=EngineSpec(backend=backend, options={"i": str(place)}, precision=ran, batch=draw(one_of(1, 1, 1, 8))),
        measure=records.MeasureSpec(scope=draw(one_of("compute", "compute", "compute", "io"))),
        requested_precision=asked,
        status=status,
        reason=None if status == "ok" else "the child died",
        measurements=draw(_measured(status, "modelled" if backend == "fpga-sim" else "host")),
        drift=draw(st.none() | drifts(asked, [*ids, ids[0], MISSING])),
        scores=draw(_scores()),
        effective_precision=shares,
        warnings=judged,
    )


@cache
@st.composite
def proofs(draw: st.DrawFn) -> tuple[dict[str, float] | None, tuple[ResultWarning, ...]]:
    """(what the runtime's record says, the warning that there is none because it failed)."""
    kind = draw(one_of("none", "failed", "shares", "shares"))
    if kind != "shares":
        return None, (FAILED,) if kind == "failed" else ()
    names = draw(st.lists(one_of(*get_args(Precision), OTHER, REORDER, UNKNOWN), min_size=1, max_size=4, unique=True))
    weights = draw(st.lists(st.integers(1, 100), min_size=len(names), max_size=len(names)))
    return {name: weight / sum(weights) for name, weight in zip(names, weights, strict=True)}, ()


@st.composite
def drifts(draw: st.DrawFn, precision: Precision, references: list[str]) -> Drift:
    """A comparison of none, a few or all of the samples, with a row that is there, or with none."""
    n = draw(one_of(0, 1, 4, SAMPLES, SAMPLES))
    output = draw(_outputs(n))
    passed = n > 0 and not output.nonfinite and draw(st.booleans())
    return Drift(
        n=n, outputs=(output,), limits=default_limits(precision), passed=passed, reference=draw(one_of(*references))
    )


@cache
@st.composite
def _outputs(draw: st.DrawFn, n: int) -> OutputDrift:
    share = one_of(0.5, 0.9, 1.0)
    figure = draw(share) if n else None
    alike = ("mean_abs_diff", "max_abs_diff", "mean_rel_diff", "cosine_mean", "cosine_min", "snr_db", "top1_agreement")
    more: dict[str, Any] = {**dict.fromkeys(alike, figure), "top5_agreement": None}
    more |= {"centred_cosine_mean": draw(share) if n > 1 else None, "nonfinite": draw(one_of(0, 0, 0, 3)) if n else 0}
    return OutputDrift(name="logits", **more)


@cache
def _scores() -> st.SearchStrategy[tuple[Score, ...]]:
    return st.just(()) | accuracies()


@cache
@st.composite
def accuracies(draw: st.DrawFn) -> tuple[Score, ...]:
    n = draw(one_of(10, 450, 450))
    return (Score(metric="top1", value=estimate_share(draw(st.integers(0, 10)) * n // 10, n), share=True),)


@cache
@st.composite
def _measured(draw: st.DrawFn, status: records.Status, clock: records.Clock) -> tuple[Measurement, ...]:
    if status == "skipped":
        return ()
    processes = draw(one_of(1, 3, 6, 8) if status == "ok" else one_of(0, 1, 7))
    median_ns = draw(one_of(1_000_000, 1_500_000, 4_000_000))
    clock = draw(one_of(clock, clock, clock, "tool"))
    spoilt = draw(one_of(0, 0, 0, 1, 2))  # blocks of three
    length = draw(one_of(4, 130))
    return tuple(_make_measurement(i, median_ns + 997 * i, clock, spoilt, 3 * length) for i in range(processes))


def _make_measurement(trial: int, median_ns: int, clock: records.Clock, spoilt: int, n: int) -> Measurement:
    third = n // 3
    marks = [("throttled",) if i < spoilt else () for i in range(3)]
    blocks = tuple(
        records.Block(start=i * third, stop=(i + 1) * third, duration_ns=1, marks=marks[i]) for i in range(3)
    )
    samples: list[int] = [median_ns + 31 * (i % 7) for i in range(n)]
    fields: dict[str, Any] = {"device_ns": samples} if clock == "tool" else {}
    fields |= {"stop_rule": "settled", "warmup_settled": True, "reference_ns": [1_000_000, 1_000_100]}
    return Measurement(clock=clock, latency_ns=samples, blocks=blocks, trial=trial, **fields)
