"""Whether two sides had the same inputs and gave the same outputs, and the reasons where that cannot be decided."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from enginebench.core.preprocess import differ, shorten
from enginebench.core.protocols import Array
from enginebench.core.recipes import FEW_BITS
from enginebench.core.records import Drift, Outputs, Precision, Result, ResultWarning, TensorSpec
from enginebench.core.shapes import PAD, concrete_shape, find_size
from enginebench.core.warnings import make_warning
from enginebench.stats.compare import find_preprocess
from enginebench.stats.drift import (
    FULL,
    apply_limits,
    default_limits,
    find_coarsest,
    find_exceeded,
    find_noise_warning,
    holds_values,
    keeps_limits,
    limits_between,
    list_sample_warnings,
)

VARIES = "the model gives different outputs for the same inputs each time"
PADDING_CHANGES = "padding changes outputs that are taken over the padded length without a mask"
# Warnings that weights or inputs were made up.
INVENTED = {"random_weights": "weights", "random_inputs": "inputs"}
# Centred cosine below which most of what varies is noise: rounding to 16 bits does less harm, even where outputs hardly
# vary with the input. ResNet-50 with random weights keeps 0.67 in BF16, at 18 dB; in INT8 0.27 at 14 dB, in both ONNX
# Runtime and TensorRT.
MOSTLY_NOISE, MOSTLY_NOISE_IN_FEW_BITS = 0.5, 0.2


def compare_preparation(reference: str | None, candidate: str | None) -> list[str]:
    """List why inputs are not prepared alike, by the hashes of both preprocessings; empty if nothing shows a
    difference."""
    if not differ(reference, candidate):
        return []
    return [f"inputs are prepared by preprocess {shorten(reference)} against {shorten(candidate)}"]


def compare_specs(
    what: str, reference: Sequence[TensorSpec], candidate: Sequence[TensorSpec], names: tuple[str, str]
) -> list[str]:
    """List every difference in name, dtype or shape. A dynamic axis fits every length."""
    ref, cand = ({spec.name: spec for spec in side} for side in (reference, candidate))
    problems = [f"{what} {name!r} is missing from {names[1]}" for name in ref if name not in cand]
    problems += [f"{what} {name!r} is missing from {names[0]}" for name in cand if name not in ref]
    for a, b in ((ref[name], cand[name]) for name in ref if name in cand):
        if a.dtype != b.dtype:
            problems.append(f"{what} {a.name!r} has dtype {a.dtype} against {b.dtype}")
        differ = (x != y and str not in (type(x), type(y)) for x, y in zip(a.shape, b.shape, strict=False))
        if len(a.shape) != len(b.shape) or any(differ):
            problems.append(f"{what} {a.name!r} has shape {list(a.shape)} against {list(b.shape)}")
    return problems


def compare_inputs(base: Result, cand: Result) -> list[str]:
    """List the differences between the inputs of two configurations, as their engines received them; empty if none.

    A dynamic axis counts with the length that it had, so that here it does not fit every length.
    """
    before, after = (
        [replace(spec, shape=concrete_shape(spec, r.engine.batch)) for a in r.artifacts[-1:] for spec in a.inputs]
        for r in (base, cand)
    )
    preparation = compare_preparation(find_preprocess(base), find_preprocess(cand))
    return preparation + compare_specs("input", before, after, (base.id, cand.id))


# Precisions of a source that need no mention: FP32, and that of a plan, which is unknown.
_USUAL = ("fp32", None)


def assess_outputs(
    result: Result, *, is_reference: bool, requested: Iterable[Precision | None] = ()
) -> tuple[Outputs, str]:
    """Return (verdict on the outputs of a configuration, its reason).

    With made-up weights or inputs a lower precision is `not_judged`: its cost shows on real ones only. Outputs that
    break even the limits of 8 bits are `changed` there, too: no rounding explains them. A graph that was given in a
    lower precision costs nothing more, and is judged on any inputs.

    Args:
        requested: the precisions of all configurations of the run, which decide how much noise is gross.
    """
    drift = result.drift
    own = "".join(f": the model itself is {a.precision}" for a in result.artifacts[:1] if a.precision not in _USUAL)
    whys = list_invented(result)
    random = f"random {' and '.join(whys)}" if whys else ""
    if whys and drift is not None and _is_rounded_alike(result, drift):
        whys, own = [], f"{own}, with {random}"
    broken = drift is not None and any(output.broken for output in drift.outputs)
    if not broken and do_outputs_vary(result, drift.reference if drift else result.id):
        return "not_judged", VARIES
    if is_reference and (drift is None or drift.reference == result.id):
        if broken:
            return "not_judged", "its own outputs are not finite"
        return "same", f"it is the reference{own}{random and ', with '}{random}"
    if drift is None or drift.unlike or not drift.n:
        return "not_judged", "; ".join(drift.unlike) if drift and drift.unlike else "the outputs were not compared"
    finite = [replace(o, nonfinite=o.nonfinite - 2 * o.nonfinite_alike, infinite_alike=0) for o in drift.outputs]
    if broken and all(keeps_limits(o, drift.limits) for o in finite):  # no number where the graph says so
        return "not_judged", "; ".join(find_exceeded(drift))
    shortened = (result.requested_precision, result.engine.precision) != ("fp32", "fp32")
    formats = {result.requested_precision, result.engine.precision, *(requested if shortened else ())}
    padded = bool(result.engine.options.get(PAD))
    # Rounding may change what random weights give; without shorter formats only padding explains a change of a padded.
    if not drift.passed and (not whys or (padded and not shortened) or is_gross(drift, formats)):
        reason = "; ".join(find_exceeded(drift)) or "beyond the limits"
        return "changed", f"{reason}; {PADDING_CHANGES}" if padded else reason
    if whys and (shortened or not drift.passed):
        return "not_judged", random
    if any(warning.code == "constant_answers" for warning in list_sample_warnings(drift)):
        return "not_judged", "the model gives the same output for every input"
    return ("within_limits", own.removeprefix(": ")) if shortened else ("same", random and f"with {random}")


def _is_rounded_alike(result: Result, drift: Drift) -> bool:
    """Whether the outputs were compared with those of the same graph, whose own precision is lower than FP32."""
    precisions = {artifact.precision for artifact in result.artifacts}
    return drift.reference_kind != "configuration" and len(precisions) == 1 and not precisions & {*_USUAL}


def do_outputs_vary(result: Result, reference: str) -> bool:
    """Whether the reference gives different outputs for the same inputs; an engine that alone does so counts as
    changed."""
    varying = [warning.figures for warning in result.warnings if warning.code == "outputs_vary"]
    return any(figures.get("row", reference) == reference for figures in varying)


def list_invented(result: Result) -> list[str]:
    """List which of `weights` and `inputs` were made up, so that outputs are not those that a user would see."""
    warnings = [*result.warnings, *(warning for artifact in result.artifacts for warning in artifact.warnings)]
    invented = {INVENTED[warning.code] for warning in warnings if warning.code in INVENTED}
    random = any(artifact.weights == "random" for artifact in result.artifacts)
    return sorted({*invented, "weights"} if random else invented, reverse=True)


def is_gross(drift: Drift, formats: Collection[Precision | None]) -> bool:
    """Whether outputs break even the limits of 8 bits, the loosest; a centred cosine may be lower, down to mere noise.

    Args:
        formats: the precisions involved. FP32 alone does not excuse such noise.
    """
    short = {*formats} - {"fp32"}
    noise = MOSTLY_NOISE_IN_FEW_BITS if short & {*FEW_BITS} else MOSTLY_NOISE
    loosest = default_limits(None) | ({"centred_cosine": noise} if short else {})
    further = any(is_gross(one, formats) for one in drift.further if not one.passed)
    return further or not all(keeps_limits(output, loosest) for output in drift.outputs)


def check_comparisons(results: Sequence[Result]) -> list[Result]:
    """Drop comparisons that compare nothing, and warn of those over fewer samples than others.

    A configuration is compared with a reference: another configuration of this run and of the same batch, or one of the
    search whose final this run is. One that was compared with itself although it is not the reference, or with one that
    is not here, was not compared.
    """
    references = _find_compared_with(results)
    sizes = {r.id: find_size(r.engine) for r in results}
    kept = [r if _is_compared(r, references, sizes) else replace(r, drift=None) for r in results]
    drifts, scores = Counter[tuple[int, str]](), Counter[tuple[int, str]]()  # the most samples that a row of a size has
    for r in kept:
        size = sizes[r.id]
        drifts[size] = max(drifts[size], r.drift.n if r.drift else 0)
        scores[size] = max(scores[size], r.scores[0].value.n if r.scores else 0)
    return [
        replace(r, warnings=(*r.warnings, *_list_part_warnings(r, drifts[sizes[r.id]], scores[sizes[r.id]])))
        for r in kept
    ]


def apply_usual_limits(
    results: Sequence[Result], limits: Mapping[str, float] | None = None, requested: Iterable[Precision | None] = ()
) -> list[Result]:
    """Apply the usual limits to the outputs of configurations, the same ones to all reduced precisions.

    A stored run is judged by the limits of today, whatever was stored as passed. A reduced precision that passes, and
    would not by the limits of its own format, has a warning.

    Args:
        limits: the user's own, which were applied when the outputs were compared; None: the usual ones.
        requested: precisions that were requested beside those of the configurations.
    """
    if limits is not None:
        return list(results)
    precisions = {result.id: result.requested_precision for result in results}
    requested_by_run = (*requested, *precisions.values())
    limited = []
    for result in results:
        if result.drift is not None:
            # A reference that is none of the configurations of the run is in FP32.
            reference = precisions.get(result.drift.reference, "fp32")
            result = _apply_limits(result, reference, requested_by_run)
        limited.append(result)
    return limited


def _apply_limits(result: Result, reference: Precision | None, requested: Sequence[Precision | None]) -> Result:
    drift, pair = result.drift, (reference, result.requested_precision)
    if drift is None or drift.unlike or not drift.outputs:
        return result
    held = apply_limits(drift, limits_between(*pair, requested))
    # With random weights or inputs a reduced precision is not judged, and noise is no surprise.
    may_warn = held.passed and (find_coarsest(pair) == "fp32" or not list_invented(result))
    noise = find_noise_warning(held, limits_between(*pair), find_coarsest(pair)) if may_warn else None
    return replace(result, drift=held, warnings=(*result.warnings, *([noise] if noise else [])))


def is_reduced(result: Result) -> bool:
    """Whether the requested precision rounds more than FP32 and TF32 do, or is unknown."""
    return result.requested_precision not in FULL


def find_references(results: Sequence[Result], baselines: Sequence[Result | None] = ()) -> set[str]:
    """Return the ids of the configurations that the others of their batch were compared with.

    Where nothing was compared, the baseline counts: the others would have been compared with it.
    """
    compared_with = _find_compared_with(results)
    drifts = [(find_size(r.engine), r.drift) for r in results if r.drift and r.drift.n]
    of_graphs = {size for size, drift in drifts if drift.reference_kind != "configuration"}
    others = {b.id for b in baselines if b and find_size(b.engine) not in {*compared_with, *of_graphs}}
    return {*compared_with.values(), *others}


def _find_compared_with(results: Sequence[Result]) -> dict[tuple[int, str], str]:
    """Return (batch, shapes) -> id of the configuration that most were compared with, itself included; the first of
    several."""
    sizes = {r.id: find_size(r.engine) for r in results}
    drifts = [(r, r.drift) for r in results if r.drift and r.drift.n]
    votes = Counter(drift.reference for r, drift in drifts if sizes.get(drift.reference) == find_size(r.engine))
    references: dict[tuple[int, str], str] = {}
    for result in sorted(results, key=lambda r: -votes[r.id]):
        if votes[result.id]:
            references.setdefault(find_size(result.engine), result.id)
    return references


def _is_compared(
    result: Result, references: Mapping[tuple[int, str], str], sizes: Mapping[str, tuple[int, str]]
) -> bool:
    drift, size = result.drift, find_size(result.engine)
    if drift is not None and drift.unlike:
        return True  # it has the reasons why nothing was compared
    if drift is None or not drift.n or (sizes.get(drift.reference) != size and not drift.elsewhere):
        return False
    if not any(holds_values(o) for o in drift.outputs):
        return False  # outputs that hold no values
    return drift.reference != result.id or references.get(size) == result.id


def _list_part_warnings(result: Result, compared: int, scored: int) -> list[ResultWarning]:
    """Warn where fewer samples were `compared` or `scored` than of another configuration of the same batch."""
    warnings = []
    # A drift with a requested number has this warning of its own, and one that was refused has its reasons.
    if result.drift and result.drift.n_requested is None and not result.drift.unlike and result.drift.n < compared:
        warnings.append(make_warning("partly_compared", what="outputs were compared", n=result.drift.n, asked=compared))
    if result.scores and result.scores[0].value.n < scored:
        warnings.append(
            make_warning("partly_compared", what="accuracy was measured", n=result.scores[0].value.n, asked=scored)
        )
    return warnings


Arrays = Mapping[str, "Array"]


def fill_lengths(reference: Arrays, candidate: Arrays, names: Collection[str]) -> tuple[Arrays, Arrays]:
    """Pad the outputs of these names with zeros to the length of the longer side.

    One box more or less is then a difference in that box, and not two outputs that cannot be compared.
    """
    both = {n: _fill(reference[n], candidate[n]) for n in names if n in reference and n in candidate}
    return {**reference, **{n: a for n, (a, _) in both.items()}}, {**candidate, **{n: b for n, (_, b) in both.items()}}


def _fill(a: Array, b: Array) -> tuple[Array, Array]:
    # One side had as many boxes in every sample, and was joined without an axis of samples.
    if a.ndim < b.ndim:
        a = _split(a, len(b))
    elif b.ndim < a.ndim:
        b = _split(b, len(a))
    if a.ndim != b.ndim or len(a) != len(b):
        return a, b
    shape = tuple(map(max, zip(a.shape, b.shape, strict=True)))
    first, second = (np.pad(s, [(0, want - n) for want, n in zip(shape, s.shape, strict=True)]) for s in (a, b))
    return first, second


def _split(array: Array, samples: int) -> Array:
    return array.reshape(samples, -1, *array.shape[1:]) if samples and len(array) % samples == 0 else array
