"""Turns MODEL into the artifacts that engines start from, in a child so that the parent stays light."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.commands import VERB
from enginebench.core.errors import ArtifactError, BackendUnavailable, ChildFailed, EngineBenchError, UsageError
from enginebench.core.names import escape_precision, format_engine, format_precision, name_mix, require_precision
from enginebench.core.recipes import RECIPES, find_needs
from enginebench.core.records import BUILT, Artifact, ArtifactKind, EngineSpec, Precision, Recipe, Task
from enginebench.core.shapes import find_plan_batch
from enginebench.core.text import count_of
from enginebench.engines.registry import accepts, find_device, takes
from enginebench.measure.machine import describe_machine
from enginebench.models.photos import SAMPLE_PHOTOS
from enginebench.models.precision.calibration_data import check_source, find_label_fault, list_images
from enginebench.models.samples import SAMPLES, find_samples
from enginebench.models.task import find_own_data
from enginebench.models.zoo import BUILTIN
from enginebench.runs.builds import count_at_a_time
from enginebench.runs.child.isolate import (
    PATIENCE,
    Child,
    Work,
    child_environment,
    find_variables,
    run_child,
    wait_until_sure,
)
from enginebench.runs.child.jobs import BuildJob, BuildResponse, Labelled, QuantizeJob, SourceJob, SourceResponse
from enginebench.runs.folder import RunRequest
from enginebench.runs.plan import (
    EVERY_GRAPH,
    PlannedConfiguration,
    ResolvedPlan,
    list_here,
    plan_configurations,
    resolve,
)
from enginebench.runs.progress import Reporter, report_steps
from enginebench.runs.scoring import Scoring, choose_metrics, open_metrics
from enginebench.runs.traffic import drop_chosen_shapes
from enginebench.runs.trust import allow_code, trust_artifact

# Ranges settle well before this many entries, and a run should not wait for them; `calibrate --n` takes more.
CALIBRATION_ENTRIES = 128
# Gives a Wilson interval of a point or two either way around 75 %; the verb `accuracy` takes more.
LABELLED_ENTRIES = 1000
# Pictures without labels: an agreement of 99 % is known to a point or two; and those of a first impression.
COMPARED_ENTRIES, QUICK_ENTRIES = 256, 64
# Whose pictures are cut: boxes and maps would not fit them any more.
PICTURE_TASKS: tuple[Task | None, ...] = (None, "classification", "embedding")
# Ranges of the FP32 graph, taken once for all graphs of a run that need them.
RANGES = "calib.json"
# Called with the module of a model, ahead of its export.
OnModule: TypeAlias = Callable[[Artifact], None]
# The seconds that are left of what all may take; None: as many as each may take.
Limit: TypeAlias = Callable[[], float] | None


def make_sources(job: SourceJob, *, threads: int, timeout_s: float, reporter: Reporter) -> tuple[Artifact, ...]:
    return _make(job, threads, timeout_s, reporter).artifacts


def _make(
    job: SourceJob, threads: int, timeout_s: float, reporter: Reporter, on_module: OnModule | None = None
) -> SourceResponse:
    model = job.source.model
    reporter.step(f"{model}: loading")
    with Child(PATIENCE | child_environment(threads)) as child:
        work = child.start(job, timeout_s=timeout_s, on_note=report_steps(reporter, model))
        wait_until_sure([work])
        if child.kept is not None and on_module is not None:
            on_module(child.kept.artifacts[0])
        response = work.finish()
    for artifact in response.artifacts:
        if artifact.kind == "aoti":
            trust_artifact(artifact, model)
    return response


class Sources(Struct, frozen=True, kw_only=True):
    """The artifacts to start from; and PRECISION (`EVERY_GRAPH`: any) -> why there is no graph in it."""

    plan: ResolvedPlan
    artifacts: tuple[Artifact, ...]
    problems: dict[str, str] = {}

    def plan_configurations(self) -> list[PlannedConfiguration]:
        """Return every configuration, with the artifact that it starts from."""
        return plan_configurations(self.plan, self.artifacts, problems=self.problems)


def gather_sources(
    request: RunRequest, folder: Path, reporter: Reporter, limit: Limit = None, on_module: OnModule | None = None
) -> Sources:
    """Make the sources of a request in `folder`, in every precision that its configurations need.

    While `on_module` is at work, the child waits with the export.
    """
    kinds = {takes(name) for name in list_here(request)}
    job = SourceJob(
        source=request.source,
        out_dir=str(folder.absolute()),
        batch=request.batches[0],
        any_batch=request.any_batch,
        onnx="onnx" in kinds,
        dynamic_axes=request.dynamic_axes or list_differing_axes(request.buckets),
        needs_onnx="torch" not in kinds,
        data=request.data,
    )
    # Of an interrupted attempt: its weights may have differed if they could not be downloaded then, and its inputs.
    (folder / RANGES).unlink(missing_ok=True)
    shutil.rmtree(folder / SAMPLES, ignore_errors=True)
    try:
        made = _make(job, request.threads, request.timeout_s, reporter, on_module)
    except ChildFailed as error:  # an export that takes its process with it costs the graph alone, too
        if job.needs_onnx or not job.onnx:
            raise
        alone = _make(replace(job, onnx=False), request.threads, request.timeout_s, reporter)
        made = replace(alone, no_graph=f"{job.source.model} cannot be exported: {error}")
    made = replace(made, artifacts=tuple(_complete(artifact, request, folder) for artifact in made.artifacts))
    if request.inputs is not None and find_samples(folder) is None:
        raise UsageError(
            f"--inputs: {request.model} reports its inputs only once it is loaded, so that they cannot be held against "
            "it here. Leave --inputs out, or use infer or drift"
        )
    if made.no_graph is not None:
        reporter.say(f"no ONNX graph, so no engine that needs one: {made.no_graph}")
    return _transform_all(resolve(request, made.artifacts), made, folder, reporter, limit)


def _complete(artifact: Artifact, request: RunRequest, folder: Path) -> Artifact:
    """Return a source without a warning that does not apply to it; a plan with the inputs that its engine reports, if
    they fix the batch and none was requested."""
    if request.traffic:
        artifact = drop_chosen_shapes(artifact, request.traffic)
    names = [(name, options) for name, options in request.engines if "plan" in accepts(name)]
    if artifact.kind != "plan" or not request.any_batch or not names or "implicit_batch" in names[0][1]:
        return artifact
    name, options = names[0]
    spec = EngineSpec(
        backend=name,
        options=options,
        device=find_device(name, request.device),
        precision=artifact.precision,
        recipe=artifact.recipe,
        batch=find_plan_batch(artifact) or 1,
        threads=request.threads,
    )
    try:
        opened = ask_plan(artifact, spec, folder / "plan", request.timeout_s).artifact
    except EngineBenchError:
        return artifact
    return replace(artifact, inputs=opened.inputs, outputs=opened.outputs, allowed=opened.allowed)


def ask_plan(plan: Artifact, spec: EngineSpec, folder: Path, timeout_s: float, *, prove: bool = False) -> BuildResponse:
    """Read a finished plan with its engine: inputs, outputs, and on request the precision that runs."""
    return run_child(
        BuildJob(source=plan.path, engine=spec, out_dir=str(folder.absolute()), prove=prove), timeout_s=timeout_s
    )


def list_differing_axes(buckets: Sequence[Mapping[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    """{input: the axes beside the first that differ between the shapes of a run}: one graph is to take them all."""
    differing: dict[str, tuple[int, ...]] = {}
    for name in buckets[0] if buckets else ():
        lengths = list(zip(*(shapes[name] for shapes in buckets if name in shapes), strict=False))
        if axes := tuple(i for i, values in enumerate(lengths) if i and len(set(values)) > 1):
            differing[name] = axes
    return differing


def plan_one(request: RunRequest, folder: Path, reporter: Reporter) -> tuple[PlannedConfiguration, Artifact]:
    """Plan the only configuration of a request, and make its source in `folder`."""
    sources = gather_sources(request, folder, reporter)
    (configuration,) = sources.plan_configurations()
    if configuration.skip is not None or configuration.source is None:
        raise BackendUnavailable(str(configuration.skip))
    return configuration, configuration.source


def _transform_all(
    plan: ResolvedPlan, sources: SourceResponse, folder: Path, reporter: Reporter, limit: Limit
) -> Sources:
    """Make every graph, and every module in 8 bits, that the configurations need, several at a time.

    The first one that needs ranges takes them alone; the others wait for these.
    """
    request, made, works = plan.request, sources.artifacts, dict[str, Work[Any]]()
    artifacts, problems = list(made), {EVERY_GRAPH: sources.no_graph} if sources.no_graph else {}
    ranges, others = list[Work[Any]](), count_at_a_time(made[-1], describe_machine()) - 1
    with ExitStack() as stack:
        for precision, recipe in plan.transforms:
            kind = RECIPES[recipe].makes if recipe in RECIPES else "onnx"
            graph = next(a for a in made if a.kind == kind)  # transforms are listed only if there is one
            needs = find_needs(precision, recipe)
            job = describe_graph(request, graph, require_precision(precision), recipe, folder)
            wait_until_sure(ranges if needs == "ranges" else [])
            wait_until_sure([*works.values()], left=others)
            child = stack.enter_context(Child(PATIENCE | find_variables(job)))
            label, on_note = _begin_telling(request, job, reporter)
            most_s = [request.timeout_s, *([limit()] if limit else [])]
            works[label] = child.start(job, timeout_s=min(most_s), on_note=on_note)
            ranges += [works[label]] if needs == "ranges" else []
        wait_until_sure([*works.values()])
        for label, work in works.items():
            try:
                artifacts.append(_take_graph(work.finish()))
            except EngineBenchError as error:
                reporter.say(f"no graph in {label}: {error}")
                problems[label] = str(error)
    return Sources(plan=plan, artifacts=tuple(artifacts), problems=problems)


def make_graph(request: RunRequest, job: QuantizeJob, reporter: Reporter) -> Artifact:
    _, on_note = _begin_telling(request, job, reporter)
    return _take_graph(run_child(job, timeout_s=request.timeout_s, on_note=on_note))


def _begin_telling(request: RunRequest, job: QuantizeJob, reporter: Reporter) -> tuple[str, Callable[[str], None]]:
    """Report that a graph is begun; return (its label, a function that reports its progress)."""
    label = format_precision(job.precision, job.recipe, name_mix(job.exclude))
    reporter.step(f"{request.model}: {label}")
    return label, lambda text: reporter.step(f"{request.model} {label}: {text}")


def _take_graph(made: Artifact) -> Artifact:
    if made.kind == "torch":
        allow_code(made.path)  # it was made here
    return made


def describe_graph(
    request: RunRequest,
    graph: Artifact,
    precision: Precision,
    recipe: Recipe | None,
    out_folder: Path,
    *,
    out: Path | None = None,
    exclude: tuple[str, ...] = (),
) -> QuantizeJob:
    """Describe how the FP32 graph, or module, of a request is changed to another precision, except nodes `exclude`.

    It lies in `out`, else in `out_folder`, with the ranges, which all graphs of a folder share.
    """
    folder = (out or out_folder).absolute()
    name = escape_precision(format_precision(precision, recipe, name_mix(exclude))).replace("@", "-")
    return QuantizeJob(
        model=graph.model,
        artifact=graph,
        precision=precision,
        recipe=recipe,
        out=str(folder / f"model.{name}{'.onnx' if graph.kind == 'onnx' else '.pt2'}"),
        calibration_path=str(folder / RANGES),
        data=choose_data(request) or "fake",
        method=request.calibration_method,
        n=CALIBRATION_ENTRIES,
        seed=request.measure.seed,
        threads=request.threads,
        input_size=request.input_size,
        inputs=find_samples(out_folder) if request.inputs is not None else None,
        exclude=exclude,
        verb=VERB.get(),
    )


def choose_data(request: RunRequest) -> str | None:
    """The data of a run: the user's, else those that belong to a built-in model."""
    return request.data if request.data is not None else find_own_data(request.model)


