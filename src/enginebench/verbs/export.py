"""`export`: a model as a checked ONNX file."""

from __future__ import annotations

import time
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, TypeAlias

import click
from msgspec import Struct
from msgspec.structs import replace

from enginebench import door
from enginebench.core.errors import MissingDependency, UsageError
from enginebench.core.input_sets import SET_NAMES
from enginebench.core.names import slug
from enginebench.core.records import Artifact
from enginebench.core.store import open_partial, removing_partial
from enginebench.core.warnings import format_warning
from enginebench.models.zoo import resolve_model
from enginebench.options import Axes, InputSize, Model, Modules, Opt, PathLike, Printed, Shared, Unpack, verb
from enginebench.runs.child.jobs import SourceJob
from enginebench.runs.targets.scratch import scratch_for
from enginebench.verbs.common import begin, check_cpu, read_axes
from enginebench.verbs.requests import count_threads, make_source

# The largest zoo model exported in 21 s; a transformer of a few GB takes minutes.
EXPORT_TIMEOUT_S = 1800.0


class ExportDocument(Struct, frozen=True, kw_only=True):
    schema: str = "enginebench.export/1"
    artifact: Artifact
    seconds: float


class ExportOptions(Modules, Shared, total=False):
    input_size: InputSize
    batch: Annotated[
        int | None,
        Opt("Fixed batch size. [that of the example inputs, else 1]", ge=1, more="Ignored with `--dynamic-batch`"),
    ]
    dynamic_batch: Annotated[bool, Opt("Make the batch axis dynamic.", False, more="Compared at batch 2, 5 and 1")]
    dynamic_axes: Axes
    opset: Annotated[
        int | None,
        Opt(
            "Version of the ONNX operator set. [the exporter's default]",
            ge=13,
            more="Below 18 the graph is lowered, or refused by the name of the operator",
        ),
    ]


Out: TypeAlias = Annotated[
    PathLike,
    Opt(
        "The ONNX file. [MODEL.onnx]",
        path="new file",
        more="Weights beyond 2 GB lie beside it in one that ends in `.data`",
    ),
]


@verb(ExportOptions)
def export(model: Model, out: Out, **options: Unpack[ExportOptions]) -> ExportDocument:
    """Export MODEL to ONNX and compare the graph with PyTorch on seeded inputs.

    Example: enginebench export digits-cnn --dynamic-batch --out model.onnx

    Args:
        model: as `run` takes it.

    Raises:
        UsageError: MODEL is an ONNX file already.
        MissingDependency: PyTorch is not installed.
        ModelError: the model cannot be built, or an operator cannot be exported; names it.
    """
    from enginebench.runs.targets.ahead import check_source_ahead
    from enginebench.runs.targets.sources import make_sources

    check_cpu(options["device"], "export runs on the CPU, and its graph serves every device")
    with begin(model, options) as (taken, reporter), open_partial(scratch_for("export")) as scratch:
        if resolve_model(taken.text).kind == "onnx":
            raise UsageError(f"{taken.text} is an ONNX file already; there is nothing to export")
        batch = options["batch"] or taken.batch
        job = SourceJob(
            source=make_source(taken.text, options, options["input_size"]),
            out_dir=str(scratch),
            batch=batch or 1,
            any_batch=batch is None,
            onnx_out=str(Path(out).absolute()),
            dynamic_batch=options["dynamic_batch"],
            dynamic_axes=read_axes(options["dynamic_axes"]),
            opset=options["opset"],
        )
        check_source_ahead(job.source)
        # A model that comes as a graph, too, opens without it: nothing would be exported, and nothing be compared.
        if find_spec("torch") is None:
            raise MissingDependency("PyTorch, which export needs,", 'pip install "enginebench[torch]"')
        start, threads = time.perf_counter(), count_threads(options["threads"])
        with removing_partial(Path(out)):
            artifacts = make_sources(job, threads=threads, timeout_s=EXPORT_TIMEOUT_S, reporter=reporter)
    return ExportDocument(artifact=replace(artifacts[-1], path=str(out)), seconds=time.perf_counter() - start)


@door.command(export, "MODEL")
def command(model: str, out: str | None, shown: Printed, **options: Unpack[ExportOptions]) -> None:
    door.show(export(model, out or f"{slug(model)}.onnx", **options), shown, print_export)


def print_export(document: ExportDocument, _: object) -> None:
    artifact = document.artifact
    check = artifact.export_check
    click.echo(f"{artifact.path}: opset {artifact.opset}, sha256 {artifact.sha256[:12]}")
    if check is not None:
        click.echo(
            f"against PyTorch at batch {', '.join(map(str, dict.fromkeys(check.batches)))}: largest difference "
            f"{check.max_abs_diff:.1e} absolute, {check.max_rel_diff:.1e} relative"
        )
        for other in check.others:
            click.echo(
                f"on {SET_NAMES[other.inputs]}: {other.max_abs_diff:.1e} absolute, {other.max_rel_diff:.1e} relative"
            )
    for warning in artifact.warnings:
        click.echo(format_warning(warning))
