"""`parse`: what trtexec wrote, as numbers, CSV and pictures; files that belong together are read together."""

from pathlib import Path
from typing import Annotated, TypedDict, TypeVar, Unpack

from msgspec.structs import replace

from enginebench import door
from enginebench.features.trtexec import files, parsed, times
from enginebench.features.trtexec import log as logs
from enginebench.features.trtexec.folder import find_profile, read_compute_ms
from enginebench.features.trtexec.records import LogDocument, LogRun, TimesDocument
from enginebench.features.trtexec.report import list_layer_times
from enginebench.features.trtexec.trace import Trace, read_trace
from enginebench.options import Opt, PathLike, Printed, TopK, verb
from enginebench.report.charts import draw_layers
from enginebench.stats.layer_diff import compare_layers
from enginebench.stats.layer_records import LayersDocument, ProfileDocument
from enginebench.stats.plans import layers as plan_layers
from enginebench.stats.plans import profile as profiles
from enginebench.verbs.given import to_path

Document = TypeVar("Document", LogRun, TimesDocument, ProfileDocument, LayersDocument)


class Recorded(TypedDict, total=False):
    model: Annotated[str | None, Opt("Name of the model to record in the output.", metavar="M")]
    precision: Annotated[str | None, Opt("Precision to record in the output.", metavar="P")]
    batch: Annotated[int | None, Opt("Images per query; adds images/s.", ge=1)]


class Written(Printed, total=False):
    out: Annotated[str | None, Opt("Folder for all files, or one JSON file.", metavar="DIR|F.json", path="any")]


class Layers(Written, total=False):
    topk: TopK


class TimesOptions(Recorded, total=False):
    warmup_ms: Annotated[float | None, Opt("Count queries that begin earlier as warm-up. [from the file]", ge=0)]
    log: Annotated[
        PathLike | None, Opt("Log of the same run; it shows which queries are warm-up.", metavar="F", path="file")
    ]


class ProfileOptions(Recorded, total=False):
    against: Annotated[
        PathLike | None,
        Opt(
            "Timing file or log of the same engine without the profiler.",
            metavar="F",
            path="file",
            more="It shows what no layer explains",
        ),
    ]


class LayersOptions(Recorded, total=False):
    profile: Annotated[
        PathLike | None, Opt("Profile of the same engine; percentages are then of time.", metavar="F", path="file")
    ]
    against: Annotated[
        PathLike | None, Opt("Layers of another engine of the same model, to compare with.", metavar="F", path="file")
    ]
    against_profile: Annotated[
        PathLike | None,
        Opt(
            "Profile of that engine. [beside it, `profile` for `layers` or `graph` in its name]",
            metavar="F",
            path="file",
        ),
    ]


@verb(Recorded)
def parse_log(file: PathLike, **options: Unpack[Recorded]) -> LogDocument:
    """Show every run in a log of trtexec.

    Example: enginebench parse log trtexec.log --json

    For each run: summary, version, device, options, warnings, PASSED or FAILED. Runs of one command also have a joint
    summary.

    Args:
        file: the log.

    Raises:
        ParseError: it is no log of trtexec.
    """
    document = logs.parse_log(Path(file))
    return replace(document, runs=tuple(logs.complete_run(_record(run, options)) for run in document.runs))


@verb(TimesOptions)
def parse_times(file: PathLike, **options: Unpack[TimesOptions]) -> TimesDocument:
    """Show throughput and latency from a timing file.

    Example: enginebench parse times times.json --batch 8

    The numbers have intervals and leave out the warm-up.

    Args:
        file: of `--exportTimes`.

    Raises:
        ParseError: a file cannot be read; names path and position.
    """
    return _summarize(read_trace(Path(file)), file, _read_run(options), options)


