"""The verb `drift`: how far apart the answers of two engines to the same inputs are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from enginebench.analyze.drift import (
    LIMITS,
    doubt_samples,
    find_exceeded,
    limits_between,
    limits_undecided,
    measure_drift,
    measure_samples,
)
from enginebench.backends.registry import accepts
from enginebench.core.caveats import make_caveat
from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.preprocess import EXTERNAL, differ, shorten
from enginebench.core.records import Caveat, Drift, Task, TensorSpec
from enginebench.core.store import encode, write_atomic
from enginebench.models.precision.calibration import explain_external
from enginebench.models.samples import (
    cut_entries,
    group_samples,
    join_samples,
    name_only,
    resolve_given,
    write_samples,
)
from enginebench.report.drift import DriftDocument, DriftSide, SamplesDocument
from enginebench.workflow.builds import cut_common
from enginebench.workflow.child.arrays import load_arrays, save_arrays
from enginebench.workflow.lock import lock_devices
from enginebench.workflow.progress import Reporter
from enginebench.workflow.targets.scratch import open_scratch
from enginebench.workflow.targets.sides import (
    MadeSources,
    OpenSide,
    SideRequest,
    check_side,
    check_sides,
    choose_step,
    open_side,
    run_side,
)


def parse_limits(texts: tuple[str, ...]) -> dict[str, float]:
    """The limits of `cosine=0.99,top1=0.98`.

    Raises:
        UsageError: a name is unknown or given twice, or a value is not a number or beyond every figure.
    """
    limits: dict[str, float] = {}
    for piece in (piece.strip() for text in texts for piece in text.split(",")):
        name, sep, value = piece.partition("=")
        if name not in LIMITS or not sep or name in limits:
            raise UsageError(f"--limit {piece!r}: expected NAME=VALUE, each NAME once and one of {', '.join(LIMITS)}")
        limits[name] = _parse_value(piece, name, value)
    if "samples" in limits and "snr" not in limits:
        raise UsageError(
            "--limit samples=...: the share of the samples that keep the limit of snr; give snr=... as well"
        )
    return limits


def check_limits(limits: Mapping[str, float]) -> dict[str, float]:
    """The limits, if each has a name that is known and a value that something can be held against.

    Raises:
        UsageError: one has not.
    """
    return parse_limits(tuple(f"{name}={value}" for name, value in limits.items()))


def _parse_value(piece: str, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError as error:
        raise UsageError(f"--limit {piece!r}: {text!r} is not a number") from error
    if value != value:
        raise UsageError(f"--limit {piece!r}: nan is not a limit; give a number")
    if name == "samples" and value <= 0:
        raise UsageError(f"--limit {piece!r}: no sample would have to keep snr; give a share above 0, at most 1")
    least = LIMITS[name][1]
    if least and name != "snr" and value > 1:
        raise UsageError(f"--limit {piece!r}: {name} is at most 1, so that no answers keep to it; give 1 or less")
    if not least and value < 0:
        raise UsageError(f"--limit {piece!r}: {name} is at least 0, so that no answers keep to it; give 0 or more")
    return value


def measure_sides(
    reference: str,
    candidate: str,
    *,
    request: SideRequest,
    n: int | None = None,
    limits: Mapping[str, float] | None = None,
    task: Task | None = None,
    out: Path | None = None,
    save_outputs: bool = True,
    reporter: Reporter,
) -> DriftDocument:
    """How far the candidate's answers are from the reference's.

    Args:
        reference: the SIDE taken as correct.
        candidate: the SIDE to check.
        request: what both sides have in common.
        n: number of samples; None: 64, or all of the user's inputs. If fewer are compared, no limit is passed.
        limits: given limits; None: those of the candidate's precision.
        task: what the models are for: boxes are matched, maps of classes and sequences decoded, and then compared.
        out: the folder for `output_diff.json`, `per_sample_diff.json` and `samples/`.
        save_outputs: whether `samples/` is written.
        reporter: progress.

    Raises:
        FeedError: the sides differ in names, shapes, dtypes or preprocessing; the message lists every difference.
        ArtifactError: the user's inputs were prepared differently from a side's.
        UsageError: no output has a figure for a given limit.
    """
    for text in (reference, candidate):
        check_side(text)
    with open_scratch() as place:
        made: MadeSources = {}
        ref = open_side(reference, request, place / "reference", reporter, made)
        cand = open_side(candidate, request, place / "candidate", reporter, made)
        _check_profile_index(request, (ref, cand))
        check_sides(ref, cand)
        step = choose_step((ref, cand), request)
        given = make_inputs(ref, request.source.inputs, n, request.source.seed)
        entries = len(given.entries)
        check_prepared(given, (ref, cand))
        samples = place / "samples" if out is None or not save_outputs else out / "samples"
        entered = save_inputs(given.entries, ref.artifact.inputs, samples / "inputs")
        with lock_devices((ref.engine.device, cand.engine.device), on_wait=reporter.say):
            for name, side in (("reference", ref), ("candidate", cand)):
                run_side(
                    side,
                    entered,
                    samples / f"{name}.npz",
                    n=entries,
                    step=step,
                    scratch=place / name,
                    reporter=reporter,
                )
        answers = cut_common(load_arrays(samples / "reference.npz"), load_arrays(samples / "candidate.npz"))
    between = ref.engine.precision, cand.engine.precision, task
    chosen = dict(limits_between(*between) if limits is None else limits)
    undecided = limits_undecided(*between) if limits is None else None
    asked = n or entries
    drift = measure_drift(*answers, chosen, reference_id=reference, asked=asked, task=task, undecided=undecided)
    _check_gate(drift, limits)
    document = _describe(drift, ref, cand, given, request.source.seed, limits is not None)
    if out is not None:
        write_atomic(out / "output_diff.json", encode(document, indent=2))
        per_sample = SamplesDocument(n=drift.n, samples=measure_samples(*answers, task))
        write_atomic(out / "per_sample_diff.json", encode(per_sample, indent=2))
    return document


# Enough answers to reveal a wrong engine, and to hint at a poor one.
SAMPLES = 64


class Inputs(Struct, frozen=True, kw_only=True, eq=False):
    """What goes through both sides."""

    entries: list[dict[str, Any]]  # of each input name -> array, one entry on its batch axis
    source: str
    preprocess_sha256: str | None = None
    caveats: tuple[Caveat, ...] = ()


def make_inputs(side: OpenSide, text: str | None, n: int | None, seed: int) -> Inputs:
    """The user's entries, else held-out digits for the digits models, else what is made up.

    Args:
        side: whose inputs they are to fit.
        text: --inputs; None if there are none.
        n: entries; None: 64, or all that the user gave.
        seed: of what is made up.

    Raises:
        FeedError, ParseError: the user's inputs do not match those of the side.
    """
    from enginebench.models.task import count_held_out, find_own_data, hash_preprocess, sample_feeds

    specs = side.artifact.inputs
    if text is not None:
        return _take_given(text, specs, n)
    own = find_own_data(side.model)
    count = min(n or SAMPLES, count_held_out()) if own == "digits" else n or SAMPLES  # a repeated one shows nothing new
    calls = sample_feeds(specs, side.model, 1, seed, count)
    entries = [entry for feeds in calls for entry in cut_entries(feeds, specs)][:count]
    if own is not None:
        source = "digits, held out" if own == "digits" else own
        return Inputs(entries=entries, source=source, preprocess_sha256=hash_preprocess(side.model))
    return Inputs(entries=entries, source="random", caveats=(make_caveat("random_inputs", seed=seed),))


def _take_given(text: str, specs: Sequence[TensorSpec], n: int | None) -> Inputs:
    """The user's entries; of kept batches with their preprocessing."""
    from enginebench.models.precision.calibration_data import read_origin

    entries = [entry for arrays in resolve_given(text) for entry in cut_entries(name_only(arrays, specs), specs)][:n]
    origin = read_origin(Path(text)) if Path(text).is_file() else None
    if origin is None:
        return Inputs(
            entries=entries,
            source=text,
            preprocess_sha256=EXTERNAL,
            caveats=(explain_external(f"inputs come from {text}"),),
        )
    return Inputs(entries=entries, source=text, preprocess_sha256=origin.preprocess_sha256, caveats=origin.caveats)


