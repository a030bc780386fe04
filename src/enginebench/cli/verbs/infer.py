"""`enginebench infer`: one engine on your own arrays."""

from __future__ import annotations

from pathlib import Path

import click

from enginebench.cli.options import Common, common_options
from enginebench.core.text import clean_text


@click.command("infer")
@click.argument("target")
@click.argument("given", metavar="[INPUT.npz]", required=False)
@click.option("--engine", help="ENGINE[:key=value,...] [ort; on a GPU ort-cuda]")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("outputs.npz"),
    show_default=True,
    help="File for the outputs.",
)
@common_options
def command(
    target: str,
    given: str | None,
    engine: str | None,
    out: Path,
    common: Common,
) -> None:
    """Run TARGET on your arrays and save the outputs.

    Example: enginebench infer model.onnx in.npz --engine ort --out out.npz

    INPUT.npz holds one array per input, by name; --inputs takes more than one call, too."""
    from msgspec.structs import replace

    from enginebench.backends.registry import read_engine
    from enginebench.cli.progress import open_reporter
    from enginebench.core.store import encode
    from enginebench.workflow.verbs.infer import infer_file

    with open_reporter() as reporter:
        document = infer_file(
            replace(common.make_source(target), inputs=choose_inputs(given, common.inputs)),
            out,
            engine=read_engine(common.name_engine(engine)),
            device=common.device,
            threads=common.count_threads(),
            reporter=reporter,
        )
    if common.as_json:
        click.echo(encode(document).decode())
        return
    for spec in document.outputs:
        click.echo(f"{clean_text(spec.name)}: {spec.dtype}[{'x'.join(map(str, spec.shape))}]")
    click.echo(f"saved to {out}")


def choose_inputs(given: str | None, option: str | None) -> str:
    """INPUT.npz or --inputs.

    Raises:
        UsageError: neither was given, or both.
    """
    from enginebench.core.errors import UsageError

    if (given is None) == (option is None):
        raise UsageError("give the arrays once: INPUT.npz, or --inputs")
    return given or option or ""
