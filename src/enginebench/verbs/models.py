"""`models`: the built-in models."""

from __future__ import annotations

import click
import msgspec

from enginebench import door
from enginebench.models.zoo import BUILTIN, ModelCard
from enginebench.options import Printed


def list_models() -> tuple[ModelCard, ...]:
    """List the built-in models: input, parameters, multiply-adds, source of the weights.

    Example: enginebench models
    """
    return tuple(BUILTIN.values())


@door.command(list_models, name="models")
def command(shown: Printed) -> None:
    from rich.console import Console
    from rich.table import Table

    from enginebench.report.narrow import Fitted

    if shown["as_json"]:
        document = {"schema": "enginebench.models/1", "models": list_models()}
        click.echo(msgspec.json.encode(document).decode())
        return
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in ("model", "input", "parameters", "mult-adds", "weights"):
        table.add_column(column, justify="right" if column in ("parameters", "mult-adds") else "left", no_wrap=True)
    for card in list_models():
        shape = "x".join(map(str, card.input_shape))
        weights = card.weights_source.rpartition("; ")[2] if card.weights_file else card.weights_source.split(",")[0]
        table.add_row(card.name, shape, f"{card.parameters:,}", f"{card.multiply_adds:,}", weights)
    Console(highlight=False).print(Fitted(table, [4, 3, 2]))  # weights, mult-adds, parameters
    click.echo("Torchvision's weights are downloaded once; if that fails, seeded random weights are used.")
