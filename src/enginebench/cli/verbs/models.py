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
    from rich.table import Table

    from enginebench.models.zoo import BUILTIN
    from enginebench.report.narrow import Fitted

    if as_json:
        document = {"schema": "enginebench.models/1", "models": list(BUILTIN.values())}
        click.echo(msgspec.json.encode(document).decode())
        return
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("model", "input", "parameters", "mult-adds", "weights"):
        table.add_column(column, justify="right" if column in ("parameters", "mult-adds") else "left", no_wrap=True)
    for card in BUILTIN.values():
        shape = "x".join(map(str, card.input_shape))
        weights = card.weights_source.rpartition("; ")[2] if card.weights_file else card.weights_source.split(",")[0]
        table.add_row(card.name, shape, f"{card.parameters:,}", f"{card.multiply_adds:,}", weights)
    Console(highlight=False).print(Fitted(table, [4, 3, 2]))  # weights, mult-adds, parameters
    click.echo("Torchvision's weights are downloaded once; if that fails, seeded random weights are used.")
