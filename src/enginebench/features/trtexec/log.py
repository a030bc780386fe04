"""`read_trtexec_log`: read everything that a trtexec log states about its runs, for trtexec 8 to 11."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import ParseError
from enginebench.core.text import count_of, parse_finite
from enginebench.features.trtexec.lines import Line, RunLines, decode_version, split_log_runs
from enginebench.features.trtexec.records import ROWS, Joint, LogDocument, LogRun, RunStatus, Stat
from enginebench.stats.plans.source import read_text

# As C++ streams print a float: 6 digits, "inf", "nan", "-nan", and "nan(ind)" from the Windows runtime.
_NUMBER = r"[-+]?(?:\d{1,40}(?:\.\d{0,40})?(?:[eE][-+]?\d{1,4})?|inf|nan(?:\([a-z]{1,8}\))?)"
_ROW = re.compile(rf"^({'|'.join(printed for printed, *_ in ROWS.values())}):\s*(min = .*)$")
_ITEM = re.compile(rf"(min|max|mean|median|percentile\(([0-9.eE+-]{{1,20}})%\)) = ({_NUMBER}) ms")
_FIELDS = {printed: name for name, (printed, *_) in ROWS.items()}
_FIGURES = (
    ("throughput_qps", re.compile(rf"^Throughput: ({_NUMBER}) qps")),
    ("host_walltime_s", re.compile(rf"^Total Host Walltime: ({_NUMBER}) s")),
    ("gpu_compute_total_s", re.compile(rf"^Total GPU Compute Time: ({_NUMBER}) s")),
    ("gpu_cov_percent", re.compile(rf".*?coefficient of variance = ({_NUMBER})%")),
    ("build_s", re.compile(rf"^Engine built in ({_NUMBER}) sec")),
    ("load_s", re.compile(rf"^Engine (?:loaded|deserialized) in ({_NUMBER}) sec")),
    ("warmup_ms", re.compile(rf"^Warmup completed \d{{1,18}} queries over ({_NUMBER}) ms")),
    ("engine_bytes", re.compile(rf"^(?:Created|Loaded) engine with size: ({_NUMBER}) MiB")),
)
# Rows of the summary that hold one figure.
_TOTALS = re.compile(r"^(?:Throughput|Total Host Walltime|Total GPU Compute Time): \S")
_COUNTS = (
    ("queries", re.compile(r"^Timing trace has (\d{1,18}) queries over")),
    ("warmup_queries", re.compile(r"^Warmup completed (\d{1,18}) queries over")),
    ("profile_iterations", re.compile(r"^=== Profile \((\d{1,18}) iterations \) ===")),
)
# All of these at once: a log may have millions of lines without a figure.
_ANY_FIGURE = re.compile("|".join(pattern.pattern for _, pattern in (*_FIGURES, *_COUNTS)))
_LIBRARY_SIZE = re.compile(r"^Loaded engine size: (\d{1,9}) (?:MiB|MB)")
# 8.0 prints `8001`.
_VERSION = re.compile(r"^TensorRT version: (\d{1,9}(?:\.\d{1,9}){0,3})$")
_ROUNDED = "the engine's size is in whole MiB, as the library reports it"
_HEADER = re.compile(r"^=== (.{1,60}) ===$")
_OPTION = re.compile(r"^([A-Za-z][^:]{0,59}?) ?: ?(.*)$")
_OPTION_BLOCKS = (" Options", "Device Information")
# Endings of a run that print no closing banner in some version.
_FATAL = re.compile(
    r"Cuda failure|Cannot find device ID|Cannot find any available devices|Unknown option:|^stoi\b|^stof\b"
    r"|Percentile .*is not in|Model missing or format not recognized|Engine set up failed|Inference set up failed"
    r"|Error occurred during inference|Uncaught exception detected|Assertion failure|Accuracy validation FAILED"
    r"|Failed to parse --|is required when|Incompatible load and save"
)
_HELP = "=== Help ==="
_ASKED_HELP = {"-h", "--help"}
_BOTH_PIPES = "errors go to another pipe: save both, trtexec ... > run.log 2>&1"
_ENABLED = {"Enabled": True, "Disabled": False}
_CAPTURED = "Successfully captured CUDA graph"
# Versions up to this print nothing of a capture that succeeded (seen in 8.6.0, 8.6.1 and 10.0.1), and a warning of one
# that failed, on the pipe of errors.
_LAST_SILENT = (10, 0)
_NOT_CAPTURED = re.compile(r"CUDA graph capture (?:on the stream has )?failed|launched without using CUDA graph")
_CRASH = re.compile(r"core dumped|Segmentation fault|核心已转储|^Aborted|terminate called", re.IGNORECASE)
_INPUT_SHAPE = re.compile(
    r"^(?:Created input binding for|Input binding for) .{1,200}? with dimensions (\d{1,9}(?:x\d{1,9}){0,15})"
)
# Lines of a run that passed without a latency; the profile's table is not printed for --exportProfile.
_PROFILED = ("=== Profile (", "The e2e network timing is not reported")
_SKIPPED = "Skipped inference phase"
# The parser's own text, which follows a message or, up to 7, has no prefix at all.
_PARSER = re.compile(r"^\s*(?:While parsing node number \d|ERROR: )")
_IN_FUNCTION = re.compile(r"ERROR: .{1,200} In function \w{1,100}:")
# Figures in the layouts of 5 to 7, and the headings of those of 7.
_OLD_FIGURE = re.compile(
    r"^(?:(?:min|max|mean|median): \S+ ms \(end to end |percentile: \S+ ms at \d|Average over \d{1,9} runs is \d)"
)
_OLD_HEADINGS = ("host latency", "gpu compute")
# A message is joined with at most this many lines without prefix.
_MAX_CONTINUATION = 20


def read_trtexec_log(path: Path) -> LogDocument:
    """Read all runs in the trtexec log `path` (also in gzip; both pipes in any order), exactly as it states them."""
    return read_log(read_text(path), path)


def read_log(text: str, path: Path) -> LogDocument:
    """Read a log from text, as `read_trtexec_log` does; `path` is only named."""
    runs = split_log_runs(text)
    # Of a run without banners or prefixes (they were cut away) a summary row may be left.
    lines = [line for run in runs for line in run.lines]
    if not any(run.banner for run in runs) and not any(map(is_written_by_trtexec, lines)):
        first = next((line for line in text.split("\n") if line.strip()), "")[:80]
        actual = f"no line that trtexec writes (it begins {first!r})"
        wanted = "a banner '&&&& RUNNING TensorRT.trtexec', or lines that begin like '[11/21/2026-01:37:39] [I]'"
        raise ParseError(path, "line 1", actual, wanted, "Save both pipes: trtexec ... > run.log 2>&1")
    parents, read = {run.parent for run in runs}, [read_run(run) for run in runs]
    for index, run in enumerate(read):
        if index in parents and run.latency_ms is None:
            note = "a tuning run: the runs that it started were timed, not itself"
            read[index] = replace(run, notes=(*run.notes, note))
    return LogDocument(path=str(path), joint=join_runs(read), runs=tuple(read))


def is_written_by_trtexec(line: Line) -> bool:
    """Whether a line without a banner around it is trtexec's: by its prefix, or as a figure of a summary."""
    text = line.text.strip()
    return line.level is not None or bool(_ROW.match(text) or _OLD_FIGURE.match(text))


