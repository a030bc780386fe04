"""Read all stored results under a folder; the figures of unchanged files come from a cache."""

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from enginebench import __version__
from enginebench.core.errors import ArtifactError, EngineBenchError, MissingDependency, UsageError
from enginebench.core.names import NOT_KNOWN, format_engine, slug
from enginebench.core.records import Result
from enginebench.core.shapes import format_input_shapes, format_traffic
from enginebench.core.store import find_cache, read_result, write_atomic
from enginebench.report.charts import render_png
from enginebench.report.history import (
    HistoryDocument,
    HistoryRow,
    Unread,
    collect_trends,
    draw_trend,
    format_history_csv,
    identify_row,
)
from enginebench.runs.folder import ARTIFACTS
from enginebench.stats.quantiles import find_rank, median
from enginebench.stats.trials import condense_trial
from enginebench.stats.validity import assess_samples

# Increase it when HistoryRow changes: figures of an older form are then computed again.
_CACHE_FORM = 3
# Fields that have the same name in their source.
_OF_RESULT = ("id", "model", "engine_version", "status", "size_bytes")
_OF_ENGINE = ("recipe", "mix", "batch", "device", "threads")


class _Seen(Struct, frozen=True, array_like=True):
    """The figures of a result, and the size and time of its file, by which a change is noticed."""

    size: int
    mtime_ns: int
    row: HistoryRow


class _Cache(Struct, array_like=True):
    form: int = _CACHE_FORM
    seen: dict[str, _Seen] = {}
    pictures: dict[str, str] = {}  # path of a picture -> its seal


class Trends(Struct, frozen=True, kw_only=True):
    paths: tuple[Path, ...]
    notes: tuple[str, ...] = ()


def read_history(root: Path) -> HistoryDocument:
    """Read every result stored under `root`, the oldest first.

    A damaged file is listed as unread. A result stored twice (in a run and in a baseline) counts once.
    Symbolic links below `root` are not followed.
    """
    if not root.is_dir():
        raise UsageError(f"{root} is not a folder")
    cache_path = _find_cache_file(root)
    cache = _read_cache(cache_path)
    seen, unread = dict[str, _Seen](), list[Unread]()
    for path, state in _find_rows(root):
        name = os.path.relpath(path, root)
        old = cache.seen.get(name)
        if old is not None and (old.size, old.mtime_ns) == (state.st_size, state.st_mtime_ns):
            seen[name] = old
            continue
        try:
            row = summarize_row(read_result(Path(path)), name, state.st_mtime)
        except EngineBenchError as error:
            unread.append(Unread(path=name, reason=str(error)))
        else:
            seen[name] = _Seen(size=state.st_size, mtime_ns=state.st_mtime_ns, row=row)
    if seen != cache.seen:
        _write_cache(cache_path, _Cache(seen=seen, pictures=cache.pictures))
    rows = sorted((entry.row for entry in seen.values()), key=lambda row: (row.started_utc, row.path))
    single = list({identify_row(row): row for row in reversed(rows)}.values())[::-1]
    return HistoryDocument(rows=tuple(single), unread=tuple(unread), copies=len(rows) - len(single))


def select_rows(document: HistoryDocument, engines: Sequence[str] = (), models: Sequence[str] = ()) -> HistoryDocument:
    """Select the results of these engines (ENGINE, or its name alone) and models; an empty list selects all."""
    rows = [
        row
        for row in document.rows
        if (not engines or row.engine in engines or row.engine.partition(":")[0] in engines)
        and (not models or row.model in models)
    ]
    return replace(document, rows=tuple(rows))


