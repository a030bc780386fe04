"""The verb `infer`: outputs of one engine on the user's arrays."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from enginebench.backends.registry import find_device, takes
from enginebench.core.errors import UsageError
from enginebench.core.feeds import check_feeds
from enginebench.core.records import EngineSpec, TensorSpec
from enginebench.workflow.arrays import load_arrays
from enginebench.workflow.campaign import Reporter, child_environment
from enginebench.workflow.isolate import run_child
from enginebench.workflow.jobs import InferAnswer, InferJob, SourceJob
from enginebench.workflow.lock import lock_devices
from enginebench.workflow.scratch import open_scratch
from enginebench.workflow.sources import choose_source, make_sources

INFER_TIMEOUT_S = 1800.0


class InferDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `infer`."""

    schema: str = "enginebench.infer/1"
    engine: EngineSpec
    outputs: tuple[TensorSpec, ...]
    path: str


def infer_file(
    target: str,
    inputs: Path,
    out: Path,
    *,
    engine: tuple[str, dict[str, str]],
    device: str,
    threads: int,
    weights: str,
    seed: int,
    input_shapes: dict[str, tuple[int, ...]] | None,
    reporter: Reporter,
) -> InferDocument:
    """Saves the outputs of `target` for the arrays of `inputs` at `out`.

    Raises:
        ParseError: `inputs` is no .npz of plain arrays.
        FeedError: its arrays do not fit the inputs of the model; names each difference.
    """
    feeds = load_arrays(inputs)
    first = next(iter(feeds.values()), None)
    if first is None or first.ndim == 0:
        raise UsageError(f"{inputs}: expected one array for each input, the batch as its first axis")
    name, options = engine
    device = find_device(name, device)
    spec = EngineSpec(backend=name, options=options, device=device, batch=int(first.shape[0]), threads=threads)
    with open_scratch() as scratch:
        job = SourceJob(
            model=target,
            out_dir=str(scratch),
            weights=weights,
            seed=seed,
            input_shapes=input_shapes,
            batch=spec.batch,
            onnx=takes(name) == "onnx",
        )
        sources = make_sources(job, threads=threads, timeout_s=INFER_TIMEOUT_S, reporter=reporter)
        artifact = choose_source(sources, spec, takes(name))
        if artifact.inputs:  # a plan says what it takes once it is loaded
            check_feeds(artifact.inputs, feeds)
        infer = InferJob(
            artifact=artifact,
            engine=spec,
            out_dir=str(scratch),
            inputs_path=str(inputs.absolute()),
            outputs_path=str(out.absolute()),
        )
        with lock_devices((device,), on_wait=reporter.say):
            answer = run_child(infer, timeout_s=INFER_TIMEOUT_S, environment=child_environment(threads))
    assert isinstance(answer, InferAnswer)
    return InferDocument(engine=spec, outputs=answer.outputs, path=str(out))
