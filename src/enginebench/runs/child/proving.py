"""Read an engine's own record: the precisions in which it spent its time, and its layers."""

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from enginebench.core.engine_api import PaddedEngine
from enginebench.core.names import NOT_KNOWN
from enginebench.core.protocols import Engine, LayerProfiler, Loadable, PrecisionProof
from enginebench.core.records import Artifact, EngineSpec, LayerProfile, LayerTime, Precision, ResultWarning
from enginebench.core.text import first_line
from enginebench.core.warnings import make_warning
from enginebench.engines.abilities import PlanProfiler, PlanProof, StoresWeights, TunedShapes, WarnsOnLoad
from enginebench.runs.child.jobs import NoteCall, Proof


def attempt_proof(prove: Callable[[], Proof]) -> Proof:
    """Return the result of `prove`, or why it failed: a failing profiler must cost neither an engine nor its times."""
    try:
        return prove()
    except Exception as error:
        return Proof(failure=first_line(error)[:300])


def prove_timed_engine(loaded: Engine) -> Proof:
    engine: Engine = loaded.engine if isinstance(loaded, PaddedEngine) else loaded

    def prove() -> Proof:
        shares = engine.effective_precision() if isinstance(engine, PrecisionProof) else None
        layers, warnings = list_layers(engine.profile_layers if isinstance(engine, LayerProfiler) else None)
        weights = engine.find_weight_precision() if isinstance(engine, StoresWeights) else None
        return Proof(effective_precision=shares, layers=layers, warnings=warnings, weights=weights)

    proof = attempt_proof(prove)
    on_load = engine.list_warnings() if isinstance(engine, WarnsOnLoad) else ()
    return replace(proof, warnings=(*proof.warnings, *on_load))


def make_record_warning(requested: Precision | None, failure: str) -> ResultWarning:
    return make_warning("failed_proof", asked=requested or NOT_KNOWN, failure=failure)


def prove_plan(backend: object, artifact: Artifact, spec: EngineSpec, note: NoteCall) -> Proof:
    shares = prove_engine(backend, artifact, spec, note)
    profile = partial(backend.profile_plan, artifact, spec) if isinstance(backend, PlanProfiler) else None
    layers, warnings = list_layers(profile)
    return Proof(effective_precision=shares, layers=layers, warnings=warnings)


def list_layers(profile: Callable[[], LayerProfile] | None) -> tuple[tuple[LayerTime, ...], tuple[ResultWarning, ...]]:
    """Return (layers, warnings) of an engine with its record; a profiler that fails is a warning, no failure."""
    if profile is None:
        return (), ()
    try:
        return profile().layers, ()
    except Exception as error:
        return (), (make_warning("no_layer_times", failure=first_line(error)[:300]),)


def prove_file(backend: object, artifact: Artifact, spec: EngineSpec, note: NoteCall) -> Proof:
    """The record of a built engine, at the shapes that it is tuned for; no CUDA graph, which shows no layers."""
    tuned = backend.run_at_best(artifact, spec) if isinstance(backend, TunedShapes) else spec
    return Proof(effective_precision=prove_engine(backend, artifact, tuned, note))


def prove_engine(backend: object, artifact: Artifact, spec: EngineSpec, note: NoteCall) -> dict[str, float] | None:
    """Shares by precision: of an engine that is loaded for it and fed with seeded arrays, or by the tool itself."""
    from enginebench.core.feeds import random_feeds

    if isinstance(backend, Loadable):
        with backend.load(artifact, spec) as engine:
            if not isinstance(engine, PrecisionProof):
                return None
            note("verifying the precision")
            engine.bind(random_feeds(engine.inputs, spec.batch, seed=0))
            return engine.effective_precision() or None
    if not isinstance(backend, PlanProof):
        return None
    note("verifying the precision")
    return backend.prove_precision(artifact, spec)
