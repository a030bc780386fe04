"""`enginebench parse`: what trtexec wrote, as numbers, CSV and pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from enginebench.cli.options import FiniteRange

if TYPE_CHECKING:
    import msgspec

    from enginebench.analyze.trtexec.records import LayersDocument
    from enginebench.report.table import Section

F = TypeVar("F", bound=Callable[..., Any])
FILE = click.Path(path_type=Path)


def artifact_options(function: F) -> F:
    """Adds FILE --model --precision --batch --out --json."""
    for option in reversed(
        (
            click.argument("file", metavar="FILE", type=FILE),
            click.option("--model", metavar="M", help="Name of the model to record in the output."),
            click.option("--precision", metavar="P", help="Precision to record in the output."),
            click.option("--batch", type=click.IntRange(1), help="Images per query; adds images/s."),
            click.option("--out", type=FILE, metavar="DIR|F.json", help="Folder for all files, or one JSON file."),
            click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout and nothing else."),
        )
    ):
        function = option(function)
    return function


@click.group("parse")
def parse() -> None:
    """Read what trtexec 8 to 11 wrote.

    Example: enginebench parse log trtexec.log

    It reads logs and the files of --exportTimes, --exportProfile and --exportLayerInfo.
    """


@parse.command("log")
@artifact_options
def parse_log_verb(
    file: Path, model: str | None, precision: str | None, batch: int | None, out: Path | None, as_json: bool
) -> None:
    """Show every run in a log of trtexec.

    Example: enginebench parse log trtexec.log --json

    For each run: summary, version, device, options, warnings, PASSED or FAILED.
    """
    from enginebench.analyze.trtexec.log import parse_log
    from enginebench.report.trtexec.files import write_log
    from enginebench.report.trtexec.parsed import list_log

    document = parse_log(file, model, precision, batch)
    show(document, as_json, lambda: list_log(document))
    write(document, out, lambda folder: write_log(document, folder))


@parse.command("times")
@artifact_options
@click.option("--warmup-ms", type=FiniteRange(0), help="Count queries that begin earlier as warm-up. [from the file]")
@click.option(
    "--log", "log_file", type=FILE, metavar="F", help="Log of the same run; it shows which queries are warm-up."
)
def parse_times_verb(
    file: Path,
    model: str | None,
    precision: str | None,
    batch: int | None,
    out: Path | None,
    as_json: bool,
    warmup_ms: float | None,
    log_file: Path | None,
) -> None:
    """Show throughput and latency from a timing file.

    Example: enginebench parse times times.json --batch 8

    The numbers have intervals and leave out the warm-up.
    """
    from enginebench.analyze.trtexec.log import parse_log
    from enginebench.analyze.trtexec.times import select_timed, summarize_trace
    from enginebench.analyze.trtexec.trace import read_trace
    from enginebench.report.trtexec.files import write_times
    from enginebench.report.trtexec.parsed import list_times

    run = parse_log(log_file).choose_run() if log_file else None
    trace = read_trace(file)
    document = summarize_trace(trace, file, model=model, precision=precision, batch=batch, warmup_ms=warmup_ms, log=run)
    show(document, as_json, lambda: list_times(document))
    write(document, out, lambda folder: write_times(document, select_timed(trace, file, warmup_ms, run), folder))


@parse.command("profile")
@artifact_options
@click.option(
    "--topk", type=click.IntRange(1), default=30, show_default=True, help="Number of layers to show and draw."
)
@click.option("--against", type=FILE, metavar="F", help="Timing file or log of the same engine without the profiler.")
def parse_profile_verb(
    file: Path,
    model: str | None,
    precision: str | None,
    batch: int | None,
    out: Path | None,
    as_json: bool,
    topk: int,
    against: Path | None,
) -> None:
    """Show the time of each layer, slowest first.

    Example: enginebench parse profile profile.json --topk 10

    With --against also the time that no layer explains.
    """
    from enginebench.report.trtexec.files import write_profile
    from enginebench.report.trtexec.parsed import list_profile
    from enginebench.workflow.verbs.parse import parse_profile

    document = parse_profile(file, model=model, precision=precision, batch=batch, against=against)
    show(document, as_json, lambda: list_profile(document, topk))
    written = write(document, out, lambda folder: write_profile(document, folder))
    if written and out:
        draw_profile(document, out / "per_layer_time.png", topk)


@parse.command("layers")
@artifact_options
@click.option("--topk", type=click.IntRange(1), default=30, show_default=True, help="Number of layers to show.")
@click.option(
    "--profile", "profile_file", type=FILE, metavar="F", help="Profile of the same engine; shares are then of time."
)
@click.option("--against", type=FILE, metavar="F", help="Layers of another engine of the same model, to compare with.")
@click.option(
    "--against-profile",
    type=FILE,
    metavar="F",
    help="Profile of that engine. [beside it, `profile` for `layers` or `graph` in its name]",
)
def parse_layers_verb(
    file: Path,
    model: str | None,
    precision: str | None,
    batch: int | None,
    out: Path | None,
    as_json: bool,
    topk: int,
    profile_file: Path | None,
    against: Path | None,
    against_profile: Path | None,
) -> None:
    """Show the layers of an engine.

    Example: enginebench parse layers layers.json --profile profile.json

    For each layer: type, precision and ONNX operators. With --against also how two engines differ.
    """
    from enginebench.report.trtexec.files import write_layers
    from enginebench.report.trtexec.parsed import list_layers
    from enginebench.workflow.verbs.parse import parse_layers

    document = parse_layers(
        file,
        model=model,
        precision=precision,
        batch=batch,
        profile=profile_file,
        against=against,
        against_profile=against_profile,
    )
    show(document, as_json, lambda: list_layers(document, topk))
    write(document, out, lambda folder: write_layers(document, folder))


def show(document: msgspec.Struct, as_json: bool, list_sections: Callable[[], list[Section]]) -> None:
    """Prints the JSON document, or the tables."""
    from rich.console import Console

    from enginebench.core.store import encode
    from enginebench.report.terminal import print_sections

    if as_json:
        click.echo(encode(document).decode())
    else:
        print_sections(list_sections(), Console(highlight=False))


def write(document: msgspec.Struct, out: Path | None, write_all: Callable[[Path], list[Path]]) -> bool:
    """Writes one JSON file, or all files into a folder; the paths go to stderr. True if it was a folder."""
    from enginebench.report.trtexec.files import write_document

    if out is None:
        return False
    single = out.suffix.lower() == ".json" and not out.is_dir()
    for path in [write_document(document, out)] if single else write_all(out):
        click.echo(str(path), err=True)
    return not single


def draw_profile(
    document: Any, path: Path, topk: int, *, title: str = "Time by layer", layers: LayersDocument | None = None
) -> None:
    """Draws the slowest layers; without the extra `report`, says how to get the picture."""
    from enginebench.report.charts import draw_layers

    draw(lambda: draw_layers(document, title, topk, layers), path)


def draw(make: Callable[[], dict[str, Any]], path: Path) -> None:
    """Writes a chart as a picture; without the extra `report`, says how to get it."""
    from enginebench.core.errors import MissingDependency
    from enginebench.core.store import write_atomic
    from enginebench.report.charts import render_png

    try:
        write_atomic(path, render_png(make()))
        click.echo(str(path), err=True)
    except MissingDependency as error:
        click.echo(f"{path.name} was not drawn: {error}", err=True)


command = parse
