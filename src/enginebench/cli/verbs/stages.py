"""`enginebench stages`: from JPEG file to label."""

from __future__ import annotations

from pathlib import Path

import click

from enginebench.cli.options import Common, FiniteRange, common_options


@click.command("stages")
@click.argument("target")
@click.option("--engine", default="pytorch", show_default=True, help="ENGINE[:key=value,...]")
@click.option("--precision", default="fp32", show_default=True, help="fp32, tf32, fp16, bf16, int8 or fp8.")
@click.option("--batch", type=click.IntRange(1), default=1, show_default=True, help="Pictures per call.")
@click.option(
    "--images", type=click.Path(path_type=Path, file_okay=False), help="Folder of JPEG files. [generated photographs]"
)
@click.option("--n", type=click.IntRange(1), default=256, show_default=True, help="Number of pictures.")
@click.option(
    "--decoders", type=click.IntRange(1, 256), help="Threads that decode and preprocess ahead. [physical cores]"
)
@click.option(
    "--save-images",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep the pictures in this folder, for calibrate --data.",
)
@click.option(
    "--time-limit",
    type=FiniteRange(0, min_open=True),
    default=3.0,
    show_default=True,
    metavar="S",
    help="Seconds of each of the two measurements.",
)
@click.option("--input-size", type=click.IntRange(1), help="Height and width of the model's images.")
@click.option(
    "--wait/--no-wait", default=True, help="If another run holds the device: wait for it, as by default, or refuse."
)
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Also write the JSON document to this file."
)
@common_options
def command(
    target: str,
    engine: str,
    precision: str,
    batch: int,
    images: Path | None,
    n: int,
    decoders: int | None,
    save_images: Path | None,
    time_limit: float,
    input_size: int | None,
    wait: bool,
    out: Path | None,
    common: Common,
) -> None:
    """Time TARGET from JPEG file to label: decode, resize, copy in, compute, copy out, top 5.

    Example: enginebench stages resnet18 --engine ort --n 64

    The stages run one after another first, which shows where the time goes; then with decoding threads and overlapped
    copies, which shows what a pipeline gains.
    """
    from rich.console import Console

    from enginebench.cli.progress import open_reporter
    from enginebench.core.store import encode, write_atomic
    from enginebench.measure.pin import default_threads
    from enginebench.report.stages import list_stages
    from enginebench.report.terminal import print_sections
    from enginebench.workflow.verbs.stages import measure_stages

    request = common.make_row_request(target, engine, precision, batch, time_limit_s=time_limit, input_size=input_size)
    with open_reporter() as reporter:
        document = measure_stages(
            request,
            images=images,
            n=n,
            decoders=decoders or default_threads(),
            save_images=save_images,
            reporter=reporter,
            wait=wait,
        )
    if out is not None:
        write_atomic(out, encode(document, indent=2))
    if common.as_json:
        click.echo(encode(document).decode())
    else:
        print_sections(list_stages(document), Console(highlight=False))