def choose_scoring(request: RunRequest, sources: Sequence[Artifact] = ()) -> Scoring | None:
    """Choose the samples on which every configuration is scored, and the metrics; a user's is read in a child."""
    labelled = choose_labelled(request, sources)
    if labelled is None:
        return None
    requested = asks_metric(request) or request.task is not None
    return Scoring(labelled=labelled, metrics=open_metrics(labelled), requested=requested)


def asks_metric(request: RunRequest) -> bool:
    """Return whether the user requested a metric, or passed an option that only metrics use."""
    return bool(request.metrics or request.targets or request.max_metric_drop is not None)


def choose_labelled(request: RunRequest, sources: Sequence[Artifact] = ()) -> Labelled | None:
    """Choose the samples on which every configuration is scored, without running anything."""
    metrics, data, n, why = choose_metrics(request.metrics, request.task), choose_data(request), LABELLED_ENTRIES, None
    path = check_source(data) if data else None
    has_targets = request.inputs is not None and request.targets is not None
    arrays = path is not None and not path.is_dir() and request.targets is None
    if has_targets:
        data = None
    elif data == SAMPLE_PHOTOS or (path is not None and path.is_dir()):
        why = "photographs without labels" if path is None else _find_label_fault(path, request, sources)
    if why:
        most = QUICK_ENTRIES if request.quick else COMPARED_ENTRIES
        n = most if path is None else min(most, len(list_images(path)))
    if why or (not has_targets and (data in (None, "fake") or arrays)):
        if asks_metric(request):
            raise UsageError(
                f"{f'{why}. A' if why else 'a'} metric needs labelled samples: --inputs F.npz with "
                "--targets F, or --data DIR, one folder for each class"
            )
        if not why:
            return None
    return Labelled(
        data=data,
        n=n,
        input_size=request.input_size,
        metrics=() if why else metrics,
        targets=request.targets,
        task=request.task,
        unlabelled=why,
    )


