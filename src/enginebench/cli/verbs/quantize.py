"""`enginebench quantize`: from ONNX to ONNX in another precision."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from enginebench.core.text import count_of

if TYPE_CHECKING:
    from enginebench.workflow.verbs.quantize import QuantizeDocument


@click.command("quantize")
@click.argument("path", metavar="F.onnx", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--to", "precision", required=True, metavar="PRECISION", help="fp16, bf16, int8[@tensorrt|cpu|nncf] or fp8."
)
@click.option(
    "--calib",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="calib.json|F.npz",
    help="Ranges from calibrate, or prepared arrays to take them from.",
)
@click.option(
    "--inputs",
    metavar="F.npz|DIR|package.module:function",
    help="Your own inputs to take the ranges from, as calibrate takes them.",
)
@click.option(
    "--ort-extension",
    multiple=True,
    metavar="LIB",
    help="Library of custom operators for ONNX Runtime, or onnxruntime_extensions. Repeat it for several.",
)
@click.option("--calib-cache", type=click.Path(path_type=Path, dir_okay=False), help="Ranges as TensorRT's text cache.")
@click.option(
    "--io-types",
    type=click.Choice(["keep", "cast"]),
    default="keep",
    show_default=True,
    help="For fp16 and bf16: keep the types of inputs and outputs, or cast them.",
)
@click.option(
    "--exclude",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Nodes of F.onnx that stay in FP32: one name a line, # before a remark.",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The ONNX file. [F.PRECISION.onnx]")
@click.option("--threads", type=click.IntRange(1, 4096), help="Threads of ONNX Runtime. [physical cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout and nothing else.")
def command(
    path: Path,
    precision: str,
    calib: Path | None,
    inputs: str | None,
    ort_extension: tuple[str, ...],
    calib_cache: Path | None,
    io_types: str,
    exclude: Path | None,
    out: Path | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Convert F.onnx to another precision.

    Example: enginebench quantize model.onnx --to int8 --calib calib.json

    fp16 and bf16 graphs are cast; int8 and fp8 graphs get explicit Q/DQ nodes that every engine can read.
    """
    from enginebench.cli.progress import open_reporter
    from enginebench.core.names import format_precision, parse_precision
    from enginebench.core.store import encode
    from enginebench.measure.pin import default_threads
    from enginebench.workflow.verbs.quantize import quantize_file

    to, recipe = parse_precision(precision)
    target = out or path.with_suffix(f".{format_precision(to, recipe).replace('@', '-')}.onnx")
    with open_reporter() as reporter:
        document = quantize_file(
            path,
            target,
            to=to,
            recipe=recipe,
            calib=calib,
            inputs=inputs,
            libraries=ort_extension,
            calib_cache=calib_cache,
            io_types=io_types,  # type: ignore[arg-type]
            exclude=exclude,
            threads=threads or default_threads(),
            reporter=reporter,
        )
    if as_json:
        click.echo(encode(document).decode())
        return
    _print_document(document)


def _print_document(document: QuantizeDocument) -> None:
    from enginebench.core.caveats import format_caveat
    from enginebench.core.names import format_precision, name_mix

    artifact = document.artifact
    label = format_precision(artifact.precision, artifact.recipe, name_mix(artifact.excluded))
    click.echo(
        f"{artifact.path}: {label}, {document.size_bytes / 1e6:.2f} MB (before {document.parent_bytes / 1e6:.2f} MB), "
        f"sha256 {artifact.sha256[:12]}"
    )
    if document.coverage is not None:
        click.echo(
            f"{document.quantizers} QuantizeLinear and {document.dequantizers} DequantizeLinear nodes, "
            f"{document.coverage:.0%} of the multiply-accumulates"
        )
    if document.tensorrt_refusals:
        first = document.tensorrt_refusals[0]
        click.echo(
            f"TensorRT would refuse {count_of(len(document.tensorrt_refusals), 'nodes')}, "
            f"the first {first.node}: {first.reason}"
        )
    for caveat in artifact.caveats:
        click.echo(format_caveat(caveat))
