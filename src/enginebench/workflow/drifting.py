"""The verb `drift`: the same inputs through two engines, and how far apart their answers are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from enginebench.analyze.drift import LIMITS, default_limits, find_exceeded, measure_drift, measure_samples
from enginebench.backends.registry import accepts
from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.preprocess import differ, shorten
from enginebench.core.records import Caveat, Drift, Precision
from enginebench.core.store import encode, write_atomic
from enginebench.report.drift import DriftDocument, DriftSide, SamplesDocument
from enginebench.workflow.arrays import load_arrays, save_arrays
from enginebench.workflow.campaign import Reporter, cut_common
from enginebench.workflow.lock import lock_devices
from enginebench.workflow.scratch import open_scratch
from enginebench.workflow.sides import OpenSide, SideRequest, check_side, check_sides, choose_step, open_side, run_side

# From the longest to the shortest format: the shorter side sets what can be asked of both.
LENGTHS: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16", "fp8", "int8")


def parse_limits(texts: tuple[str, ...]) -> dict[str, float]:
    """The limits of `cosine=0.99,top1=0.98`.

    Raises:
        UsageError: a name is unknown or given twice, or a value is no number.
    """
    limits: dict[str, float] = {}
    for piece in (piece.strip() for text in texts for piece in text.split(",")):
        name, sep, value = piece.partition("=")
        if name not in LIMITS or not sep or name in limits:
            raise UsageError(f"--limit {piece!r}: expected NAME=VALUE, each name once, of {', '.join(LIMITS)}")
        limits[name] = _parse_value(piece, value)
    return limits


def _parse_value(piece: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise UsageError(f"--limit {piece!r}: {text!r} is no number") from error
    if value != value:
        raise UsageError(f"--limit {piece!r}: nothing is larger or smaller than nan")
    return value


def measure_sides(
    reference: str,
    candidate: str,
    *,
    request: SideRequest,
    n: int | None = None,
    inputs: Path | None = None,
    limits: Mapping[str, float] | None = None,
    out: Path | None = None,
    save_outputs: bool = True,
    reporter: Reporter,
) -> DriftDocument:
    """How far the candidate's answers are from the reference's.

    Args:
        reference: SIDE that is taken as the truth.
        candidate: SIDE.
        request: what both have in common.
        n: samples; None: 64, or all of `inputs`.
        inputs: an .npz with an entry for each input; None: held-out digits for the digits models, else random arrays.
        limits: the user's own; None: those of the candidate's precision.
        out: folder that gets `output_diff.json`, `per_sample_diff.json` and `samples/`.
        save_outputs: whether `samples/` is written.
        reporter: progress.

    Raises:
        FeedError: the sides differ in names, shapes, dtypes or preprocessing; lists every difference.
        ArtifactError: `inputs` holds kept batches that were prepared in another way than a side's inputs.
        UsageError: a limit that no output has a figure for.
    """
    for text in (reference, candidate):
        check_side(text)
    with open_scratch() as place:
        ref = open_side(reference, request, place / "reference", reporter)
        cand = open_side(candidate, request, place / "candidate", reporter)
        if request.profile_index is not None and not any("plan" in accepts(s.engine.backend) for s in (ref, cand)):
            raise UsageError("--profile-index chooses a profile of a plan, and neither side is run by TensorRT")
        check_sides(ref, cand)
        step = choose_step((ref, cand), request)
        given = make_inputs(ref, inputs, n, request.seed)
        check_prepared(given, (ref, cand))
        samples = place / "samples" if out is None or not save_outputs else out / "samples"
        save_arrays(samples / "inputs.npz", given.feeds)
        with lock_devices((ref.engine.device, cand.engine.device), on_wait=reporter.say):
            for name, side in (("reference", ref), ("candidate", cand)):
                run_side(side, samples / "inputs.npz", samples / f"{name}.npz", step, place / name, reporter)
        answers = cut_common(load_arrays(samples / "reference.npz"), load_arrays(samples / "candidate.npz"))
    chosen = dict(default_limits(_find_shorter(ref, cand)) if limits is None else limits)
    drift = measure_drift(*answers, chosen, reference_id=reference)
    _check_gate(drift, limits)
    document = _describe(drift, ref, cand, given, request.seed, limits is not None)
    if out is not None:
        write_atomic(out / "output_diff.json", encode(document, indent=2))
        per_sample = SamplesDocument(n=drift.n, samples=measure_samples(*answers))
        write_atomic(out / "per_sample_diff.json", encode(per_sample, indent=2))
    return document


# As many answers as show a wrong engine, and the sign of a poor one.
SAMPLES = 64


class Inputs(Struct, frozen=True, kw_only=True, eq=False):
    """What goes through both sides."""

    feeds: dict[str, Any]  # input name -> array, n entries each
    source: str
    preprocess_sha256: str | None = None
    caveats: tuple[Caveat, ...] = ()


def make_inputs(side: OpenSide, path: Path | None, n: int | None, seed: int) -> Inputs:
    """The entries of a file, else held-out digits for the digits models, else random arrays.

    Raises:
        FeedError, ParseError: the file does not fit the inputs.
    """
    from msgspec.structs import replace

    from enginebench.models.precision.calibration_data import open_arrays
    from enginebench.models.task import hash_preprocess, sample_feeds
    from enginebench.models.zoo import BUILTIN

    specs = side.artifact.inputs
    if path is not None:
        data = open_arrays(path, specs, n or 1 << 62)
        return Inputs(
            feeds=data.read(0, data.n),
            source=str(path),
            preprocess_sha256=data.preprocess_sha256,
            caveats=data.caveats,
        )
    free = [replace(spec, shape=("batch", *spec.shape[1:])) for spec in specs]
    (feeds,) = sample_feeds(free, side.model, n or SAMPLES, seed, 1)
    if side.model in BUILTIN and BUILTIN[side.model].task == "digits":
        return Inputs(feeds=feeds, source="digits, held out", preprocess_sha256=hash_preprocess(side.model))
    caveat = Caveat(
        code="random_inputs",
        message=f"the inputs are random (seed {seed})",
        advice="agreement on them says little about real ones: give --inputs F.npz, or use accuracy on labelled data",
    )
    return Inputs(feeds=feeds, source="random", caveats=(caveat,))


def check_prepared(given: Inputs, sides: tuple[OpenSide, ...]) -> None:
    """Returns if the inputs are prepared as the sides need them, or nobody can know.

    Raises:
        ArtifactError: both hashes are known, and differ.
    """
    for side in sides:
        known = side.artifact.preprocess_sha256
        if differ(given.preprocess_sha256, known):
            raise ArtifactError(
                f"{given.source} is prepared by preprocess {shorten(given.preprocess_sha256)}, the inputs of "
                f"{side.text} by {shorten(known)}. Keep entries of this model: enginebench calibrate --keep-batches"
            )


def _find_shorter(ref: OpenSide, cand: OpenSide) -> Precision:
    return max((ref.engine.precision, cand.engine.precision), key=LENGTHS.index)


def _check_gate(drift: Drift, limits: Mapping[str, float] | None) -> None:
    """A limit that nothing is held against would pass everything."""
    for name in limits or {}:
        if drift.n and all(getattr(o, LIMITS[name][0]) is None and not o.nonfinite for o in drift.outputs):
            raise UsageError(f"--limit {name}: no output has such a figure; it has too few classes, or samples")


def _describe(drift: Drift, ref: OpenSide, cand: OpenSide, given: Inputs, seed: int, gate: bool) -> DriftDocument:
    doubts = (*given.caveats, *(c for side in (ref, cand) for c in side.artifact.caveats))
    return DriftDocument(
        n=drift.n,
        outputs=drift.outputs,
        limits=drift.limits,
        passed=drift.passed,
        gate=gate,
        reference=_describe_side(ref),
        candidate=_describe_side(cand),
        inputs=given.source,
        preprocess_sha256=given.preprocess_sha256,
        seed=seed,
        exceeded=find_exceeded(drift),
        caveats=tuple(dict.fromkeys(doubts)),
    )


def _describe_side(side: OpenSide) -> DriftSide:
    return DriftSide(text=side.text, model=side.model, engine=side.engine, artifact_sha256=side.artifact.sha256)
