"""What to run: the rows of a request, in order, each with the reason if it cannot be run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from enginebench.backends.registry import accepts, find_device
from enginebench.core.names import format_engine, parse_engine, row_id
from enginebench.core.records import (
    Artifact,
    ArtifactKind,
    Availability,
    EngineSpec,
    MeasureSpec,
    Precision,
    TensorSpec,
)
from enginebench.workflow.folder import RunRequest


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
) -> list[PlannedRow]:
    """Every row of the request: for each batch and precision all engines side by side, the baseline first.

    Args:
        request: what was asked.
        sources: the artefacts that are there to start from.
        probe: whether an engine can run here.
        takes: the kind of artefact that an engine starts from.
    """
    engines = _baseline_first(request)
    rows = []
    for batch in request.batches:
        for precision, recipe in request.precisions:
            for name, options in engines:
                spec = EngineSpec(
                    backend=name,
                    options=options,
                    device=find_device(name, request.device),
                    precision=precision,
                    recipe=recipe,
                    batch=batch,
                    threads=request.threads,
                )
                rows.append(_plan_row(request, spec, sources, probe(name), (takes(name), *accepts(name)[1:])))
    return rows


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
    kinds: tuple[ArtifactKind, ...],
) -> PlannedRow:
    source = next((_with_batch(a, spec.batch) for a in sources if a.kind in kinds), None)
    return PlannedRow(
        id=row_id(spec, spec.precision, request.measure),
        model=sources[0].model if sources else request.model,
        engine=spec,
        requested_precision=spec.precision,
        measure=request.measure,
        source=source,
        chain=_chain(sources, source),
        skip=_reason_to_skip(spec, source, availability, kinds[0]),
    )


def _reason_to_skip(
    spec: EngineSpec, source: Artifact | None, availability: Availability, kind: ArtifactKind
) -> str | None:
    if not availability.available:
        return f"{availability.reason}. {availability.fix}" if availability.fix else availability.reason
    if source is None:
        needs = "a PyTorch model; MODEL is a graph" if kind == "torch" else f"an artefact of kind {kind}"
        return f"{spec.backend} needs {needs}"
    if source.kind == "plan":
        return None  # it is what it is; the proof says in which precision it ran
    if spec.precision != source.precision and spec.options.get("weak_typing") != "1":
        return f"{format_engine(spec)} in {spec.precision} needs such a graph; this one is {source.precision}"
    static = _static_batch(source)
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
