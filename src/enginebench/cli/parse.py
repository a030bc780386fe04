"""`enginebench parse`: what trtexec left behind, as numbers, CSV and pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    import msgspec
    from rich.console import RenderableType

    from enginebench.analyze.trtexec.records import LayersDocument

F = TypeVar("F", bound=Callable[..., Any])
FILE = click.Path(path_type=Path)


def artefact_options(function: F) -> F:
    """Adds FILE --model --precision --batch --out --json."""
    for option in reversed(
        (
            click.argument("file", metavar="FILE", type=FILE),
            click.option("--model", metavar="M", help="Recorded in the output."),
            click.option("--precision", metavar="P", help="Recorded in the output."),
            click.option("--batch", type=click.IntRange(1), help="Images in one query; gives images/s."),
            click.option("--out", type=FILE, metavar="DIR/F.json", help="A folder for all files, or one JSON file."),
            click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else."),
        )
    ):
        function = option(function)
    return function


@click.group("parse")
def parse() -> None:
    """Read what trtexec 7 to 11 wrote: logs, --exportTimes, --exportProfile, --exportLayerInfo."""


@parse.command("log")
@artefact_options
def parse_log_verb(
    file: Path, model: str | None, precision: str | None, batch: int | None, out: Path | None, as_json: bool
) -> None:
    """Every run in a log: summary, version, device, options, warnings, PASSED or FAILED."""
    from enginebench.analyze.trtexec.log import parse_log
    from enginebench.report.trtexec_files import write_log
    from enginebench.report.trtexec_terminal import render_log

    document = parse_log(file, model, precision, batch)
    show(document, as_json, lambda: render_log(document))
    write(document, out, lambda folder: write_log(document, folder))


@parse.command("times")
@artefact_options
@click.option("--warmup-ms", type=click.FloatRange(0), help="Queries that begin earlier are warm-up. [from the file]")
@click.option("--log", "log_file", type=FILE, metavar="F", help="Log of the same run: tells what is warm-up.")
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
    """A timing file: throughput and latency with intervals, without the warm-up."""
    from enginebench.analyze.trtexec.log import parse_log
    from enginebench.analyze.trtexec.times import select_timed, summarize_trace
    from enginebench.analyze.trtexec.trace import read_trace
    from enginebench.report.trtexec_files import write_times
    from enginebench.report.trtexec_terminal import render_times

    run = parse_log(log_file).choose_run() if log_file else None
    trace = read_trace(file)
    document = summarize_trace(trace, file, model=model, precision=precision, batch=batch, warmup_ms=warmup_ms, log=run)
    show(document, as_json, lambda: render_times(document))
    write(document, out, lambda folder: write_times(document, select_timed(trace, file, warmup_ms, run), folder))


@parse.command("profile")
@artefact_options
@click.option("--topk", type=click.IntRange(1), default=30, show_default=True, help="Layers shown and drawn.")
@click.option("--against", type=FILE, metavar="F", help="Timing file or log of the engine without the profiler.")
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
    """Time by layer, slowest first; with --against also what no layer explains."""
    from enginebench.analyze.trtexec.folder import read_compute_ms
    from enginebench.analyze.trtexec.profile import parse_profile
    from enginebench.report.trtexec_files import write_profile
    from enginebench.report.trtexec_terminal import render_profile

    end_to_end_ms = read_compute_ms(against) if against else None
    document = parse_profile(file, model=model, precision=precision, batch=batch, end_to_end_ms=end_to_end_ms)
    show(document, as_json, lambda: render_profile(document, topk))
    written = write(document, out, lambda folder: write_profile(document, folder))
    if written and out:
        draw_profile(document, out / "per_layer_time.png", topk)


@parse.command("layers")
@artefact_options
@click.option("--topk", type=click.IntRange(1), default=30, show_default=True, help="Layers shown.")
@click.option("--profile", "profile_file", type=FILE, metavar="F", help="Of the same engine: shares are then of time.")
@click.option("--against", type=FILE, metavar="F", help="Layers of another engine of the same model, the base.")
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
    """Types, precisions and ONNX operators of an engine's layers; with --against how two engines differ."""
    from enginebench.analyze.trtexec.folder import find_profile
    from enginebench.analyze.trtexec.layer_diff import compare_layers
    from enginebench.analyze.trtexec.layers import parse_layers
    from enginebench.analyze.trtexec.profile import parse_profile
    from enginebench.report.trtexec_files import write_layers
    from enginebench.report.trtexec_terminal import render_layers

    profile = parse_profile(profile_file) if profile_file else None
    document = parse_layers(file, profile=profile, model=model, precision=precision, batch=batch)
    if against:
        other = against_profile or (find_profile(against) if profile else None)
        base = parse_layers(against, profile=parse_profile(other) if other else None)
        document = compare_layers(base, document)
    show(document, as_json, lambda: render_layers(document, topk))
    write(document, out, lambda folder: write_layers(document, folder))


def show(document: msgspec.Struct, as_json: bool, render: Callable[[], RenderableType]) -> None:
    """Prints the JSON document, or the tables."""
    from rich.console import Console

    from enginebench.core.store import encode

    if as_json:
        click.echo(encode(document).decode())
    else:
        Console(highlight=False).print(render())


def write(document: msgspec.Struct, out: Path | None, write_all: Callable[[Path], list[Path]]) -> bool:
    """Writes one JSON file, or all files into a folder; the paths go to stderr. True if it was a folder."""
    from enginebench.report.trtexec_files import write_document

    if out is None:
        return False
    single = out.suffix.lower() == ".json" and not out.is_dir()
    for path in [write_document(document, out)] if single else write_all(out):
        click.echo(str(path), err=True)
    return not single


def draw_profile(
    document: Any, path: Path, topk: int, *, title: str = "Time by layer", layers: LayersDocument | None = None
) -> None:
    """Draws the slowest layers; without the extra `report` it says how to get the picture."""
    from enginebench.core.errors import MissingDependency
    from enginebench.core.store import write_atomic
    from enginebench.report.charts import draw_layers, render_png

    try:
        write_atomic(path, render_png(draw_layers(document, title, topk, layers)))
        click.echo(str(path), err=True)
    except MissingDependency as error:
        click.echo(f"{path.name} is not drawn: {error}", err=True)


command = parse
