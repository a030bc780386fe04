"""`parse`: read what trtexec wrote as numbers, CSV and pictures; files that belong together are read together."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, TypeVar

from msgspec.structs import replace

from enginebench import door
from enginebench.core.text import count_of
from enginebench.core.warnings import format_warning
from enginebench.features.trtexec import log as logs
from enginebench.features.trtexec.records import ROWS, LogDocument, LogRun, Stat, TimesDocument
from enginebench.options import Opt, PathLike, Printed, TopK, Unpack, verb
from enginebench.report.charts import draw_layers
from enginebench.report.layer_table import DIGITS, format_layer_cell, format_remainder, format_share, list_layer_groups
from enginebench.report.numbers import format_significant
from enginebench.report.table import Section, Table, list_texts, make_notes, make_table
from enginebench.stats.layer_diff import compare_layers
from enginebench.stats.layer_records import LayersDocument, ProfileDocument
from enginebench.verbs.common import to_path

if TYPE_CHECKING:
    from enginebench.features.trtexec import times

# Rows of a layer difference that a screen holds; the JSON and the CSV have all.
_DIFF_ROWS = 20


def list_log(document: LogDocument) -> list[Section]:
    """List every run of a log: verdict, facts, figures; first those of one command together."""
    sections = [*map(_list_run, document.runs)]
    if (joint := document.joint) is not None:
        low, high = format_layer_cell(joint.low_ms), format_layer_cell(joint.high_ms)
        facts = [f"medians over them; single medians {low} to {high} ms"]
        facts += [f"throughput {joint.throughput_qps:g} qps"] if joint.throughput_qps is not None else []
        title = f"{joint.runs} processes of one command"
        sections.insert(0, Section(title=title, parts=(*make_notes(facts), *_list_stats(joint))))
    return sections


def _list_run(run: LogRun) -> Section:
    version = f"TensorRT {run.version}" if run.version else "unknown version"
    names = ("precision", "batch", "device", "queries")
    facts = [f"{name} {value}" for name in names if (value := getattr(run, name)) is not None]
    if run.throughput_qps is not None:
        images = run.images_per_s
        extra = f" ({images:g} images/s)" if images not in (None, run.throughput_qps) else ""
        facts.append(f"throughput {run.throughput_qps:g} qps{extra}")
    line = ", ".join(facts)
    notes = [*(f"warning: {w.strip()}" for w in run.warnings), *(f"error: {e.strip()}" for e in run.errors)]
    title = "  ".join(filter(None, (run.status.upper(), version, run.model)))
    above = make_notes([text for text in (run.status_reason, line) if text])
    return Section(title=title, parts=(*above, *_list_stats(run), *make_notes([*notes, *run.nonfinite, *run.notes])))


def _list_stats(document: object) -> list[Table]:
    """List the summary rows as columns, in ms."""
    from enginebench.features.trtexec import files

    stats: dict[str, Stat] = {name: stat for name in ROWS if (stat := getattr(document, name)) is not None}
    if not stats:
        return []
    labels = sorted({label for stat in stats.values() for label in stat.percentiles} - {"50"}, key=files.read_label)
    lines = [
        (name, *(format_layer_cell(getattr(s, name)) for s in stats.values())) for name in ("min", "mean", "median")
    ]
    lines += [(f"p{label}", *(format_layer_cell(s.percentiles.get(label)) for s in stats.values())) for label in labels]
    lines.append(("max", *(format_layer_cell(stat.max) for stat in stats.values())))
    return [make_table(list_texts(["ms"], [ROWS[name][1] for name in stats]), lines)]


def list_times(document: TimesDocument) -> list[Section]:
    """List the figures of a timing file, by our percentile rule."""
    from enginebench.features.trtexec.report import format_bounds

    facts = [f"{document.n} queries"]
    facts += [f"{format_significant(document.throughput_qps, DIGITS)} queries/s"] if document.throughput_qps else []
    facts += [f"{format_significant(document.images_per_s, DIGITS)} images/s"] if document.images_per_s else []
    theirs = format_layer_cell(document.trtexec["latency_ms"].percentiles["99"])
    below = [f"percentiles: nearest rank (p99 by trtexec's rule: {theirs} ms)"]
    below.append(f"warm-up dropped: {document.warmup_dropped} queries ({document.warmup_reason})")
    intervals = document.intervals.get("latency_ms", {})
    bounds = [text for label in ("50", "99") if (text := format_bounds(label, intervals.get(label)))]
    below += [f"95% within this run: {', '.join(bounds)}"] if bounds else []
    below += [*document.notes, *map(format_warning, document.warnings)]
    return [Section(title=", ".join(facts), parts=(*_list_stats(document), *make_notes(below)))]


def list_profile(document: ProfileDocument, topk: int) -> list[Section]:
    lines = [
        (
            layer.name,
            *map(format_layer_cell, (layer.total_ms, layer.average_ms, layer.median_ms)),
            format_share(layer.share),
        )
        for layer in document.layers[:topk]
    ]
    hidden = len(document.layers) - topk
    count = f"profiled {count_of(document.count, 'times')}, " if document.count is not None else ""
    layers = count_of(len(document.layers), "layers")
    total = f"{count}{layers}, {format_layer_cell(document.average_ms)} ms in one iteration"
    texts = [total + (f"; {count_of(hidden, 'layers')} not shown" if hidden > 0 else "")]
    if document.remainder_ms is not None:
        whole = f"GPU time without the profiler {format_layer_cell(document.end_to_end_ms)} ms"
        texts.append(f"{whole}: {format_remainder(document.remainder_ms, document.end_to_end_ms)}")
    table = make_table(list_texts(["layer"], ["total ms", "average", "median", "share"]), lines)
    return [Section(parts=(table, *make_notes([*texts, *document.notes])))]


def tabulate_layers(document: LayersDocument, topk: int) -> list[Section]:
    overhead = document.overhead
    text = f"reformats, casts and copies: {count_of(overhead.layers, 'layers')}, {format_share(overhead.share)}"
    text += f" of the {'time' if document.shares_of == 'time' else 'layers'}"
    groups = [list_layer_groups("precision", document.by_precision), list_layer_groups("type", document.by_type)]
    table, notes = (_list_slowest(document, topk), []) if document.diff is None else _list_differences(document)
    return [Section(parts=(*groups, *make_notes([text]), table, *make_notes([*notes, *document.notes])))]


def _list_slowest(document: LayersDocument, topk: int) -> Table:
    """List the slowest layers, or the first ones if there are no times."""
    lines = [
        (
            *(text or "-" for text in (layer.name, layer.type, layer.precision_in, layer.precision_out)),
            format_layer_cell(layer.average_ms),
            format_share(layer.share),
        )
        for layer in sorted(document.layers, key=lambda layer: -(layer.average_ms or 0.0))[:topk]
    ]
    return make_table(list_texts(["layer", "type", "in", "out"], ["ms", "share"]), lines)


def _list_differences(document: LayersDocument) -> tuple[Table, list[str]]:
    """List the rows with the largest change of time, and the totals."""
    rows = document.diff or ()
    lines: list[Sequence[str]] = []
    for row in rows[:_DIFF_ROWS]:
        sides = [row.base, row.candidate]
        name = " + ".join(row.onnx_nodes) or ", ".join(next((s.layers for s in sides if s), ()))
        precisions = [(side.precision or "-") if side else "" for side in sides]
        times = ["" if side is None else format_layer_cell(side.average_ms, 4) for side in sides]
        lines.append((name, *precisions, *times, "-" if row.delta_ms is None else f"{row.delta_ms:+.4f}"))
    key = "their names" if document.diff_matched_by == "name" else "their rank among operators of their type"
    hidden = len(rows) - _DIFF_ROWS
    texts = [f"operators met by {key}" + (f"; {hidden} more lines" if hidden > 0 else "")]
    if (totals := document.diff_totals) is not None:
        base, this = format_layer_cell(totals.base_ms), format_layer_cell(totals.candidate_ms)
        text = f"base {base} ms, this {this} ms; of that reformats, "
        overhead = (
            f"{format_layer_cell(totals.base_overhead_ms)} and {format_layer_cell(totals.candidate_overhead_ms)} ms"
        )
        texts.append(f"{text}casts and copies {overhead}")
    return make_table(list_texts(["ONNX operators", "base", "this"], ["base ms", "this ms", "delta"]), lines), texts


Document = TypeVar("Document", LogRun, TimesDocument, ProfileDocument, LayersDocument)


def _file(text: str, **more: str) -> Opt:
    return Opt(text, metavar="F", path="file", **more)  # type: ignore[arg-type]


class Recorded(TypedDict, total=False):
    model: Annotated[str | None, Opt("Name of the model to record in the output.", metavar="M")]
    precision: Annotated[str | None, Opt("Precision to record in the output.", metavar="P")]
    batch: Annotated[int | None, Opt("Images per query; adds images/s.", ge=1)]


class ParserOptions(Printed, total=False):
    out: Annotated[str | None, Opt("Folder for all files, or one JSON file.", metavar="DIR|F.json", path="new any")]


class Layers(ParserOptions, total=False):
    topk: TopK


class TimesOptions(Recorded, total=False):
    warmup_ms: Annotated[float | None, Opt("Count queries that begin earlier as warm-up. [from the file]", ge=0)]
    log: Annotated[PathLike | None, _file("Log of the same run; it shows which queries are warm-up.")]


class ParsedProfileOptions(Recorded, total=False):
    against: Annotated[
        PathLike | None,
        _file("Timing file or log of the same engine without the profiler.", more="It shows what no layer explains"),
    ]


class LayersOptions(Recorded, total=False):
    profile: Annotated[PathLike | None, _file("Profile of the same engine; percentages are then of time.")]
    against: Annotated[PathLike | None, _file("Layers of another engine of the same model, to compare with.")]
    against_profile: Annotated[
        PathLike | None, _file("Profile of that engine. [beside it, `profile` for `layers` or `graph` in its name]")
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
    document = _read_log(Path(file))
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
    return _read_times(file, options)[0]


@verb(ParsedProfileOptions)
def parse_profile(file: PathLike, **options: Unpack[ParsedProfileOptions]) -> ProfileDocument:
    """Show the time of each layer, slowest first.

    Example: enginebench parse profile profile.json --topk 10

    With --against also the time outside layers.

    Args:
        file: of `--exportProfile`.

    Raises:
        ParseError: a file cannot be read; names path and position.
    """
    from enginebench.features.trtexec.folder import explain_kind, read_compute_ms
    from enginebench.stats.plans import profile as profiles

    against = to_path(options["against"])
    whole_ms = read_compute_ms(against) if against else None
    with explain_kind(Path(file), "profile"):
        return _record(profiles.read_layer_profile(Path(file), end_to_end_ms=whole_ms), options)


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
    from enginebench.features.trtexec.folder import find_profile

    profile, against = to_path(options["profile"]), to_path(options["against"])
    document = _record(_read_layers_and_profile(Path(file), profile), options)
    if against is None:
        return document
    other = to_path(options["against_profile"]) or (find_profile(against) if profile else None)
    return compare_layers(_read_layers_and_profile(against, other), document)


def _record(document: Document, options: Recorded) -> Document:
    """Return the document with the user's values in place of the file's."""
    return replace(
        document, **{name: value for name in Recorded.__annotations__ if (value := options.get(name)) is not None}
    )


def _read_times(file: PathLike, options: TimesOptions) -> "tuple[TimesDocument, times.TimedQueries]":
    from enginebench.features.trtexec import times
    from enginebench.features.trtexec.folder import explain_kind
    from enginebench.features.trtexec.trace import read_trace

    with explain_kind(Path(file), "times"):
        trace = read_trace(Path(file))
    log = to_path(options["log"])
    run = _read_log(log).choose_run() if log else None
    document, timed = times.summarize_trace(
        trace, Path(file), batch=options["batch"], warmup_ms=options["warmup_ms"], log=run
    )
    return _record(document, options), timed


def _read_log(path: Path) -> LogDocument:
    from enginebench.features.trtexec.folder import explain_kind

    with explain_kind(path, "log"):
        return logs.read_trtexec_log(path)


def _read_layers_and_profile(path: Path, profile: Path | None) -> LayersDocument:
    """Read the layers of an engine, with the times of its profile if there is one."""
    from enginebench.features.trtexec.folder import explain_kind
    from enginebench.stats.plans import layers as plan_layers
    from enginebench.stats.plans import profile as profiles

    timed = None
    if profile is not None:
        with explain_kind(profile, "profile"):
            timed = profiles.read_layer_profile(profile)
    with explain_kind(path, "layers"):
        return plan_layers.read_layer_info(path, profile=timed)


@door.command(parse_log, "FILE", shown=ParserOptions, name="log")
def _log(file: str, shown: ParserOptions, **options: Unpack[Recorded]) -> None:
    from enginebench.features.trtexec import files

    document = parse_log(file, **options)
    door.show(document, shown, door.tables(list_log))
    door.write(document, shown["out"], lambda folder: files.write_log(document, folder))


@door.command(parse_times, "FILE", shown=ParserOptions, name="times")
def _times(file: str, shown: ParserOptions, **options: Unpack[TimesOptions]) -> None:
    from enginebench.features.trtexec import files

    document, timed = _read_times(file, options)
    door.show(document, shown, door.tables(list_times))
    door.write(document, shown["out"], lambda folder: files.write_times(document, timed, folder))


@door.command(parse_profile, "FILE", shown=Layers, name="profile")
def _profile(file: str, shown: Layers, **options: Unpack[ParsedProfileOptions]) -> None:
    from enginebench.features.trtexec import files
    from enginebench.features.trtexec.report import list_layer_times

    document, topk = parse_profile(file, **options), shown["topk"]
    door.show(document, shown, door.tables(lambda document: list_profile(document, topk)))
    if folder := door.write(document, shown["out"], lambda folder: files.write_profile(document, folder)):
        door.draw(lambda: draw_layers(list_layer_times(document), "Time by layer", topk), folder / "per_layer_time.png")


@door.command(parse_layers, "FILE", shown=Layers, name="layers")
def _layers(file: str, shown: Layers, **options: Unpack[LayersOptions]) -> None:
    from enginebench.features.trtexec import files

    document, topk = parse_layers(file, **options), shown["topk"]
    door.show(document, shown, door.tables(lambda document: tabulate_layers(document, topk)))
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