def join_runs(runs: list[LogRun]) -> Joint | None:
    """Join runs that were timed as one, if they are two or more of the same command."""
    timed = [run for run in runs if run.parent is None and run.latency_ms is not None]
    if len(timed) < 2 or timed[0].command is None or len({run.command for run in timed}) > 1:
        return None
    rows = {row: _join_stats([stat for run in timed if (stat := getattr(run, row))]) for row in ROWS}
    medians = [run.latency_ms.median for run in timed if run.latency_ms]
    return Joint(
        runs=len(timed),
        throughput_qps=_join(median, [run.throughput_qps for run in timed]),
        low_ms=_join(min, medians),
        high_ms=_join(max, medians),
        **rows,
    )


def _join_stats(stats: list[Stat]) -> Stat | None:
    if not stats:
        return None
    labels = dict.fromkeys(label for stat in stats for label in stat.percentiles)
    return Stat(
        min=_join(min, [stat.min for stat in stats]),
        max=_join(max, [stat.max for stat in stats]),
        mean=_join(median, [stat.mean for stat in stats]),
        median=_join(median, [stat.median for stat in stats]),
        percentiles={label: _join(median, [stat.percentiles.get(label) for stat in stats]) for label in labels},
    )


def _join(function: Callable[[list[float]], float], values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return function(present) if present else None


def find_images(run: LogRun) -> float | None:
    """Return images per second by the log: with an implicit batch (8.6 and older) its qps count images already."""
    if not run.throughput_qps or not run.batch:
        return None
    batch = run.options.get("Inference Options", {}).get("Batch") or read_argument(run.command, "batch") or ""
    return run.throughput_qps * (1 if batch.isdecimal() and batch != "1" else run.batch)


def complete_run(run: LogRun) -> LogRun:
    """Add images per second, and each row's median among its percentiles, as 50."""
    rows = {
        row: replace(stat, percentiles={"50": stat.median} | stat.percentiles)
        for row in ROWS
        if (stat := getattr(run, row)) is not None and stat.median is not None
    }
    return replace(run, images_per_s=find_images(run), **rows)


def read_run(run: RunLines) -> LogRun:
    # trtexec's own lines, without the library's and plugins'; all lines where no prefix survived.
    own = [line for line in run.lines if line.level and not line.library]
    if not any(line.level for line in run.lines):
        own = [line._replace(text=line.text.strip()) for line in run.lines]
    options = read_option_blocks(own)
    figures, nonfinite = read_figures(own)
    # Versions up to 9 print the size only by the library: whole MiB, of which none is less than one.
    size = next((m[1] for x in run.lines if x.library and (m := _LIBRARY_SIZE.match(x.text))), "0")
    rounded = figures.engine_bytes is None and int(size) > 0
    if rounded:
        figures.engine_bytes = int(size) << 20
    errors, warnings = read_messages(run.lines, "EF"), read_messages(run.lines, "W")
    ending = find_ending(run)
    status, reason = decide_status(run, errors, ending)
    if status == "failed" and ending and not any(ending in error for error in errors):
        errors = (*errors, ending)
    if has_old_figures(run):
        # 7 counts images in place of queries, and none of an explicit batch.
        figures.queries = figures.warmup_queries = None
    banner = run.banner
    # Model, precision and device as the option blocks name them; the model also from the command line.
    command = banner.command if banner else None
    build, device = options.get("Build Options", {}), options.get("Device Information", {})
    model = options.get("Model Options", {}).get("Model") or build.get("Load engine")
    printed = next((match[1] for line in own if (match := _VERSION.match(line.text))), None)
    version = (banner and banner.version) or (decode_version(printed) if printed and "." not in printed else printed)
    switches = read_switches(run, version, warnings, options)
    return LogRun(
        version=version,
        build=banner.build if banner else None,
        status=status,
        status_reason=reason,
        command=command,
        options=options,
        warnings=warnings,
        errors=errors,
        nonfinite=nonfinite,
        notes=(*read_notes(run, figures, options), *((_ROUNDED,) if rounded else ()), *note_unread(own)),
        first_line=run.first_line,
        parent=run.parent,
        model=model or read_argument(command, "onnx") or read_argument(command, "loadEngine"),
        precision=None if build.get("Load engine") else build.get("Precision") or None,
        batch=read_batch(own, options, command),
        device=device.get("Selected Device") or None,
        device_info=device,
        data_transfers=switches.data_transfers,
        spin_wait=switches.spin_wait,
        streams=switches.streams,
        cuda_graph=switches.cuda_graph,
        latency_ms=figures.latency_ms,
        end_to_end_ms=figures.end_to_end_ms,
        gpu_compute_ms=figures.gpu_compute_ms,
        h2d_ms=figures.h2d_ms,
        d2h_ms=figures.d2h_ms,
        enqueue_ms=figures.enqueue_ms,
        throughput_qps=figures.throughput_qps,
        host_walltime_s=figures.host_walltime_s,
        gpu_compute_total_s=figures.gpu_compute_total_s,
        gpu_cov_percent=figures.gpu_cov_percent,
        build_s=figures.build_s,
        load_s=figures.load_s,
        warmup_ms=figures.warmup_ms,
        engine_bytes=figures.engine_bytes,
        queries=figures.queries,
        warmup_queries=figures.warmup_queries,
        profile_iterations=figures.profile_iterations,
    )


def read_option_blocks(lines: list[Line]) -> dict[str, dict[str, str]]:
    """Read the option blocks and the device block: heading -> key -> value, as printed; values of one key are
    joined."""
    blocks: dict[str, dict[str, list[str]]] = {}
    current: dict[str, list[str]] | None = None
    for line in lines:
        if header := _HEADER.match(line.text):
            wanted = header[1].endswith(_OPTION_BLOCKS) and line.level is not None and header[1] not in blocks
            current = blocks.setdefault(header[1], {}) if wanted else None
        elif not line.text.strip():
            current = None
        elif current is not None and line.level == "I" and (option := _OPTION.match(line.text.strip())):
            name, value = option[1], option[2].strip()
            # A key that stands once for each input, as "Input build shape (profile 0)", has a value for each.
            values = current.setdefault(name, [])
            if values != [value]:
                values.append(value)
    return {heading: {name: "; ".join(values) for name, values in block.items()} for heading, block in blocks.items()}


class Figures(Struct, kw_only=True):
    """The figures of a log, by the names of `ROWS`, `_FIGURES` and `_COUNTS`; None: not printed, or inf or nan."""

    latency_ms: Stat | None = None
    end_to_end_ms: Stat | None = None
    gpu_compute_ms: Stat | None = None
    h2d_ms: Stat | None = None
    d2h_ms: Stat | None = None
    enqueue_ms: Stat | None = None
    throughput_qps: float | None = None
    host_walltime_s: float | None = None
    gpu_compute_total_s: float | None = None
    gpu_cov_percent: float | None = None
    build_s: float | None = None
    load_s: float | None = None
    warmup_ms: float | None = None
    engine_bytes: int | None = None
    queries: int | None = None
    warmup_queries: int | None = None
    profile_iterations: int | None = None


def read_figures(lines: list[Line]) -> tuple[Figures, tuple[str, ...]]:
    """Return (the figures in the log, what was inf or nan). The first of a kind counts."""
    figures = Figures()
    printed: set[str] = set()
    nonfinite: list[str] = []
    for line in lines:
        read_row(line.text, figures, printed, nonfinite)
        if not _ANY_FIGURE.match(line.text):
            continue
        for name, pattern in _FIGURES:
            if name not in printed and (match := pattern.match(line.text)):
                printed.add(name)
                number = read_finite(match[1], name, nonfinite)
                if name == "engine_bytes" and number is not None:
                    number = round(number * 2**20)
                setattr(figures, name, number)
        for name, pattern in _COUNTS:
            if name not in printed and (match := pattern.match(line.text)):
                printed.add(name)
                setattr(figures, name, int(match[1]))
    return figures, tuple(nonfinite)


def read_finite(text: str, name: str, nonfinite: list[str]) -> float | None:
    """Return the finite number in `text`; None for inf and nan, which are noted by name."""
    value = parse_finite(text)
    if value is None:
        nonfinite.append(f"{name} = {text}")
    return value


def read_row(text: str, figures: Figures, printed: set[str], nonfinite: list[str]) -> None:
    """Add the summary row in `text`, if it is one. A row that is cut gives the values before the cut."""
    row = _ROW.match(text)
    if row is None or _FIELDS[row[1]] in printed:
        return
    values: dict[str, float | None] = {}
    percentiles: dict[str, float | None] = {}
    for item in _ITEM.finditer(row[2]):
        value = read_finite(item[3], f"{row[1]} {item[1]}", nonfinite)
        if item[2] is not None:
            percentiles[item[2]] = value
        else:
            values[item[1]] = value
    if values or percentiles:
        printed.add(_FIELDS[row[1]])
        setattr(figures, _FIELDS[row[1]], Stat(**values, percentiles=percentiles))


def note_unread(lines: list[Line]) -> tuple[str, ...]:
    """Note rows of the summary that hold more than trtexec's figures: a decimal comma, another unit."""
    rows = [(line.text, row[2]) for line in lines if (row := _ROW.match(line.text))]
    unread = [text for text, figures in rows if figures.count(" = ") > len(_ITEM.findall(figures))]
    totals = [line.text for line in lines if _TOTALS.match(line.text)]
    unread += [text for text in totals if not any(pattern.match(text) for _, pattern in _FIGURES)]
    if not unread:
        return ()
    count = count_of(len(unread), "rows")
    return (f"{count} of the summary could not be read whole (expected as in 0.154719 ms): {unread[0][:80]!r}",)


def read_argument(command: str | None, name: str) -> str | None:
    """Return the value of `--name=` on a command line; it may hold spaces, since trtexec prints it unquoted."""
    match = re.search(rf"(?:^| )--{name}=(.*?)(?= --|$)", command or "")
    return match[1].strip() or None if match else None


def read_batch(lines: list[Line], options: dict[str, dict[str, str]], command: str | None) -> int | None:
    """Return the batch, if the log settles it.

    An implicit batch is printed as a number. With `Explicit` it is the leading dimension of the inputs; trtexec 8 also
    prints 1 for an explicit engine that it loads, so 1 counts only if the inputs do not contradict it.
    """
    text = options.get("Inference Options", {}).get("Batch") or read_argument(command, "batch") or ""
    leading = {int(match[1].split("x")[0]) for line in lines if (match := _INPUT_SHAPE.match(line.text))}
    if text.isascii() and text.isdigit() and len(text) < 10:
        implicit = int(text)
        return implicit if implicit > 1 or leading <= {1} else None
    if text == "Explicit" and len(leading) == 1:
        return leading.pop()
    return None


class Switches(NamedTuple):
    """The switches that make numbers comparable or not; None: the log does not say."""

    data_transfers: bool | None
    spin_wait: bool | None
    streams: int | None
    cuda_graph: bool | None  # what ran: a failed capture is False


def read_switches(
    run: RunLines, version: str | None, warnings: tuple[str, ...], options: dict[str, dict[str, str]]
) -> Switches:
    """Read the switches as the log shows them."""
    inference = options.get("Inference Options", {})
    streams = inference.get("Inference Streams") or inference.get("Streams") or ""
    graph = _ENABLED.get(inference.get("CUDA Graph", ""))
    if any(_NOT_CAPTURED.search(warning) for warning in warnings):
        graph = False
    elif any(line.text.startswith(_CAPTURED) for line in run.lines):
        graph = True
    elif graph:
        silent = version is not None and tuple(map(int, version.split(".")[:2])) <= _LAST_SILENT
        # A log with a warning, or with the command line that we write first, holds what went to the pipe of errors.
        heard = any(line.level in ("W", "E") or line.text.startswith("$ ") for line in run.lines)
        timed = any(line.text == "=== Performance summary ===" for line in run.lines)
        graph = True if silent and heard and timed else None
    return Switches(
        data_transfers=_ENABLED.get(inference.get("Data transfers", "")),
        spin_wait=_ENABLED.get(inference.get("Spin-wait", "")),
        streams=int(streams) if re.fullmatch(r"[0-9]{1,9}", streams) else None,
        cuda_graph=graph,
    )


def read_messages(lines: list[Line], levels: str) -> tuple[str, ...]:
    """Return messages of the given levels, each with the lines that continue it (`is_continued`)."""
    messages: list[str] = []
    left = 0  # lines that may still continue the last message; each reads it again
    for line in lines:
        text = line.text.strip()
        if line.level is not None:
            left = 0
            if line.level in levels:
                messages.append(line.text)
                left = _MAX_CONTINUATION if is_continued(line.text) else 0
        elif left and text:
            messages[-1] = f"{messages[-1].rstrip()} {text}"
            left = left - 1 if is_continued(messages[-1]) else 0
        elif "E" in levels and (start := line.text.find("Cuda failure")) >= 0:
            messages.append(line.text[start:].strip())
        elif "E" in levels and _PARSER.match(line.text):
            messages.append(text)
            left = _MAX_CONTINUATION if is_continued(text) else 0
        elif left:
            left = left - 1 if has_open_bracket(messages[-1]) else 0
    return tuple(messages)


def is_continued(message: str) -> bool:
    """Whether the next line without prefix belongs to a message: the parser prints the reason below the place."""
    return has_open_bracket(message) or message.rstrip().endswith(":") or _IN_FUNCTION.search(message) is not None


def has_open_bracket(message: str) -> bool:
    return message.count("(") > message.count(")")


def find_ending(run: RunLines) -> str | None:
    """Return the line with the reason why the run ended, whatever its level: some versions print it as information."""
    for line in run.lines:
        crashed = line.level is None and _CRASH.search(line.text)
        if crashed or (line.level in ("E", "F", "I", None) and _FATAL.search(line.text)):
            # A driver's line may stand behind what a container prints in front of every line.
            return line.text[max(line.text.find("Cuda failure"), 0) :].strip()
    return None


def decide_status(run: RunLines, errors: tuple[str, ...], ending: str | None) -> tuple[RunStatus, str | None]:
    """Return (status, why it is not "passed"). A run without closing banner failed only if the log shows what ended
    it."""
    if run.closing is not None:
        if run.closing.verdict == "PASSED":
            return "passed", None
        silent = f"trtexec ended with {run.closing.verdict}, and no line says why; {_BOTH_PIPES}"
        return "failed", errors[-1] if errors else ending or silent
    if run.aborted:
        return "failed", "the tuning run aborted it"
    if ended := ending or (errors[-1] if errors and has_help(run) else None):
        return "failed", f"no closing banner; ended by: {ended.strip()}"
    if has_help(run):
        command = (run.banner.command if run.banner else None) or ""
        options = set(command.split()[1:])
        if options and not options & _ASKED_HELP:
            text = "no closing banner; an option was refused: help was printed, which the command does not ask for"
            return "failed", f"{text}; {_BOTH_PIPES}"
        return "unknown", "no closing banner; only help was printed"
    return "unknown", "no closing banner: the log is cut, or the run was killed"


def has_help(run: RunLines) -> bool:
    return any(line.text.strip() == _HELP for line in run.lines)


def has_old_figures(run: RunLines) -> bool:
    """Whether figures are printed as trtexec 5 to 7 did."""
    texts = (line.text.strip() for line in run.lines)
    return any(_OLD_FIGURE.match(text) or text.lower() in _OLD_HEADINGS for text in texts)


def read_notes(run: RunLines, figures: Figures, options: dict[str, dict[str, str]]) -> tuple[str, ...]:
    """List notes for the reader of the numbers that the log does not state in words."""
    untimed = figures.latency_ms is None
    candidates = (
        (
            untimed and has_old_figures(run),
            "figures as trtexec 7 and older print them, which are not read; 8 to 11 are",
        ),
        (
            untimed and run.closing is not None and run.closing.verdict == "PASSED" and has_help(run),
            "only help was printed: nothing was built or timed",
        ),
        (
            run.closing is not None and any(line.level is None and _CRASH.search(line.text) for line in run.lines),
            "the process crashed after its closing banner",
        ),
        (
            options.get("Build Options", {}).get("Load engine"),
            "the engine was loaded: neither its precision nor the options of its build are in the log",
        ),
        (figures.engine_bytes == 0, "the engine has size 0: the build failed, whatever follows"),
        (
            untimed and any(line.text.startswith(_PROFILED) for line in run.lines),
            "profiled without --separateProfileRun: trtexec up to 10 then reports no latency",
        ),
        (
            any(line.text.startswith(_SKIPPED) for line in run.lines),
            "built only, with --skipInference: nothing was timed",
        ),
    )
    return tuple(note for holds, note in candidates if holds)
