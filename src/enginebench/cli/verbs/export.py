"""`enginebench export`: from PyTorch to ONNX."""

from __future__ import annotations

from pathlib import Path

import click

from enginebench.cli.options import Common, axes_option, common_options


@click.command("export")
@click.argument("model")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="The ONNX file. [MODEL.onnx]")
@click.option("--input-size", type=click.IntRange(1), help="Height and width of the model's images.")
@click.option("--batch", type=click.IntRange(1), help="Fixed batch size. [1, or the only one that the model takes]")
@click.option("--dynamic-batch", is_flag=True, help="Leave the batch axis open.")
@axes_option
@click.option("--opset", type=click.IntRange(13), help="Version of the ONNX operator set. [the exporter's default]")
@common_options
def command(
    model: str,
    out: Path | None,
    input_size: int | None,
    batch: int | None,
    dynamic_batch: bool,
    dynamic_axes: tuple[str, ...],
    opset: int | None,
    common: Common,
) -> None:
    """Export MODEL to ONNX and compare the graph with PyTorch on seeded inputs.

    Example: enginebench export digits-cnn --dynamic-batch --out model.onnx
    """
    from enginebench.cli.progress import open_reporter
    from enginebench.core.caveats import format_caveat
    from enginebench.core.errors import UsageError
    from enginebench.core.names import slug
    from enginebench.core.store import encode
    from enginebench.workflow.request import parse_axes
    from enginebench.workflow.verbs.export import export_model

    if common.device != "cpu":
        raise UsageError(
            f"--device {common.device}: export runs on the CPU, and its graph serves every device; leave out --device"
        )
    target = out or Path(f"{slug(model)}.onnx")
    with open_reporter() as reporter:
        document = export_model(
            common.make_source(model, input_size),
            target,
            batch=batch,
            dynamic_batch=dynamic_batch,
            dynamic_axes=parse_axes(dynamic_axes),
            opset=opset,
            threads=common.count_threads(),
            reporter=reporter,
        )
    if common.as_json:
        click.echo(encode(document).decode())
        return
    artifact = document.artifact
    check = artifact.export_check
    click.echo(f"{artifact.path}: opset {artifact.opset}, sha256 {artifact.sha256[:12]}")
    if check is not None:
        click.echo(
            f"against PyTorch at batch {' and '.join(map(str, check.batches))}: largest difference "
            f"{check.max_abs_diff:.1e} absolute, {check.max_rel_diff:.1e} relative"
        )
    for caveat in artifact.caveats:
        click.echo(format_caveat(caveat))
