"""Rank the configurations of a run: the fastest, the recommended one, and those between which only the user can
choose."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.entry import EAGER
from enginebench.core.limits import MARGIN, MOST
from enginebench.core.names import format_engine
from enginebench.core.records import Precision, Result, Score, Verdict
from enginebench.stats.alike import apply_usual_limits, check_comparisons, find_references, is_reduced, list_invented
from enginebench.stats.assessment import (
    Assessment,
    assess_result,
    compare_configurations,
    find_baseline,
    find_setting,
    find_today,
    is_plain_fp32,
)
from enginebench.stats.condensed import condense_result
from enginebench.stats.headline import Excesses, Headline, choose_agreeing, format_change, make_headline, order_by_speed
from enginebench.stats.life import spend_lives
from enginebench.stats.metrics.scores import find_metric, find_score, loses_too_much
from enginebench.stats.metrics.tasks import name_metric
from enginebench.stats.needs import explain_excesses
from enginebench.stats.validity import UNUSABLE

# Outputs of different FP32 kernels differ in the sixth digit; that must not decide which row is on the Pareto front.
QUALITY_DIGITS = 4

Point = TypeVar("Point")
RecommendedBy = Literal["metric", "drift", "search"]  # "search": by the search whose final the rows are


class Ref(Struct, frozen=True, kw_only=True):
    """A configuration that a document names. `tied_with`: those that it is not significantly faster than."""

    id: str
    engine: str
    precision: Precision | None
    batch: int
    speedup: float | None
    verdict: Verdict | None = None
    tied_with: tuple[str, ...] = ()


class Ranking(Struct, frozen=True, kw_only=True):
    """The configurations of a run in their order, the headline of each setting, and the two picks of the first
    setting."""

    assessments: tuple[Assessment, ...]
    fastest: Ref | None
    recommended: Ref | None
    recommended_by: RecommendedBy
    headlines: tuple[Headline, ...]  # of each batch and shape, scope and cache in which anything was measured


class Rules(Struct, frozen=True, kw_only=True):
    """The rules by which the configurations of a run are ranked."""

    baseline_engine: str = EAGER  # ENGINE whose FP32 row speed-ups are taken against
    margin: float = MARGIN
    metric: str | None = None  # that decides; None: the first one that the rows have
    # What `recommended` may lose of it, in its own unit; None: a point of a share, a hundredth of anything else.
    max_metric_drop: float | None = None
    p99_limit_ms: float | None = None  # `recommended` keeps to it
    needs: Mapping[str, float] = {}  # `recommended` meets them, see `stats/needs.py`
    for_calls: int | None = None  # the headline is that of a new process with so many calls; None: of one call
    limits: Mapping[str, float] | None = None  # of the outputs; None: the usual ones
    requested: tuple[Precision | None, ...] = ()  # precisions that were asked for, beside those of the rows


USUAL = Rules()


def rank_results(results: Sequence[Result], rules: Rules = USUAL) -> Ranking:
    """Assess the configurations of a run against their baselines, and pick the fastest and the recommended one.

    `fastest` is the configuration with the lowest median whose outputs are not known to be changed; `recommended` is
    the one that the headline names: the fastest within the limits of the metric (or of the outputs, without labels) and
    of p99, and among those without a significant difference the one that the user has, or whose outputs are the most
    certain.
    """
    rules = replace(rules, metric=rules.metric or find_metric(results))
    requested = (*rules.requested, *(result.requested_precision for result in results))
    marked = mark_pareto(_assess_all(results, rules, requested), rules.metric)
    excesses = {assessment.result.id: _find_excesses(assessment, rules) for assessment in marked}
    named = marked
    if rules.for_calls is not None:
        lives = [spend_lives(result, rules.for_calls) for result in results]
        named = _assess_all(lives, rules, requested)
    groups: dict[tuple[object, ...], list[Assessment]] = {}
    for assessment in named:
        groups.setdefault(assessment.setting, []).append(assessment)
    rankings = [_rank_setting(group, rules, excesses) for group in groups.values()]
    ranked = [ranking for ranking in rankings if ranking is not None]
    fastest = {ranking.fastest.setting: ranking.fastest for ranking in ranked}
    assessments = []
    for assessment in marked:  # with its comparison with the fastest, so that one hopeless baseline costs nothing else
        best = fastest.get(assessment.setting)
        if best is not None and assessment.summary is not None and best.result.id != assessment.result.id:
            held = compare_configurations(best.result, assessment.result, rules.margin)
            assessment = replace(assessment, ratio_to_fastest=held.ratio, verdict_to_fastest=held.verdict)
        assessments.append(assessment)
    if not ranked:
        return Ranking(
            assessments=tuple(assessments), fastest=None, recommended=None, recommended_by="drift", headlines=()
        )
    first = ranked[0]
    tied_with = first.headline.tied_with
    equal = {first.headline.id, *tied_with} if tied_with else set()
    return Ranking(
        assessments=tuple(assessments),
        fastest=_refer(first.fastest, equal),
        recommended=_refer(first.recommended, equal) if first.recommended else None,
        recommended_by="metric" if first.by_metric else "drift",
        headlines=tuple(ranking.headline for ranking in ranked),
    )


def _assess_all(results: Sequence[Result], rules: Rules, requested: Collection[Precision | None]) -> list[Assessment]:
    kept = apply_usual_limits(check_comparisons([*map(condense_result, results)]), rules.limits, requested)
    settings: dict[tuple[object, ...], list[Result]] = {}
    for result in kept:
        settings.setdefault(find_setting(result), []).append(result)
    named = {setting: find_baseline(alike[0], alike, rules.baseline_engine) for setting, alike in settings.items()}
    baselines = [named[find_setting(result)] for result in kept]
    references = find_references(kept, baselines)
    return [
        assess_result(result, base, margin=rules.margin, is_reference=result.id in references, requested=requested)
        for result, base in zip(kept, baselines, strict=True)
    ]


def _find_excesses(assessment: Assessment, rules: Rules) -> Excesses:
    p99_ms = assessment.summary.p99.value if assessment.summary else None
    limit_ms = rules.p99_limit_ms
    late = limit_ms is not None and p99_ms is not None and p99_ms > limit_ms
    return Excesses(p99_ms=p99_ms if late else None, needs=tuple(explain_excesses(assessment.result, rules.needs)))


def list_relevant_pairs(results: Sequence[Result], trials: int, rules: Rules = USUAL) -> set[frozenset[str]]:
    """Return the pairs of configurations of one setting whose comparison is printed after so many trials.

    All with a baseline, and all with one that leads or may lead; but not those whose outputs changed: they are not
    recommended however fast they are, unless a metric decides or all have changed. None at the last look, after which
    no trial is added.
    """
    if trials >= MOST:
        return set()
    seen = [replace(result, look=result.look or trials, status="ok") for result in results if result.measurements]
    ranking = rank_results(seen, rules)
    leaders = {name for headline in ranking.headlines for name in (headline.id, *headline.tied_with)}
    baselines = {headline.baseline for headline in ranking.headlines} | {
        assessment.baseline for assessment in ranking.assessments
    }
    leaders |= {ranking.fastest.id} if ranking.fastest else set()
    changed = {assessment.result.id for assessment in ranking.assessments if assessment.outputs == "changed"} - leaders
    if ranking.recommended_by == "metric":
        changed = set()
    return {
        frozenset((name, result.id))
        for name in leaders | baselines
        for result in results
        if name and (result.id not in changed or name in baselines)
    }


class _SettingRanking(Struct, frozen=True):
    """The picks and the headline of one setting."""

    fastest: Assessment
    recommended: Assessment | None
    by_metric: bool
    headline: Headline


def _rank_setting(
    group: Sequence[Assessment], rules: Rules, excesses: Mapping[str, Excesses]
) -> _SettingRanking | None:
    ranked = order_by_speed(group)
    agreeing = choose_agreeing(ranked)
    metric = rules.metric
    accurate = _within_limit(ranked, group, metric, rules.max_metric_drop)
    chosen = agreeing if accurate is None else accurate
    kept = [
        assessment for assessment in chosen if assessment.summary and not excesses[assessment.result.id].list_reasons()
    ]
    named = kept or chosen or agreeing
    if not named:  # nothing keeps the outputs: then what the user has is the one to stay with
        today = find_today([assessment.result for assessment in group], rules.baseline_engine).result
        named = [
            assessment for assessment in ranked if today is not None and assessment.result.id == today.id
        ] or ranked
    if not named:
        return None
    may, keeps = ({assessment.result.id for assessment in assessments} for assessments in (chosen, kept))
    reasons = {
        assessment.result.id: (
            "; ".join(excesses[assessment.result.id].list_reasons())
            if assessment.result.id in may
            else _format_rejection(assessment, chosen, metric)
        )
        for assessment in ranked
        if assessment.result.id not in keeps
    }
    headline = make_headline(
        group,
        named,
        reasons,
        rules.baseline_engine,
        rules.margin,
        scored=name_metric(metric) if accurate and metric else "",
        excesses=excesses if chosen else {},
        for_calls=rules.for_calls,
    )
    return _SettingRanking(
        fastest=(agreeing or named)[0],
        recommended=next((assessment for assessment in kept if assessment.result.id == headline.id), None),
        by_metric=accurate is not None,
        headline=headline,
    )


def _format_rejection(assessment: Assessment, chosen: Sequence[Assessment], metric: str | None) -> str:
    score, kept = _find_score(assessment, metric), _find_score(chosen[0], metric) if chosen else None
    if metric and kept and not _is_another_network(assessment):
        alike = score is not None and score.value.n == kept.value.n
        return f"loses too much of {name_metric(metric)}" if alike else "was not scored on as many samples"
    return format_change(assessment) if assessment.outputs == "changed" else assessment.outputs_reason


def _is_another_network(assessment: Assessment) -> bool:
    """Whether outputs are beyond what rounding explains in FP32 or TF32, whatever the score."""
    return assessment.outputs == "changed" and not is_reduced(assessment.result)


def _refer(assessment: Assessment, equal: Collection[str]) -> Ref:
    """Make a reference to a configuration; with the others of its speed, if it is one of `equal`."""
    engine = assessment.result.engine
    return Ref(
        id=assessment.result.id,
        engine=format_engine(engine),
        precision=engine.precision,
        batch=engine.batch,
        speedup=assessment.speedup.value if assessment.speedup else None,
        verdict=assessment.comparison.verdict if assessment.comparison else None,
        tied_with=tuple(sorted({*equal} - {assessment.result.id})) if assessment.result.id in equal else (),
    )


def _within_limit(
    ranked: Sequence[Assessment], assessments: Sequence[Assessment], metric: str | None, max_drop: float | None
) -> list[Assessment] | None:
    """Return the ranked configurations that lose little enough of the metric against FP32, on the same number of
    samples.

    None without labels, and with random weights, whose scores are chance. A score does not excuse FP32 or TF32 whose
    outputs changed: that is another network, which happens to score alike.
    """
    if any("weights" in list_invented(assessment.result) for assessment in assessments):
        return None
    baselines = [
        assessment for assessment in assessments if _find_score(assessment, metric) and is_plain_fp32(assessment.result)
    ]
    baselines.sort(key=lambda assessment: assessment.result.id != assessment.baseline)
    base = _find_score(baselines[0], metric) if baselines else None
    if base is None:
        return None
    sound = [
        assessment
        for assessment in ranked
        if not assessment.agreement.nonfinite and not _is_another_network(assessment)
    ]
    scored = [(assessment, _find_score(assessment, metric)) for assessment in sound]
    alike = [(assessment, score) for assessment, score in scored if score is not None and score.value.n == base.value.n]
    return [assessment for assessment, score in alike if not loses_too_much(base, score, max_drop)]


def _find_score(assessment: Assessment, metric: str | None) -> Score | None:
    return find_score(assessment.result.scores, metric) if metric else None


def mark_pareto(assessments: Sequence[Assessment], metric: str | None = None) -> list[Assessment]:
    """Set `pareto` where no other configuration is as fast and as good, and better in one of the two.

    Good is by the metric if any has it, else by the centred cosine to the reference, to four digits. Only those with
    status ok of one batch, scope and cache are compared, and none whose times are invalid.
    """
    points = [_find_front_point(assessment, metric) for assessment in assessments]
    groups: dict[tuple[object, ...], list[FrontPoint]] = {}
    for point in filter(None, points):
        groups.setdefault(point[0], []).append(point)
    best = {point for group in groups.values() for point in find_front(group, itemgetter(1, 2))}
    return [replace(assessment, pareto=point in best) for assessment, point in zip(assessments, points, strict=True)]


def find_front(points: Iterable[Point], locate: Callable[[Point], tuple[float, float]]) -> list[Point]:
    """Return the points that no other beats in both, by a first figure that is better if lower and a second if
    higher."""
    best: list[Point] = []
    for point in sorted(points, key=lambda point: (locate(point)[0], -locate(point)[1])):
        if not best or locate(point)[1] > locate(best[-1])[1]:
            best.append(point)
    return best


FrontPoint = tuple[tuple[object, ...], float, float]


def _find_front_point(assessment: Assessment, metric: str | None) -> FrontPoint | None:
    """Return (setting and clock, p50 in ms, quality) of a configuration that can be on the front."""
    agreement = assessment.agreement
    is_truth = assessment.is_reference and agreement.outputs_agree is None
    likeness = agreement.centred_cosine if agreement.centred_cosine is not None else agreement.shared_decisions
    quality = find_quality(_find_score(assessment, metric), likeness, by_metric=metric is not None, is_truth=is_truth)
    unsound = (
        assessment.result.status != "ok"
        or agreement.nonfinite
        or assessment.modelled
        or assessment.validity in UNUSABLE
    )
    if unsound or assessment.summary is None or quality is None:
        return None
    return (*assessment.setting, assessment.clock), assessment.summary.p50.value, round_quality(quality)


def round_quality(quality: float) -> float:
    """Round to as many digits as decide, whatever the metric's unit."""
    return float(f"{quality:.{QUALITY_DIGITS}g}") if abs(quality) > 1 else round(quality, QUALITY_DIGITS)


def find_quality(score: Score | None, likeness: float | None, *, by_metric: bool, is_truth: bool) -> float | None:
    """Return the metric's figure, larger if better, or the likeness to the reference's outputs; None without either."""
    if not by_metric:
        return 1.0 if is_truth else likeness
    if score is None:
        return None
    return score.value.value if score.higher_is_better else -score.value.value
