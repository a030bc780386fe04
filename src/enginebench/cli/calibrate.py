"""`enginebench calibrate`: ranges through the model's own preprocessing."""

from __future__ import annotations

from pathlib import Path

import click

from enginebench.cli.options import Common, common_options


@click.command("calibrate")
@click.argument("model")
@click.option(
    "--data", required=True, metavar="DIR|digits|fake|F.npy|F.npz", help="Images, digits, or prepared arrays."
)
@click.option("--n", type=click.IntRange(1), default=256, show_default=True, help="Entries of data, at most.")
@click.option("--batch", type=click.IntRange(1), default=16, show_default=True, help="Entries at a time, at most.")
@click.option("--input-size", type=click.IntRange(1), help="Height and width of the model's images.")
@click.option("--method", type=click.Choice(["minmax", "entropy", "percentile"]), default="minmax", show_default=True)
@click.option("--percentile", type=click.FloatRange(50, 100, min_open=True), help="Of method percentile. [99.99]")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("calib.json"),
    show_default=True,
    help="JSON; TensorRT's text cache if it ends in .cache.",
)
@click.option(
    "--keep-batches", type=click.Path(path_type=Path, dir_okay=False), metavar="F.npz", help="Keep the entries, too."
)
@common_options
def command(
    model: str,
    data: str,
    n: int,
    batch: int,
    input_size: int | None,
    method: str,
    percentile: float | None,
    out: Path,
    keep_batches: Path | None,
    common: Common,
) -> None:
    """Find the range of every tensor of MODEL over real inputs, for `quantize` and `build`."""
    from enginebench.cli.progress import open_reporter
    from enginebench.core.errors import UsageError
    from enginebench.core.store import encode
    from enginebench.workflow.quantizing import calibrate_model

    if common.device != "cpu":
        raise UsageError(f"--device {common.device}: ranges are taken on the CPU; they hold for every device")
    with open_reporter() as reporter:
        document = calibrate_model(
            model,
            data,
            out,
            n=n,
            batch=batch,
            input_size=input_size,
            method=method,  # type: ignore[arg-type]
            percentile=percentile,
            batches_out=keep_batches,
            weights=common.weights,
            seed=common.seed,
            input_shapes=common.read_shapes(),
            threads=common.count_threads(),
            reporter=reporter,
        )
    if common.as_json:
        click.echo(encode(document).decode())
        return
    how = f"{document.method} {document.percentile:g}" if document.percentile else document.method
    click.echo(f"{document.path}: {how}, ranges of {document.tensors} tensors over {document.n} entries")
    if document.batches:
        click.echo(f"{document.batches}: the entries themselves")
    for caveat in document.caveats:
        click.echo(f"{caveat.message}; {caveat.advice}")
