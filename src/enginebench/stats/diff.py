"""Compare two runs, configuration by configuration: faster, slower, equivalent, inconclusive, or not comparable and
why."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter

from msgspec import Struct
from msgspec.structs import asdict, replace

from enginebench.core.errors import UsageError
from enginebench.core.limits import MARGIN
from enginebench.core.names import format_engine, format_precision
from enginebench.core.precisions import UNKNOWN
from enginebench.core.records import Result, Score, Verdict
from enginebench.stats.alike import VARIES, do_outputs_vary
from enginebench.stats.assessment import compare_configurations
from enginebench.stats.compare import Comparison, refuse
from enginebench.stats.drift import LIMITS, find_exceeded
from enginebench.stats.layer_records import LayerDelta
from enginebench.stats.metrics.scores import find_drop, find_score, loses_too_much, measure_loss
from enginebench.stats.metrics.tasks import name_metric
from enginebench.stats.quantiles import median

DIFF_SCHEMA = "enginebench.diff/1"

# The verdict over all rows is the first of these that any row has: the worst news first.
WORST_FIRST: tuple[Verdict, ...] = ("slower", "not_comparable", "not_shown", "equivalent", "faster")

# Reasons that a report looks for: the two sides are of different models; only one of them has a configuration.
MODELS_DIFFER, ONE_SIDE = "the models differ", "has this configuration"


class Pair(Struct, frozen=True, kw_only=True):
    """A figure before and after; None: not measured."""

    before: float | None
    after: float | None


class Change(Struct, frozen=True, kw_only=True):
    """The differences between two environments for one configuration, beside its time.

    `layers` are joined by the ONNX nodes that they compute, the largest change first, from one profile each: they show
    where a change lies, not whether there is one.
    """

    model: str
    versions: dict[str, tuple[str | None, str | None]]  # package -> (before, after), of those that differ
    max_abs_diff: float | None  # between the outputs of both versions; None: not compared
    samples: int  # over which the outputs were compared
    peak_memory_bytes: Pair
    build_s: Pair
    size_bytes: Pair
    layers: tuple[LayerDelta, ...] = ()


class DiffRow(Comparison, frozen=True, kw_only=True):
    id: str
    p50_ms: Pair | None = None  # medians of the trials' medians, whatever the verdict
    metric: str | None = None  # that both rows are judged by
    metric_change: float | None = None  # candidate less base; None: not measured on the same samples
    change: Change | None = None  # beside the time, of the same row in two environments
    skipped: bool = False  # on both sides: no side lost anything, so it decides nothing


class DiffDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `diff`."""

    schema: str = DIFF_SCHEMA
    rows: tuple[DiffRow, ...]
    verdict: Verdict
    gate_failed: bool
    margin: float = MARGIN
    max_metric_drop: float | None = None  # None: a point of a share, a hundredth of anything else


def diff_results(
    base: Sequence[Result],
    cand: Sequence[Result],
    margin: float = MARGIN,
    *,
    neighbours: bool = False,
    same_inputs: bool = False,
    allow_not_comparable: bool = False,
    metric: str | None = None,
    max_metric_drop: float | None = None,
) -> DiffDocument:
    """Return the verdict on every configuration of two runs, and over all of them.

    Configurations are paired by their id; the rest by engine and precision (so that one with another batch is
    `not_comparable` for that reason); and if both sides are a single configuration, these two. One without a partner is
    `not_comparable`. So is one that was skipped on both sides, but it decides nothing where there are others.

    Args:
        margin: relative difference that matters, 0.02 for 2 %.
        neighbours: both sides were measured interleaved in one run, so their trials are pairs. Otherwise the
            reference kernel must have taken as long on both sides.
        same_inputs: both sides had the same inputs and the candidate was compared with the base, so that their
            outputs count, too. Otherwise their outputs were not compared.
        allow_not_comparable: such configurations do not fail the gate.
        metric, max_metric_drop: as `MetricLimit` has them.
    """
    limit = MetricLimit(metric=metric, max_drop=max_metric_drop)
    limit.check((*base, *cand))
    pairs = ((b, c, _diff_pair(b, c, margin, neighbours, same_inputs)) for b, c in pair_results(base, cand))
    gated = ((b, c, _gate(row, b, c, allow_not_comparable, limit)) for b, c, row in pairs)
    rows = tuple(_begin_with_models(row, b, c) for b, c, row in gated)
    failed = any(row.failures for row in rows) or (all(row.skipped for row in rows) and not allow_not_comparable)
    return _conclude(rows, failed, margin, max_metric_drop)


