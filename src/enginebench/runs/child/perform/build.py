"""Prepare an engine in a child before it is timed: build and check it, build it to a file, probe it."""

import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.feeds import random_feeds
from enginebench.core.input_sets import CELL, CELL_CALLS, EXAMPLES, INTEGERS
from enginebench.core.protocols import Array, Backend, Engine, Feeds, Loadable
from enginebench.core.records import BUILT, Artifact, Availability, Drift, EngineSpec, TensorSpec
from enginebench.core.shapes import carry_specs, find_plan_batch, list_cells, name_cells, size_artifact
from enginebench.core.text import first_line
from enginebench.core.warnings import make_warning
from enginebench.engines.abilities import ChecksAhead, ComputesOutputs, LeavesCode, TunedShapes
from enginebench.engines.refusals import shorten_words
from enginebench.models.samples import find_batch, read_samples
from enginebench.runs.child.arrays import count_values, limit_calls, limit_time, save_arrays, save_outputs, save_sets
from enginebench.runs.child.jobs import (
    BuildJob,
    BuildResponse,
    KeepCall,
    NoteCall,
    PrepareJob,
    PrepareResponse,
    ProbeJob,
    Proof,
)
from enginebench.runs.child.opening import (
    build_configuration,
    build_graph,
    lower_first,
    open_cells,
    open_for,
    pass_notes,
)
from enginebench.runs.child.perform.outputs import (
    collect_outputs,
    join_rows,
    make_loaded_source,
    make_tool_source,
    measure_variation,
    open_labelled,
    run_engine,
    run_entries,
    run_feeds,
    run_pictures,
    run_sets,
)
from enginebench.runs.child.perform.recheck import sample_rechecked, save_expected
from enginebench.runs.child.perform.sources import take_file
from enginebench.runs.child.proving import attempt_proof, prove_file, prove_plan, prove_timed_engine

# A tool that starts anew for each call loads its engine each time: it gets as few calls as show a wrong engine.
FEW = 4
# The time that such a tool may take for labelled samples in a run: trtexec starts in one to four seconds (H200), so
# that this is 15 calls or more, in which a gross loss shows; fewer samples than those of others are reported.
TOOL_SCORING_S = 60.0
# Of so few decisions one that lies near a tie is a quarter; another network agrees in fewer than half.
AGREEMENT = 0.5


def compare_with_graph(backend: Backend, plan: Artifact, graph: Artifact, spec: EngineSpec, note: NoteCall) -> Drift:
    """Compare the plan's outputs with those of the unchanged graph; or return why that is impossible."""
    from enginebench.stats.drift import limits_between, measure_drift, refuse_drift

    name = Path(graph.path).name
    note(f"comparing outputs with those of {name}")
    try:
        feeds, outputs = _ask_plan(backend, plan, graph, spec)
        wanted = _ask_graph(graph, feeds)
        limits = limits_between(graph.precision, spec.precision) | {"agreement": AGREEMENT}
        return measure_drift(join_rows(wanted), join_rows(outputs), limits, reference_id=name)
    except Exception as error:  # of ONNX Runtime, which lacks operators in short types, or of the plan
        return refuse_drift(name, [shorten_words(str(error)) or first_line(error)])


