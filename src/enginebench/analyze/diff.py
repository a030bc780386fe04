"""Two runs, row by row: faster, slower, equivalent, not shown, or not comparable and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

from msgspec import Struct

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


class DiffDocument(Struct, frozen=True, kw_only=True):
    """What `diff --json` prints."""

    schema: str = DIFF_SCHEMA
    rows: tuple[DiffRow, ...]
    verdict: Verdict
    gate_failed: bool
    margin: float = 0.02


def diff_results(
    base: Sequence[Result],
    cand: Sequence[Result],
    margin: float = 0.02,
    *,
    neighbours: bool = False,
    allow_not_comparable: bool = False,
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
    """
    pairs = pair_results(base, cand)
    rows = tuple(_diff_pair(b, c, margin, neighbours) for b, c in pairs)
    found = {row.verdict for row in rows}
    worst: Verdict = next((v for v in WORST_FIRST if v in found), "not_comparable")
    unlike = not allow_not_comparable and ("not_comparable" in found or not rows)
    failed = "slower" in found or unlike
    return DiffDocument(rows=rows, verdict=worst, gate_failed=failed, margin=margin)


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
