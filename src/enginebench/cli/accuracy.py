"""`enginebench accuracy`: right answers on labelled data."""

from __future__ import annotations

import click

from enginebench.cli.options import Common, common_options


@click.command("accuracy")
@click.argument("side", metavar="SIDE")
@click.option("--data", required=True, metavar="DIR|digits", help="One folder for each class, or the held-out digits.")
@click.option("--n", type=click.IntRange(1), help="Samples, a seeded choice. [all]")
@click.option("--ref", metavar="SIDE", help="Pair the answers with those of this side.")
@click.option("--model", metavar="MODEL", help="Whose preprocessing the data go through, where TARGET is a file.")
@click.option("--input-size", type=click.IntRange(1), help="Height and width of the model's images.")
@common_options
def command(
    side: str,
    data: str,
    n: int | None,
    ref: str | None,
    model: str | None,
    input_size: int | None,
    common: Common,
) -> None:
    """Say how many of SIDE's answers are right, top-1 and top-5, with intervals.

    SIDE is ENGINE@TARGET (ort@digits-cnn, openvino@int8.onnx) or the file of a stored row. Data go through the model's
    own preprocessing. With --ref the same samples go through a second side, and the difference gets an interval and
    McNemar's test: the honest answer to whether a shorter precision costs anything.
    """
    from rich.console import Console

    from enginebench.cli.progress import open_reporter
    from enginebench.core.store import encode
    from enginebench.report.accuracy import print_accuracy
    from enginebench.workflow.accuracy import measure_side_accuracy

    request = common.make_side_request(input_size)
    with open_reporter() as reporter:
        document = measure_side_accuracy(
            side, data, request=request, reference=ref, n=n, model=model, reporter=reporter
        )
    if common.as_json:
        click.echo(encode(document).decode())
    else:
        print_accuracy(document, Console(highlight=False))
