"""What a finished plan answers, held against the graph that it was built from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from enginebench.backends.abilities import Answering, TunedShapes
from enginebench.core.caveats import make_caveat
from enginebench.core.errors import ArtifactError
from enginebench.core.feeds import random_feeds
from enginebench.core.protocols import Loadable
from enginebench.core.records import Artifact, Drift, EngineSpec, TensorSpec
from enginebench.core.shapes import carry_specs
from enginebench.models.samples import find_batch
from enginebench.workflow.child.jobs import NoteCall
from enginebench.workflow.child.perform.answers import ask_engine, join_rows

if TYPE_CHECKING:
    from enginebench.core.protocols import Array, Backend, Feeds

# A tool that starts anew for each call is asked for few; of a larger batch one call is enough.
SAMPLES = 4
# Of so few decisions one that lies near a tie is a quarter; another network agrees in fewer than half.
AGREEMENT = 0.5


def hold_against_graph(backend: Backend, plan: Artifact, graph: Artifact, spec: EngineSpec, note: NoteCall) -> Drift:
    """How far the plan's answers are from the graph's, which ONNX Runtime runs on the CPU; or why nobody can know."""
    from enginebench.analyze.drift import limits_between, measure_drift, refuse_drift

    name = Path(graph.path).name
    note(f"comparing outputs with those of {name}")
    try:
        feeds, answers = _ask_plan(backend, plan, graph, spec)
        wanted = _ask_graph(graph, feeds)
        limits = limits_between(graph.precision, spec.precision) | {"agreement": AGREEMENT}
        return measure_drift(join_rows(wanted), join_rows(answers), limits, reference_id=name)
    except Exception as error:  # of ONNX Runtime, which lacks operators in short types, or of the plan
        return refuse_drift(name, [(str(error).strip().splitlines() or [type(error).__name__])[0]])


def _ask_plan(
    backend: Backend, plan: Artifact, graph: Artifact, spec: EngineSpec
) -> tuple[list[dict[str, Array]], list[dict[str, Array]]]:
    """(seeded arrays for each call, in the shapes that the plan is tuned for; its answers)."""
    tuned = backend.run_at_best(plan, spec) if isinstance(backend, TunedShapes) else spec

    def draw(inputs: tuple[TensorSpec, ...]) -> list[dict[str, Array]]:
        known = carry_specs(graph.inputs, inputs)
        return [random_feeds(known, tuned.batch, seed) for seed in range(-(-SAMPLES // find_batch(known, tuned.batch)))]

    if isinstance(backend, Answering):
        feeds = draw(plan.inputs)
        return feeds, [backend.answer(plan, tuned, [feed]) for feed in feeds]
    assert isinstance(backend, Loadable)
    with backend.load(plan, tuned) as engine:
        feeds = draw(engine.inputs)
        return feeds, [ask_engine(engine, feed) for feed in feeds]


def _ask_graph(graph: Artifact, feeds: Sequence[Feeds]) -> list[dict[str, Array]]:
    import onnxruntime

    from enginebench.core.operators import register_operators
    from enginebench.core.sums import keep_sums_exact, open_cpu_session

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # its errors are told once, by us
    keep_sums_exact(settings)
    register_operators(settings, graph.operator_libraries)
    session = open_cpu_session(graph.path, settings)
    names = [output.name for output in session.get_outputs()]
    return [dict(zip(names, session.run(None, dict(feed)), strict=True)) for feed in feeds]


def require_alike(plan: Artifact, graph: Artifact, drift: Drift, spec: EngineSpec) -> Artifact:
    """The plan with its doubts, unless it is another network than the graph.

    Raises:
        ArtifactError: it is; names output, figure and limit.
    """
    from enginebench.analyze.drift import find_exceeded

    if drift.passed:
        return plan
    if drift.unlike:
        doubt = make_caveat("outputs_not_compared.graph", why=drift.unlike[0])
        return replace(plan, caveats=(*plan.caveats, doubt))
    found = "; ".join(find_exceeded(drift))
    if spec.options.get("weak_typing") == "1":  # by its own ranges and choices, on which nobody set a limit
        return replace(
            plan, caveats=(*plan.caveats, make_caveat("outputs_differ", reference=drift.reference, found=found))
        )
    raise ArtifactError(
        f"the plan does not answer as {drift.reference} does ({found}), so it is not delivered; it lies at "
        f"{plan.path}. The engine reads this graph (opset {graph.opset}) otherwise: try another version of it, or "
        "write that part of the model in other operators"
    )