@verb(ProfileOptions)
def parse_profile(file: PathLike, **options: Unpack[ProfileOptions]) -> ProfileDocument:
    """Show the time of each layer, slowest first.

    Example: enginebench parse profile profile.json --topk 10

    With --against also the time outside layers.

    Args:
        file: of `--exportProfile`.

    Raises:
        ParseError: a file cannot be read; names path and position.
    """
    against = to_path(options["against"])
    whole_ms = read_compute_ms(against) if against else None
    return _record(profiles.parse_profile(Path(file), end_to_end_ms=whole_ms), options)


@verb(LayersOptions)
def parse_layers(file: PathLike, **options: Unpack[LayersOptions]) -> LayersDocument:
    """Show the layers of an engine.

    Example: enginebench parse layers layers.json --profile profile.json

    For each layer: type, precision and ONNX operators. With --against also how two engines differ.

    Args:
        file: of `--exportLayerInfo`.

    Raises:
        ParseError: a file cannot be read; names path and position.
    """
    profile, against = to_path(options["profile"]), to_path(options["against"])
    document = _record(plan_layers.parse_layers(Path(file), profile=_read_profile(profile)), options)
    if against is None:
        return document
    other = to_path(options["against_profile"]) or (find_profile(against) if profile else None)
    return compare_layers(plan_layers.parse_layers(against, profile=_read_profile(other)), document)


def _record(document: Document, options: Recorded) -> Document:
    """The document with what the user says in place of what its file does."""
    return replace(
        document, **{name: value for name in Recorded.__annotations__ if (value := options.get(name)) is not None}
    )


def _summarize(trace: Trace, file: PathLike, run: LogRun | None, options: TimesOptions) -> TimesDocument:
    document = times.summarize_trace(trace, Path(file), batch=options["batch"], warmup_ms=options["warmup_ms"], log=run)
    return _record(document, options)


def _read_run(options: TimesOptions) -> LogRun | None:
    log = to_path(options["log"])
    return logs.parse_log(log).choose_run() if log else None


def _read_profile(path: Path | None) -> ProfileDocument | None:
    return profiles.parse_profile(path) if path else None


@door.command(parse_log, "FILE", shown=Written, name="log")
def _log(file: str, shown: Written, **options: Unpack[Recorded]) -> None:
    document = parse_log(file, **options)
    door.show(document, shown, door.tables(parsed.list_log))
    door.write(document, shown["out"], lambda folder: files.write_log(document, folder))


@door.command(parse_times, "FILE", shown=Written, name="times")
def _times(file: str, shown: Written, **options: Unpack[TimesOptions]) -> None:
    run, trace, warmup_ms = _read_run(options), read_trace(Path(file)), options["warmup_ms"]
    document = _summarize(trace, file, run, options)
    door.show(document, shown, door.tables(parsed.list_times))
    timed = times.select_timed(trace, Path(file), warmup_ms, run)
    door.write(document, shown["out"], lambda folder: files.write_times(document, timed, folder))


@door.command(parse_profile, "FILE", shown=Layers, name="profile")
def _profile(file: str, shown: Layers, **options: Unpack[ProfileOptions]) -> None:
    document, topk = parse_profile(file, **options), shown["topk"]
    door.show(document, shown, door.tables(lambda document: parsed.list_profile(document, topk)))
    if folder := door.write(document, shown["out"], lambda folder: files.write_profile(document, folder)):
        door.draw(lambda: draw_layers(list_layer_times(document), "Time by layer", topk), folder / "per_layer_time.png")


@door.command(parse_layers, "FILE", shown=Layers, name="layers")
def _layers(file: str, shown: Layers, **options: Unpack[LayersOptions]) -> None:
    document, topk = parse_layers(file, **options), shown["topk"]
    door.show(document, shown, door.tables(lambda document: parsed.list_layers(document, topk)))
    door.write(document, shown["out"], lambda folder: files.write_layers(document, folder))


command = door.group(
    "parse",
    _log,
    _times,
    _profile,
    _layers,
    help="""Read what trtexec 8 to 11 wrote.

    Example: enginebench parse log trtexec.log

    It reads logs and the files of --exportTimes, --exportProfile and --exportLayerInfo.
    """,
)
