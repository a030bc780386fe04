"""What an upgrade changed: two environments of stored runs, each row against its twin."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.names import format_engine, format_precision, row_id
from enginebench.core.records import LayerTime, Result, Task
from enginebench.core.text import count_of
from enginebench.report.numbers import format_significant, format_small
from enginebench.runs.child.arrays import holds_arrays, load_outputs
from enginebench.runs.child.places import OPTION, enter
from enginebench.runs.folder import RunFolder, read_results
from enginebench.stats.alike import compare_inputs, fill_lengths
from enginebench.stats.diff import Change, DiffDocument, DiffRow, Pair, diff_results, join_documents
from enginebench.stats.drift import limits_between, list_unlike, measure_drift, refuse_drift
from enginebench.stats.layer_diff import choose_keys, join_members, make_delta
from enginebench.stats.layer_records import EngineLayer, LayerDelta, split_name

HERE = "the current environment"
# What runtimes put behind the name of an ONNX node: ONNX Runtime's layouts and fusions, OpenVINO's fused additions.
_SUFFIX = re.compile(r"(?:_nchwc|_token_\d+|/WithoutBiases|/fq_\w+|_quant|/Reorder)+$")
# Layers that move data and compute nothing, by the kinds that ONNX Runtime and OpenVINO call them.
MOVES = frozenset({"Reorder", "ReorderInput", "ReorderOutput", "Transpose", "Convert", "Reformat"})
# Layers that are named beside a row: enough to see where a change lies; the JSON document has all.
SHOWN = 3


def diff_environments(
    runs: Sequence[Path],
    asked: str,
    margin: float,
    *,
    allow_not_comparable: bool = False,
    metric: str | None = None,
    max_metric_drop: float | None = None,
) -> DiffDocument:
    """The verdict on every row of the environment after, against the same row of the one before, of several runs.

    `asked` is OLD or OLD,NEW, both measured in turns; without NEW it is the current environment.
    """
    old, *after = names = [name.strip() for name in asked.split(",")]
    if not all(names) or len(names) > 2 or len(set(names)) != len(names):
        raise UsageError(f"--between {asked!r}: expected OLD or OLD,NEW, two environments of the run")
    documents: list[DiffDocument] = []
    scored = False
    for root in runs:
        record, results = read_results(root)
        for base, cand in pair_environments(results, old, after[0] if after else None, root):
            answered = hold_against(RunFolder(root), base, cand, record.request.task)
            has_metric = any(s.metric == metric for r in (base, answered) if r for s in r.scores)
            scored = scored or has_metric
            found = diff_results(
                [base] if base else [],
                [answered] if answered else [],
                margin,
                neighbours=True,
                same_inputs=True,
                allow_not_comparable=allow_not_comparable,
                metric=metric if has_metric else None,
                max_metric_drop=max_metric_drop,
            )
            documents.append(replace(found, rows=tuple(_name_row(row, base, answered) for row in found.rows)))
    if metric is not None and not scored:
        raise UsageError(f"--metric {metric}: no configuration has such a score")
    return join_documents(documents, margin, max_metric_drop)


def pair_environments(
    results: Sequence[Result], old: str, new: str | None, root: Path
) -> list[tuple[Result | None, Result | None]]:
    """The rows of both by the id that they would have in the current environment, which is that of their twins."""
    sides: list[dict[str, Result]] = []
    for name in (old, new):
        found = [r for r in results if r.engine.options.get(OPTION) == name]
        if not found:
            known = dict.fromkeys(r.engine.options.get(OPTION) or HERE for r in results)
            raise UsageError(f"{root} has no results of {name or HERE}; it has {', '.join(known) or 'none'}")
        specs = [replace(enter(r.engine), precision=r.requested_precision) for r in found]
        sides.append({row_id(s, s.precision, r.measure): r for s, r in zip(specs, found, strict=True)})
    # What the current environment alone was asked for, a baseline say, has no twin by intent.
    twins = dict.fromkeys((*sides[0], *(sides[1] if new is not None else ())))
    return [(sides[0].get(twin), sides[1].get(twin)) for twin in twins]


def hold_against(folder: RunFolder, base: Result | None, cand: Result | None, task: Task | None) -> Result | None:
    """The candidate with its answers held against the base's, as both lie in the run's folder."""
    # Here, for a report asks this module only for layers, and would import with these all that measures.
    from enginebench.runs.builds import cut_common
    from enginebench.runs.campaign import list_open_outputs

    if base is None or cand is None:
        return cand
    files = [folder.find_outputs(row.id) for row in (base, cand)]
    if not all(map(holds_arrays, files)):
        return replace(cand, drift=None)
    (wanted, _), (answers, _) = map(load_outputs, files)
    opened = {name for side in (base, cand) for name in list_open_outputs(side)}
    wanted, answers = map(dict, cut_common(*fill_lengths(wanted, answers, opened)))
    if unlike := compare_inputs(base, cand) or list_unlike(wanted, answers):
        return replace(cand, drift=refuse_drift(base.id, unlike))
    limits = limits_between(base.requested_precision, cand.requested_precision)
    try:
        drift = measure_drift(wanted, answers, limits, reference_id=base.id, task=task)
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


def describe_change(model: str, base: Result, cand: Result) -> Change:
    """What changed from `base` to `cand`, whose drift is against `base`."""
    drift = cand.drift
    known = [o.max_abs_diff for o in drift.outputs if o.max_abs_diff is not None] if drift else []
    old, new = (row.machine.versions if row.machine else {} for row in (base, cand))
    names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    return Change(
        model=model,
        versions={name: (old.get(name), new.get(name)) for name in names},
        max_abs_diff=max(known, default=None),
        samples=drift.n if drift else 0,
        peak_memory_bytes=Pair(before=_find_peak(base), after=_find_peak(cand)),
        build_s=Pair(before=base.build_s, after=cand.build_s),
        size_bytes=Pair(before=base.size_bytes, after=cand.size_bytes),
        layers=tuple(pair_layers(base.layers, cand.layers)),
    )


def pair_layers(base: Sequence[LayerTime], cand: Sequence[LayerTime]) -> list[LayerDelta]:
    """The layers of both sides by the ONNX nodes that they compute, the largest change of time first."""
    if not base or not cand:
        return []
    sides = tuple(map(_read_layer, base)), tuple(map(_read_layer, cand))
    groups = join_members(choose_keys(*sides)[0], sides)
    return sorted((make_delta(group, sides) for group in groups), key=lambda delta: -abs(delta.delta_ms or 0.0))


def _read_layer(layer: LayerTime) -> EngineLayer:
    moves = layer.kind in MOVES
    nodes = () if moves else tuple(_SUFFIX.sub("", name) for name in split_name(layer.name))
    return EngineLayer(
        name=layer.name,
        type=layer.kind,
        precision=layer.precision,
        onnx_nodes=nodes,
        overhead=moves,
        average_ms=layer.mean_ns / 1e6,
    )


def _find_peak(result: Result) -> float | None:
    return max((m.peak_memory_bytes for m in result.measurements if m.peak_memory_bytes), default=None)


def format_changes(document: DiffDocument) -> list[str]:
    """A sentence on the versions of all rows, then one or two on each row; none where nothing was upgraded."""
    changes = [(row.id, row.change) for row in document.rows if row.change is not None]
    versions = dict.fromkeys(
        ", ".join(f"{name} {old or 'none'} -> {new or 'none'}" for name, (old, new) in change.versions.items())
        for _, change in changes
    )
    told = [f"Versions: {text}." for text in versions if text]
    return told + [f"{name}: {'; '.join(describe_upgrade(change))}." for name, change in changes]


def describe_upgrade(change: Change) -> list[str]:
    """What is otherwise in one row: its outputs, its figures, its layers."""
    answers = "outputs not compared"
    if change.max_abs_diff is not None:
        over = count_of(change.samples, "samples")
        answers = f"outputs differ by at most {format_small(change.max_abs_diff)} over {over}"
    return [answers, *_format_figures(change), *_format_layers(change.layers)]


def _format_figures(change: Change) -> Iterator[str]:
    for name, pair, factor, unit in (
        ("memory", change.peak_memory_bytes, 1e-6, "MB"),
        ("build", change.build_s, 1.0, "s"),
        ("size", change.size_bytes, 1e-6, "MB"),
    ):
        if pair.before is not None and pair.after is not None:
            before, after = (format_significant(value * factor) for value in (pair.before, pair.after))
            share = f" ({pair.after / pair.before - 1:+.0%})" if pair.before else ""
            yield f"{name} {after} {unit}" if before == after else f"{name} {before} -> {after} {unit}{share}"


def _format_layers(layers: Sequence[LayerDelta]) -> Iterator[str]:
    named = []
    for delta in [delta for delta in layers[:SHOWN] if delta.delta_ms]:
        side = delta.candidate or delta.base
        names = delta.onnx_nodes or (side.layers if side else ()) or ("a layer",)
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        came = "" if delta.base and delta.candidate else " (new)" if delta.candidate else " (gone)"
        named.append(f"{names[0]}{more}{came} {delta.delta_ms:+.3g} ms")
    if named:
        before, after = ([getattr(delta, side) for delta in layers] for side in ("base", "candidate"))
        old, new = (format_significant(sum(s.average_ms or 0.0 for s in sides if s)) for sides in (before, after))
        yield f"layers {old} -> {new} ms in one profile of each, most in {', '.join(named)}"