def join_documents(documents: Sequence[DiffDocument], margin: float, max_metric_drop: float | None) -> DiffDocument:
    """Join several comparisons, with the verdict over all of their configurations."""
    rows = tuple(row for document in documents for row in document.rows)
    failed = all(row.skipped for row in rows) or any(document.gate_failed for document in documents)
    return _conclude(rows, failed, margin, max_metric_drop)


def _conclude(rows: tuple[DiffRow, ...], failed: bool, margin: float, drop: float | None) -> DiffDocument:
    """Make the document, with the verdict over all rows; if none was tried, it is `not_comparable`."""
    verdicts = {row.verdict for row in rows if not row.skipped}
    verdict: Verdict = next((verdict for verdict in WORST_FIRST if verdict in verdicts), "not_comparable")
    return DiffDocument(rows=rows, verdict=verdict, gate_failed=failed, margin=margin, max_metric_drop=drop)


class MetricLimit(Struct, frozen=True, kw_only=True):
    """The drop of a metric that is allowed, in its own unit; None: of the first metric that both have, one point of a
    fraction, a hundredth of anything else."""

    metric: str | None = None
    max_drop: float | None = None

    def find(self, base: Result, cand: Result) -> tuple[Score | None, Score | None]:
        shared = {score.metric for score in cand.scores}
        decides = self.metric or next((s.metric for s in base.scores if s.metric in shared or not shared), None)
        decides = decides or next((s.metric for s in base.scores), None)
        return tuple(find_score(row.scores, decides) if decides else None for row in (base, cand))  # type: ignore[return-value]

    def check(self, rows: Sequence[Result]) -> None:
        metrics = dict.fromkeys(score.metric for row in rows for score in row.scores)
        if self.metric is not None and self.metric not in metrics:
            raise UsageError(
                f"--metric {self.metric}: no configuration has such a score; there are {', '.join(metrics) or 'none'}"
            )


def _gate(row: DiffRow, base: Result | None, cand: Result | None, allow: bool, limit: MetricLimit) -> DiffRow:
    """Add the reasons why the row fails the gate: slower, not comparable, worse outputs, another precision."""
    wrong = row.reasons[:1] if row.outputs_agree is False else ()  # outputs that differ are never allowed
    failures = (*wrong, "slower") if row.verdict == "slower" else wrong
    if row.verdict == "not_comparable" and not (allow or row.skipped or wrong):
        failures = ("not comparable",)
    if base is None or cand is None:
        return replace(row, failures=failures)
    failures += find_losses(base, cand, limit)
    if not failures and base.status == "ok" and cand.status == "failed":
        # `allow` is for machines and settings that differ, not for an engine that no longer runs.
        failures = ("the base was measured, the candidate failed",)
    before, now = limit.find(base, cand)
    warnings, change, name = [], None, None  # checks of the candidate's outputs that the gate could not make
    if before and now and before.value.n == now.value.n:
        change, name = now.value.value - before.value.value, before.metric
    elif before and now:
        counted = f"{before.value.n} samples of the base, {now.value.n} of the candidate"
        warnings.append(f"{name_metric(before.metric)} was not compared: it was measured on {counted}")
    alone = [r.drift is not None and r.drift.reference == r.id for r in (base, cand)]
    if base.drift is not None and alone == [False, True]:
        warnings.append("outputs of the candidate were compared with its own alone")
    return replace(row, failures=failures, metric=name, metric_change=change, reasons=(*row.reasons, *warnings))


