"""Read a folder that trtexec left: the kind of each file, which files belong together, and whether they agree."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import msgspec

from enginebench.core.commands import format_command
from enginebench.core.errors import ParseError, UsageError
from enginebench.core.store import JsonObject, explain_access, parsing
from enginebench.engines.abilities import PROCESS
from enginebench.features.trtexec.log import read_log, read_trtexec_log
from enginebench.features.trtexec.records import LogRun, Stat, TimesDocument
from enginebench.features.trtexec.times import TimedQueries, summarize_trace
from enginebench.features.trtexec.trace import read_trace
from enginebench.stats.layer_records import LayersDocument, ProfileDocument
from enginebench.stats.plans.layers import read_layer_info
from enginebench.stats.plans.profile import read_layer_profile
from enginebench.stats.plans.source import open_bytes, read_text

Kind = Literal["log", "stderr", "times", "profile", "layers", "drift"]

# Bytes of a file that show what it is.
_SNIFF = 1 << 16
_JSON = (".json", ".json.gz")
_LOGS = (".log", ".txt", ".out", ".stdout", ".log.gz")
_ERRORS = (".stderr", ".err")
_MARKS: tuple[tuple[Kind, re.Pattern[bytes]], ...] = (
    ("times", re.compile(rb'"(?:latencyMs|startComputeMs|perIteration)"')),
    ("layers", re.compile(rb'"Layers"\s*:')),
    ("profile", re.compile(rb'"(?:averageMs|timeMs)"')),
)
# For damaged and empty files, whose first bytes show nothing.
_NAMES: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("times", re.compile(r"times|timing", re.I)),
    ("profile", re.compile(r"profile(?!\.metadata)", re.I)),
    ("layers", re.compile(r"layer|graph", re.I)),
)
_LOG_MARK = re.compile(rb"TensorRT\.trtexec|\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] \[[FEWIV]\]")
_OURS = re.compile(rb'"schema": ?"enginebench\.')
# The name in messages of each kind that `parse` reads.
KINDS: dict[Kind, str] = {
    "log": "a log of trtexec",
    "times": "a timing file, as --exportTimes writes it",
    "profile": "a layer profile, as --exportProfile writes it",
    "layers": "layer information, as --exportLayerInfo writes it",
}
# The part of a name that shows the kind of a file, after the part that the files of a run share.
_WORDS: dict[Kind, re.Pattern[str]] = {
    "log": re.compile(r"(?:^|[._-])(?:trtexec|log|run)$", re.I),
    "times": re.compile(r"(?:^|[._-])(?:times|timing)$", re.I),
    "profile": re.compile(r"(?:^|[._-])profile$", re.I),
    "layers": re.compile(r"(?:^|[._-])(?:layers?|graph)$", re.I),
}
_SUFFIX = re.compile(r"\.(?:json|log|txt|out|stdout|stderr|err)(?:\.gz)?$", re.I)
# --exportOutput; its values are of no use here.
_OUTPUT = ("output.json", "output.json.gz")
_DRIFT = "output_diff.json"
# The figures of `enginebench drift` that a report shows for each output.
DRIFT_FIELDS = ("name", "mean_abs_diff", "max_abs_diff", "cosine_mean", "cosine_min", "top1_agreement", "nonfinite")
# The log prints six digits and sums in 32 bits: figures of one run differ by less than this (0.00005 was the largest
# difference in the files that were seen); figures of two runs practically never agree to it.
_SAME = 2e-4


@dataclass(frozen=True)
class TrtexecCase:
    """The files of one run of trtexec, read. Missing ones are None."""

    name: str
    files: dict[Kind, Path]
    log: LogRun | None = None
    runs: tuple[LogRun, ...] = ()  # all of the log
    times: TimesDocument | None = None
    timed: TimedQueries | None = None
    profile: ProfileDocument | None = None
    layers: LayersDocument | None = None
    drift: JsonObject | None = None
    contradictions: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


def is_trtexec_folder(path: Path | str) -> bool:
    """Whether a folder holds something that trtexec wrote (and no run of ours)."""
    folder = Path(path)
    kinds = (kind for inner in list_folders(folder) for _, kind in list_files(inner))
    return not (folder / "run.json").exists() and any(kind != "drift" for kind in kinds)


def list_folders(folder: Path) -> list[Path]:
    """Return the folder itself, and those of single processes that `bench --engine trtexec` makes in it."""
    of_processes = [path for path in folder.glob(f"{PROCESS}*") if path.is_dir() and not path.is_symlink()]
    return [folder, *sorted(of_processes, key=lambda path: (len(path.name), path.name))]


def read_folder(folder: Path) -> list[TrtexecCase]:
    """Read the runs in a folder, each with all of its files.

    A file that cannot be read is named in the case, unless nothing else is there.

    Raises:
        UsageError: the folder is missing or holds no file of trtexec.
        ParseError: no file in it can be read.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; expected that of a run, or of files of trtexec")
    groups = group_files(list(list_files(folder)))
    for inner in list_folders(folder)[1:]:
        own_groups = group_files(list(list_files(inner)))
        groups |= {
            inner.name if len(own_groups) == 1 else f"{inner.name} {name}": own_groups[name] for name in own_groups
        }
    if not groups:
        raise UsageError(f"{folder} holds neither a run of enginebench nor a log, times, profile or layers of trtexec")
    read = [read_case(name, files) for name, files in groups.items()]
    if not any(any((case.log, case.times, case.profile, case.layers)) for case, _ in read):
        raise next(error for _, errors in read for error in errors)
    return [part for case, _ in read for part in split_case(case)]