def _ask_plan(
    backend: Backend, plan: Artifact, graph: Artifact, spec: EngineSpec
) -> tuple[list[dict[str, Array]], list[dict[str, Array]]]:
    """(seeded arrays for each call, in the shapes that the plan is tuned for; its outputs)."""
    tuned = backend.run_at_best(plan, spec) if isinstance(backend, TunedShapes) else spec

    def draw(inputs: tuple[TensorSpec, ...]) -> list[dict[str, Array]]:
        specs = carry_specs(graph.inputs, inputs)
        return [random_feeds(specs, tuned.batch, seed) for seed in range(-(-FEW // find_batch(specs, tuned.batch)))]

    if isinstance(backend, ComputesOutputs):
        feeds = draw(plan.inputs)
        return feeds, [backend.compute_outputs(plan, tuned, [feed]) for feed in feeds]
    assert isinstance(backend, Loadable)
    with backend.load(plan, tuned) as engine:
        feeds = draw(engine.inputs)
        return feeds, [run_engine(engine, feed) for feed in feeds]


def _ask_graph(graph: Artifact, feeds: Sequence[Feeds]) -> list[dict[str, Array]]:
    """The outputs of the graph as it stands; raises ArtifactError where nothing computes it."""
    from enginebench.models.onnx.reference import GraphReference

    reference = GraphReference(Path(graph.path), graph.operator_libraries)
    return [reference.run(feed) for feed in feeds]


def require_alike(plan: Artifact, graph: Artifact, drift: Drift, spec: EngineSpec) -> Artifact:
    """The plan with its warnings, unless it is another network than the graph.

    Rounding never breaks the limits of 8 bits in a sound network. What breaks those of its own format alone is given
    with a warning: the inputs are random, and so may the weights be.
    """
    from enginebench.stats.alike import is_gross
    from enginebench.stats.drift import find_exceeded

    if drift.passed:
        return plan
    if drift.unlike:
        warning = make_warning("outputs_not_compared", reference=drift.reference, why=drift.unlike[0])
        return replace(plan, warnings=(*plan.warnings, warning))
    exceeded = "; ".join(find_exceeded(drift))
    rounded = {graph.precision, spec.precision} - {"fp32", "tf32", None}
    # Under weak typing ranges and choices are its own, on which nobody set a limit.
    if spec.options.get("weak_typing") == "1" or (rounded and not is_gross(drift, rounded)):
        warning = make_warning("outputs_differ", reference=drift.reference, found=exceeded)
        return replace(plan, warnings=(*plan.warnings, warning))
    raise ArtifactError(
        f"the plan gives other outputs than {drift.reference} does ({exceeded}), so it is not delivered; it lies at "
        f"{plan.path}. The engine reads this graph (opset {graph.opset}) otherwise: try another version of it, or "
        "write that part of the model in other operators"
    )


def prepare_engine(job: PrepareJob, note: NoteCall, keep: KeepCall[PrepareResponse]) -> PrepareResponse:
    """Build the engine, save its outputs for the check inputs, `keep` that response, and read the engine's record."""
    backend = open_for(job.engine, job.out_dir)
    start = time.perf_counter()
    source = lower_first(backend, job.artifact, job.engine, job.out_dir, note)
    artifact = build_configuration(backend, source, job.engine, job.out_dir, note)
    drift = None
    if job.graph is not None:
        (graph,) = take_file(Path(job.graph), Path(job.out_dir) / "graph")
        drift = compare_with_graph(backend, artifact, graph, job.engine, note)
    feeds = draw_feeds(job, artifact.inputs)

    def complete(build_s: float) -> PrepareResponse:
        return PrepareResponse(
            artifact=artifact,
            fingerprint=hash_build(backend, artifact, job.artifact),
            engine_version=backend.probe().version,
            build_s=None if job.artifact.kind in BUILT else build_s,
            size_bytes=sum(f.size_bytes for f in artifact.files) or None,
            lowered=source if source.sha256 != job.artifact.sha256 else None,
            drift=drift,
        )

    if isinstance(backend, Loadable):
        with open_cells(backend, artifact, job.engine) as engines:
            engine, cells = engines[0], list_cells(job.engine)
            sure = complete(time.perf_counter() - start)
            note("checking outputs")
            varies = measure_variation(run_engine(engine, feeds[0]), run_engine(engine, feeds[0]))
            if job.recheck_path:
                again = [
                    run_engine(one, feed)
                    for one, cell in zip(engines, cells, strict=True)
                    for feed in sample_rechecked(size_artifact(artifact, cell), job.model, cell, job.seed, job.inputs)
                ]
                save_expected(Path(job.recheck_path), again)
            save_outputs(Path(job.outputs_path), *compute_check_outputs(engine, job, feeds))
            save_further(engines, job, artifact)
            compiled = hash_build(backend, artifact, job.artifact)  # some compile only now
            sure = replace(sure, varies=varies, fingerprint=compiled)
            if job.labelled is not None and job.labelled.unlabelled is None:
                note(f"scoring {job.labelled.data or 'the given inputs'}")
                caller = make_loaded_source(engine, job.engine.batch)
                kept, _ = collect_outputs(caller, open_labelled(job), job.labelled)
                save_arrays(Path(job.labelled_path), kept)
            if not job.prove:
                return sure
            keep(sure)
            note("verifying the precision")
            return replace(sure, proof=prove_timed_engine(engine))
    if job.engine.traffic:
        raise UsageError(f"{job.engine.backend} times itself, one shape at a time: leave it out with --traffic")
    sure = complete(time.perf_counter() - start)
    if isinstance(backend, ComputesOutputs):
        note("checking outputs")
        few = feeds[:FEW]
        save_outputs(Path(job.outputs_path), backend.compute_outputs(artifact, job.engine, few), len(few))
        if job.labelled is not None and job.labelled.unlabelled is None:
            note(f"scoring {job.labelled.data or 'the given inputs'}")
            caller = make_tool_source(backend, artifact, job.engine, TOOL_SCORING_S, job.seed)
            kept, _ = collect_outputs(caller, open_labelled(job), job.labelled)
            save_arrays(Path(job.labelled_path), kept)
        if job.recheck_path:  # a self-timed tool computes outputs only here
            save_expected(Path(job.recheck_path), [])
    keep(sure)
    return replace(sure, proof=attempt_proof(lambda: prove_plan(backend, artifact, job.engine, note)))


def hash_build(backend: Backend, built: Artifact, source: Artifact) -> str | None:
    """The same for builds that are alike: of the code that was left, else of the files; None of an unchanged source."""
    if isinstance(backend, LeavesCode):
        return backend.hash_code()
    return built.sha256 if built.sha256 != source.sha256 else None


def draw_feeds(job: PrepareJob, inputs: Sequence[TensorSpec]) -> list[dict[str, Array]]:
    """The inputs of each call of a configuration's check."""
    from enginebench.models.task import sample_feeds

    calls = -(-job.samples // job.engine.batch)
    return sample_feeds(inputs, job.model, job.engine.batch, job.seed, calls, job.inputs)


def save_further(engines: Sequence[Engine], job: PrepareJob, artifact: Artifact, *, late: bool = False) -> None:
    """Saves the outputs for the example inputs of the user's module, and for made-up ones where nobody gave any.

    Of a mix also those of every cell but the first, and of these alone if it is `late`; each has an engine of its own,
    or all have the same.

    Those that the engine refuses are left out. Integers of unknown range are left to `drift`: one that looks up a
    table, and is beyond it, may take the process with it, and so a configuration that is right.
    """
    from enginebench.models.check_inputs import make_check_sets, read_examples
    from enginebench.models.task import find_own_data

    if not job.further_path or (late and not job.engine.traffic):
        return
    engine, inputs = engines[0], artifact.inputs
    made_up = job.inputs is None and job.labelled is None and find_own_data(job.model) is None
    sets = make_check_sets(inputs, job.seed, job.engine.batch) if made_up else {}
    sets.pop(INTEGERS, None)
    if job.examples and (examples := read_examples(Path(job.examples), inputs)):
        sets[EXAMPLES] = examples[: job.samples]
    step = find_batch(engine.inputs, job.engine.batch)
    outputs, _ = run_sets(partial(run_engine, engine), {} if late else sets, inputs, step)
    cells, names = list_cells(job.engine), name_cells(job.engine.traffic)
    for i, cell in [*enumerate(cells)][1:]:
        own = replace(job, engine=cell, samples=CELL_CALLS * cell.batch)
        feeds = draw_feeds(own, size_artifact(artifact, cell).inputs)
        outputs[CELL + names[i]] = run_feeds(engines[i % len(engines)], feeds)
    save_sets(Path(job.further_path), outputs)


def compute_check_outputs(
    engine: Engine, job: PrepareJob, feeds: Sequence[Feeds], budget_s: float = math.inf
) -> tuple[dict[str, Array], int]:
    """(the outputs for the check inputs, or each entry of the user's; of how many calls).

    Fewer where the outputs are large, or where all calls would take longer than `budget_s`.
    """
    if job.labelled is not None and job.labelled.unlabelled is not None:
        return run_pictures(engine, job, budget_s)
    start = time.perf_counter()
    values = count_values(run_engine(engine, feeds[0]))
    calls = limit_time(limit_calls(len(feeds), values), time.perf_counter() - start, budget_s)
    if job.inputs is None:
        return run_feeds(engine, feeds[:calls]), calls
    step = find_batch(engine.inputs, job.engine.batch)
    entries = read_samples(job.inputs, min(job.samples, calls * step))
    return run_entries(partial(run_engine, engine), entries, engine.inputs, step), -(-len(entries) // step)


def build_file(job: BuildJob, note: NoteCall, keep: KeepCall[BuildResponse]) -> BuildResponse:
    """The engine file of a source, and in which precisions it spends its time; `keep` gets the file before that."""
    if isinstance(job.source, str):
        (source,) = take_file(Path(job.source), Path(job.out_dir))
    else:
        source = job.source
    backend = open_for(job.engine, job.out_dir)
    note("building")
    pass_notes(backend, note)
    start = time.perf_counter()
    lowered = lower_first(backend, source, job.engine, job.out_dir, note)
    artifact = build_graph(backend, lowered, job.engine, job.out_dir, note)
    build_s = time.perf_counter() - start
    if job.prove and artifact.ahead_of_time is None and source.kind == "onnx":
        drift = compare_with_graph(backend, artifact, source, job.engine, note)
        artifact = require_alike(artifact, source, drift, job.engine)
    sure = BuildResponse(
        artifact=artifact,
        lowered=lowered if lowered.sha256 != source.sha256 else None,
        engine_version=artifact.made_by.get("tensorrt")
        or artifact.made_by.get(job.engine.backend)
        or artifact.made_by.get("torch"),
        build_s=build_s,
    )
    if not job.prove:
        return sure
    keep(sure)
    if artifact.ahead_of_time is not None:  # no GPU was asked: there is nothing that ran
        return replace(sure, proof=Proof())
    batch = find_plan_batch(artifact) if source.kind == "plan" else None
    engine = replace(job.engine, batch=batch or job.engine.batch)
    return replace(sure, proof=attempt_proof(lambda: prove_file(backend, artifact, engine, note)))


def probe_engine(job: ProbeJob) -> Availability:
    from enginebench.engines.registry import open_backend, probe

    backend: object = open_backend(job.engine) if job.to_build is not None else None
    if isinstance(backend, ChecksAhead) and job.to_build is not None:
        backend.check_ahead(*job.to_build)
    return probe(job.engine)
