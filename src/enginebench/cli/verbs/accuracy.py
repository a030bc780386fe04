"""`enginebench accuracy`: how good the answers to labelled samples are."""

from __future__ import annotations

import click

from enginebench.cli.options import Common, Judging, code_option, common_options, judging_options


@click.command("accuracy")
@click.argument("side", metavar="SIDE")
@click.option(
    "--data",
    metavar="DIR|F.npz|digits",
    help="A folder of one folder per class, prepared arrays, or the held-out digits.",
)
@click.option("--n", type=click.IntRange(1), help="Number of samples, drawn with --seed. [all]")
@click.option("--ref", metavar="SIDE", help="Compare with this side on the same samples.")
@click.option("--model", metavar="MODEL", help="Model whose preprocessing to use when TARGET is a file.")
@click.option("--input-size", type=click.IntRange(1), help="Height and width of the model's images.")
@judging_options
@code_option
@common_options
def command(
    side: str,
    data: str | None,
    n: int | None,
    ref: str | None,
    model: str | None,
    input_size: int | None,
    judging: Judging,
    common: Common,
) -> None:
    """Measure how good the answers of SIDE to labelled samples are, with intervals.

    Example: enginebench accuracy ort@digits-cnn --data digits

    SIDE is ENGINE@TARGET (ort@digits-cnn, openvino@int8.onnx) or the file of a stored row. Pictures go through the
    model's own preprocessing; samples of your own are given by --inputs, and their right answers by --targets. The
    metric is top-1 and top-5 accuracy, that of --task, or your own. With --ref a second side answers the same samples,
    and the difference comes with an interval: this shows whether a lower precision costs accuracy.
    """
    from rich.console import Console

    from enginebench.cli.progress import open_reporter
    from enginebench.core.store import encode
    from enginebench.report.accuracy import list_accuracy
    from enginebench.report.terminal import print_sections
    from enginebench.workflow.verbs.accuracy import gate_accuracy, measure_side_accuracy

    request = common.make_side_request(input_size)
    with open_reporter() as reporter:
        document = measure_side_accuracy(
            side,
            data,
            request=request,
            reference=ref,
            n=n,
            model=model,
            metrics=judging.metric,
            targets=judging.targets,
            task=judging.task,
            max_metric_drop=judging.max_drop,
            reporter=reporter,
        )
    if common.as_json:
        click.echo(encode(document).decode())
    else:
        print_sections(list_accuracy(document), Console(highlight=False))
    gate_accuracy(document)