def save_inputs(entries: Sequence[Mapping[str, Any]], specs: Sequence[TensorSpec], place: Path) -> Path:
    """Keeps the entries in one file `place`.npz, joined; in a folder of files, if their shapes differ. Says where."""
    if len(group_samples(entries, len(entries), specs)) > 1:
        write_samples(entries, specs, place)
        return place
    path = place.with_suffix(".npz")
    save_arrays(path, join_samples(entries, specs, len(entries)))
    return path


def _check_profile_index(request: SideRequest, sides: tuple[OpenSide, ...]) -> None:
    """Checks that at least one side uses the profile of --profile-index."""
    if request.profile_index is None:
        return
    chosen = [s.engine.options.get("profile_index") for s in sides if "plan" in accepts(s.engine.backend)]
    if not chosen:
        raise UsageError("--profile-index chooses a profile of a plan, but TensorRT runs neither side; leave it out")
    if str(request.profile_index) not in chosen:
        raise UsageError(
            f"--profile-index {request.profile_index} is for a side that names no profile, but "
            "both name their own; leave it out"
        )


def check_prepared(given: Inputs, sides: tuple[OpenSide, ...]) -> None:
    """Checks that the inputs are prepared as the sides need them, as far as this is known.

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


def _check_gate(drift: Drift, limits: Mapping[str, float] | None) -> None:
    """Checks that every given limit applies to some output; one that does not would pass everything."""
    for name in limits or {}:
        if drift.n and all(getattr(o, LIMITS[name][0]) is None and not o.nonfinite for o in drift.outputs):
            raise UsageError(
                f"--limit {name}: no output has such a figure: too few classes or samples, or no change with the input"
            )


def _describe(drift: Drift, ref: OpenSide, cand: OpenSide, given: Inputs, seed: int, gate: bool) -> DriftDocument:
    whole = drift.n >= (drift.asked or 0)
    doubts = (*given.caveats, *doubt_samples(drift), *(c for side in (ref, cand) for c in side.artifact.caveats))
    return DriftDocument(
        n=drift.n,
        n_asked=drift.asked or drift.n,
        outputs=drift.outputs,
        limits=drift.limits,
        undecided=drift.undecided,
        passed=drift.passed and whole,
        gate=gate,
        reference=_describe_side(ref),
        candidate=_describe_side(cand),
        inputs=given.source,
        preprocess_sha256=given.preprocess_sha256,
        seed=seed,
        exceeded=(*find_exceeded(drift), *(() if whole else (f"{drift.n} of {drift.asked} samples were compared",))),
        caveats=tuple(dict.fromkeys(doubts)),
    )


def _describe_side(side: OpenSide) -> DriftSide:
    return DriftSide(text=side.text, model=side.model, engine=side.engine, artifact_sha256=side.artifact.sha256)
