"""`enginebench deliver`: a row as a folder that runs without EngineBench."""

from __future__ import annotations

from pathlib import Path

import click

from enginebench.cli.options import code_option


@click.command("deliver")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path, file_okay=False))
@click.option("--row", metavar="ID", help="Id of the row. [the recommended one]")
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder of the bundle.")
@click.option(
    "--as",
    "forms",
    multiple=True,
    type=click.Choice(["bundle", "triton", "kserve", "dockerfile"]),
    help="Also write this form of it; can be repeated. bundle adds nothing.",
)
@code_option
@click.option("--force", is_flag=True, help="Write the bundle even if it fails its own check here.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout and nothing else.")
def command(run: Path, row: str | None, out: Path, forms: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Write a row of a stored run as a folder that runs without EngineBench.

    Example: enginebench deliver results/first --out bundle

    RUN is the folder of the run. The bundle holds the model, predict.py, its requirements, a check and the figures. It
    needs the row's runtime and NumPy. Before it is handed over, its own program compares its answers with those of the
    row.
    """
    from enginebench.cli.closing import describe_delivery
    from enginebench.cli.progress import open_reporter
    from enginebench.core.store import encode
    from enginebench.workflow.verbs.deliver import deliver_row

    with open_reporter() as reporter:
        document = deliver_row(run, out, row=row, forms=forms, force=force, reporter=reporter)
    for line in [encode(document).decode()] if as_json else describe_delivery(document):
        click.echo(line)