def find_losses(base: Result, cand: Result, limit: MetricLimit | None = None) -> tuple[str, ...]:
    """List the losses of the candidate beside time: worse outputs, another precision."""
    limit, lost = limit or MetricLimit(), []
    before, now = limit.find(base, cand)
    like = before is not None and now is not None and before.value.n == now.value.n
    if before and now and like and loses_too_much(before, now, limit.max_drop):
        lost.append(format_loss(before, now, limit.max_drop))
    if before is not None and now is None and cand.status == "ok":
        lost.append(f"the base has a score by {name_metric(before.metric)}, the candidate has none")
    return (*lost, *_find_lost_agreement(base, cand), *_find_changed_precision(base, cand))


def format_loss(before: Score, now: Score, max_drop: float | None) -> str:
    """Format the loss by a metric, and the loss that is allowed."""
    name, loss, allowed = name_metric(before.metric), measure_loss(before, now), find_drop(before, max_drop)
    if before.share:
        verb = "fell" if before.higher_is_better else "rose"
        return f"{name} {verb} by {100 * loss:.2f} points, more than {100 * allowed:g}"
    return f"{name} went from {before.value.value:.6g} to {now.value.value:.6g}, worse by more than {allowed:.6g}"


def _find_lost_agreement(base: Result, cand: Result) -> list[str]:
    """Report outputs that agree with the reference in the base, and not in the candidate."""
    if cand.drift is not None and cand.drift.reference == base.id:
        return []  # the two were compared with each other, which the verdict includes
    if cand.drift is None or cand.drift.unlike:
        compared = base.drift is not None and not base.drift.unlike and base.drift.reference != base.id
        compared = compared and cand.status == "ok"
        return ["the base's outputs were compared with a reference, the candidate's were not"] if compared else []
    if cand.drift.passed or (base.drift is not None and not base.drift.passed):
        return []
    return ["outputs no longer agree with the reference within the limits"]


def _find_changed_precision(base: Result, cand: Result) -> list[str]:
    """Report a precision that ran and changed although the requested one did not; a requested change is no failure."""
    if base.requested_precision != cand.requested_precision:
        return []
    if base.engine.precision != cand.engine.precision:
        return [f"precision changed: {base.engine.precision} ran before, {cand.engine.precision} now"]
    if base.engine.backend != cand.engine.backend:
        return []  # each engine has names of its own for what it does
    before, now = _dominant(base), _dominant(cand)
    if before and now and before != now:
        return [f"precision changed: most of the time was spent in {before} before, in {now} now"]
    return []


def _dominant(result: Result) -> str | None:
    """Return the precision in which the runtime spent most of its time, by its own record; None where that is not
    recorded."""
    shares = result.effective_precision or {}
    longest = max(shares, key=lambda name: shares[name], default=None)
    return None if longest == UNKNOWN else longest


def pair_results(base: Sequence[Result], cand: Sequence[Result]) -> list[tuple[Result | None, Result | None]]:
    """Pair configurations in the order of the candidate, then those of the base alone; None where there is no
    partner."""
    if len(base) == 1 and len(cand) == 1:
        return [(base[0], cand[0])]

    def name_engine(result: Result) -> Hashable:
        spec = result.engine
        return format_engine(spec), format_precision(result.requested_precision, spec.recipe, spec.mix)

    partners: dict[int, Result] = {}
    left = [list(base), list(cand)]
    keys: tuple[Callable[[Result], Hashable], ...] = (attrgetter("id"), name_engine)
    for key in keys:
        counts = [Counter(map(key, side)) for side in left]
        both = {name for name, count in counts[0].items() if count == counts[1][name] == 1}
        bases = {key(b): b for b in left[0]}
        partners |= {id(c): bases[key(c)] for c in left[1] if key(c) in both}
        left = [[one for one in side if key(one) not in both] for side in left]
    return [(partners.get(id(c)), c) for c in cand] + [(b, None) for b in left[0]]


