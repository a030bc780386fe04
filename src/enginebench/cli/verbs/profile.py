"""`enginebench profile`: where an engine spends its time, layer by layer."""

from __future__ import annotations

from pathlib import Path

import click

from enginebench.cli.options import Common, common_options


@click.command("profile")
@click.argument("target")
@click.option("--engine", help="ENGINE[:key=value,...] [ort; on a GPU ort-cuda]")
@click.option("--precision", default="fp32", show_default=True, help="fp32, tf32, fp16, bf16, int8 or fp8.")
@click.option("--batch", type=click.IntRange(1), help="Batch size. [that of --input-shape, else 1]")
@click.option(
    "--topk", type=click.IntRange(1), default=30, show_default=True, help="Number of layers to show and draw."
)
@click.option("--input-size", type=click.IntRange(1), help="Height and width of the model's images.")
@click.option(
    "--wait/--no-wait", default=True, help="If another run holds the device: wait for it, as by default, or refuse."
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Folder for the JSON, the CSV and the picture."
)
@common_options
def command(
    target: str,
    engine: str | None,
    precision: str,
    batch: int | None,
    topk: int,
    input_size: int | None,
    wait: bool,
    out: Path | None,
    common: Common,
) -> None:
    """Show where one engine spends its time on TARGET, layer by layer, and what no layer explains.

    Example: enginebench profile digits-cnn --engine ort

    The engine is timed first and then profiled by its own runtime. Profiling may slow it down: the shares hold, but the
    times are those under the profiler.
    """
    from enginebench.analyze.limits.layers import make_layers, make_profile
    from enginebench.cli.progress import open_reporter
    from enginebench.cli.verbs.parse import draw_profile, show
    from enginebench.report.layer_table import list_engine_profile, write_engine_profile
    from enginebench.workflow.verbs.profile import TIMED_S, profile_target

    request = common.make_row_request(
        target, common.name_engine(engine), precision, batch, time_limit_s=TIMED_S, input_size=input_size
    )
    with open_reporter() as reporter:
        made = profile_target(request, reporter=reporter, wait=wait)
    document, layers = made.document, made.profile.layers
    show(document, common.as_json, lambda: list_engine_profile(document, topk))
    if out is not None:
        profile = make_profile(layers, made.profile.runs)
        for path in write_engine_profile(document, profile, out):
            click.echo(str(path), err=True)
        title = f"Layers of {document.engine} {document.precision}"
        draw_profile(profile, out / "per_layer_time.png", topk, title=title, layers=make_layers(layers))