def _find_rows(root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """The files `rows/*.json` under `root`, in no order; links, hidden folders and artifacts are left out."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".") and name != ARTIFACTS]
        inside_rows = os.path.basename(folder) == "rows"  # noqa: PTH119 - ten thousand of them
        for path in (f"{folder}/{name}" for name in names if inside_rows and name.endswith(".json")):
            with suppress(OSError):
                if stat.S_ISREG((state := os.lstat(path)).st_mode):
                    yield path, state


def summarize_row(result: Result, path: str, modified: float) -> HistoryRow:
    """Summarize the result stored at `path`: medians of its trials' medians, and the pooled nearest-rank p99."""
    trials = [m for m in result.measurements if m.latency_ns]
    pooled = np.concatenate([np.asarray(m.latency_ns, dtype=np.float64) for m in trials]) if trials else np.empty(0)
    condensed = [condense_trial(m) for m in trials]
    references = [median(m.reference_ns) for m in trials if m.reference_ns]
    engine, machine = result.engine, result.machine
    same = ((result, _OF_RESULT), (engine, _OF_ENGINE), (result.measure, ("scope", "cache")))
    rank = find_rank(len(pooled), 0.99) - 1 if trials else 0
    started = min((m.started_utc for m in trials if m.started_utc), default="")
    return HistoryRow(
        path=path,
        run=str(Path(path).parent.parent),
        **{name: getattr(source, name) for source, names in same for name in names},
        started_utc=started or datetime.fromtimestamp(modified, timezone.utc).isoformat(timespec="seconds"),
        engine=format_engine(engine),
        precision=engine.precision or NOT_KNOWN,
        shapes=format_traffic(engine.traffic) or (format_input_shapes(result.shapes) if result.shapes else ""),
        validity=assess_samples(condensed)[0],
        clock=trials[0].clock if trials else None,
        n=len(pooled),
        processes=len(trials),
        p50_ms=median([median(m.latency_ns) for m in condensed]) / 1e6 if trials else None,
        p99_ms=float(np.partition(pooled, rank)[rank]) / 1e6 if trials else None,
        mean_ms=float(np.mean(pooled)) / 1e6 if trials else None,
        reference_ms=median(references) / 1e6 if references else None,
        metric=result.scores[0].metric if result.scores else None,
        score=result.scores[0].value.value if result.scores else None,
        build_s=None if result.built_beside else result.build_s,  # a bound is no figure to follow over time
        cpu_model=machine.cpu_model if machine else None,
        gpu=", ".join(gpu.name for gpu in machine.gpus) or None if machine else None,
    )


def write_history(document: HistoryDocument, root: Path, out: Path) -> Trends:
    """Write history.csv and a trend picture for each engine; a picture that shows these points already stays.

    Without the extra `report` there are no pictures, and a note says how to get them.
    """
    table = out / "history.csv"
    write_atomic(table, format_history_csv(document.rows).encode())
    cache_path = _find_cache_file(root)
    cache = _read_cache(cache_path)
    pictures = dict(cache.pictures)
    paths = [table]
    try:
        for engine, points in collect_trends(document.rows).items():
            path = out / f"trend-{slug(engine)}.png"
            key = str(path.absolute())
            if not path.is_file() or pictures.get(key) != _seal(path, points):
                write_atomic(path, render_png(draw_trend(engine, points)))
                pictures[key] = _seal(path, points)
            paths.append(path)
    except MissingDependency as error:
        return Trends(paths=tuple(paths), notes=(f"no trend charts: {error}",))
    if pictures != cache.pictures:
        _write_cache(cache_path, _Cache(seen=cache.seen, pictures=pictures))
    return Trends(paths=tuple(paths))


def _seal(path: Path, points: object) -> str:
    """A hash of a drawn picture: of this version, the points, and the size and time of the file."""
    state = path.stat()
    return hashlib.sha256(msgspec.json.encode((__version__, state.st_size, state.st_mtime_ns, points))).hexdigest()


def _find_cache_file(root: Path) -> Path:
    name = hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:32]
    return find_cache() / "history" / f"{name}.msgpack"


def _read_cache(path: Path) -> _Cache:
    try:
        cache = msgspec.msgpack.decode(path.read_bytes(), type=_Cache)
    except (OSError, msgspec.DecodeError):
        return _Cache()
    return cache if cache.form == _CACHE_FORM else _Cache()


def _write_cache(path: Path, cache: _Cache) -> None:
    """Write the cache; failing to costs only time."""
    try:
        write_atomic(path, msgspec.msgpack.encode(cache))
    except ArtifactError:
        return
