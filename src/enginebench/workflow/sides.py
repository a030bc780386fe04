"""SIDEs of `drift` and `accuracy`: an engine, and the artefact that it starts from, whoever made it."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from enginebench.backends.registry import accepts, find_device, takes
from enginebench.core.errors import FeedError, UsageError
from enginebench.core.names import format_engine, format_precision
from enginebench.core.preprocess import differ, shorten
from enginebench.core.records import Artifact, EngineSpec, TensorSpec
from enginebench.workflow.campaign import Reporter, child_environment
from enginebench.workflow.comparison import Side, open_stored, parse_side
from enginebench.workflow.isolate import run_child
from enginebench.workflow.jobs import BuildAnswer, BuildJob, InferJob, SourceJob
from enginebench.workflow.plan import add_shapes
from enginebench.workflow.sources import choose_source, make_sources

SIDE_TIMEOUT_S = 1800.0
# Entries at a time, where a graph takes any number: enough to keep an engine busy, little enough for 1 GB.
STEP = 16
# The name of a first axis that takes any number of entries.
BATCH_AXIS = "batch"


class SideRequest(Struct, frozen=True, kw_only=True):
    """What both sides of a comparison have in common."""

    device: str = "cpu"
    threads: int = 1
    weights: str = "default"
    seed: int = 0
    input_size: int | None = None
    input_shapes: dict[str, tuple[int, ...]] | None = None
    profile_index: int | None = None  # of the sides that are plans


class OpenSide(Struct, frozen=True, kw_only=True):
    """A side that can be run: `text` is how the user wrote it, `model` whose data and preprocessing are its own."""

    text: str
    model: str
    artifact: Artifact
    engine: EngineSpec

    def describe(self) -> str:
        """Engine, precision and target in words."""
        spec = self.engine
        return f"{format_engine(spec)} {format_precision(spec.precision, spec.recipe)} on {self.model}"


def open_side(text: str, request: SideRequest, scratch: Path, reporter: Reporter) -> OpenSide:
    """The side that `text` names: `ENGINE@TARGET`, or the file of a stored row.

    A graph is run in the precision that it is in; a PyTorch model in FP32. A stored row is run on the very artefact
    that it was measured on.

    Raises:
        UsageError: it is neither.
        ArtifactError: the stored row has no artefact left, or it was changed since.
        ModelError: TARGET cannot be built or exported.
    """
    if _is_row(text):
        return _open_row(Path(text), request)
    side = check_side(text)
    name, options = side.engine
    job = SourceJob(
        model=side.target,
        out_dir=str(scratch),
        weights=request.weights,
        seed=request.seed,
        input_size=request.input_size,
        input_shapes=request.input_shapes,
        onnx=takes(name) == "onnx",
    )
    sources = make_sources(job, threads=request.threads, timeout_s=SIDE_TIMEOUT_S, reporter=reporter)
    spec = EngineSpec(backend=name, options=options, device=find_device(name, request.device), threads=request.threads)
    artifact = choose_source(sources, spec, takes(name))
    options = _add_profile(add_shapes(options, artifact, request.input_shapes), name, request)
    spec = replace(spec, precision=artifact.precision, recipe=artifact.recipe, options=options)
    if artifact.kind == "plan":
        artifact = _ask_plan(artifact, spec, scratch / "plan")
    return OpenSide(text=text, model=side.target, artifact=_free_batch(artifact), engine=spec)


def _ask_plan(plan: Artifact, spec: EngineSpec, place: Path) -> Artifact:
    """The plan with the inputs and outputs that its engine finds in it."""
    answer = run_child(
        BuildJob(source=plan.path, engine=spec, out_dir=str(place), prove=False),
        timeout_s=SIDE_TIMEOUT_S,
        environment=child_environment(spec.threads),
    )
    assert isinstance(answer, BuildAnswer)
    return replace(answer.artifact, model=plan.model)


def check_side(text: str) -> Side:
    """The side that `text` names, before anything is opened; of a stored row only that it is there.

    Raises:
        UsageError: it is neither ENGINE@TARGET nor the file of a stored row.
    """
    if _is_row(text):
        return Side(engine=("", {}), target=text)
    side = parse_side(text, "")
    if not side.target:
        raise UsageError(f"{text!r} names no target; expected ENGINE@TARGET or the file of a stored row")
    return side


def _is_row(text: str) -> bool:
    return text.endswith(".json") and Path(text).is_file()


def _open_row(path: Path, request: SideRequest) -> OpenSide:
    stored = open_stored(path)
    # A plan carries its own doubts alone; those of the graph that it was built from hold for it, too.
    doubts = tuple(dict.fromkeys(c for a in stored.chain for c in a.caveats))
    artifact = _free_batch(replace(stored.chain[-1], caveats=doubts))
    options = _add_profile(stored.spec.options, stored.spec.backend, request)
    spec = replace(stored.spec, threads=request.threads, options=options)
    return OpenSide(text=str(path), model=stored.result.model, artifact=artifact, engine=spec)


def _add_profile(options: dict[str, str], backend: str, request: SideRequest) -> dict[str, str]:
    """The options of an engine that runs plans, with the profile that was asked for; those of any other as they are."""
    if request.profile_index is None or "plan" not in accepts(backend):
        return options
    return {**options, "profile_index": str(request.profile_index)}


def _free_batch(artifact: Artifact) -> Artifact:
    """A PyTorch artefact as it is: it takes any batch, whatever it was built with."""
    if artifact.kind != "torch" or not artifact.inputs or not artifact.inputs[0].shape:
        return artifact
    built = artifact.inputs[0].shape[0]

    def free(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(replace(s, shape=(BATCH_AXIS, *s.shape[1:])) if s.shape[:1] == (built,) else s for s in specs)

    return replace(artifact, inputs=free(artifact.inputs), outputs=free(artifact.outputs))


def choose_step(sides: tuple[OpenSide, ...], request: SideRequest) -> int:
    """Entries at a time: the batch that a graph is fixed to, else that of the shapes asked for, else a few.

    Raises:
        FeedError: the sides are fixed to different batches.
        UsageError: an input has no batch axis.
    """
    specs = [spec for side in sides for spec in side.artifact.inputs]
    if not specs or any(not spec.shape for spec in specs):
        raise UsageError(f"{sides[0].model} has an input without a batch axis; its samples cannot be told apart")
    fixed = sorted({axis for spec in specs if isinstance(axis := spec.shape[0], int)})
    if len(fixed) > 1:
        raise FeedError(f"the sides are fixed to batches of {fixed[0]} and {fixed[1]}; export one with --dynamic-batch")
    asked = {shape[0] for shape in (request.input_shapes or {}).values()}
    return fixed[0] if fixed else asked.pop() if len(asked) == 1 else STEP


def check_sides(reference: OpenSide, candidate: OpenSide) -> None:
    """Returns if both sides take the same inputs and have the same outputs. An open axis fits every length.

    Raises:
        FeedError: lists every difference in name, dtype or shape, and in how the inputs are prepared.
    """
    problems: list[str] = []
    hashes = reference.artifact.preprocess_sha256, candidate.artifact.preprocess_sha256
    if differ(*hashes):
        problems.append("inputs are prepared by preprocess {} against {}".format(*map(shorten, hashes)))
    for what in ("input", "output"):
        ref = {s.name: s for s in getattr(reference.artifact, f"{what}s")}
        cand = {s.name: s for s in getattr(candidate.artifact, f"{what}s")}
        problems += [f"{what} {name!r} is missing from {candidate.text}" for name in ref if name not in cand]
        problems += [f"{what} {name!r} is missing from {reference.text}" for name in cand if name not in ref]
        problems += [p for name in ref if name in cand for p in _compare_specs(what, ref[name], cand[name])]
    if problems:
        raise FeedError(f"the sides cannot be compared: {'; '.join(problems)}. Both must come from the same model")


def _compare_specs(what: str, ref: TensorSpec, cand: TensorSpec) -> list[str]:
    problems = []
    if ref.dtype != cand.dtype:
        problems.append(f"{what} {ref.name!r} has dtype {ref.dtype} against {cand.dtype}")
    fits = len(ref.shape) == len(cand.shape) and all(
        a == b or isinstance(a, str) or isinstance(b, str) for a, b in zip(ref.shape, cand.shape, strict=True)
    )
    if not fits:
        problems.append(f"{what} {ref.name!r} has shape {list(ref.shape)} against {list(cand.shape)}")
    return problems


def run_side(side: OpenSide, inputs: Path, outputs: Path, step: int, scratch: Path, reporter: Reporter) -> None:
    """Saves the outputs of a side for the arrays of a file, worked out in a child process."""
    reporter.step(f"{side.describe()}: running")
    job = InferJob(
        artifact=side.artifact,
        engine=replace(side.engine, batch=step),
        out_dir=str(scratch),
        inputs_path=str(inputs.absolute()),
        outputs_path=str(outputs.absolute()),
        step=step,
    )
    run_child(job, timeout_s=SIDE_TIMEOUT_S, environment=child_environment(side.engine.threads))
