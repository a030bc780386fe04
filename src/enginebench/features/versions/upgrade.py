"""Compare two environments of stored runs: each configuration of one with its twin in the other."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.names import configuration_id, format_engine, format_precision
from enginebench.core.records import LayerTime, Result, Task
from enginebench.core.text import count_of
from enginebench.report.numbers import format_significant, format_small
from enginebench.runs.child.arrays import holds_arrays, load_outputs
from enginebench.runs.child.environments import OPTION, strip_environment
from enginebench.runs.folder import RunFolder, read_results
from enginebench.stats.alike import compare_inputs, fill_lengths
from enginebench.stats.diff import Change, DiffDocument, DiffRow, Pair, diff_results, join_documents
from enginebench.stats.drift import limits_between, list_unlike, measure_drift, refuse_drift
from enginebench.stats.layer_diff import choose_keys, join_members, make_delta
from enginebench.stats.layer_records import EngineLayer, LayerDelta, split_name

HERE = "the current environment"
# Endings that runtimes append to the name of an ONNX node: ONNX Runtime's layouts and fusions, OpenVINO's additions.
_SUFFIX = re.compile(r"(?:_nchwc|_token_\d+|/WithoutBiases|/fq_\w+|_quant|/Reorder)+$")
# Kinds, in ONNX Runtime and OpenVINO, of layers that move data and compute nothing.
MOVES = frozenset({"Reorder", "ReorderInput", "ReorderOutput", "Transpose", "Convert", "Reformat"})
# Layers that are named for one configuration: enough to see where it changed; the JSON document has all of them.
SHOWN = 3


def diff_environments(
    runs: Sequence[Path],
    between: str,
    margin: float,
    *,
    allow_not_comparable: bool = False,
    metric: str | None = None,
    max_metric_drop: float | None = None,
) -> DiffDocument:
    """Compare every configuration of the new environment with the same one of the old, in each of several runs.

    Args:
        between: OLD or OLD,NEW, measured interleaved; without NEW, the new one is the current environment.
    """
    names = [name.strip() for name in between.split(",")]
    if not all(names) or len(names) > 2 or len(set(names)) != len(names):
        raise UsageError(f"--between {between!r}: expected OLD or OLD,NEW, two environments of the run")
    old, new = names[0], names[1] if len(names) == 2 else None
    documents: list[DiffDocument] = []
    scored = False
    for root in runs:
        record, results = read_results(root)
        for base, cand in pair_environments(results, old, new, root):
            compared = compare_outputs(RunFolder(root), base, cand, record.request.task)
            has_metric = any(s.metric == metric for r in (base, compared) if r for s in r.scores)
            scored = scored or has_metric
            document = diff_results(
                [base] if base else [],
                [compared] if compared else [],
                margin,
                neighbours=True,
                same_inputs=True,
                allow_not_comparable=allow_not_comparable,
                metric=metric if has_metric else None,
                max_metric_drop=max_metric_drop,
            )
            documents.append(replace(document, rows=tuple(_name_twins(row, base, compared) for row in document.rows)))
    if metric is not None and not scored:
        raise UsageError(f"--metric {metric}: no configuration has such a score")
    return join_documents(documents, margin, max_metric_drop)


def pair_environments(
    results: Sequence[Result], old: str, new: str | None, root: Path
) -> list[tuple[Result | None, Result | None]]:
    """Pair the results of both environments by the id that they would have in the current one, where twins agree."""
    sides: list[dict[str, Result]] = []
    for name in (old, new):
        measured = [r for r in results if r.engine.options.get(OPTION) == name]
        if not measured:
            existing = dict.fromkeys(r.engine.options.get(OPTION) or HERE for r in results)
            raise UsageError(f"{root} has no results of {name or HERE}; it has {', '.join(existing) or 'none'}")
        specs = [replace(strip_environment(r.engine), precision=r.requested_precision) for r in measured]
        sides.append({configuration_id(s, s.precision, r.measure): r for s, r in zip(specs, measured, strict=True)})
    # A result of the current environment alone (a baseline, say) has no twin, on purpose.
    twins = dict.fromkeys((*sides[0], *(sides[1] if new is not None else ())))
    return [(sides[0].get(twin), sides[1].get(twin)) for twin in twins]


def compare_outputs(folder: RunFolder, base: Result | None, cand: Result | None, task: Task | None) -> Result | None:
    """Return the candidate with its drift from the base, by the outputs that the run's folder has of both."""
    # Imported here: a report needs only the layers of this module, and would import everything that measures.
    from enginebench.runs.builds import cut_common
    from enginebench.runs.results import list_open_outputs

    if base is None or cand is None:
        return cand
    files = [folder.find_outputs(result.id) for result in (base, cand)]
    if not all(map(holds_arrays, files)):
        return replace(cand, drift=None)
    (expected, _), (outputs, _) = map(load_outputs, files)
    opened = {name for side in (base, cand) for name in list_open_outputs(side)}
    expected, outputs = map(dict, cut_common(*fill_lengths(expected, outputs, opened)))
    if unlike := compare_inputs(base, cand) or list_unlike(expected, outputs):
        return replace(cand, drift=refuse_drift(base.id, unlike))
    limits = limits_between(base.requested_precision, cand.requested_precision)
    try:
        drift = measure_drift(expected, outputs, limits, reference_id=base.id, task=task)
        return replace(cand, drift=drift)
    except ArtifactError as error:
        return replace(cand, drift=refuse_drift(base.id, [str(error)]))


