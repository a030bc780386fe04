"""What to run: the rows of a request, in order, each with the reason if it cannot be run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from enginebench.backends.registry import accepts, find_device, find_installed
from enginebench.core.names import format_engine, format_precision, parse_engine, row_id
from enginebench.core.records import (
    Artifact,
    ArtifactKind,
    Availability,
    EngineSpec,
    MeasureSpec,
    Precision,
    Recipe,
    TensorSpec,
)
from enginebench.core.shapes import format_shapes
from enginebench.workflow.folder import RunRequest

# What `int8` means where no recipe is named: the one that the engine's kernels were made for. Source: architecture,
# "Precision belongs to the graph"; `fake` computes nothing and takes any.
BEST_RECIPES: dict[str, Recipe] = {"ort": "cpu", "openvino": "nncf", "fpga-sim": "cpu", "fake": "cpu"}
DEFAULT_RECIPE: Recipe = "tensorrt"


class PlannedRow(Struct, frozen=True, kw_only=True):
    """One row: the engine, what it starts from, and why it is skipped, if it is."""

    id: str
    model: str
    engine: EngineSpec
    requested_precision: Precision
    measure: MeasureSpec
    source: Artifact | None = None
    chain: tuple[Artifact, ...] = ()  # from the first source to `source`
    skip: str | None = None


def plan_rows(
    request: RunRequest,
    sources: Sequence[Artifact],
    *,
    probe: Callable[[str], Availability],
    takes: Callable[[str], ArtifactKind],
    problems: Mapping[str, str] | None = None,
) -> list[PlannedRow]:
    """Every row of the request, each once: for each batch and precision all engines side by side, the baseline first.

    Args:
        request: what was asked.
        sources: the artefacts that are there to start from, in all precisions.
        probe: whether an engine can run here.
        takes: the kind of artefact that an engine starts from.
        problems: PRECISION to the reason why no graph could be made in it.
    """
    rows: dict[str, PlannedRow] = {}
    for spec in list_engines(request, sources, takes):
        row = _plan_row(request, spec, sources, probe(spec.backend), takes(spec.backend), problems or {})
        rows.setdefault(row.id, row)
    return list(rows.values())


def plan_stored(
    model: str, spec: EngineSpec, chain: tuple[Artifact, ...], measure: MeasureSpec, availability: Availability
) -> PlannedRow:
    """The row of an engine that is opened from the last artefact of `chain`, made by an earlier run."""
    source = _with_batch(chain[-1], spec.batch)
    return PlannedRow(
        id=row_id(spec, spec.precision, measure),
        model=model,
        engine=spec,
        requested_precision=spec.precision,
        measure=measure,
        source=source,
        chain=chain,
        skip=_reason_to_skip(spec, source, availability, source.kind, {}),
    )


def list_devices(request: RunRequest) -> tuple[str, ...]:
    """The devices that the rows of a request run on; an engine that is not installed runs nowhere."""
    names = dict.fromkeys(name for name, _ in request.engines)
    return tuple({find_device(name, request.device): None for name in names if find_installed(name).available})


def list_engines(
    request: RunRequest, sources: Sequence[Artifact], takes: Callable[[str], ArtifactKind]
) -> list[EngineSpec]:
    """Engine, precision and batch of every row, recipes resolved."""
    return [
        EngineSpec(
            backend=name,
            options=options,
            device=find_device(name, request.device),
            precision=precision,
            recipe=_choose_recipe(name, precision, recipe, takes(name), options),
            batch=batch,
            threads=request.threads,
        )
        for batch in request.batches
        for precision, recipe in _list_precisions(request, sources)
        for name, options in _baseline_first(request)
    ]


def _list_precisions(request: RunRequest, sources: Sequence[Artifact]) -> Sequence[tuple[Precision, Recipe | None]]:
    """The precisions asked for; a user's graph that is not in FP32 has the one that it has."""
    given = sources[0] if sources else None
    if given is not None and given.kind == "onnx" and given.precision != "fp32":
        return [(given.precision, given.recipe)]
    return request.precisions


def _choose_recipe(
    backend: str, precision: Precision, asked: Recipe | None, kind: ArtifactKind, options: Mapping[str, str]
) -> Recipe | None:
    if options.get("weak_typing") == "1" and precision not in ("fp32", "tf32"):
        return "weak"
    if precision not in ("int8", "fp8") or kind == "torch":
        return None  # recipes belong to graphs
    if asked is not None:
        return asked
    return BEST_RECIPES.get(backend, DEFAULT_RECIPE) if precision == "int8" else DEFAULT_RECIPE


def list_transforms(
    request: RunRequest, sources: Sequence[Artifact], takes: Callable[[str], ArtifactKind]
) -> list[tuple[Precision, Recipe | None]]:
    """(precision, recipe) of every graph that the rows need and the sources lack."""
    have = {(a.precision, a.recipe) for a in sources if a.kind == "onnx"}
    engines = [s for s in list_engines(request, sources, takes) if s.recipe != "weak"]
    wanted = [(s.precision, s.recipe) for s in engines if takes(s.backend) == "onnx"]
    if ("fp32", None) not in have:  # transforms start from FP32
        return []
    return [pair for pair in dict.fromkeys(wanted) if pair not in have and pair[0] not in ("fp32", "tf32")]


