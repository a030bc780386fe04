"""`enginebench drift`: how far apart two engines answer the same inputs."""

from __future__ import annotations

from pathlib import Path

import click

from enginebench.cli.options import TASK_OPTION, Common, code_option, common_options
from enginebench.core.records import Task


@click.command("drift")
@click.argument("reference", metavar="REF")
@click.argument("candidate", metavar="CAND")
@click.option("--n", type=click.IntRange(1), help="Number of samples. [64, or all of --inputs]")
@click.option(
    "--limit", multiple=True, metavar="NAME=VALUE", help="Exit with code 4 beyond these limits: cosine=0.99,top1=0.98"
)
@click.option("--input-size", type=click.IntRange(1), help="Height and width of the model's images.")
@click.option("--profile-index", type=click.IntRange(0), help="Optimization profile of plans that do not name one.")
@click.option("--skip-output-save", is_flag=True, help="Do not write samples/ into --out.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the figures of every sample and its outputs.",
)
@TASK_OPTION
@code_option
@common_options
def command(
    reference: str,
    candidate: str,
    n: int | None,
    limit: tuple[str, ...],
    input_size: int | None,
    profile_index: int | None,
    skip_output_save: bool,
    out: Path | None,
    task: Task | None,
    common: Common,
) -> None:
    """Compare the answers of CAND with those of REF on the same inputs.

    Example: enginebench drift pytorch@digits-cnn ort@digits-cnn

    REF and CAND are ENGINE@TARGET (ort@model.onnx, pytorch@resnet18) or files of stored rows. A graph runs in its own
    precision and is held to the limits of that precision. Values that are not finite never pass. Agreement on random
    inputs says nothing about accuracy; for that, see `enginebench accuracy`.
    """
    from rich.console import Console

    from enginebench.cli.progress import open_reporter
    from enginebench.core.errors import GateFailed
    from enginebench.core.store import encode
    from enginebench.report.drift import list_drift
    from enginebench.report.terminal import print_sections
    from enginebench.workflow.verbs.drift import measure_sides, parse_limits

    limits = parse_limits(limit) if limit else None
    request = common.make_side_request(input_size, profile_index)
    with open_reporter() as reporter:
        document = measure_sides(
            reference,
            candidate,
            request=request,
            n=n,
            limits=limits,
            task=task,
            out=out,
            save_outputs=not skip_output_save,
            reporter=reporter,
        )
    if common.as_json:
        click.echo(encode(document).decode())
    else:
        print_sections(list_drift(document), Console(highlight=False))
    if document.gate and not document.passed:
        raise GateFailed("; ".join(document.exceeded) or "there was nothing to compare")
