"""The configurations of a request, in order, each with the reason if it cannot run."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from itertools import product

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.commands import advise_dynamic_batch, name_flag
from enginebench.core.entry import find_kind
from enginebench.core.errors import BackendUnavailable, EngineBenchError, MissingDependency, UsageError, refuse_all
from enginebench.core.names import (
    configuration_id,
    format_engine,
    format_precision,
    name_mix,
    parse_engine,
    parse_precision,
)
from enginebench.core.recipes import (
    CASTS,
    FEW_BITS,
    RECIPES,
    TORCHAO,
    choose_module_recipe,
    find_graph_precision,
    find_start,
    refuse_recipe,
)
from enginebench.core.records import (
    BUILT,
    Artifact,
    ArtifactKind,
    Availability,
    Axes,
    EngineSpec,
    MeasureSpec,
    Placing,
    Precision,
    Recipe,
    TrafficCell,
)
from enginebench.core.shapes import (
    PAD,
    batch_artifact,
    explain_no_padding,
    explain_own_batch,
    find_batch_axes,
    find_built_batch,
    find_own_batch,
    find_plan_batch,
    list_cells,
    set_plan_shapes,
    size_artifact,
    takes_whole,
)
from enginebench.engines.registry import (
    accepts,
    find_device,
    find_entry,
    find_installed,
    list_precisions,
    list_unasked,
    takes,
)
from enginebench.measure.machine import read_instructions
from enginebench.runs.child.environments import OPTION, explain_absence, probe_elsewhere, require_available
from enginebench.runs.families import is_attentive, is_gated
from enginebench.runs.folder import RunRequest
from enginebench.runs.traffic import list_open_inputs, settle_traffic

# Precision -> the only recipe that makes it.
ONLY_RECIPES: dict[Precision | None, Recipe] = {"fp8": "tensorrt", "int4": "w4"}
# Signs of the kinds of graphs for which an engine's `int8` may mean a recipe of its own.
GRAPH_KINDS: dict[str, Callable[[Artifact], bool]] = {"attention": is_attentive, "gates": is_gated}
# The note about the precisions that `run` and `tune` leave out on a GPU unless they are named.
LEFT_OUT_ON_GPUS = "left out by default: tf32 and formats below 16 bits; name them with --precisions"
# Key of the problem that there is no graph at all.
EVERY_GRAPH = "onnx"
NEEDS_MODULE = "needs a PyTorch model; MODEL is a graph, for engines such as ort"


class PlannedConfiguration(Struct, frozen=True, kw_only=True):
    """One configuration: the engine, the artifact that it starts from, and why it is skipped, if it is."""

    id: str
    model: str
    engine: EngineSpec
    requested_precision: Precision | None
    measure: MeasureSpec
    source: Artifact | None = None
    chain: tuple[Artifact, ...] = ()  # from the first source to `source`
    skip: str | None = None
    # The model whose inputs it gets, and with whose configurations its outputs are compared: in a comparison, that of
    # the reference side. None: its own.
    inputs_of: str | None = None
    graph: str | None = None  # that a finished plan was built from, if it is still there
    beside: tuple[str, Placing] | None = None  # another configuration that is called without a pause meanwhile

    @property
    def inputs_model(self) -> str:
        """The model whose inputs it gets: configurations of the same one get the same inputs."""
        return self.inputs_of or self.model


class ResolvedPlan(Struct, frozen=True, kw_only=True):
    """The engines and graphs of a request, resolved once when its model is open; everything later takes it."""

    request: RunRequest
    engines: tuple[EngineSpec, ...]  # of every configuration, in order, the baseline first
    transforms: tuple[tuple[Precision | None, Recipe | None], ...]  # graphs and modules that the sources lack
    left_out: tuple[EngineSpec, ...] = ()  # that could run, and do so only if they are named

    def list_notes(self) -> tuple[str, ...]:
        """Return a note on each precision that the defaults leave out."""
        request, omitted = self.request, dict[str, dict[str, None]]()
        for spec in self.left_out:
            omitted.setdefault(format_precision(spec.precision, spec.recipe), {})[spec.backend] = None
        notes = [LEFT_OUT_ON_GPUS] if request.any_precision and find_kind(request.device) != "cpu" else []
        for label, engines in omitted.items():
            named = ",".join(dict.fromkeys([*(format_precision(*pair) for pair in request.precisions), label]))
            notes.append(f"left out by default: {label} of {', '.join(engines)}; name it with --precisions {named}")
        return tuple(notes)


def resolve(request: RunRequest, opened: Sequence[Artifact]) -> ResolvedPlan:
    """Resolve a request for its model, of which `opened` are the graph and the module, perhaps in further precisions.

    Only they tell the precision and the batch that the model has of its own.
    """
    engines, others = _list_engines(request, opened)
    left_out = tuple(spec for spec in others if not find_obstacle(spec, opened))
    transforms = tuple(_list_transforms(request, engines, opened))
    return ResolvedPlan(request=request, engines=tuple(engines), transforms=transforms, left_out=left_out)


def plan_configurations(
    plan: ResolvedPlan,
    sources: Sequence[Artifact],
    *,
    probe: Callable[[str], Availability] = find_installed,
    problems: Mapping[str, str] | None = None,
) -> list[PlannedConfiguration]:
    """List every configuration of the plan once: by batch, then precision, then engine, the baseline first."""
    request, configurations, never = plan.request, dict[str, PlannedConfiguration](), set[str]()
    for scope in dict.fromkeys(wanted.scope for wanted in request.wanted) or (request.measure.scope,):
        measure = replace(request.measure, scope=scope)
        for spec in plan.engines:
            key = (format_engine(spec), spec.batch, scope)
            precisions = [w.precision for w in request.wanted if (w.engine, w.batch, w.scope) == key]
            if request.wanted and not any(meets_precision(p, spec.precision, spec.recipe) for p in precisions):
                continue
            availability = probe_elsewhere(spec) if OPTION in spec.options else probe(spec.backend)
            configuration = _plan_configuration(request, spec, measure, sources, availability, problems or {})
            configurations.setdefault(configuration.id, configuration)
            if request.any_engine and find_obstacle(spec, sources):
                never.add(configuration.id)
    # A precision in which nothing runs keeps its configurations, each with its reason.
    run = {
        configuration.requested_precision for configuration in configurations.values() if configuration.id not in never
    }
    return [
        configuration
        for configuration in configurations.values()
        if configuration.id not in never or configuration.requested_precision not in run
    ]


def find_obstacle(spec: EngineSpec, sources: Sequence[Artifact]) -> str | None:
    """Return why the engine can never run this model in this precision, installed or not; None if it may."""
    kind = takes(spec.backend)
    other = kind == "torch" and bool(sources) and sources[0].kind != "torch"
    return f"{format_engine(spec)} {NEEDS_MODULE}" if other else _refuse(spec, kind)


def _refuse(spec: EngineSpec, kind: ArtifactKind) -> str | None:
    """Return why an engine never runs a precision, or models of a recipe; None if it does."""
    precision, has = spec.precision, list_precisions(spec.backend, spec.device)
    why = find_entry(spec.backend).lacks.get(precision) if precision else None
    if why is None and ((refused := refuse_recipe(spec, kind)) or not has or precision in (None, *has)):
        return refused
    others = [name for name in list_unasked(find_kind(spec.device)) if precision in list_precisions(name, spec.device)]
    only, reason = f", only {', '.join(has)}" if has else "", f": {why}" if why else ""
    elsewhere = f"; engines that have it: {', '.join(others)}" if others else ""
    return f"{spec.backend} has no {precision}{only}{reason}{elsewhere}"


def check_engines_here(
    engines: Iterable[tuple[str, dict[str, str]]],
    precisions: Iterable[tuple[Precision | None, Recipe | None]],
    device: str,
) -> None:
    """Check, before a model is loaded, that some engine may run in some precision, here or in its environment."""
    reasons = []
    for (precision, requested_recipe), (name, options) in product(precisions, engines):
        spec = EngineSpec(backend=name, options=options, device=find_device(name, device), precision=precision)
        spec = replace(spec, recipe=_choose_recipe(spec, requested_recipe, ()))
        try:
            require_available(spec)
            # Without --precisions (FP32 here) a graph in another precision keeps its own.
            if precision != "fp32" and (why := _refuse(spec, takes(name))):
                raise BackendUnavailable(why)
            return
        except EngineBenchError as error:
            reasons.append(str(error))
    if reasons:
        raise refuse_all(reasons)


def meets_precision(requested: str, precision: Precision | None, recipe: Recipe | None) -> bool:
    """Whether a precision and recipe match the text PRECISION; without a recipe in it any matches."""
    name, requested_recipe = parse_precision(requested)
    return name == precision and requested_recipe in (None, recipe)


def plan_stored(
    model: str, spec: EngineSpec, chain: tuple[Artifact, ...], measure: MeasureSpec, availability: Availability
) -> PlannedConfiguration:
    """Plan the configuration of an engine that opens the last artifact of `chain`, made by an earlier run."""
    source = batch_artifact(chain[-1], spec.batch)
    return PlannedConfiguration(
        id=configuration_id(spec, spec.precision, measure),
        model=model,
        engine=spec,
        requested_precision=spec.precision,
        measure=measure,
        source=source,
        chain=chain,
        skip=_reason_to_skip(spec, source, availability, source.kind, {}),
    )


def list_devices(request: RunRequest) -> tuple[str, ...]:
    """The devices that the installed engines of a request run on."""
    return tuple({find_device(name, request.device): None for name in list_here(request)})


def list_here(request: RunRequest) -> list[str]:
    """The engines of a request that are installed, or run in an environment of their own."""
    return [name for name, options in request.engines if OPTION in options or find_installed(name).available]


def _list_engines(request: RunRequest, sources: Sequence[Artifact]) -> tuple[list[EngineSpec], list[EngineSpec]]:
    """List the engine of every configuration, in the requested order, the named baseline (else `pytorch`) first.

    Beside them those that are left out unless they are named: recipes that run by name alone, where engines of graphs
    can run; and BF16 on a CPU with engines that need another graph or code for it.
    """
    mixes = {a.precision: name_mix(a.excluded) for a in reversed(sources) if a.kind == "onnx"}
    traffic = tuple[TrafficCell, ...]()
    if request.traffic and sources:
        traffic = settle_traffic(request.traffic, list_open_inputs(find_open_source(sources)))
    sizes = [(cell.shapes, cell.batch) for cell in traffic[:1]] or list_configuration_sizes(request, sources)
    precisions = _list_precisions(request, sources)
    first, listed, left_out = parse_engine(request.baseline or "pytorch"), list[EngineSpec](), list[EngineSpec]()
    engines = sorted(request.engines, key=lambda engine: engine != first)
    either = request.any_engine and {"onnx", "torch"} <= {a.kind for a in sources}
    unasked = request.any_precision and precisions == request.precisions  # not the model's own
    for (shapes, batch), (precision, requested_recipe), (name, options) in product(sizes, precisions, engines):
        spec = EngineSpec(
            backend=name,
            options=options,
            device=find_device(name, request.device),
            precision=precision,
            batch=batch,
            threads=request.threads,
            shapes=shapes,
            mix=mixes.get(precision, "") if takes(name) == "onnx" else "",
            traffic=traffic,
        )
        recipe = _choose_recipe(spec, requested_recipe, sources)
        by_name = either and recipe in RECIPES and RECIPES[recipe].by_name
        elsewhere = unasked and precision == "bf16" and spec.device == "cpu" and (name, precision) not in CASTS
        kept = not elsewhere and (not by_name or (precision, recipe) in precisions or name == first[0])
        (listed if kept else left_out).append(replace(spec, recipe=recipe))
    return listed, left_out


def find_open_source(sources: Sequence[Artifact]) -> Artifact:
    """Find the artifact whose inputs name their dynamic axes: the graph, else the module."""
    return next((artifact for artifact in sources if artifact.kind == "onnx"), sources[0])


def list_configuration_sizes(
    request: RunRequest, sources: Sequence[Artifact]
) -> list[tuple[dict[str, tuple[int, ...]], int]]:
    """List (shapes, batch) of every configuration: the batches of --batch, else the batch that the user's model fixes,
    else that of its example inputs.

    Shapes are listed only if there are several. Each has the batch that it begins with; a 1 also stands for those of
    --batch, where no other shape begins with its own.
    """
    source = next((a for a in sources if a.kind in ("onnx", *BUILT) or find_own_batch(a)), None)
    fixed = None
    if source is not None and request.any_batch:
        fixed = find_plan_batch(source) or (find_fixed_batch(source) if source.inputs else None)
    module = next((a for a in sources if a.kind == "torch"), None)
    if fixed is None and module is not None and request.any_batch:
        fixed = find_built_batch(module)
    batches = request.batches if fixed is None else (fixed,)
    if not request.buckets:
        return [({}, batch) for batch in batches]
    firsts = [{shape[0] for shape in shapes.values()} for shapes in request.buckets]
    open_batch = 1 not in batches or all(first == {1} for first in firsts)
    return [
        (shapes, batch)
        for shapes, first in zip(request.buckets, firsts, strict=True)
        for batch in batches
        if len(first) > 1 or batch in first or (first == {1} and open_batch)
    ]


def _list_precisions(
    request: RunRequest, sources: Sequence[Artifact]
) -> Sequence[tuple[Precision | None, Recipe | None]]:
    """The requested precisions; a source that is not in FP32 (a user's graph or module, a plan) keeps its own."""
    source = next((a for a in sources if a.kind == "onnx"), sources[0] if sources else None)
    others = any(precision != "fp32" for precision, _ in request.precisions)  # the user may know more of a plan
    if source is None or source.precision == "fp32" or (source.kind == "plan" and others):
        return request.precisions
    return [(source.precision, source.recipe)]


def _choose_recipe(spec: EngineSpec, requested: Recipe | None, sources: Sequence[Artifact]) -> Recipe | None:
    if spec.options.get("weak_typing") == "1" and spec.precision not in ("fp32", "tf32"):
        return "weak"
    if spec.precision not in FEW_BITS:
        return None
    if takes(spec.backend) == "torch":
        own = choose_module_recipe(spec.backend, spec.precision, spec.device)
        return own and (requested or own)
    return requested or choose_graph_recipe(spec.backend, spec.precision, sources)


def choose_graph_recipe(backend: str, precision: Precision | None, sources: Sequence[Artifact] = ()) -> Recipe:
    """Choose the recipe for a precision of few bits and an engine of graphs where none is named.

    For some kinds of graphs it is not the usual one of the engine: see `OtherRecipes`.
    """
    if precision in ONLY_RECIPES:
        return ONLY_RECIPES[precision]
    graph = next((a for a in sources if a.kind == "onnx" and a.precision == "fp32"), None)
    entry, present = find_entry(backend), read_instructions()
    fitting = (
        choice.recipe
        for choice in entry.other_recipes.by_graph
        if graph is not None and choice.instructions <= present and GRAPH_KINDS[choice.graph](graph)
    )
    return next(fitting, entry.recipe)


def lacks_torchao(recipe: Recipe | None) -> bool:
    return recipe in RECIPES and bool(RECIPES[recipe].tools) and find_spec("torchao") is None


def _list_transforms(
    request: RunRequest, listed: Iterable[EngineSpec], sources: Sequence[Artifact]
) -> list[tuple[Precision | None, Recipe | None]]:
    """List (precision, recipe) of every graph, and module in 8 bits, that configurations need and the sources lack."""
    have = {(a.precision, a.recipe) for a in sources}
    fp32 = {a.kind for a in sources if (a.precision, a.recipe) == ("fp32", None)}  # transforms start from FP32
    here = list_here(request)
    engines = [s for s in listed if s.recipe != "weak" and s.backend in here]
    needed: list[tuple[Precision | None, Recipe | None]] = []
    for spec in engines:
        kind = takes(spec.backend)
        if kind not in fp32 or _refuse(spec, kind):
            continue
        start = find_start(spec.backend, spec.recipe)
        if kind != "torch" or (start and not lacks_torchao(start)):
            needed.append((find_graph_precision(spec.backend, spec.precision), start))
    return [pair for pair in dict.fromkeys(needed) if pair not in have and pair[0] != "fp32"]


def _plan_configuration(
    request: RunRequest,
    spec: EngineSpec,
    measure: MeasureSpec,
    sources: Sequence[Artifact],
    availability: Availability,
    problems: Mapping[str, str],
) -> PlannedConfiguration:
    source = next((a for a in sources if _serves(a, spec)), None)
    problem = None
    if source is not None and source.kind == "plan":  # whose inputs are known only once it is loaded
        spec = set_plan_shapes(spec, spec.shapes or request.input_shapes)
    elif source is not None:
        try:
            source = size_artifact(source, spec)
        except UsageError as error:
            problem = str(error)
    own = find_own_batch(sources[0]) if sources else None
    if own not in (None, spec.batch):
        problem = explain_own_batch(sources[0].model, own, spec.batch)
    return PlannedConfiguration(
        id=configuration_id(spec, spec.precision, measure),
        model=sources[0].model if sources else request.model,
        engine=spec,
        requested_precision=spec.precision,
        measure=measure,
        source=source,
        chain=_chain(sources, source),
        skip=problem
        or _reason_to_skip(spec, source, availability, takes(spec.backend), problems)
        or _reason_not_measured(spec, measure),
    )


def _reason_not_measured(spec: EngineSpec, measure: MeasureSpec) -> str | None:
    """Return why the settings of the measurement do not fit the engine: only our own loop can empty a GPU's cache."""
    program = find_entry(spec.backend).find_program is not None
    if measure.warmup_ms is not None and not program:
        return f"--warmup {measure.warmup_ms}ms is for trtexec; {spec.backend} counts calls. Give a number, as in 20"
    if measure.cache == "cold" and program:
        option = name_flag("--cache", "cache")
        return f"{option} cold: {spec.backend} times itself and cannot empty a cache before each call. Use hot"
    if measure.cache == "cold" and spec.device == "cpu":
        return (
            f"{name_flag('--cache', 'cache')} cold empties the cache of a GPU; {spec.backend} runs on the CPU. Use hot"
        )
    return None


def _serves(artifact: Artifact, spec: EngineSpec) -> bool:
    """Return whether an engine starts from this artifact: PyTorch from any weights, a graph engine from its precision.

    A finished plan serves every precision; the engine's record has the one that ran. Under weak typing the builder's
    flags set the precision, and the graph is the FP32 one.
    """
    if artifact.kind in BUILT:
        return artifact.kind in accepts(spec.backend)
    if artifact.kind != (kind := takes(spec.backend)):
        return False
    start = find_start(spec.backend, spec.recipe)
    if kind == "torch":
        return artifact.recipe == start
    if spec.options.get("weak_typing") == "1":
        return artifact.precision == "fp32"
    graphs = find_graph_precision(spec.backend, spec.precision), spec.precision  # a user's may be cast already
    return artifact.precision in graphs and (artifact.recipe, name_mix(artifact.excluded)) == (start, spec.mix)


def _reason_to_skip(
    spec: EngineSpec,
    source: Artifact | None,
    availability: Availability,
    kind: ArtifactKind,
    problems: Mapping[str, str],
) -> str | None:
    if why := explain_absence(availability):
        return why
    if why := _refuse(spec, kind):
        return why
    if kind == "torch" and OPTION not in spec.options and lacks_torchao(spec.recipe):
        return str(MissingDependency("torchao", TORCHAO))
    start = find_start(spec.backend, spec.recipe)
    label = format_precision(spec.precision, start)
    if kind != "torch" and EVERY_GRAPH in problems:
        return f"no ONNX graph: {problems[EVERY_GRAPH]}"
    if label in problems and (kind != "torch" or start):
        return f"no {'module' if kind == 'torch' else 'graph'} in {label}: {problems[label]}"
    if source is None:
        return f"{format_engine(spec)} {NEEDS_MODULE if kind == 'torch' else f'needs a graph in {label}'}"
    if why := explain_unfit_batch(source, [cell.batch for cell in list_cells(spec)], "" if spec.traffic else "--batch"):
        return why
    if spec.traffic and (why := _refuse_traffic(spec)):
        return why
    if spec.options.get(PAD):
        return explain_no_padding(spec, source.inputs, source.outputs)
    return None


def explain_unfit_batch(source: Artifact, batches: Sequence[int], option: str = "--batch") -> str | None:
    """Return why an artifact, whose batch is fixed or which has none, cannot run one of these; None if it runs all.

    Args:
        option: that named them; "": one of several shapes that are served did.
    """
    if takes_whole(source.inputs) and max(batches) != 1:
        return f"no axis of the inputs can be a batch of {max(batches)}; leave {option or 'it'} out"
    static = find_fixed_batch(source) if source.kind in ("onnx", "aoti") else None
    other = next((batch for batch in batches if static not in (None, batch)), None)
    if other is None:
        return None
    if source.kind == "aoti":
        return f"the package was built for a batch of {static}, not {other}: build it again with --batch"
    return f"the graph has a fixed batch of {static}; batch {other} needs one of {advise_dynamic_batch()}"


def _refuse_traffic(spec: EngineSpec) -> str | None:
    """Return why an engine cannot serve several shapes in one process."""
    entry = find_entry(spec.backend)
    if entry.find_program is not None:
        return f"{spec.backend} times itself, one shape at a time; --traffic needs an engine that is called"
    if not {*BUILT}.isdisjoint(entry.accepts):
        return f"{spec.backend} is built ahead, for one shape; --traffic needs an engine that takes several"
    return None


def _chain(sources: Sequence[Artifact], last: Artifact | None) -> tuple[Artifact, ...]:
    if last is None:
        return tuple(sources[:1])
    parents = {a.sha256: a for a in sources}
    chain = [last]
    while (parent := parents.get(chain[0].parent_sha256 or "")) is not None and parent not in chain:
        chain.insert(0, parent)
    return tuple(chain)


def find_axes(engine: EngineSpec, source: Artifact | None) -> Axes | None:
    """Whether the shapes of the engine are fixed, by compiling or by its graph, or open; None: unknown."""
    if source is not None and source.kind == "onnx" and all(isinstance(a, int) for s in source.inputs for a in s.shape):
        return "fixed"
    if engine.options.get("shapes") == "dynamic" or any(k.endswith("_shapes") for k in engine.options):
        return "open"
    return find_entry(engine.backend).axes


def find_fixed_batch(graph: Artifact) -> int | None:
    """The batch that a graph fixes; None if it takes any.

    The first axis of its inputs; where these differ, that which an output has too: a recurrent state has its layers
    there. A graph that has no batch at all takes one entry.
    """
    if own := find_own_batch(graph):
        return own
    if takes_whole(graph.inputs):
        return 1
    batch_axes = find_batch_axes(graph.inputs)
    if not graph.inputs or any(
        (i := batch_axes[s.name]) is not None and isinstance(s.shape[i], str) for s in graph.inputs
    ):
        return None
    firsts = [s.shape[0] for s in graph.inputs if s.shape and isinstance(s.shape[0], int)]
    output_lengths = {s.shape[0] for s in graph.outputs if s.shape}
    shared = firsts if len(set(firsts)) == 1 else [axis for axis in firsts if axis in output_lengths]
    return shared[0] if shared else 1


def with_suffix(configuration: PlannedConfiguration, suffix: str) -> PlannedConfiguration:
    """The same configuration under another id, for comparing an engine with itself or two models."""
    return replace(configuration, id=f"{configuration.id}-{suffix}")
