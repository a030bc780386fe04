"""Parse and open the sides of a comparison: an engine on a target, a stored configuration, or a bundle."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.commands import advise_dynamic_batch
from enginebench.core.errors import ArtifactError, FeedError, UsageError
from enginebench.core.names import PLAN_SUFFIXES, format_engine, format_precision
from enginebench.core.records import Artifact, EngineSpec, MeasureSpec, ModelSource, Precision, Recipe
from enginebench.core.shapes import find_batch_axes, find_plan_batch, free_batch, set_plan_shapes
from enginebench.core.store import is_bundle, read_result
from enginebench.engines.registry import accepts, find_device, has_engine, read_engine, takes
from enginebench.runs.child.environments import find_available
from enginebench.runs.child.isolate import run_child
from enginebench.runs.child.jobs import SourceJob
from enginebench.runs.child.other_jobs import InferJob, InferResponse
from enginebench.runs.folder import RunFolder, RunRequest, Stored
from enginebench.runs.plan import PlannedConfiguration, find_fixed_batch, plan_stored
from enginebench.runs.progress import Reporter, report_steps
from enginebench.runs.targets.bundles import open_as_stored
from enginebench.runs.targets.sources import ask_plan, choose_source, gather_sources, make_sources
from enginebench.runs.trust import allow_engines, allow_model, find_opened, trust_engine
from enginebench.stats.alike import compare_preparation, compare_specs
from enginebench.stats.effective import check_precision

SIDE_TIMEOUT_S = 1800.0
# A side's outputs for further sets of inputs.
FURTHER_OUTPUTS = "further.npz"
# Extra time for each step: a tool that restarts for each call loads its plan as often.
STEP_TIMEOUT_S = 60.0
# Entries per call if a graph takes any number: enough to keep an engine busy, few enough for 1 GB.
STEP = 16
# What sides start from, by the job that made it.
MadeSources: TypeAlias = dict[bytes, tuple[Artifact, ...]]


class Side(Struct, frozen=True, kw_only=True):
    """One side of a comparison as the user named it, checked; nothing is loaded yet."""

    text: str
    engine: tuple[str, dict[str, str]]
    target: str
    precision: tuple[Precision | None, Recipe | None] = ("fp32", None)
    batch: int | None = None
    threads: int | None = None
    # Of a stored configuration or a bundle, which runs again on exactly the same artifact.
    stored: Stored | None = None

    def find_device(self, device: str) -> str:
        """Return the device that it runs on: its own if it is stored, else that of its engine."""
        return find_device(self.engine[0], device) if self.stored is None else self.stored.spec.device


def parse_side(text: str, target: str = "", precision: tuple[Precision, Recipe | None] = ("fp32", None)) -> Side:
    """Parse a side: `ENGINE@TARGET`, the file of a stored configuration, or a bundle.

    Args:
        target: what `ENGINE` alone runs on; "": it has to name its own.
    """
    if is_bundle(Path(text)):
        return _make_side(text, open_as_stored(Path(text)))
    if text.endswith(".json") and Path(text).is_file():
        return _make_side(text, open_stored(Path(text)))
    engine, sep, named = text.partition("@")
    name = engine.partition(":")[0]
    # A mistyped engine before an @ is refused below, with the nearest names; a path may hold an @, too.
    if not has_engine(name) and not (sep and re.fullmatch(r"[\w-]+", name)):
        kind = Path(text).suffix.lower() if "@" not in text else ""
        engines = {".onnx": f"ort@{text}", **dict.fromkeys(PLAN_SUFFIXES, f"tensorrt@{text} or trtexec@{text}")}
        raise UsageError(
            f"{text!r} is neither ENGINE@TARGET, nor the file of a stored result (rows/....json), nor a bundle"
            + (f". Name its engine: {engines[kind]}" if kind in engines else "")
        )
    side = Side(text=text, engine=read_engine(engine), target=named if sep else target, precision=precision)
    if not side.target:
        raise UsageError(f"{text!r} names no target; expected ENGINE@TARGET, the file of a stored result, or a bundle")
    allow_engines([side.engine])
    allow_model(side.target)
    return side


def _make_side(text: str, stored: Stored) -> Side:
    spec = stored.spec
    return Side(
        text=str(Path(text)),
        engine=(spec.backend, spec.options),
        target=stored.result.model,
        precision=(spec.precision, spec.recipe),
        batch=spec.batch,
        threads=spec.threads,
        stored=stored,
    )


def open_stored(path: Path) -> Stored:
    """Open a stored configuration with the artifact that its engine loaded or, if it cannot be reopened, its source."""
    result = read_result(path)
    start = find_opened(result)
    if start is None:
        raise ArtifactError(
            f"{path} holds no artifact that {result.engine.backend} could start from; the result is {result.status}. "
            "Name another result, or ENGINE@TARGET"
        )
    folder = RunFolder(path.absolute().parent.parent)
    chain = tuple(folder.absolute(artifact) for artifact in result.artifacts[: start + 1])
    stored_path = Path(chain[-1].path)
    if not stored_path.is_absolute() or not stored_path.is_file():
        fault = "is no longer there" if stored_path.is_absolute() else "does not lie in the run's folder"
        raise ArtifactError(f"{path}: its artifact {stored_path} {fault}. Name ENGINE@TARGET instead of the result")
    trust_engine(result.engine.backend, result.engine.options, path)
    opened = folder.open(chain[-1])
    return Stored(result=result, chain=(*chain[:-1], opened), graph=_find_graph(result.artifacts[: start + 1], folder))


def _find_graph(chain: Sequence[Artifact], folder: RunFolder) -> Artifact | None:
    """Return the ONNX graph that the last artifact was made of; None if it is a graph, or that is gone or changed."""
    graph = next((artifact for artifact in reversed(chain) if artifact.kind == "onnx"), None)
    if graph is None or graph == chain[-1]:
        return None
    try:
        return folder.open(graph)
    except ArtifactError:  # what was measured is there all the same
        return None


class SideRequest(Struct, frozen=True, kw_only=True):
    """The common request of both sides of a comparison."""

    device: str = "cpu"
    threads: int = 1
    source: ModelSource  # each side puts its own target in place of the model
    profile_index: int | None = None  # for sides that are plans and do not name one


class OpenSide(Struct, frozen=True, kw_only=True):
    """A side that can be run: `text` is what the user wrote, `model` the model whose data and preprocessing it has."""

    text: str
    model: str
    artifact: Artifact
    engine: EngineSpec
    graph: Artifact | None = None  # the ONNX graph that a stored artifact of another kind was made of

    def describe(self) -> str:
        spec = self.engine
        return f"{format_engine(spec)} {format_precision(spec.precision, spec.recipe)} on {self.model}"


def open_side(
    side: Side, request: SideRequest, scratch: Path, reporter: Reporter, made: MadeSources | None = None
) -> OpenSide:
    """Open a side, so that its engine can load it.

    A graph runs in its own precision; a PyTorch model in FP32. A stored configuration runs on the very artifact that
    was measured, a bundle on its own.

    Args:
        made: sources of the sides before it; this side uses the same ones if it can, and adds its own.
    """
    if (stored := side.stored) is not None:
        # A plan carries only its own warnings; those of the graph that it was built from apply to it as well.
        warnings = tuple(dict.fromkeys(c for a in stored.chain for c in a.warnings))
        artifact = free_batch(replace(stored.chain[-1], warnings=warnings))
        options = _add_profile(stored.spec.options, stored.spec.backend, request)
        spec = replace(stored.spec, threads=request.threads, options=options)
        graph = free_batch(stored.graph) if stored.graph is not None else None
        return OpenSide(text=side.text, model=stored.result.model, artifact=artifact, engine=spec, graph=graph)
    name, options = side.engine
    job = SourceJob(source=replace(request.source, model=side.target), out_dir=str(scratch), onnx=takes(name) == "onnx")
    made, same = {} if made is None else made, msgspec.json.encode(replace(job, out_dir=""))
    if same not in made:
        made[same] = make_sources(job, threads=request.threads, timeout_s=SIDE_TIMEOUT_S, reporter=reporter)
    spec = EngineSpec(backend=name, options=options, device=find_device(name, request.device), threads=request.threads)
    artifact = choose_source(made[same], spec, takes(name))
    if artifact.kind == "plan":
        spec = set_plan_shapes(spec, request.source.input_shapes)
    options = _add_profile(spec.options, name, request)
    spec = replace(spec, precision=artifact.precision, recipe=artifact.recipe, options=options)
    if artifact.kind == "plan":
        artifact = _open_plan(artifact, spec, scratch / "plan")
        spec = replace(spec, precision=artifact.precision)
    return OpenSide(text=side.text, model=side.target, artifact=free_batch(artifact), engine=spec)


def plan_target(request: RunRequest, folder: Path, reporter: Reporter) -> list[PlannedConfiguration]:
    """Return the configurations of a request, its sources made in `folder`; the one of a bundle, with its own files."""
    if not is_bundle(Path(request.model)):
        return gather_sources(request, folder, reporter).plan_configurations()
    return [plan_again(open_as_stored(Path(request.model)), request.measure)]


def plan_again(stored: Stored, measure: MeasureSpec) -> PlannedConfiguration:
    """Return the configuration that measures a stored one again, on exactly the same artifact."""
    return plan_stored(stored.result.model, stored.spec, stored.chain, measure, find_available(stored.spec))


def _open_plan(plan: Artifact, spec: EngineSpec, folder: Path) -> Artifact:
    """The plan with the inputs and outputs that its engine finds in it, and its precision, which decides the limits."""
    batch = find_plan_batch(plan) or spec.batch
    response = ask_plan(plan, replace(spec, batch=batch), folder, SIDE_TIMEOUT_S, prove=plan.precision is None)
    opened = replace(response.artifact, model=plan.model)
    if response.proof is None:
        return opened
    ran, warnings = check_precision(None, response.proof.effective_precision, spec.device)
    return replace(opened, precision=ran, warnings=(*opened.warnings, *warnings))


def _add_profile(options: dict[str, str], backend: str, request: SideRequest) -> dict[str, str]:
    """The options of an engine that runs plans, with the requested profile unless they name their own."""
    if request.profile_index is None or "plan" not in accepts(backend):
        return options
    return {"profile_index": str(request.profile_index), **options}


def choose_step(sides: tuple[OpenSide, ...], request: SideRequest) -> int:
    """Choose a batch that fits all sides: the one that a graph fixes, else the nearest to the requested one."""
    if any(_counts_whole(side.artifact) for side in sides):
        return 1
    batches = [find_fixed_batch(side.artifact) for side in sides]
    fixed = sorted({batch for batch in batches if batch is not None})
    if len(fixed) > 1:
        raise FeedError(
            f"the sides have fixed batches of {fixed[0]} and {fixed[1]}; export one with {advise_dynamic_batch()}"
        )
    if fixed:
        return fixed[0]
    requested = {shape[0] for shape in (request.source.input_shapes or {}).values()}
    step = requested.pop() if len(requested) == 1 else STEP
    ranges = [r for side in sides for r in side.artifact.allowed.values() if r.smallest]
    low, high = max((r.smallest[0] for r in ranges), default=1), min((r.largest[0] for r in ranges), default=step)
    if ranges and low > high:
        raise FeedError(
            f"no batch fits the profiles of all sides: one takes {low} or more, one {high} or fewer. Choose others "
            "with tensorrt:profile_index=N@PLAN, or build the plan for a batch that both take"
        )
    return min(max(step, low), high) if ranges else step


def _counts_whole(artifact: Artifact) -> bool:
    """Whether entries lie elsewhere than on the first axis of an input or output, so that they are asked one by one."""
    if artifact.kind == "plan":  # its outputs are as long as in the run that named them
        return False
    batch_axes = find_batch_axes(artifact.inputs)
    opened = [s for s in artifact.inputs if (i := batch_axes[s.name]) is not None and isinstance(s.shape[i], str)]
    fixed = any(s.shape[:1] and isinstance(s.shape[0], int) for s in artifact.outputs)
    return bool(opened) and (fixed or any(batch_axes[s.name] != 0 for s in opened))


def check_sides(reference: OpenSide, candidate: OpenSide) -> None:
    """Check that both sides have the same inputs and outputs. An open axis fits every length."""
    ref, cand, names = reference.artifact, candidate.artifact, (reference.text, candidate.text)
    differences = [
        *compare_preparation(ref.preprocess_sha256, cand.preprocess_sha256),
        *compare_specs("input", ref.inputs, cand.inputs, names),
        *compare_specs("output", ref.outputs, cand.outputs, names),
    ]
    refuse_differences(differences)


def refuse_differences(differences: Sequence[str]) -> None:
    """Raise FeedError if the inputs or outputs of two sides differ."""
    if differences:
        raise FeedError(f"the sides cannot be compared: {'; '.join(differences)}. Both must come from the same model")


def run_side(
    side: OpenSide,
    inputs: Path,
    outputs: Path,
    *,
    further: Mapping[str, Path],
    n: int,
    step: int,
    scratch: Path,
    reporter: Reporter,
) -> InferResponse:
    """Run a side on the entries of `inputs` and save its outputs; those for the sets `further` in the scratch folder.

    Args:
        further: set of inputs -> the folder of its entries.
    """
    reporter.step(f"{side.describe()}: running")
    job = InferJob(
        artifact=side.artifact,
        engine=replace(side.engine, batch=step),
        out_dir=str(scratch),
        inputs_path=str(inputs.absolute()),
        outputs_path=str(outputs.absolute()),
        step=step,
        further={name: str(folder.absolute()) for name, folder in further.items()},
        further_path=str((scratch / FURTHER_OUTPUTS).absolute()),
    )
    timeout_s = SIDE_TIMEOUT_S + STEP_TIMEOUT_S * -(-n // step)
    return run_child(job, timeout_s=timeout_s, on_note=report_steps(reporter, side.describe()))
