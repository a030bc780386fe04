"""`enginebench calibrate`: the ranges of tensors, through the model's own preprocessing."""

from __future__ import annotations

from pathlib import Path

import click

from enginebench.cli.options import Common, FiniteRange, common_options


@click.command("calibrate")
@click.argument("model")
@click.option(
    "--data",
    metavar="DIR|digits|fake|F.npy|F.npz",
    help="A folder of images, digits, fake, or prepared arrays; --inputs takes its place.",
)
@click.option("--n", type=click.IntRange(1), default=256, show_default=True, help="Number of entries to use, at most.")
@click.option("--batch", type=click.IntRange(1), default=16, show_default=True, help="Entries per call, at most.")
@click.option("--input-size", type=click.IntRange(1), help="Height and width of the model's images.")
@click.option(
    "--method",
    type=click.Choice(["minmax", "entropy", "percentile"]),
    default="minmax",
    show_default=True,
    help="How a range is taken from the values.",
)
@click.option(
    "--percentile", type=FiniteRange(50, 100, min_open=True), help="The percentile of --method percentile. [99.99]"
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("calib.json"),
    show_default=True,
    help="File for the ranges: JSON, or TensorRT's text cache if it ends in .cache.",
)
@click.option(
    "--keep-batches",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="F.npz",
    help="Also write the entries themselves to this file.",
)
@common_options
def command(
    model: str,
    data: str | None,
    n: int,
    batch: int,
    input_size: int | None,
    method: str,
    percentile: float | None,
    out: Path,
    keep_batches: Path | None,
    common: Common,
) -> None:
    """Find the range of every tensor of MODEL over real inputs.

    Example: enginebench calibrate digits-cnn --data digits --out calib.json

    `quantize` and `build` read the ranges."""
    from enginebench.cli.progress import open_reporter
    from enginebench.core.caveats import format_caveat
    from enginebench.core.errors import UsageError
    from enginebench.core.store import encode
    from enginebench.workflow.verbs.quantize import calibrate_model

    if common.device != "cpu":
        raise UsageError(
            f"--device {common.device}: ranges are taken on the CPU and hold for every device; leave it out"
        )
    with open_reporter() as reporter:
        document = calibrate_model(
            common.make_source(model, input_size),
            data,
            out,
            n=n,
            batch=batch,
            method=method,  # type: ignore[arg-type]
            percentile=percentile,
            batches_out=keep_batches,
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
        click.echo(format_caveat(caveat))
