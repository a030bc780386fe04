"""MODEL to the artefacts that engines start from, made in a child so that the parent stays light."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from enginebench.backends.registry import accepts, find_installed, takes
from enginebench.core.errors import ArtifactError, BackendUnavailable, EngineBenchError
from enginebench.core.names import format_engine, format_precision
from enginebench.core.records import Artifact, ArtifactKind, EngineSpec, Precision, Recipe
from enginebench.models.zoo import BUILTIN
from enginebench.workflow.campaign import Labelled, Reporter, child_environment
from enginebench.workflow.folder import RunRequest
from enginebench.workflow.isolate import run_child
from enginebench.workflow.jobs import QuantizeAnswer, QuantizeJob, SourceAnswer, SourceJob
from enginebench.workflow.plan import PlannedRow, list_transforms, plan_rows

# Ranges have settled well before this many entries, and a run should not wait for them; `calibrate --n` takes more.
CALIBRATION_ENTRIES = 128
# A Wilson interval of a point or two either way around 75 %; the verb `accuracy` takes more.
LABELLED_ENTRIES = 1000


def make_sources(job: SourceJob, *, threads: int, timeout_s: float, reporter: Reporter) -> tuple[Artifact, ...]:
    """The torch artefact and its ONNX export, or the ONNX graph alone.

    Raises:
        ModelError: the model cannot be built or exported.
        MissingDependency: it needs a package that is not installed.
        ChildFailed: the process that built it died or hung.
    """
    reporter.step(f"{job.model}: loading")
    answer = run_child(
        job,
        timeout_s=timeout_s,
        environment=child_environment(threads),
        on_note=lambda text: reporter.step(f"{job.model}: {text}"),
    )
    assert isinstance(answer, SourceAnswer)
    return answer.artifacts


class Sources(Struct, frozen=True, kw_only=True):
    """Everything that rows can start from, and PRECISION -> reason for the graphs that could not be made."""

    artifacts: tuple[Artifact, ...]
    problems: dict[str, str] = {}


def gather_sources(request: RunRequest, place: Path, reporter: Reporter) -> Sources:
    """The sources of a request in every precision that its rows need, made in the folder `place`."""
    job = SourceJob(
        model=request.model,
        out_dir=str(place.absolute()),
        weights=request.weights,
        seed=request.measure.seed,
        input_size=request.input_size,
        input_shapes=request.input_shapes,
        batch=request.batches[0],
        onnx=any(takes(name) == "onnx" for name, _ in request.engines),
    )
    made = make_sources(job, threads=request.threads, timeout_s=request.timeout_s, reporter=reporter)
    return _transform_all(request, made, place, reporter)


def plan_one(request: RunRequest, place: Path, reporter: Reporter) -> tuple[PlannedRow, Artifact]:
    """The one row of a request, and the graph that it starts from, made in `place`.

    Raises:
        BackendUnavailable: the row could not be run; says why.
    """
    found = gather_sources(request, place, reporter)
    (row,) = plan_rows(request, found.artifacts, probe=find_installed, takes=takes, problems=found.problems)
    if row.skip is not None or row.source is None:
        raise BackendUnavailable(str(row.skip))
    return row, row.source


def _transform_all(request: RunRequest, made: tuple[Artifact, ...], place: Path, reporter: Reporter) -> Sources:
    artifacts, problems = list(made), {}
    graph = next((a for a in made if a.kind == "onnx"), None)
    for precision, recipe in list_transforms(request, made, takes):
        label = format_precision(precision, recipe)
        try:
            assert graph is not None  # transforms are listed where there is one
            artifacts.append(_transform(request, graph, precision, recipe, place, reporter))
        except EngineBenchError as error:
            reporter.say(f"no graph in {label}: {error}")
            problems[label] = str(error)
    return Sources(artifacts=tuple(artifacts), problems=problems)


def _transform(
    request: RunRequest,
    graph: Artifact,
    precision: Precision,
    recipe: Recipe | None,
    place: Path,
    reporter: Reporter,
) -> Artifact:
    label = format_precision(precision, recipe)
    reporter.step(f"{request.model}: {label}")
    job = QuantizeJob(
        model=graph.model,
        artifact=graph,
        precision=precision,
        recipe=recipe,
        out=str(place.absolute() / f"model.{label.replace('@', '-')}.onnx"),
        calibration_path=str(place.absolute() / "calib.json"),
        data=choose_data(request) or "fake",
        method=request.calibration_method,
        n=CALIBRATION_ENTRIES,
        seed=request.measure.seed,
        threads=request.threads,
        input_size=request.input_size,
    )
    answer = run_child(
        job,
        timeout_s=request.timeout_s,
        environment=child_environment(request.threads),
        on_note=lambda text: reporter.step(f"{request.model} {label}: {text}"),
    )
    assert isinstance(answer, QuantizeAnswer)
    return answer.artifact


def choose_data(request: RunRequest) -> str | None:
    """The labelled data of a run: the user's, else the bundled digits where the model was trained for them."""
    if request.data is not None:
        return request.data
    card = BUILTIN.get(request.model)
    return "digits" if card is not None and card.task == "digits" else None


def choose_labelled(request: RunRequest) -> Labelled | None:
    """The data on which every row's answers are counted; None where nothing labelled was given."""
    data = choose_data(request)
    if data is None or data == "fake" or Path(data).suffix in (".npy", ".npz"):
        return None
    return Labelled(data=data, n=LABELLED_ENTRIES, input_size=request.input_size)


def choose_source(sources: tuple[Artifact, ...], engine: EngineSpec, kind: ArtifactKind) -> Artifact:
    """The artefact that an engine starts from.

    Raises:
        ArtifactError: none is of the kind that it takes.
    """
    for artifact in sources:
        if artifact.kind == kind or (artifact.kind == "plan" and "plan" in accepts(engine.backend)):
            return artifact
    have = ", ".join(a.kind for a in sources)
    raise ArtifactError(f"{format_engine(engine)} starts from an artefact of kind {kind}; there is only {have}")