def _diff_pair(base: Result | None, cand: Result | None, margin: float, neighbours: bool, same_inputs: bool) -> DiffRow:
    """Return the verdict by times; on the same inputs, only if the outputs agree.

    A candidate with other outputs is not `faster`, `equivalent` or `not_shown`: its times are of another task. `slower`
    remains. If outputs cannot be compared, nothing is comparable.
    """
    if base is None or cand is None:
        only, side = base or cand, "base" if base else "candidate"
        comparison = refuse(f"only the {side} {ONE_SIDE}", margin=margin)
        return DiffRow(id=only.id if only else "", **asdict(comparison))
    skipped = base.status == cand.status == "skipped"
    if skipped:
        whys = dict.fromkeys(result.reason or "no reason recorded" for result in (base, cand))
        comparison = refuse(*(f"skipped on both sides: {why}" for why in whys), margin=margin)
    elif obstacles := _find_obstacles(base, "base") + _find_obstacles(cand, "candidate"):
        comparison = refuse(*obstacles, margin=margin)
    else:
        comparison = compare_configurations(base, cand, margin, neighbours=neighbours)
        if comparison.clock == "modelled":
            comparison = replace(comparison, reasons=(*comparison.reasons, "both sides are modelled, not measured"))
    name = cand.id if base.id == cand.id else f"{base.id} -> {cand.id}"
    times = Pair(before=_find_p50(base), after=_find_p50(cand))
    row = DiffRow(id=name, p50_ms=times if times.before or times.after else None, skipped=skipped, **asdict(comparison))
    if same_inputs:
        agree, why = compare_outputs(base, cand)
        if agree:
            return replace(row, outputs_agree=True)
        verdict: Verdict = "slower" if agree is False and row.verdict == "slower" else "not_comparable"
        reasons = (why, *row.reasons)
        return replace(row, verdict=verdict, outputs_agree=agree, reasons=reasons, trials_needed=None)
    return row


def _begin_with_models(row: DiffRow, base: Result | None, cand: Result | None) -> DiffRow:
    """Put first that the two sides are of different models: it explains all other reasons."""
    if base is None or cand is None or base.model == cand.model:
        return row
    return replace(row, reasons=(f"{MODELS_DIFFER}: {base.model} against {cand.model}", *row.reasons))


def _find_p50(result: Result) -> float | None:
    medians = [median(m.latency_ns) for m in result.measurements if m.latency_ns]
    return median(medians) / 1e6 if medians else None


def _find_obstacles(result: Result, side: str) -> list[str]:
    done = sum(bool(m.latency_ns) for m in result.measurements)
    if result.status == "ok" and done:
        return []
    progress = f"{done} of {result.measure.processes} processes were measured" if done else "no samples"
    return [f"the {side} is {result.status}: {result.reason or progress}"]


def compare_outputs(base: Result, cand: Result) -> tuple[bool | None, str]:
    """Return (whether the candidate's outputs agree with the base's within the limits, the reason if not or if
    unknown).

    True only if the candidate was compared with this very base, and every output was held to at least one limit.
    """
    drift = cand.drift
    if drift is not None and drift.unlike:
        return None, f"the outputs cannot be compared: {'; '.join(drift.unlike)}"
    if do_outputs_vary(base, base.id):
        return None, VARIES
    if drift is None or drift.reference != base.id:
        silent = next((row for row in (base, cand) if row.drift is None), cand)
        return None, f"the outputs were not compared: {silent.id} showed none"
    if not drift.n or not drift.outputs:
        return None, "the outputs were not compared: there is no sample that both sides have outputs for"
    if not drift.passed:
        exceeded = "; ".join(find_exceeded(drift))
        return False, f"the outputs are not within the limits: {exceeded}"
    free = [  # no limit was applied to them: a figure that an output does not have keeps every limit
        o.name
        for o in drift.outputs
        if o.max_abs_diff != 0 and all(getattr(o, LIMITS[name][0]) is None for name in drift.limits)
    ]
    if free:
        return None, f"the outputs were not compared: {drift.n} samples of {', '.join(free)} are too few for any limit"
    return True, ""