def list_files(folder: Path) -> Iterator[tuple[Path, Kind]]:
    """Yield (path, kind) of the files in a folder; links and our own files are left out."""
    with explain_access(f"cannot list {folder}", kind=UsageError):
        paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
    for path in paths:
        if kind := sniff_kind(path):
            yield path, kind


def sniff_kind(path: Path) -> Kind | None:
    """Return the kind of a file, by its name and its first bytes."""
    name = path.name.lower()
    if name == _DRIFT:
        return "drift"
    if not name.endswith((*_JSON, *_LOGS, *_ERRORS)):
        return None
    try:
        head = bytes(open_bytes(path)[:_SNIFF])
    except ParseError:
        # Empty or damaged: reading it as the kind that its name shows gives the reason. An empty stderr is usual.
        return guess_kind(name)
    if _OURS.search(head[:200]):
        return None
    if name.endswith(_JSON):
        return next((kind for kind, mark in _MARKS if mark.search(head)), None) or guess_kind(name)
    if name.endswith(_ERRORS):
        # A line of the driver has neither banner nor prefix, so the log beside it shows whether it is trtexec's.
        siblings = [path.with_name(_SUFFIX.sub("", path.name) + ending) for ending in _LOGS]
        is_stderr = _LOG_MARK.search(head) or any(other.is_file() and sniff_kind(other) == "log" for other in siblings)
        return "stderr" if is_stderr else None
    return "log" if _LOG_MARK.search(head.replace(b"\x00", b"")) else None


@contextmanager
def explain_kind(path: Path, kind: Kind) -> Iterator[None]:
    """If `path` cannot be read as `kind` and is a file of another kind, name that kind, and what reads it."""
    try:
        yield
    except ParseError as error:
        content = find_content(path) if error.path == str(path) else None
        if content in (None, kind):
            raise
        command = format_command("parse", content, str(path))
        raise ParseError(path, "", KINDS[content], KINDS[kind], f"To read it: {command}") from error


def find_content(path: Path) -> Kind | None:
    """Return the kind of a file by its first bytes, whatever its name; None if they do not show it, or it is one of
    ours."""
    try:
        head = bytes(open_bytes(path)[:_SNIFF]).replace(b"\x00", b"")
    except ParseError:
        return None
    if _OURS.search(head[:200]):
        return None
    if _LOG_MARK.search(head):
        return "log"
    return (
        next((kind for kind, mark in _MARKS if mark.search(head)), None) if head.lstrip()[:1] in (b"[", b"{") else None
    )