def _name_twins(row: DiffRow, base: Result | None, cand: Result | None) -> DiffRow:
    """Name the row by what both sides have in common, and add what changed beside the time."""
    one = cand or base
    assert one is not None
    engine = strip_environment(one.engine)
    precision = format_precision(one.requested_precision, engine.recipe)
    name = f"{one.model} {format_engine(engine)} {precision} b{engine.batch}"
    change = describe_change(one.model, base, cand) if base and cand else None
    return replace(row, id=name, change=change)


def describe_change(model: str, base: Result, cand: Result) -> Change:
    """Describe what changed from `base` to `cand`, whose drift is relative to `base`."""
    drift = cand.drift
    differences = [o.max_abs_diff for o in drift.outputs if o.max_abs_diff is not None] if drift else []
    old, new = (result.machine.versions if result.machine else {} for result in (base, cand))
    names = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    return Change(
        model=model,
        versions={name: (old.get(name), new.get(name)) for name in names},
        max_abs_diff=max(differences, default=None),
        samples=drift.n if drift else 0,
        peak_memory_bytes=Pair(before=_find_peak(base), after=_find_peak(cand)),
        build_s=Pair(before=base.build_s, after=cand.build_s),
        size_bytes=Pair(before=base.size_bytes, after=cand.size_bytes),
        layers=tuple(pair_layers(base.layers, cand.layers)),
    )


def pair_layers(base: Sequence[LayerTime], cand: Sequence[LayerTime]) -> list[LayerDelta]:
    """Pair the layers of both sides by the ONNX nodes that they compute, the largest change of time first."""
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
    """Return a sentence on the changed versions, then one on each configuration; none if nothing was upgraded."""
    changes = [(row.id, row.change) for row in document.rows if row.change is not None]
    versions = dict.fromkeys(
        ", ".join(f"{name} {old or 'none'} -> {new or 'none'}" for name, (old, new) in change.versions.items())
        for _, change in changes
    )
    sentences = [f"Versions: {text}." for text in versions if text]
    return sentences + [f"{name}: {'; '.join(describe_upgrade(change))}." for name, change in changes]


def describe_upgrade(change: Change) -> list[str]:
    """Describe what changed in one configuration: its outputs, its figures, its layers."""
    outputs = "outputs not compared"
    if change.max_abs_diff is not None:
        over = count_of(change.samples, "samples")
        outputs = f"outputs differ by at most {format_small(change.max_abs_diff)} over {over}"
    return [outputs, *_format_figures(change), *_format_layers(change.layers)]


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
        presence = ""
        if not delta.base:
            presence = " (new)"
        elif not delta.candidate:
            presence = " (gone)"
        named.append(f"{names[0]}{more}{presence} {delta.delta_ms:+.3g} ms")
    if named:
        before, after = ([getattr(delta, side) for delta in layers] for side in ("base", "candidate"))
        old, new = (format_significant(sum(s.average_ms or 0.0 for s in sides if s)) for sides in (before, after))
        yield f"layers {old} -> {new} ms in one profile of each, most in {', '.join(named)}"
