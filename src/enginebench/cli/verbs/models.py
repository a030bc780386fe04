"""`enginebench models`: the built-in models."""

from __future__ import annotations

import click


@click.command("models")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout and nothing else.")
def command(as_json: bool) -> None:
    """List the built-in models: input, parameters, multiply-adds, source of the weights.

    Example: enginebench models
    """
    import msgspec
    from rich.console import Console

    from enginebench.models.zoo import BUILTIN
    from enginebench.report.table import Section, list_texts, make_table
    from enginebench.report.terminal import print_sections

    if as_json:
        document = {"schema": "enginebench.models/1", "models": list(BUILTIN.values())}
        click.echo(msgspec.json.encode(document).decode())
        return
    lines = [
        (
            card.name,
            "x".join(map(str, card.input_shape)),
            "in the package" if card.task == "digits" else card.weights_source.split(",")[0],
            f"{card.parameters:,}",
            f"{card.multiply_adds:,}",
        )
        for card in BUILTIN.values()
    ]
    figures = ("parameters", "mult-adds")
    columns = list_texts(("model", "input", "weights"), figures, spare=("weights", *figures))
    print_sections([Section(parts=(make_table(columns, lines),))], Console(highlight=False))
    click.echo("Torchvision's weights are downloaded once; if that fails, seeded random weights are used.")
