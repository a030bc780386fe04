"""The verb `infer`: the outputs of one engine for the user's arrays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from enginebench.backends.registry import find_device, find_entry, takes
from enginebench.core.errors import ParseError
from enginebench.core.feeds import check_feeds
from enginebench.core.records import EngineSpec, ModelSource, TensorSpec
from enginebench.core.shapes import format_shapes
from enginebench.models.samples import name_only, resolve_given, take_sizes
from enginebench.workflow.child.isolate import child_environment, run_child
from enginebench.workflow.child.jobs import InferJob, SourceJob
from enginebench.workflow.lock import lock_devices
from enginebench.workflow.progress import Reporter
from enginebench.workflow.targets.scratch import open_scratch
from enginebench.workflow.targets.sources import choose_source, make_sources

if TYPE_CHECKING:
    from enginebench.core.protocols import Feeds

INFER_TIMEOUT_S = 1800.0


def _take_shapes(engine: str, feeds: Feeds) -> dict[str, str]:
    """The option by which a tool runs a plan with the shapes of the arrays: it knows nothing of them before."""
    given = {name: array.shape for name, array in feeds.items() if name and array.ndim}
    return {"shapes": format_shapes(given)} if given and find_entry(engine).find_program is not None else {}


class InferDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `infer`."""

    schema: str = "enginebench.infer/1"
    engine: EngineSpec
    outputs: tuple[TensorSpec, ...]
    path: str


def infer_file(
    source: ModelSource,
    out: Path,
    *,
    engine: tuple[str, dict[str, str]],
    device: str,
    threads: int,
    reporter: Reporter,
) -> InferDocument:
    """Saves the outputs of the target `source` for its inputs at `out`.

    Raises:
        ParseError: the inputs are no .npz of plain arrays.
        FeedError: the arrays do not match the inputs of the model; the message names each difference.
    """
    assert source.inputs is not None
    calls = resolve_given(source.inputs)
    first = next(iter(calls[0].values()), None)
    if first is None:
        raise ParseError(str(source.inputs), "", "no array", "one array for each input")
    name, options = engine
    device = find_device(name, device)
    batch = int(first.shape[0]) if first.ndim else 1
    spec = EngineSpec(backend=name, options=options, device=device, batch=batch, threads=threads)
    with open_scratch() as scratch:
        job = SourceJob(
            source=source,
            out_dir=str(scratch),
            batch=spec.batch,
            onnx=takes(name) == "onnx",
        )
        sources = make_sources(job, threads=threads, timeout_s=INFER_TIMEOUT_S, reporter=reporter)
        artifact = choose_source(sources, spec, takes(name))
        if artifact.kind in ("onnx", "plan"):  # they run in the precision that they are in
            spec = replace(spec, precision=artifact.precision, recipe=artifact.recipe)
        if artifact.inputs:  # a plan says what it takes once it is loaded
            for arrays in calls:
                check_feeds(artifact.inputs, name_only(arrays, artifact.inputs))
            artifact = replace(artifact, inputs=take_sizes(artifact.inputs, name_only(calls[0], artifact.inputs)))
        if artifact.kind == "plan" and "shapes" not in options:
            spec = replace(spec, options={**options, **_take_shapes(name, calls[0])})
        infer = InferJob(
            artifact=artifact,
            engine=spec,
            out_dir=str(scratch),
            inputs_path=source.inputs,
            outputs_path=str(out.absolute()),
        )
        with lock_devices((device,), on_wait=reporter.say):
            answer = run_child(infer, timeout_s=INFER_TIMEOUT_S, environment=child_environment(threads))
    return InferDocument(engine=spec, outputs=answer.outputs, path=str(out))
