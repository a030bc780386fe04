"""Two environments in stored runs: each row of the one against the same row of the other, measured in turns."""

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.names import format_engine, format_precision, row_id
from enginebench.core.records import Result, Task
from enginebench.features.versions.upgrade import describe_change
from enginebench.runs.builds import cut_common
from enginebench.runs.campaign import list_open_outputs
from enginebench.runs.child.arrays import holds_arrays, load_answers
from enginebench.runs.child.places import OPTION, enter
from enginebench.runs.folder import RunFolder, read_results
from enginebench.stats.alike import compare_questions, fill_lengths
from enginebench.stats.diff import DiffDocument, DiffRow, diff_results, join_documents
from enginebench.stats.drift import limits_between, limits_undecided, list_unlike, measure_drift, refuse_drift

HERE = "the current environment"


def parse_between(text: str) -> tuple[str, str | None]:
    """(the environment before, the one after) of OLD or OLD,NEW; None is the current environment."""
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(names) > 2 or len(set(names)) != len(names):
        raise UsageError(f"--between {text!r}: expected OLD or OLD,NEW, two environments of the run")
    return names[0], names[1] if len(names) > 1 else None


def diff_environments(
    runs: Sequence[Path],
    asked: str,
    margin: float,
    *,
    allow_not_comparable: bool = False,
    metric: str | None = None,
    max_metric_drop: float | None = None,
) -> DiffDocument:
    """The verdict on every row of the environment after, against the same row of the one before.

    Args:
        runs: folders, each of a run that measured both environments in turns.
        asked: OLD or OLD,NEW.
        allow_not_comparable: rows that cannot be compared do not fail the gate.
    """
    between = parse_between(asked)
    documents: list[DiffDocument] = []
    scored = False
    for root in runs:
        record, results = read_results(root)
        for base, cand in pair_environments(results, between, root):
            answered = hold_against(RunFolder(root), base, cand, record.request.task)
            has_metric = any(s.metric == metric for r in (base, answered) if r for s in r.scores)
            scored = scored or has_metric
            found = diff_results(
                [base] if base else [],
                [answered] if answered else [],
                margin,
                neighbours=True,
                fed_alike=True,
                allow_not_comparable=allow_not_comparable,
                metric=metric if has_metric else None,
                max_metric_drop=max_metric_drop,
            )
            documents.append(replace(found, rows=tuple(_name_row(row, base, answered) for row in found.rows)))
    if metric is not None and not scored:
        raise UsageError(f"--metric {metric}: no configuration has such a score")
    return join_documents(documents, margin, max_metric_drop)


def pair_environments(
    results: Sequence[Result], between: tuple[str, str | None], root: Path
) -> list[tuple[Result | None, Result | None]]:
    sides: list[dict[str, Result]] = []
    for name in between:
        found = {find_twin(r): r for r in results if r.engine.options.get(OPTION) == name}
        if not found:
            known = dict.fromkeys(r.engine.options.get(OPTION) or HERE for r in results)
            raise UsageError(f"{root} has no results of {name or HERE}; it has {', '.join(known) or 'none'}")
        sides.append(found)
    # What the current environment alone was asked for, a baseline say, has no twin by intent.
    twins = dict.fromkeys((*sides[0], *(sides[1] if between[1] is not None else ())))
    return [(sides[0].get(twin), sides[1].get(twin)) for twin in twins]


def find_twin(result: Result) -> str:
    """The id that the row would have in the current environment: that of its twins in others."""
    engine = replace(enter(result.engine), precision=result.requested_precision)
    return row_id(engine, result.requested_precision, result.measure)


def hold_against(folder: RunFolder, base: Result | None, cand: Result | None, task: Task | None) -> Result | None:
    """The candidate with its answers held against the base's, as both lie in the run's folder."""
    if base is None or cand is None:
        return cand
    files = [folder.find_outputs(row.id) for row in (base, cand)]
    if not all(map(holds_arrays, files)):
        return replace(cand, drift=None)
    (wanted, _), (answers, _) = map(load_answers, files)
    opened = {name for side in (base, cand) for name in list_open_outputs(side)}
    wanted, answers = map(dict, cut_common(*fill_lengths(wanted, answers, opened)))
    if unlike := compare_questions(base, cand) or list_unlike(wanted, answers):
        return replace(cand, drift=refuse_drift(base.id, unlike))
    asked = base.requested_precision, cand.requested_precision, task
    limits, undecided = limits_between(*asked), limits_undecided(*asked)
    try:
        drift = measure_drift(wanted, answers, limits, reference_id=base.id, task=task, undecided=undecided)
        return replace(cand, drift=drift)
    except ArtifactError as error:
        return replace(cand, drift=refuse_drift(base.id, [str(error)]))


def _name_row(row: DiffRow, base: Result | None, cand: Result | None) -> DiffRow:
    """The row called by what both sides have in common, with what changed beside the time."""
    one = cand or base
    assert one is not None
    engine = enter(one.engine)
    precision = format_precision(one.requested_precision, engine.recipe)
    name = f"{one.model} {format_engine(engine)} {precision} b{engine.batch}"
    change = describe_change(one.model, base, cand) if base and cand else None
    return replace(row, id=name, change=change)
