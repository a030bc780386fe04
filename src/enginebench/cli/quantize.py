"""`enginebench quantize`: ONNX to ONNX in another precision."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from enginebench.workflow.quantizing import QuantizeDocument


@click.command("quantize")
@click.argument("path", metavar="F.onnx", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--to", "precision", required=True, metavar="PRECISION", help="fp16, bf16, int8[@tensorrt|cpu|nncf], fp8."
)
@click.option(
    "--calib",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="calib.json|F.npz",
    help="Ranges, or prepared arrays to take them from.",
)
@click.option("--calib-cache", type=click.Path(path_type=Path, dir_okay=False), help="Ranges in TensorRT's text cache.")
@click.option(
    "--io-types",
    type=click.Choice(["keep", "cast"]),
    default="keep",
    show_default=True,
    help="Of inputs and outputs, for fp16 and bf16.",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The ONNX file. [F.PRECISION.onnx]")
@click.option("--threads", type=click.IntRange(1, 4096), help="Of ONNX Runtime. [physical cores]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")
def command(
    path: Path,
    precision: str,
    calib: Path | None,
    calib_cache: Path | None,
    io_types: str,
    out: Path | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Write F.onnx in another precision: cast, or with explicit Q/DQ nodes that every engine reads."""
    from enginebench.cli.progress import open_reporter
    from enginebench.core.names import format_precision, parse_precision
    from enginebench.core.store import encode
    from enginebench.measure.pin import default_threads
    from enginebench.workflow.quantizing import quantize_file

    to, recipe = parse_precision(precision)
    target = out or path.with_suffix(f".{format_precision(to, recipe).replace('@', '-')}.onnx")
    with open_reporter() as reporter:
        document = quantize_file(
            path,
            target,
            to=to,
            recipe=recipe,
            calib=calib,
            calib_cache=calib_cache,
            io_types=io_types,  # type: ignore[arg-type]
            threads=threads or default_threads(),
            reporter=reporter,
        )
    if as_json:
        click.echo(encode(document).decode())
        return
    _print_document(document)


def _print_document(document: QuantizeDocument) -> None:
    from enginebench.core.names import format_precision

    artifact = document.artifact
    label = format_precision(artifact.precision, artifact.recipe)
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
            f"TensorRT would refuse {len(document.tensorrt_refusals)} nodes, the first {first.node}: {first.reason}"
        )
    for caveat in artifact.caveats:
        click.echo(f"{caveat.message}; {caveat.advice}")
