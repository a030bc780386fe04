"""From a search, wherever it stands, to its document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from enginebench.analyze.metrics.scores import find_score
from enginebench.analyze.ranking import QUALITY_DIGITS
from enginebench.analyze.validity import find_worst
from enginebench.core.names import format_options, format_precision
from enginebench.core.records import Machine, Result
from enginebench.report.tune.document import Candidate, Dropped, Finalist, FrontierPoint, TuneDocument, TuneRef
from enginebench.workflow.search.search import Lost, Search
from enginebench.workflow.search.space import Goal, Setting

# What a cost is shown as, and how many of these a nanosecond is.
UNITS: dict[Goal, str] = {"latency": "ms a sample", "throughput": "ms a sample", "capacity": "ms a request"}
MS = 1e-6
COSINE = "centred cosine"


def describe_search(search: Search, machine: Machine, *, proposed_by: Sequence[str]) -> TuneDocument:
    """The document of what was found so far."""
    request, final = search.record.request, search.final
    challenger = search.record.finalists[0] if search.record.finalists else search.leader
    found = final.compare(final.best_default) if final and final.best_default else None
    gain = found.ratio.value if found and found.ratio else None
    beaten = bool(final and final.beaten)
    winner = _find(search, final.winner) if final is not None else challenger
    candidates = _describe_candidates(search)
    finalists = tuple(_describe_finalist(search, setting) for setting in dict.fromkeys(search.record.finalists))
    return TuneDocument(
        model=Path(request.run.model).name,
        machine=machine,
        goal=request.goal,
        unit=UNITS[request.goal],
        winner=_refer(search, winner, gain if beaten else 1.0 if final else None),
        default=_refer(search, _find(search, final.best_default) if final else None, 1.0),
        challenger=_refer(search, challenger, gain),
        beaten=beaten,
        verdict=found.verdict if found else None,
        ratio=found.ratio if found else None,
        dropped=tuple(map(_describe_lost, search.lost)),
        frontier=find_frontier(candidates),
        final=finalists,
        candidates=candidates,
        quality_of=_name_metric(search) or COSINE,
        generations=len(search.record.generations),
        processes=search.processes,
        budget_s=request.budget_s,
        spent_s=search.record.spent_s,
        finished=search.record.finished,
        proposed_by=tuple(proposed_by),
        validity=find_worst(one.validity for one in finalists),
        caveats=machine.caveats,
    )


def _find(search: Search, name: str | None) -> Setting | None:
    return next((setting for setting in search.record.finalists if setting.name == name), None)


def _refer(search: Search, setting: Setting | None, speedup: float | None) -> TuneRef | None:
    if setting is None:
        return None
    result = search.track.find_result(setting, final=search.final is not None)
    return TuneRef(
        id=result.id if result and search.final is not None else None,
        candidate=setting.name,
        engine=format_options(setting.engine, setting.options),
        precision=format_precision(setting.precision, setting.recipe),
        batch=result.engine.batch if result else 1,
        threads=setting.threads,
        streams=setting.streams,
        max_batch=setting.max_batch,
        method=setting.method,
        graph=setting.graph,
        speedup=speedup,
    )


def _describe_lost(lost: Lost) -> Dropped:
    drop = lost.drop
    return Dropped(
        candidate=drop.candidate,
        generation=lost.generation + 1,
        round=drop.round + 1,
        reason=drop.reason,
        leader=drop.leader,
        ratio=drop.ratio,
    )


def _describe_candidates(search: Search) -> tuple[Candidate, ...]:
    metric = _name_metric(search)
    defaults = {setting.name for setting in search.defaults}
    found = []
    for one in search.tried:
        result = search.track.find_result(one.setting)
        found.append(
            Candidate(
                candidate=one.setting.name,
                id=result.id if result else "",
                default=one.setting.name in defaults,
                speed=1 / one.cost if one.cost else None,
                processes=search.track.count_laps(one.setting),
                quality=_measure_quality(result, metric) if result and one.cost else None,
                graph=one.setting.graph,
                validity=search.track.judge(one.setting)[0],
            )
        )
    return tuple(sorted(found, key=lambda candidate: -(candidate.speed or 0.0)))


def _name_metric(search: Search) -> str | None:
    """The metric that decides about the rows; None without labelled samples."""
    results = (search.track.find_result(one.setting) for one in search.tried)
    return next((result.scores[0].metric for result in results if result and result.scores), None)


def _measure_quality(result: Result, metric: str | None) -> float | None:
    """The score, higher if better; without labels the least centred cosine of the outputs to the reference's."""
    if metric is not None:
        score = find_score(result.scores, metric)
        return None if score is None else score.value.value if score.higher_is_better else -score.value.value
    cosines = [o.centred_cosine_mean for o in result.drift.outputs] if result.drift else []
    return min((c for c in cosines if c is not None), default=None)


def find_frontier(candidates: Sequence[Candidate]) -> tuple[FrontierPoint, ...]:
    """The candidates that no other beats in both speed and quality, the fastest first.

    To as many digits as decide in a run: kernels that round otherwise are not better.
    """
    points = [
        FrontierPoint(candidate=c.candidate, id=c.id, speed=c.speed, quality=round(c.quality, QUALITY_DIGITS))
        for c in candidates
        if c.speed is not None and c.quality is not None
    ]
    best: list[FrontierPoint] = []
    for point in sorted(points, key=lambda p: (-p.speed, -p.quality)):
        if not best or point.quality > best[-1].quality:
            best.append(point)
    return tuple(best)


def _describe_finalist(search: Search, setting: Setting) -> Finalist:
    final = search.final
    result = search.track.find_result(setting, final=True)
    found = final.compare(setting.name) if final and setting.name != final.challenger else None
    validity, caveats = search.track.judge(setting, final=True)
    return Finalist(
        candidate=setting.name,
        id=result.id if result else "",
        default=setting in search.record.finalists[1:],
        cost=final.estimate(setting.name, MS) if final else None,
        verdict=found.verdict if found else None,
        ratio=found.ratio if found else None,
        reason=(final and final.failed.get(setting.name)) or ("; ".join(found.reasons) if found else None) or None,
        validity=validity,
        caveats=caveats,
    )
