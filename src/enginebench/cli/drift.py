"""`enginebench drift`: the same inputs through two engines."""

from __future__ import annotations

from pathlib import Path

import click

from enginebench.cli.options import Common, common_options


@click.command("drift")
@click.argument("reference", metavar="REF")
@click.argument("candidate", metavar="CAND")
@click.option("--n", type=click.IntRange(1), help="Samples. [64, or all of --inputs]")
@click.option("--inputs", type=click.Path(path_type=Path, dir_okay=False), metavar="F.npz", help="One entry an input.")
@click.option("--limit", multiple=True, metavar="NAME=VALUE", help="Make it a gate: cosine=0.99,top1=0.98.")
@click.option("--input-size", type=click.IntRange(1), help="Height and width of the model's images.")
@click.option("--profile-index", type=click.IntRange(0), help="Optimization profile of a side that is a plan.")
@click.option("--skip-output-save", is_flag=True, help="Write no samples/ into --out.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder for the figures of every sample.")
@common_options
def command(
    reference: str,
    candidate: str,
    n: int | None,
    inputs: Path | None,
    limit: tuple[str, ...],
    input_size: int | None,
    profile_index: int | None,
    skip_output_save: bool,
    out: Path | None,
    common: Common,
) -> None:
    """Say how far the answers of CAND are from those of REF, on the same inputs.

    REF and CAND are ENGINE@TARGET (ort@model.onnx, pytorch@resnet18), or files of stored rows. A graph runs in the
    precision that it is in, and the limits are those of that precision. With --limit a difference beyond it ends with
    exit code 4; values that are not finite never pass. Agreement on random inputs is no accuracy: see `enginebench
    accuracy`.
    """
    from rich.console import Console

    from enginebench.cli.progress import open_reporter
    from enginebench.core.errors import GateFailed
    from enginebench.core.store import encode
    from enginebench.report.drift import print_drift
    from enginebench.workflow.drifting import measure_sides, parse_limits

    limits = parse_limits(limit) if limit else None
    request = common.make_side_request(input_size, profile_index)
    with open_reporter() as reporter:
        document = measure_sides(
            reference,
            candidate,
            request=request,
            n=n,
            inputs=inputs,
            limits=limits,
            out=out,
            save_outputs=not skip_output_save,
            reporter=reporter,
        )
    if common.as_json:
        click.echo(encode(document).decode())
    else:
        print_drift(document, Console(highlight=False))
    if document.gate and not document.passed:
        raise GateFailed("; ".join(document.exceeded) or "there was nothing to compare")
