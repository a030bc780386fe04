"""Two runs, row by row: faster, slower, equivalent, not shown, or not comparable and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from enginebench.analyze.compare import Comparison, comparable, compare, compare_apart
from enginebench.analyze.validity import judge
from enginebench.core.names import format_engine, format_precision
from enginebench.core.records import Estimate, Result, Verdict

DIFF_SCHEMA = "enginebench.diff/1"

# The verdict over all rows is the first of these that any row has: the worst news first.
WORST_FIRST: tuple[Verdict, ...] = ("slower", "not_comparable", "not_shown", "equivalent", "faster")


class DiffRow(Struct, frozen=True, kw_only=True):
    """One row against its partner. `ratio` = base median over candidate median: above 1, the candidate is faster."""

    id: str
    verdict: Verdict
    ratio: Estimate | None
    reasons: tuple[str, ...] = ()
    repetitions_needed: int | None = None
    clock: str | None = None
    failures: tuple[str, ...] = ()  # why this row fails the gate; empty: it passes
    top1_change: float | None = None  # candidate less base, as a share; None: not measured on the same data


class DiffDocument(Struct, frozen=True, kw_only=True):
    """What `diff --json` prints."""

    schema: str = DIFF_SCHEMA
    rows: tuple[DiffRow, ...]
    verdict: Verdict
    gate_failed: bool
    margin: float = 0.02
    max_top1_drop: float = 1.0


# Points of top-1 accuracy that a candidate may lose; the same limit as that of `run`.
MAX_TOP1_DROP = 1.0


def diff_results(
    base: Sequence[Result],
    cand: Sequence[Result],
    margin: float = 0.02,
    *,
    neighbours: bool = False,
    allow_not_comparable: bool = False,
    max_top1_drop: float = MAX_TOP1_DROP,
) -> DiffDocument:
    """The verdict of every row of two runs, and over all of them.

    Rows are partners by their id; what is left over, by engine and precision (so that a row with another batch is
    `not_comparable` for that reason); and where both sides are a single row, these two. A row without a partner is
    `not_comparable`.

    Args:
        base: rows that are compared to.
        cand: rows in question.
        margin: relative difference that matters, 0.02 for 2 %.
        neighbours: both sides were measured interleaved in one run, so their repetitions are pairs. Otherwise the
            reference kernel must have taken as long on both sides.
        allow_not_comparable: such rows do not fail the gate.
        max_top1_drop: points of top-1 accuracy (1.0 = one per cent of the images) that a row may lose.
    """
    pairs = pair_results(base, cand)
    rows = tuple(
        _gate(_diff_pair(b, c, margin, neighbours), b, c, allow_not_comparable, max_top1_drop) for b, c in pairs
    )
    found = {row.verdict for row in rows}
    worst: Verdict = next((v for v in WORST_FIRST if v in found), "not_comparable")
    failed = any(row.failures for row in rows) or (not rows and not allow_not_comparable)
    return DiffDocument(rows=rows, verdict=worst, gate_failed=failed, margin=margin, max_top1_drop=max_top1_drop)


def _gate(row: DiffRow, base: Result | None, cand: Result | None, allow: bool, max_top1_drop: float) -> DiffRow:
    """The row with what fails the gate: slower, not comparable, worse answers, another precision."""
    failures = ["slower"] if row.verdict == "slower" else []
    if row.verdict == "not_comparable" and not allow:
        failures.append("not comparable")
    if base is None or cand is None:
        return replace(row, failures=tuple(failures))
    change = _change_of_top1(base, cand)
    failures += _find_lost_answers(base, cand, change, max_top1_drop)
    failures += _find_changed_precision(base, cand)
    return replace(row, failures=tuple(failures), top1_change=change)


def _change_of_top1(base: Result, cand: Result) -> float | None:
    """Candidate less base; None where either is missing or they were asked different questions."""
    if base.accuracy is None or cand.accuracy is None or base.accuracy.n != cand.accuracy.n:
        return None
    return cand.accuracy.top1.value - base.accuracy.top1.value


def _find_lost_answers(base: Result, cand: Result, change: float | None, max_top1_drop: float) -> list[str]:
    lost = []
    # 1e-9: a drop of exactly the limit is allowed, whatever the last bit of the two shares says.
    if change is not None and change < -max_top1_drop / 100 - 1e-9:
        lost.append(f"top-1 accuracy fell by {-100 * change:.2f} points, more than {max_top1_drop:g}")
    if base.accuracy is not None and cand.accuracy is None and cand.status == "ok":
        lost.append("the base has a top-1 accuracy, the candidate has none")
    if _passed(base) and cand.drift is not None and not cand.drift.passed:
        lost.append("outputs no longer agree with the reference within the limits")
    return lost


def _passed(result: Result) -> bool:
    return result.drift is None or result.drift.passed


def _find_changed_precision(base: Result, cand: Result) -> list[str]:
    """What was asked for is the same and what ran is not; other precisions on purpose are no failure."""
    if base.requested_precision != cand.requested_precision:
        return []
    if base.engine.precision != cand.engine.precision:
        return [f"precision changed: {base.engine.precision} ran before, {cand.engine.precision} now"]
    before, now = _dominant(base), _dominant(cand)
    if before and now and before != now:
        return [f"precision changed: most of the time was spent in {before} before, in {now} now"]
    return []


def _dominant(result: Result) -> str | None:
    """The precision in which the runtime spent most of its time, by its own record."""
    shares = result.effective_precision or {}
    return max(shares, key=lambda name: shares[name]) if shares else None


def pair_results(base: Sequence[Result], cand: Sequence[Result]) -> list[tuple[Result | None, Result | None]]:
    """Partners in the order of the candidate, then what only the base has; None where there is no partner."""
    if len(base) == 1 and len(cand) == 1:
        return [(base[0], cand[0])]
    partners: dict[int, Result] = {}
    left_base, left_cand = list(base), list(cand)
    for key in (_by_id, _by_engine):
        left_base, left_cand = _match(left_base, left_cand, key, partners)
    return [(partners.get(id(c)), c) for c in cand] + [(b, None) for b in left_base]


def _by_id(result: Result) -> Hashable:
    return result.id


def _by_engine(result: Result) -> Hashable:
    return format_engine(result.engine), format_precision(result.requested_precision, result.engine.recipe)


def _match(
    base: list[Result], cand: list[Result], key: Callable[[Result], Hashable], partners: dict[int, Result]
) -> tuple[list[Result], list[Result]]:
    """Enters the partners that `key` names on both sides, each exactly once; gives back who is left."""
    sides: tuple[defaultdict[Hashable, list[Result]], ...] = (defaultdict(list), defaultdict(list))
    for side, results in zip(sides, (base, cand), strict=True):
        for result in results:
            side[key(result)].append(result)
    matched = {k for k, rows in sides[0].items() if len(rows) == 1 and len(sides[1].get(k, ())) == 1}
    partners.update({id(sides[1][k][0]): sides[0][k][0] for k in matched})
    return [b for b in base if key(b) not in matched], [c for c in cand if key(c) not in matched]


def _diff_pair(base: Result | None, cand: Result | None, margin: float, neighbours: bool) -> DiffRow:
    if base is None or cand is None:
        only = base or cand
        side = "base" if base else "candidate"
        return _refuse(only.id if only else "", [f"only the {side} has this row"])
    name = cand.id if base.id == cand.id else f"{base.id} -> {cand.id}"
    obstacles = _find_obstacles(base, "base") + _find_obstacles(cand, "candidate")
    obstacles = obstacles or comparable(base, cand, margin, neighbours=neighbours)
    if obstacles:
        return _refuse(name, obstacles)
    method = compare if neighbours else compare_apart
    return _describe(name, method(base.measurements, cand.measurements, margin=margin), base, cand)


def _find_obstacles(result: Result, side: str) -> list[str]:
    if not any(m.latency_ns for m in result.measurements):
        return [f"the {side} is {result.status}: {result.reason or 'no samples'}"]
    if judge(result.measurements)[0] == "invalid":
        return [f"the samples of the {side} are invalid: more than half were disturbed"]
    return []


def _refuse(name: str, reasons: Sequence[str]) -> DiffRow:
    return DiffRow(id=name, verdict="not_comparable", ratio=None, reasons=tuple(reasons))


def _describe(name: str, found: Comparison, base: Result, cand: Result) -> DiffRow:
    doubts = [
        f"the {side} is suspect: see its caveats"
        for side, result in (("base", base), ("candidate", cand))
        if judge(result.measurements)[0] == "suspect"
    ]
    return DiffRow(
        id=name,
        verdict=found.verdict,
        ratio=found.ratio,
        reasons=(*found.reasons, *doubts),
        repetitions_needed=found.repetitions_needed,
        clock=found.clock,
    )
