"""Which row of a run is the fastest, which one is recommended, and between which of them only the user can choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from enginebench.analyze.compared import find_references, keep_comparisons
from enginebench.analyze.metrics.scores import find_score, loses_too_much
from enginebench.analyze.standing import Standing, compare_rows, find_baseline, find_setting, is_plain_fp32, weigh
from enginebench.core.limits import MARGIN
from enginebench.core.names import format_engine
from enginebench.core.records import Precision, Result, Score, Verdict

# Outputs of different FP32 kernels differ in the sixth digit; that must not decide which row is on the Pareto front.
QUALITY_DIGITS = 4

RecommendedBy = Literal["metric", "drift", "search"]  # "search": by the search whose final the rows are


class Ref(Struct, frozen=True, kw_only=True):
    """The row that an answer names. `tied_with`: rows that it was not shown to be faster than."""

    id: str
    engine: str
    precision: Precision | None
    batch: int
    speedup: float | None
    verdict: Verdict | None = None
    tied_with: tuple[str, ...] = ()


class Ranking(Struct, frozen=True, kw_only=True):
    """The rows of a run, in the order given, and the two answers."""

    standings: tuple[Standing, ...]
    fastest: Ref | None
    recommended: Ref | None
    recommended_by: RecommendedBy


def rank_results(
    results: Sequence[Result],
    *,
    baseline_engine: str = "pytorch",
    margin: float = MARGIN,
    metric: str | None = None,
    max_metric_drop: float | None = None,
    p99_limit_ms: float | None = None,
) -> Ranking:
    """The rows of a run beside their baselines, and the two answers.

    `fastest` is the ok row with the largest speed-up whose outputs agree with the reference's (the reference
    itself counts), among rows with the batch, scope and cache of the first row. `recommended` is the fastest within the
    limit of the metric; without labelled data the outputs' agreement has to do, so it is `fastest`, unless its p99 is
    too slow.

    Args:
        results: in the order of the table.
        baseline_engine: ENGINE whose FP32 row speed-ups are taken against.
        margin: for verdicts.
        metric: that decides; None: the first one that the rows have.
        max_metric_drop: what `recommended` may lose of it, in its own unit; None: a point of a share, a hundredth of
            anything else.
        p99_limit_ms: `recommended` keeps to it.
    """
    metric = metric or name_deciding(results)
    rows = mark_pareto(_weigh_all(keep_comparisons(results), baseline_engine, margin), metric)
    ranked = order_by_speed(rows)
    agreeing = [row for row in ranked if _agrees(row)]
    accurate = _within_limit(ranked, rows, metric, max_metric_drop)
    chosen = agreeing if accurate is None else accurate
    return Ranking(
        standings=tuple(rows),
        fastest=_name_first(agreeing, margin),
        recommended=_name_first([row for row in chosen if _keeps_to(row, p99_limit_ms)], margin),
        recommended_by="drift" if accurate is None else "metric",
    )


def _weigh_all(results: Sequence[Result], engine: str, margin: float) -> list[Standing]:
    groups: dict[tuple[object, ...], list[Result]] = {}
    for result in results:
        groups.setdefault(find_setting(result), []).append(result)
    found = {setting: find_baseline(rows[0], rows, engine) for setting, rows in groups.items()}
    baselines = [found[find_setting(result)] for result in results]
    references = find_references(results, baselines)
    return [
        weigh(result, base, margin=margin, is_reference=result.id in references)
        for result, base in zip(results, baselines, strict=True)
    ]


def order_by_speed(rows: Sequence[Standing]) -> list[Standing]:
    """Rows that an answer may name, fastest first: measured, believable, and like the first row in what was timed."""
    named = [
        row
        for row in rows
        if row.result.status == "ok" and row.validity != "invalid" and not row.modelled and row.speedup is not None
    ]
    first = [row for row in named if row.setting == named[0].setting]
    return sorted(first, key=lambda row: -row.speedup.value if row.speedup else 0.0)


def _agrees(row: Standing) -> bool:
    if row.result.drift and row.result.drift.unlike:
        return False
    return row.agreement.outputs_agree is True or (row.agreement.outputs_agree is None and row.is_reference)


def name_deciding(results: Sequence[Result]) -> str | None:
    """The metric that decides about rows: the first one of the first row that has any."""
    return next((row.scores[0].metric for row in results if row.scores), None)


def _within_limit(
    ranked: Sequence[Standing], rows: Sequence[Standing], metric: str | None, max_drop: float | None
) -> list[Standing] | None:
    """The ranked rows that lose little enough of the metric against FP32, on as many samples; None without labels."""
    known = [row for row in rows if _find_score(row, metric) and is_plain_fp32(row.result)]
    known.sort(key=lambda row: row.result.id != row.baseline)
    base = _find_score(known[0], metric) if known else None
    if base is None:
        return None
    return [row for row in ranked if not row.agreement.nonfinite and _keeps(_find_score(row, metric), base, max_drop)]


def _keeps(score: Score | None, base: Score, max_drop: float | None) -> bool:
    return score is not None and score.value.n == base.value.n and not loses_too_much(base, score, max_drop)


def _find_score(row: Standing, metric: str | None) -> Score | None:
    return find_score(row.result.scores, metric) if metric else None


def _keeps_to(row: Standing, p99_limit_ms: float | None) -> bool:
    return p99_limit_ms is None or (row.summary is not None and row.summary.p99.value <= p99_limit_ms)


def _name_first(ranked: Sequence[Standing], margin: float) -> Ref | None:
    """The first row, and the others that it was not shown to be faster than."""
    if not ranked:
        return None
    best, others = ranked[0], [row.result for row in ranked[1:]]
    engine = best.result.engine
    return Ref(
        id=best.result.id,
        engine=format_engine(engine),
        precision=engine.precision,
        batch=engine.batch,
        speedup=best.speedup.value if best.speedup else None,
        verdict=best.comparison.verdict if best.comparison else None,
        tied_with=tuple(r.id for r in others if compare_rows(r, best.result, margin).verdict != "faster"),
    )


def mark_pareto(rows: Sequence[Standing], metric: str | None = None) -> list[Standing]:
    """The rows with `pareto` set where no other row is as fast and as good, and better in one of the two.

    Good is the metric where it was measured for any row, else the centred cosine to the reference, to
    four digits. Only ok rows of one batch, scope and cache are held against each other, and none that is invalid.
    """
    points = [_place(row, metric) for row in rows]
    fronts: dict[tuple[object, ...], list[Place]] = {}
    for point in sorted(filter(None, points), key=lambda point: (point[1], -point[2])):  # a slower one must be better
        front = fronts.setdefault(point[0], [])
        if not front or point[2] > front[-1][2] or point[1:] == front[-1][1:]:
            front.append(point)
    best = {point for front in fronts.values() for point in front}
    return [replace(row, pareto=point in best) for row, point in zip(rows, points, strict=True)]


Place = tuple[tuple[object, ...], float, float]


def _place(row: Standing, metric: str | None) -> Place | None:
    """(setting and clock, p50 in ms, quality) of a row that can be on the front."""
    agreement = row.agreement
    is_truth = row.is_reference and agreement.outputs_agree is None
    likeness = agreement.centred_cosine if agreement.centred_cosine is not None else agreement.agreement
    quality = find_quality(_find_score(row, metric), likeness, by_metric=metric is not None, is_truth=is_truth)
    if row.result.status != "ok" or row.summary is None or agreement.nonfinite or row.modelled or quality is None:
        return None
    if row.validity == "invalid":
        return None
    return (*row.setting, row.clock), row.summary.p50.value, _round_quality(quality)


def _round_quality(quality: float) -> float:
    """To as many digits as decide, whatever the metric's unit."""
    return float(f"{quality:.{QUALITY_DIGITS}g}") if abs(quality) > 1 else round(quality, QUALITY_DIGITS)


def find_quality(score: Score | None, likeness: float | None, *, by_metric: bool, is_truth: bool) -> float | None:
    """The metric's figure, larger if better, or how much the outputs are like the reference's; None without either.

    Args:
        score: of the row, if it was measured.
        likeness: centred cosine of its outputs to the reference's, or the share of decisions that both took.
        by_metric: whether a metric is what the rows of this run are judged by.
        is_truth: the row is what the others were compared with; it agrees with itself.
    """
    if by_metric:
        return None if score is None else score.value.value if score.higher_is_better else -score.value.value
    return 1.0 if is_truth else likeness