def _baseline_first(request: RunRequest) -> list[tuple[str, dict[str, str]]]:
    """The engines in the order given, the named baseline (else `pytorch`) moved to the front."""
    engines = list(request.engines)
    wanted = parse_engine(request.baseline) if request.baseline else ("pytorch", {})
    if wanted in engines:
        engines.remove(wanted)
        engines.insert(0, wanted)
    return engines


def _plan_row(
    request: RunRequest,
    spec: EngineSpec,
    sources: Sequence[Artifact],
    availability: Availability,
    kind: ArtifactKind,
    problems: Mapping[str, str],
) -> PlannedRow:
    source = next((_with_batch(a, spec.batch) for a in sources if _serves(a, spec, kind)), None)
    if source is not None:
        spec = replace(spec, options=add_shapes(spec.options, source, request.input_shapes))
    return PlannedRow(
        id=row_id(spec, spec.precision, request.measure),
        model=sources[0].model if sources else request.model,
        engine=spec,
        requested_precision=spec.precision,
        measure=request.measure,
        source=source,
        chain=_chain(sources, source),
        skip=_reason_to_skip(spec, source, availability, kind, problems) or _reason_not_cold(spec, request.measure),
    )


def _reason_not_cold(spec: EngineSpec, measure: MeasureSpec) -> str | None:
    """Known before anything is built: only engines on a GPU can empty its cache."""
    if measure.cache == "cold" and spec.device == "cpu":
        return f"--cache cold empties the cache of a GPU; {spec.backend} runs on the CPU. Use hot"
    return None


def add_shapes(
    options: dict[str, str], source: Artifact, shapes: Mapping[str, tuple[int, ...]] | None
) -> dict[str, str]:
    """The options of an engine, told the shapes where it starts from a plan: only TensorRT can say what that takes."""
    if source.kind != "plan" or not shapes:
        return options
    return {"shapes": format_shapes(shapes), **options}


def _serves(artifact: Artifact, spec: EngineSpec, kind: ArtifactKind) -> bool:
    """Whether an engine starts from this artefact: PyTorch from any weights, a graph engine from its own precision.

    A finished plan is what it is; the proof says in which precision it ran. Under weak typing the builder's flags say
    the precision, and the graph is the FP32 one.
    """
    if artifact.kind == "plan":
        return "plan" in accepts(spec.backend)
    if artifact.kind != kind:
        return False
    if kind == "torch":
        return True
    if spec.options.get("weak_typing") == "1":
        return artifact.precision == "fp32"
    graph = "fp32" if spec.precision == "tf32" else spec.precision
    return (artifact.precision, artifact.recipe) == (graph, spec.recipe)


def _reason_to_skip(
    spec: EngineSpec,
    source: Artifact | None,
    availability: Availability,
    kind: ArtifactKind,
    problems: Mapping[str, str],
) -> str | None:
    if not availability.available:
        return f"{availability.reason}. To add: {availability.fix}" if availability.fix else availability.reason
    if kind == "torch" and spec.precision in ("int8", "fp8"):
        return f"8 bits are a property of an ONNX graph; ask ort or openvino for {spec.precision}"
    label = format_precision(spec.precision, spec.recipe)
    if label in problems:
        return f"no graph in {label}: {problems[label]}"
    if source is None:
        needs = "a PyTorch model; MODEL is a graph" if kind == "torch" else f"a graph in {label}"
        return f"{format_engine(spec)} needs {needs}"
    static = None if source.kind == "plan" else _static_batch(source)
    if static not in (None, spec.batch):
        return f"the graph has a fixed batch of {static}; batch {spec.batch} needs one exported with --dynamic-batch"
    return None


def _with_batch(source: Artifact, batch: int) -> Artifact:
    """The artefact as it is fed at `batch`: PyTorch takes any, whatever the module was built with."""
    if source.kind != "torch" or not source.inputs or not source.inputs[0].shape:
        return source
    built = source.inputs[0].shape[0]

    def rebatch(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        return tuple(replace(s, shape=(batch, *s.shape[1:])) if s.shape[:1] == (built,) else s for s in specs)

    return replace(source, inputs=rebatch(source.inputs), outputs=rebatch(source.outputs))


def _chain(sources: Sequence[Artifact], last: Artifact | None) -> tuple[Artifact, ...]:
    """The artefacts from the first source to `last`."""
    if last is None:
        return tuple(sources[:1])
    parents = {a.sha256: a for a in sources}
    chain = [last]
    while (parent := parents.get(chain[0].parent_sha256 or "")) is not None and parent not in chain:
        chain.insert(0, parent)
    return tuple(chain)


def _static_batch(source: Artifact) -> int | None:
    """The batch that a graph is fixed to; None if its first axis is dynamic or it takes any (PyTorch)."""
    if source.kind == "torch" or not source.inputs or not source.inputs[0].shape:
        return None
    axis = source.inputs[0].shape[0]
    return axis if isinstance(axis, int) else None


def with_suffix(row: PlannedRow, suffix: str) -> PlannedRow:
    """The same row under another id, for a comparison of an engine with itself or of two models."""
    return replace(row, id=f"{row.id}-{suffix}")
