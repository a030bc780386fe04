"""`enginebench roofline`: what this machine can do at best."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("roofline")
@click.option("--device", help="cpu or cuda:N, or several separated by commas. [all]")
@click.option("--precisions", help="Precisions, separated by commas. [all that the device has instructions for]")
@click.option("--threads", help="Numbers of threads of the CPU, separated by commas. [1, 2, 4 ... physical cores]")
@click.option("--quick", is_flag=True, help="One process for each number of threads, and less time for each ceiling.")
@click.option(
    "--wait/--no-wait", default=True, help="If another run holds the device: wait for it, as by default, or refuse."
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder for the JSON and the picture.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout and nothing else.")
def command(
    device: str | None,
    precisions: str | None,
    threads: str | None,
    quick: bool,
    wait: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure what this machine can do at best, and store it for `run` and `profile`.

    Example: enginebench roofline --quick

    Rates of matrix products and convolutions, bandwidths of caches and memory, costs of a launch: the best that was
    observed, never a data sheet's figure. `run` and `profile` say then how far each row and layer is from its limit.
    """
    from enginebench.cli.progress import open_reporter
    from enginebench.cli.verbs.parse import draw, show
    from enginebench.report.roofline import draw_ceilings, list_ceilings
    from enginebench.workflow.ceilings import store_ceilings
    from enginebench.workflow.verbs.roofline import measure_ceilings, read_request

    request = read_request(precisions, threads, device, quick)
    with open_reporter() as reporter:
        document = measure_ceilings(request, reporter=reporter, wait=wait)
    show(document, as_json, lambda: list_ceilings(document))
    for path in store_ceilings(document, out):
        click.echo(str(path), err=True)
    if out is not None:
        draw(lambda: draw_ceilings(document), out / "roofline.png")
