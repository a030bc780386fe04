"""`models`: the built-in models."""

import click
import msgspec

from enginebench import door
from enginebench.models.zoo import BUILTIN, ModelCard
from enginebench.options import Printed


class ModelsDocument(msgspec.Struct, frozen=True, kw_only=True):
    schema: str = "enginebench.models/1"
    models: tuple[ModelCard, ...]


def list_models() -> tuple[ModelCard, ...]:
    """List the built-in models: input, parameters, multiply-adds, source of the weights.

    Example: enginebench models
    """
    return tuple(BUILTIN.values())


@door.command(list_models, name="models")
def command(shown: Printed) -> None:
    from rich.console import Console

    from enginebench.report.numbers import format_significant
    from enginebench.report.table import Section, list_texts, make_table
    from enginebench.report.terminal import print_sections

    if shown["as_json"]:
        door.print_json(ModelsDocument(models=list_models()))
        return
    lines = [
        (
            card.name,
            "x".join(map(str, card.input_shape)),
            card.weights_source.rpartition("; ")[2] if card.weights_file else card.weights_source.split(",")[0],
            f"{card.parameters:,}",
            f"{format_significant(card.multiply_adds / 1e6)} M",
        )
        for card in list_models()
    ]
    figures = ("parameters", "mult-adds")
    columns = list_texts(("model", "input", "weights"), figures, spare=("weights", *figures))
    print_sections([Section(parts=(make_table(columns, lines),))], Console(highlight=False))
    click.echo("Torchvision's weights are downloaded once; if that fails, seeded random weights are used.")
