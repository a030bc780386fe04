"""`enginebench infer`: one engine on the user's arrays."""

from __future__ import annotations

from pathlib import Path

import click

from enginebench.cli.options import Common, common_options


@click.command("infer")
@click.argument("target")
@click.argument("inputs", metavar="INPUT.npz", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--engine", help="ENGINE[:key=value,...] [ort; on a GPU ort-cuda]")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), default=Path("outputs.npz"), show_default=True)
@common_options
def command(
    target: str,
    inputs: Path,
    engine: str | None,
    out: Path,
    common: Common,
) -> None:
    """Run TARGET on the arrays of INPUT.npz (one entry for each input, by name) and save the outputs."""
    from enginebench.cli.progress import open_reporter
    from enginebench.core.names import parse_engine
    from enginebench.core.store import encode
    from enginebench.workflow.inference import infer_file

    with open_reporter() as reporter:
        document = infer_file(
            target,
            inputs,
            out,
            engine=parse_engine(common.name_engine(engine)),
            device=common.device,
            threads=common.count_threads(),
            weights=common.weights,
            seed=common.seed,
            input_shapes=common.read_shapes(),
            reporter=reporter,
        )
    if common.as_json:
        click.echo(encode(document).decode())
        return
    for spec in document.outputs:
        click.echo(f"{spec.name}: {spec.dtype}[{'x'.join(map(str, spec.shape))}]")
    click.echo(f"saved to {out}")
