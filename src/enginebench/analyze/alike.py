"""Whether two sides were asked the same, and whether they answered the same; where nobody can know, why."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from enginebench.analyze.compare import find_preprocess
from enginebench.analyze.drift import LIMITS, choose_limits, find_exceeded
from enginebench.core.preprocess import differ, shorten
from enginebench.core.records import Drift, OutputDrift, Result, TensorSpec
from enginebench.core.shapes import concrete_shape


def compare_preparation(reference: str | None, candidate: str | None) -> list[str]:
    """Why inputs are not prepared alike, by the hashes of both preprocessings; an empty list if nothing says so."""
    if not differ(reference, candidate):
        return []
    return [f"inputs are prepared by preprocess {shorten(reference)} against {shorten(candidate)}"]


def compare_specs(
    what: str, reference: Sequence[TensorSpec], candidate: Sequence[TensorSpec], names: tuple[str, str]
) -> list[str]:
    """Every difference in name, dtype or shape. An open axis fits every length.

    Args:
        what: "input" or "output", for the sentences.
        reference: of the side that is taken as the truth.
        candidate: of the other side.
        names: what the two sides are called.
    """
    ref, cand = ({spec.name: spec for spec in side} for side in (reference, candidate))
    problems = [f"{what} {name!r} is missing from {names[1]}" for name in ref if name not in cand]
    problems += [f"{what} {name!r} is missing from {names[0]}" for name in cand if name not in ref]
    return problems + [p for name in ref if name in cand for p in _compare_spec(what, ref[name], cand[name])]


def _compare_spec(what: str, ref: TensorSpec, cand: TensorSpec) -> list[str]:
    problems = []
    if ref.dtype != cand.dtype:
        problems.append(f"{what} {ref.name!r} has dtype {ref.dtype} against {cand.dtype}")
    fits = len(ref.shape) == len(cand.shape) and all(
        a == b or isinstance(a, str) or isinstance(b, str) for a, b in zip(ref.shape, cand.shape, strict=True)
    )
    if not fits:
        problems.append(f"{what} {ref.name!r} has shape {list(ref.shape)} against {list(cand.shape)}")
    return problems


def compare_questions(base: Result, cand: Result) -> list[str]:
    """Why two rows cannot have been asked the same: their inputs differ, as the engines were fed; empty if they do not.

    An open axis is as long as the row was fed, so that here it does not fit every length.
    """
    return [
        *compare_preparation(find_preprocess(base), find_preprocess(cand)),
        *compare_specs("input", _list_inputs(base), _list_inputs(cand), (base.id, cand.id)),
    ]


def _list_inputs(result: Result) -> list[TensorSpec]:
    inputs = result.artifacts[-1].inputs if result.artifacts else ()
    return [replace(spec, shape=concrete_shape(spec, result.engine.batch)) for spec in inputs]


def judge_answers(base: Result, cand: Result) -> tuple[bool | None, str]:
    """(whether the candidate's answers agree with the base's within the limits, why not or why nobody knows).

    True only where the candidate was held against this very base, and every output against at least one limit.
    """
    drift = cand.drift
    if drift is not None and drift.unlike:
        return None, f"the answers cannot be compared: {'; '.join(drift.unlike)}"
    if drift is None or drift.reference != base.id:
        silent = next((row for row in (base, cand) if row.drift is None), cand)
        return None, f"the answers were not compared: {silent.id} showed none"
    if not drift.n or not drift.outputs:
        return None, "the answers were not compared: there is no sample that both sides answered"
    if not drift.passed:
        exceeded = "; ".join(text.replace("; the limit", ", the limit") for text in find_exceeded(drift))
        return False, f"the answers differ beyond the limits: {exceeded}"
    if free := [output.name for output in drift.outputs if not _is_held(output, drift)]:
        return None, f"the answers were not compared: {drift.n} samples of {', '.join(free)} are too few for any limit"
    return True, ""


def _is_held(output: OutputDrift, drift: Drift) -> bool:
    """Whether a limit was applied to an output: a figure that it does not have keeps every limit."""
    return output.max_abs_diff == 0 or any(
        getattr(output, LIMITS[name][0]) is not None for name in choose_limits(output, drift)
    )