def guess_kind(name: str) -> Kind | None:
    if name.endswith((".log", ".stdout")):
        return "log"
    is_json = name.endswith(_JSON) and not name.endswith(_OUTPUT)
    return next((kind for kind, pattern in _NAMES if is_json and pattern.search(name)), None)


def group_files(files: list[tuple[Path, Kind]]) -> dict[str, dict[Kind, Path]]:
    """Return name -> its files: all together if there is one of each kind, else by the beginning of their names.

    A second file of a kind and name stands alone under its full name, and so do the differences of outputs where
    several runs could have made them: nothing is left out.
    """
    kinds = [kind for _, kind in files if kind != "drift"]
    if not kinds:
        return {}
    exported = {strip_name(path, kind) for path, kind in files if kind in ("times", "profile", "layers")}
    if len(set(kinds)) == len(kinds):
        main, first = next((path, kind) for path, kind in files if kind != "drift")
        name = name_run(main, first, exported) or name_in_path(main.parent)
        return {name: {kind: path for path, kind in files}}
    groups: dict[str, dict[Kind, Path]] = {}
    for path, kind in files:
        name = name_run(path, kind, exported) or "run"
        group = groups.setdefault(path.name if kind in groups.get(name, {}) else name, {})
        group[kind] = path
    return groups


def name_in_path(folder: Path) -> str:
    """Return the name of a folder for a report: `bench` leaves DIR/trtexec, whose own name tells nothing."""
    absolute = folder.absolute()
    return (absolute.parent if absolute.name == "trtexec" else absolute).name


def name_run(path: Path, kind: Kind, exported: set[str]) -> str:
    """Return the run of a file: "fp16" of "fp16.times.json" and "fp16.log"; "" if the name contains only the kind.

    A log has its whole name, "fp16-run", unless its exported files are named without the last word.
    """
    whole, bare = _SUFFIX.sub("", path.name), strip_name(path, kind)
    if kind in ("times", "profile", "layers"):
        return bare
    return bare if kind != "drift" and bare in exported and whole not in exported else whole


def strip_name(path: Path, kind: Kind) -> str:
    return _WORDS["log" if kind in ("stderr", "drift") else kind].sub("", _SUFFIX.sub("", path.name))


def read_case(name: str, files: dict[Kind, Path]) -> tuple[TrtexecCase, list[ParseError]]:
    """Read all files of one run; return errors for those that cannot be read."""
    case = TrtexecCase(name=name, files=files)
    errors: list[ParseError] = []
    for kind, read in _READERS:
        try:
            case = read(case) if kind in files or (kind == "log" and "stderr" in files) else case
        except ParseError as error:
            errors.append(error)
    return replace(case, contradictions=tuple(find_contradictions(case)), unreadable=tuple(map(str, errors))), errors


def split_case(case: TrtexecCase) -> list[TrtexecCase]:
    """Return a case for each run of a log alone; with exported files, which are of one run, the case itself."""
    own = [run for run in case.runs if run.parent is None]
    if len(own) < 2:
        return [case]
    if set(case.files) <= {"log", "stderr"}:
        return [replace(case, name=f"{case.name} {number}", log=run) for number, run in enumerate(own, 1)]
    note = f"the log holds {len(own)} runs; this is the last that measured"
    return [replace(case, log=msgspec.structs.replace(case.log, notes=(*case.log.notes, note)))] if case.log else [case]


def read_case_log(case: TrtexecCase) -> TrtexecCase:
    paths = [case.files[kind] for kind in ("log", "stderr") if kind in case.files]
    document = read_log("\n".join(map(read_text, paths)), paths[0])
    return replace(case, log=document.choose_run(), runs=document.runs)


def read_case_times(case: TrtexecCase) -> TrtexecCase:
    """Read the timing file; the log shows how much of it is warm-up."""
    path = case.files["times"]
    batch = case.log.batch if case.log else None
    document, timed = summarize_trace(read_trace(path), path, log=case.log, batch=batch)
    return replace(case, times=document, timed=timed)


