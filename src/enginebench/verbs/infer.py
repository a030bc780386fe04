"""`infer`: the outputs of one engine for the user's arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
from msgspec import Struct
from msgspec.structs import replace

from enginebench import door
from enginebench.core.errors import FeedError, ParseError, UsageError
from enginebench.core.records import EngineSpec, TensorSpec
from enginebench.core.shapes import set_plan_shapes
from enginebench.core.text import clean_text
from enginebench.engines.registry import find_device, find_entry, read_engine, takes
from enginebench.options import GraphEngine, Model, Modules, Native, Opt, PathLike, Shared, Unpack, Wait, verb
from enginebench.runs.child.environments import require_available
from enginebench.runs.child.isolate import run_child
from enginebench.runs.child.jobs import SourceJob
from enginebench.runs.child.other_jobs import InferJob
from enginebench.runs.lock import lock_devices
from enginebench.runs.targets.scratch import open_scratch
from enginebench.verbs.common import begin, read_device
from enginebench.verbs.requests import count_threads, make_source, name_engine

if TYPE_CHECKING:
    from enginebench.core.protocols import Array


class InferDocument(Struct, frozen=True, kw_only=True):
    schema: str = "enginebench.infer/1"
    engine: EngineSpec
    outputs: tuple[TensorSpec, ...]
    path: str


class InferOptions(Modules, Shared, total=False):
    engine: GraphEngine
    wait: Wait
    timeout: Annotated[float, Opt("Seconds that the export, and the calls, may take each.", 1800.0, gt=0)]


class InferPrinted(Native, total=False):
    out: Annotated[
        str, Opt("File for the outputs.", "outputs.npz", path="new file", more="One array for each, by name")
    ]


@verb(InferOptions)
def infer(
    target: Model, given: Mapping[str, Any] | PathLike | None = None, **options: Unpack[InferOptions]
) -> dict[str, Array]:
    """Run TARGET on your arrays and save the outputs.

    Example: enginebench infer model.onnx in.npz --engine ort --out out.npz

    INPUT.npz holds one array per input, by name; --inputs takes more than one call, too.

    Args:
        target: also a module.
        given: {input: NumPy array}, the batch as first axis; or the path of an .npz file.

    Raises:
        FeedError: the arrays do not fit the inputs of the model; names each difference.
        ModelError: the model cannot be found, built or exported.
        DependencyError: the engine cannot be had here.
    """
    import numpy as np

    from enginebench.runs.child.arrays import load_arrays, save_arrays

    with open_scratch() as scratch:
        if isinstance(given, Mapping):
            arrays = {str(name): np.asarray(value) for name, value in given.items()}
            for name in (name for name, array in arrays.items() if array.dtype.hasobject):
                expected = "an array of numbers, or of text as NumPy's str"
                raise FeedError(f"input {name!r} holds Python objects; expected {expected}")
            if options["example_inputs"] is None and not isinstance(target, str | os.PathLike):
                options["example_inputs"] = tuple(arrays.values())
            save_arrays(scratch / "inputs.npz", arrays)
            given = scratch / "inputs.npz"
        infer_file(target, given, scratch / "outputs.npz", options)
        return load_arrays(scratch / "outputs.npz")


@door.command(infer, "TARGET", "[INPUT.npz]", shown=InferPrinted)
def command(target: str, given: str | None, shown: InferPrinted, **options: Unpack[InferOptions]) -> None:
    def draw(document: InferDocument, _: object) -> None:
        for spec in document.outputs:
            click.echo(f"{clean_text(spec.name)}: {spec.dtype}[{'x'.join(map(str, spec.shape))}]")
        click.echo(f"saved to {document.path}")

    door.show(infer_file(target, given, Path(shown["out"]), options), shown, draw)


def infer_file(target: Model, inputs_file: PathLike | None, out: Path, options: InferOptions) -> InferDocument:
    from enginebench.core.feeds import check_feeds
    from enginebench.models.samples import declare_input_calls, name_arrays, take_sizes
    from enginebench.runs.targets.ahead import check_source_ahead
    from enginebench.runs.targets.sources import choose_source, make_sources

    if (inputs_file is None) == (options["inputs"] is None):
        raise UsageError("give the arrays once: INPUT.npz, or --inputs")
    options["inputs"] = inputs = os.fspath(inputs_file if inputs_file is not None else options["inputs"] or "")
    if out.exists() and Path(inputs).exists() and out.samefile(inputs):
        raise UsageError(f"--out {out} is the file of the inputs, which outputs would replace; choose another --out")
    name, settings = read_engine(name_engine(options["engine"], options["device"]))
    with begin(target, options) as (taken, reporter), open_scratch() as scratch:
        source, threads = make_source(taken.text, options), count_threads(options["threads"])
        device = find_device(name, read_device(options["device"]))
        require_available(EngineSpec(backend=name, options=settings, device=device))
        described = check_source_ahead(source)
        calls = declare_input_calls(inputs)  # the child alone unpacks them
        first = next(iter(calls[0].values()), None)
        if first is None:
            raise ParseError(inputs, "", "no array", "one array for each input")
        if described and source.normalize is None:
            for arrays in calls:  # also the batch, which may be fixed
                check_feeds(described, name_arrays(arrays, described))
        batch = int(first.shape[0]) if first.ndim else 1
        spec = EngineSpec(backend=name, options=settings, device=device, batch=batch, threads=threads)
        job = SourceJob(source=source, out_dir=str(scratch), batch=batch, onnx=takes(name) == "onnx")
        with lock_devices((device,), wait=options["wait"], on_wait=reporter.say):
            sources = make_sources(job, threads=threads, timeout_s=options["timeout"], reporter=reporter)
            artifact = choose_source(sources, spec, takes(name))
            if artifact.kind in ("onnx", "plan", "aoti"):  # they run in the precision that they are in
                spec = replace(spec, precision=artifact.precision, recipe=artifact.recipe)
            if artifact.inputs:  # a plan reports its inputs only once it is loaded
                for arrays in calls:
                    check_feeds(artifact.inputs, name_arrays(arrays, artifact.inputs))
                artifact = replace(artifact, inputs=take_sizes(artifact.inputs, name_arrays(calls[0], artifact.inputs)))
            # A tool runs a plan with the shapes of the arrays by an option: it knows nothing of them before.
            shapes = {name: array.shape for name, array in calls[0].items() if name and array.ndim}
            if artifact.kind == "plan" and find_entry(name).find_program is not None:
                spec = set_plan_shapes(spec, shapes)
            infer = InferJob(
                artifact=artifact,
                engine=spec,
                out_dir=str(scratch),
                inputs_path=inputs,
                outputs_path=str(out.absolute()),
            )
            outputs = run_child(infer, timeout_s=options["timeout"]).outputs
    return InferDocument(engine=spec, outputs=outputs, path=str(out))