def _find_label_fault(folder: Path, request: RunRequest, sources: Sequence[Artifact]) -> str | None:
    """Return why a folder of pictures has no labels; None if it has."""
    if request.targets is None:
        card = BUILTIN.get(request.model)
        shape = next((artifact.outputs[0].shape[1:] for artifact in sources if artifact.outputs), ())
        classes = shape[0] if len(shape) == 1 and isinstance(shape[0], int) else None
        return find_label_fault(folder, card.classes if card is not None else classes)
    if request.task in PICTURE_TASKS:
        return None
    return f"--task {request.task}: images are cropped for the model, and the targets would not fit them"


def fit_scoring(scoring: Scoring | None, request: RunRequest, sources: Sequence[Artifact]) -> Scoring | None:
    """Return the scoring without metrics, if the classes of the model do not fit the folders of its pictures."""
    data = scoring.labelled.data if scoring and scoring.metrics and scoring.labelled.targets is None else None
    if scoring is None or data is None or not Path(data).is_dir():
        return scoring
    labelled = choose_labelled(request, sources)
    return replace(scoring, labelled=labelled, metrics=()) if labelled and labelled.unlabelled else scoring


def note_unlabelled(scoring: Scoring | None) -> tuple[str, ...]:
    """Return a note on why there is no accuracy, if the pictures have no labels."""
    data = scoring.labelled if scoring else None
    begin = f"no accuracy, outputs are compared on {count_of(data.n, 'images')} of {data.data}: " if data else ""
    return (begin + data.unlabelled,) if data and data.unlabelled else ()


def choose_source(sources: tuple[Artifact, ...], engine: EngineSpec, kind: ArtifactKind) -> Artifact:
    for artifact in sources:
        if artifact.kind == kind or (artifact.kind in BUILT and artifact.kind in accepts(engine.backend)):
            return artifact
    have = ", ".join(a.kind for a in sources)
    raise ArtifactError(f"{format_engine(engine)} starts from an artifact of kind {kind}; there is only {have}")