def read_case_profile(case: TrtexecCase) -> TrtexecCase:
    """Read the profile, compared with the median GPU compute time of the times, else of the log."""
    stats = (source.gpu_compute_ms for source in (case.times, case.log) if source)
    whole_ms = next((stat.median for stat in stats if stat), None)
    return replace(case, profile=read_layer_profile(case.files["profile"], end_to_end_ms=whole_ms))


def read_compute_ms(path: Path) -> float:
    """Read the median GPU compute time of one query in ms, from a timing file or a log."""
    traced = find_content(path) != "log" and (sniff_kind(path) == "times" or path.name.lower().endswith(_JSON))
    with explain_kind(path, "times" if traced else "log"):
        document = (
            summarize_trace(read_trace(path), path, intervals=False)[0]
            if traced
            else read_trtexec_log(path).choose_run()
        )
    stat = document.gpu_compute_ms
    if stat is None or stat.median is None:
        raise ParseError(path, "", "no GPU compute time", "a timing file or a log with a performance summary")
    return stat.median


def find_profile(layers: Path) -> Path | None:
    """Return the profile beside a layer file: "a.profile.json" for "a.layers.json" or "a.graph.json"."""
    siblings = (layers.with_name(layers.name.replace(word, "profile")) for word in ("layers", "layer", "graph"))
    return next((path for path in siblings if path != layers and path.is_file()), None)


def read_case_drift(case: TrtexecCase) -> TrtexecCase:
    path = case.files["drift"]
    with parsing(path, "a JSON object, as `enginebench drift` writes it"):
        drift = msgspec.json.decode(read_text(path), type=JsonObject)
    outputs = drift.get("outputs")
    each = [output for output in outputs if isinstance(output, dict)] if isinstance(outputs, list) else None
    if each is None or (each and not any(set(DRIFT_FIELDS[1:]) & set(output) for output in each)):
        actual = f"the keys {', '.join(drift)[:200] or '(none)'}"
        raise ParseError(path, "", actual, f"`outputs`, a list with {', '.join(DRIFT_FIELDS[1:])} of each")
    return replace(case, drift=drift)


_READERS: tuple[tuple[Kind, Callable[[TrtexecCase], TrtexecCase]], ...] = (
    ("log", read_case_log),
    ("times", read_case_times),
    ("profile", read_case_profile),
    ("layers", lambda c: replace(c, layers=read_layer_info(c.files["layers"], profile=c.profile))),
    ("drift", read_case_drift),
)


def find_contradictions(case: TrtexecCase) -> Iterator[str]:
    """Yield the differences between the log and the timing file: then they are not of one run."""
    log, times = case.log, case.times
    if log is None or times is None:
        return
    if log.queries is not None and log.queries != times.n:
        yield f"the log has {log.queries} timed queries, the timing file {times.n}"
    for row, theirs in times.trtexec.items():
        # Enqueue times are differences of rounded stamps in the file, and exact in the log.
        stat: Stat | None = getattr(log, row, None)
        if stat is not None and row != "enqueue_ms":
            yield from compare_stats(row, stat, theirs)
    # With an implicit batch (8.6 and older) the log counts images where the file counts queries.
    spans = {"throughput_qps": (times.throughput_qps, times.images_per_s), "host_walltime_s": (times.host_walltime_s,)}
    for name, possible in spans.items():
        logged = getattr(log, name)
        computed = [value for value in possible if value]
        # Stamps have six digits, and so does a span that is a small part of the run.
        if logged and computed and all(abs(value / logged - 1) > 10 * _SAME for value in computed):
            yield f"{name} is {logged:g} in the log and {computed[0]:.6g} by the timing file"


def compare_stats(row: str, logged: Stat, computed: Stat) -> Iterator[str]:
    names = [(name, getattr(logged, name), getattr(computed, name)) for name in ("min", "median", "mean", "max")]
    names += [(f"p{label}", value, computed.percentiles.get(label)) for label, value in logged.percentiles.items()]
    for name, there, here in names:
        if there is not None and here is not None and abs(there - here) > _SAME * max(abs(there), abs(here)):
            yield f"{row} {name} is {there:g} in the log and {here:g} by the timing file"
