"""`drift`: how far apart the outputs of two engines for the same inputs are."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from msgspec import Struct, field
from msgspec.structs import replace

from enginebench import door
from enginebench import options as opts
from enginebench.core.commands import advise_inputs, format_command
from enginebench.core.errors import ArtifactError, GateFailed, UsageError
from enginebench.core.features import require_hook
from enginebench.core.hooks import FaultLocator
from enginebench.core.input_sets import EXAMPLES
from enginebench.core.names import parse_precision
from enginebench.core.preprocess import EXTERNAL, differ, shorten
from enginebench.core.records import Artifact, Drift, ResultWarning, TensorSpec
from enginebench.core.store import encode, write_atomic
from enginebench.core.warnings import make_warning
from enginebench.engines.registry import accepts
from enginebench.models.precision.calibration import explain_external
from enginebench.options import Opt, PathLike, Unpack, verb
from enginebench.runs.lock import lock_devices
from enginebench.runs.plan import find_fixed_batch
from enginebench.runs.progress import Reporter
from enginebench.runs.targets.scratch import open_scratch
from enginebench.verbs.common import open_progress, read_limits, take_side, to_path
from enginebench.verbs.requests import make_side_request

if TYPE_CHECKING:
    from enginebench.models.check_inputs import Entries
    from enginebench.report.drift import DriftDocument
    from enginebench.runs.targets import sides
    from enginebench.stats.drift import SampleDrift

Limits: TypeAlias = Mapping[str, float] | opts.Texts


class DriftOptions(opts.Modules, opts.Shared, total=False):
    n: Annotated[
        int | None,
        Opt(
            "Number of samples. [64, or all of --inputs]",
            ge=1,
            more="Where fewer can be compared (a shorter file, 450 digits), the document has `n` of `n_asked`, and no "
            "limit is passed",
        ),
    ]
    limit: Annotated[
        Limits | None,
        Opt(
            "Exit with code 4 beyond these limits: cosine=0.99,top1=0.98 [those of the shorter precision]",
            metavar="NAME=VALUE",
            multiple=True,
            more="NAME is one of `cosine`, `cosine_min`, `centred_cosine`, `snr`, `snr_min`, `top1`, `top5`, "
            "`max_abs`, `mean_abs`, `mean_rel`, `agreement`, `agreement_min`, `samples`",
        ),
    ]
    precision: Annotated[
        str | None, Opt("Judge by the limits of this precision. [the shorter of both sides']", metavar="P")
    ]
    input_size: opts.InputSize
    profile_index: Annotated[
        int | None,
        Opt(
            "Optimization profile of plans that do not name one.",
            ge=0,
            more="For one side alone: `tensorrt:profile_index=1@PLAN`",
        ),
    ]
    skip_output_save: Annotated[bool, Opt("Do not write samples/ into --out.", False)]
    out: Annotated[PathLike | None, Opt("Folder for the figures of every sample and its outputs.", path="new folder")]
    locate: Annotated[
        bool,
        Opt(
            "Find the first node whose outputs leave the reference, its cause, and a way around it.",
            False,
            feature="locate",
            more="Each side is held against its own graph, computed as it is written. With --out also a reproduction",
        ),
    ]
    slice_mb: Annotated[
        int, Opt("Memory for the tensors that --locate compares at a time.", 2000, ge=1, feature="locate", metavar="MB")
    ]
    task: opts.TaskOption
    wait: opts.Wait
    gate: Annotated[bool, Opt("Raise GateFailed where a limit of your own is not kept.", True, program=True)]


@verb(DriftOptions)
def drift(reference: opts.Side, candidate: opts.Side, **options: Unpack[DriftOptions]) -> "DriftDocument":
    """Compare the outputs of CAND with those of REF on the same inputs.

    Example: enginebench drift pytorch@digits-cnn ort@digits-cnn

    REF and CAND are ENGINE@TARGET (ort@model.onnx, pytorch@resnet18) or files of stored results. A graph runs in its
    own precision and must meet its limits; the command ends with exit code 4 if it does not. Non-finite outputs always
    fail. Agreement on random inputs is no measure of accuracy; for that, see `enginebench accuracy`.

    Args:
        reference: the side that is taken as correct; also (ENGINE, model).
        candidate: the other side.

    Raises:
        UsageError: a side is none, or a limit is unknown or applies to no output.
        FeedError: the sides differ in names, shapes, dtypes or preprocessing; lists every difference.
        ArtifactError: your inputs were prepared differently from a side's.
        GateFailed: a limit of your own is not kept, or there was nothing to compare.
    """
    request = make_side_request(options, options["input_size"], options["profile_index"])
    limits = read_limits(options["limit"])
    with (
        take_side(reference, options["example_inputs"]) as first,
        take_side(candidate, options["example_inputs"]) as second,
        open_progress(options["progress"]) as reporter,
    ):
        document = _measure(first, second, request, limits, reporter, options)
    if options["gate"] and document.gate:
        require_passed(document)
    return document


@door.command(drift, "REF", "CAND", shown=opts.Trusting)
def command(reference: str, candidate: str, shown: opts.Printed, **options: Unpack[DriftOptions]) -> None:
    from enginebench.report.drift import list_drift

    options["gate"] = False
    document = drift(reference, candidate, **options)
    door.show(document, shown, door.tables(list_drift))
    require_passed(document)


def require_passed(document: "DriftDocument") -> None:
    """Raise GateFailed, with what was exceeded, unless the outputs are within the limits."""
    if not document.passed:
        raise GateFailed("; ".join(document.exceeded) or "there was nothing to compare")


class Inputs(Struct, frozen=True, kw_only=True, eq=False):
    entries: list[dict[str, Any]]  # of each input name -> array, one entry on its batch axis
    source: str
    preprocess_sha256: str | None = None
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")
    # Of made-up inputs alone: sets that reach further, which are compared one by one.
    further: "dict[str, Entries]" = {}


class RanSides(Struct, frozen=True, kw_only=True, eq=False):
    """The outputs of the reference and of the candidate, in this order."""

    outputs: tuple[Mapping[str, Any], Mapping[str, Any]]
    further: tuple[Mapping[str, Any], Mapping[str, Any]]  # of each set of inputs that reach further
    refused: tuple[dict[str, str], dict[str, str]]  # set of inputs -> why the engine refused it
    random: tuple[ResultWarning, ...]  # outputs that vary by themselves


def _measure(
    reference: str,
    candidate: str,
    request: "sides.SideRequest",
    limits: Mapping[str, float] | None,
    reporter: Reporter,
    options: DriftOptions,
) -> "DriftDocument":
    from enginebench.report.drift import SamplesDocument
    from enginebench.runs.targets import sides
    from enginebench.runs.targets.ahead import parse_sides_ahead
    from enginebench.stats import drift as drift_stats
    from enginebench.stats.further import add_further, list_refusal_warnings, measure_further

    n, task, out = options["n"], options["task"], to_path(options["out"])
    named = parse_sides_ahead((reference, candidate), request)
    devices = [side.find_device(request.device) for side in named]
    with open_scratch() as scratch, lock_devices(devices, wait=options["wait"], on_wait=reporter.say):
        made: sides.MadeSources = {}
        ref = sides.open_side(named[0], request, scratch / "reference", reporter, made)
        cand = sides.open_side(named[1], request, scratch / "candidate", reporter, made)
        _check_profile_index(request, (ref, cand))
        sides.check_sides(ref, cand)
        step = sides.choose_step((ref, cand), request)
        inputs = choose_inputs(ref, request.source.inputs, n, request.source.seed, scratch / "reference")
        check_prepared(inputs, (ref, cand))
        samples = scratch / "samples" if out is None or options["skip_output_save"] else out / "samples"
        ran = _run_sides(ref, cand, inputs, step=step, samples=samples, scratch=scratch, reporter=reporter)
        requested = parse_precision(options["precision"])[0] if options["precision"] else None
        precisions = requested or ref.engine.precision, requested or cand.engine.precision
        chosen = drift_stats.limits_between(*precisions) if limits is None else limits
        n_requested = n or len(inputs.entries)
        drift = drift_stats.measure_drift(
            *ran.outputs, chosen, reference_id=reference, n_requested=n_requested, task=task
        )
        drifts = () if ran.random else measure_further(*ran.further, precisions, limits=limits, task=task)
        located = None
        if options["locate"]:
            differing = [one.inputs for one in drifts if drift.passed and not one.passed]
            sets: list[tuple[Sequence[ByName], Sequence[ByName]]] = [
                (inputs.further[name], [one[name] for one in ran.further]) for name in differing
            ]
            located = require_hook(FaultLocator)(
                (ref, cand),
                list_calls(sets or [(inputs.entries, ran.outputs)], ref.artifact, step),
                slice_mb=options["slice_mb"],
                scratch=scratch / "locate",
                out=out,
                reporter=reporter,
            )
        drift = add_further(drift, drifts)
    warnings = [*ran.random, *list_refusal_warnings(*ran.refused, cand.text)]
    check_limits_apply(drift, limits or {})
    document = _describe(drift, (ref, cand), inputs, request.source.seed, limits is not None, warnings)
    document = replace(document, located=located)
    if out is not None:
        write_atomic(out / "output_diff.json", encode(document, indent=2))
        per_sample = SamplesDocument(n=drift.n, samples=drift_stats.measure_samples(*ran.outputs, task))
        write_atomic(out / "per_sample_diff.json", encode(per_sample, indent=2))
    return document


def _run_sides(
    ref: "sides.OpenSide",
    cand: "sides.OpenSide",
    inputs: Inputs,
    *,
    step: int,
    samples: Path,
    scratch: Path,
    reporter: Reporter,
) -> RanSides:
    """Run both sides on the same inputs, and on the sets that reach further; their arrays lie in `samples`."""
    from enginebench.models.samples import write_samples
    from enginebench.runs.building import VARIATION
    from enginebench.runs.builds import cut_common
    from enginebench.runs.child.arrays import load_arrays, load_sets
    from enginebench.runs.targets import sides

    entries = len(inputs.entries)
    stored_inputs = save_inputs(inputs.entries, ref.artifact.inputs, samples / "inputs")
    further = {name: scratch / name for name in inputs.further}
    for name, folder in further.items():
        write_samples(inputs.further[name], ref.artifact.inputs, folder)
    random: list[ResultWarning] = []
    refused: list[dict[str, str]] = []
    for name, side in (("reference", ref), ("candidate", cand)):
        response = sides.run_side(
            side,
            stored_inputs,
            samples / f"{name}.npz",
            further=further,
            n=entries,
            step=step,
            scratch=scratch / name,
            reporter=reporter,
        )
        refused.append(response.refused)
        # Inputs that the reference refuses are none of the model: a candidate may fail on them.
        further = {kind: folder for kind, folder in further.items() if kind not in response.refused}
        if response.varies is not None and response.varies > VARIATION:
            random.append(make_warning("outputs_vary", row=side.text, share=response.varies))
    return RanSides(
        outputs=cut_common(load_arrays(samples / "reference.npz"), load_arrays(samples / "candidate.npz")),
        further=(
            load_sets(scratch / "reference" / sides.FURTHER_OUTPUTS),
            load_sets(scratch / "candidate" / sides.FURTHER_OUTPUTS),
        ),
        refused=(refused[0], refused[1]),
        random=tuple(random),
    )


def check_limits_apply(drift: Drift, limits: Mapping[str, float]) -> None:
    """Check that some output has the figure of each limit: one that applies to none would pass everything."""
    from enginebench.stats.drift import LIMITS

    for name in limits:
        if drift.n and all(getattr(o, LIMITS[name][0]) is None and not o.nonfinite for o in drift.outputs):
            raise UsageError(
                f"--limit {name}: no output has such a figure: too few classes or samples, or no change with the input"
            )


# Arrays by name: of an entry, or the outputs of one side for all entries.
ByName: TypeAlias = Mapping[str, Any]


def list_calls(
    sets: Sequence[tuple[Sequence[ByName], Sequence[ByName]]], artifact: Artifact, step: int
) -> list[ByName]:
    """List calls of each set, given with its entries and the outputs of both sides: those that hold the entry whose
    outputs are furthest apart."""
    return [call for entries, outputs in sets for call in list_worst(entries, outputs, artifact, step)]


def list_worst(entries: Sequence[ByName], outputs: Sequence[ByName], artifact: Artifact, step: int) -> Iterator[ByName]:
    """Yield the call of the worst entry alone, if the batch is open, and the call in which it was compared.

    Alone it costs the least; a fault that needs a whole batch shows in the other.
    """
    from enginebench.models.samples import group_samples, join_samples
    from enginebench.stats import drift as drift_stats

    measured = drift_stats.measure_samples(outputs[0], outputs[1])
    worst = min(measured, key=lambda one: (-one.nonfinite, rank_sample(one)), default=None)
    index = worst.index if worst is not None and worst.index < len(entries) else 0
    if find_fixed_batch(artifact) is None and step > 1:
        yield join_samples([entries[index]], artifact.inputs, 1)
    for group in [group for group in group_samples(entries, step, artifact.inputs) if index in group][:1]:
        yield join_samples([entries[i] for i in group], artifact.inputs, step)


def rank_sample(sample: "SampleDrift") -> float:
    """Return a ratio in dB by which samples are ordered, the furthest apart first, also without a signal or floats."""
    if sample.snr_db is not None:
        return sample.snr_db
    if sample.agreement is not None:  # of decisions, where one is as bad as noise of the signal's size
        return sample.agreement if sample.agreement < 1 else math.inf
    return -math.inf if sample.max_abs_diff else math.inf


RANDOM = "random outputs: the same inputs give different outputs"
# Enough outputs to reveal a wrong engine, and to hint at a poor one.
SAMPLES = 64


def _describe(
    drift: Drift,
    opened: "Sequence[sides.OpenSide]",
    inputs: Inputs,
    seed: int,
    gate: bool,
    random: Sequence[ResultWarning],  # of each side whose outputs vary by themselves, or that refused inputs
) -> "DriftDocument":
    from enginebench.report.drift import DriftDocument, DriftSide
    from enginebench.stats import drift as drift_stats

    whole = drift.n >= (drift.n_requested or 0)
    missing = () if whole else (f"{drift.n} of {drift.n_requested} samples were compared",)
    # A candidate that varies by itself must meet the limits all the same; agreement with a random reference is chance.
    chance = any(warning.figures.get("row") == opened[0].text for warning in random)
    reference, candidate = (
        DriftSide(text=side.text, model=side.model, engine=side.engine, artifact_sha256=side.artifact.sha256)
        for side in opened
    )
    warnings = (
        *random,
        *inputs.warnings,
        *drift_stats.list_sample_warnings(drift),
        *(c for side in opened for c in side.artifact.warnings),
    )
    return DriftDocument(
        n=drift.n,
        n_asked=drift.n_requested or drift.n,
        outputs=drift.outputs,
        limits=drift.limits,
        passed=drift.passed and whole and not chance,
        gate=gate,
        reference=reference,
        candidate=candidate,
        inputs=inputs.source,
        preprocess_sha256=inputs.preprocess_sha256,
        seed=seed,
        exceeded=(
            *([RANDOM] if any(warning.code == "outputs_vary" for warning in random) else []),
            *drift_stats.find_exceeded(drift),
            *missing,
        ),
        warnings=tuple(dict.fromkeys(warnings)),
        further=drift.further,
    )


def choose_inputs(
    side: "sides.OpenSide", text: str | None, n: int | None, seed: int, made_in: Path | None = None
) -> Inputs:
    """Return the user's entries (`text` is --inputs), else real inputs of a built-in model, else made-up ones.

    `n` of None: 64, or all of the user's. `made_in` has the example inputs of the user's module.
    """
    from enginebench.models.check_inputs import make_check_sets, read_examples
    from enginebench.models.precision.calibration_data import read_origin
    from enginebench.models.samples import cut_entries, read_entries
    from enginebench.models.task import find_own_data, hash_preprocess, load_digits, sample_feeds

    specs = side.artifact.inputs
    if text is not None:
        entries = read_entries(text, specs)[:n]
        origin = read_origin(Path(text)) if Path(text).is_file() else None  # of kept batches
        unknown = (EXTERNAL, (explain_external(f"inputs come from {text}"),))
        prepared, warnings = (origin.preprocess_sha256, origin.warnings) if origin else unknown
        return Inputs(entries=entries, source=text, preprocess_sha256=prepared, warnings=warnings)
    own = find_own_data(side.model)
    count = n or SAMPLES
    if own == "digits":  # a repeated one shows nothing new
        count = min(count, len(load_digits().select(held_out=True).labels))
    calls = sample_feeds(specs, side.model, 1, seed, count)
    entries = [entry for feeds in calls for entry in cut_entries(feeds, specs)][:count]
    if own is not None:
        source = "digits, held out" if own == "digits" else own
        return Inputs(entries=entries, source=source, preprocess_sha256=hash_preprocess(side.model, inputs=specs))
    examples = read_examples(made_in, specs) if made_in is not None else []
    further = {**({EXAMPLES: examples} if examples else {}), **make_check_sets(specs, seed)}
    return Inputs(
        entries=entries,
        source="random",
        warnings=(make_warning("random_inputs", seed=seed, cure=advise_inputs()),),
        further=further,
    )


def save_inputs(entries: Sequence[Mapping[str, Any]], specs: Sequence[TensorSpec], out: Path) -> Path:
    """Write the entries, joined, to `out`.npz, or to a folder of files if their shapes differ; return the path."""
    from enginebench.models.samples import group_samples, join_samples, write_samples
    from enginebench.runs.child.arrays import save_arrays

    if len(group_samples(entries, len(entries), specs)) > 1:
        write_samples(entries, specs, out)
        return out
    path = out.with_suffix(".npz")
    save_arrays(path, join_samples(entries, specs, len(entries)))
    return path


def _check_profile_index(request: "sides.SideRequest", opened: "tuple[sides.OpenSide, ...]") -> None:
    """Check that at least one side uses the profile of --profile-index."""
    if request.profile_index is None:
        return
    chosen = [s.engine.options.get("profile_index") for s in opened if "plan" in accepts(s.engine.backend)]
    if not chosen:
        raise UsageError("--profile-index chooses a profile of a plan, but TensorRT runs neither side; leave it out")
    if str(request.profile_index) not in chosen:
        raise UsageError(
            f"--profile-index {request.profile_index} is for a side that names no profile, but "
            "both name their own; leave it out"
        )


def check_prepared(inputs: Inputs, opened: "tuple[sides.OpenSide, ...]") -> None:
    for side in opened:
        side_preprocess = side.artifact.preprocess_sha256
        if differ(inputs.preprocess_sha256, side_preprocess):
            raise ArtifactError(
                f"{inputs.source} is prepared by preprocess {shorten(inputs.preprocess_sha256)}, the inputs of "
                f"{side.text} by {shorten(side_preprocess)}. Keep entries of this model: "
                + format_command(
                    "calibrate", side.model, options=[("--keep-batches", "F.npz"), ("--out", "calib.json")]
                )
            )
