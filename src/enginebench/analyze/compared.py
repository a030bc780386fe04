"""Which rows of a run had their outputs held against another row's, and on how many samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from enginebench.analyze.drift import holds_values
from enginebench.core.caveats import make_caveat
from enginebench.core.records import Caveat, Result
from enginebench.core.shapes import find_size


def keep_comparisons(results: Sequence[Result]) -> list[Result]:
    """The rows without the drift that compares them with nothing, and with the doubt that theirs is of a part.

    A drift compares a row with its reference, which is another row of this run, of the same batch, or was in the race
    that this run is the final of. A row beside the reference that was compared with itself, or with a row that is not
    here, was not compared at all.
    """
    references = _find_compared_with(results)
    known = {r.id: find_size(r.engine) for r in results}
    kept = [r if _is_compared(r, references, known) else replace(r, drift=None) for r in results]
    drifts, scores = Counter[tuple[int, str]](), Counter[tuple[int, str]]()  # the most samples that a row of a size has
    for r in kept:
        size = known[r.id]
        drifts[size] = max(drifts[size], r.drift.n if r.drift else 0)
        scores[size] = max(scores[size], r.scores[0].value.n if r.scores else 0)
    return [replace(r, caveats=(*r.caveats, *_doubt_parts(r, drifts[known[r.id]], scores[known[r.id]]))) for r in kept]


def find_references(results: Sequence[Result], baselines: Sequence[Result | None] = ()) -> set[str]:
    """The ids of the rows that the others of their batch were compared with.

    Where nothing was compared with anything, the baseline is what the others would have been compared with.
    """
    found = _find_compared_with(results)
    return {*found.values(), *(b.id for b in baselines if b and find_size(b.engine) not in found)}


def _find_compared_with(results: Sequence[Result]) -> dict[tuple[int, str], str]:
    """(batch, shapes) -> the id of the row that most rows were compared with, itself counted; the first of several."""
    known = {r.id: find_size(r.engine) for r in results}
    drifts = [(r, r.drift) for r in results if r.drift and r.drift.n]
    votes = Counter(drift.reference for r, drift in drifts if known.get(drift.reference) == find_size(r.engine))
    found: dict[tuple[int, str], str] = {}
    for result in sorted(results, key=lambda r: -votes[r.id]):
        if votes[result.id]:
            found.setdefault(find_size(result.engine), result.id)
    return found


def _is_compared(
    result: Result, references: Mapping[tuple[int, str], str], known: Mapping[str, tuple[int, str]]
) -> bool:
    drift, size = result.drift, find_size(result.engine)
    if drift is not None and drift.unlike:
        return True  # it says itself that nothing was, and why
    if drift is None or not drift.n or (known.get(drift.reference) != size and not drift.elsewhere):
        return False
    if not any(holds_values(o) for o in drift.outputs):
        return False  # outputs that hold no values
    return drift.reference != result.id or references.get(size) == result.id


def _doubt_parts(result: Result, compared: int, scored: int) -> list[Caveat]:
    """What is said of fewer samples than another row of the same batch has: so many compared, and so many scored."""
    doubts = []
    # A drift that knows how many were asked for says that itself, and one of nothing says why.
    if result.drift and result.drift.asked is None and not result.drift.unlike and result.drift.n < compared:
        doubts.append(make_caveat("partly_compared.outputs", n=result.drift.n, asked=compared))
    if result.scores and result.scores[0].value.n < scored:
        doubts.append(make_caveat("partly_compared.labels", n=result.scores[0].value.n, asked=scored))
    return doubts
