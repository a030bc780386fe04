"""`parse_profile`: what --exportProfile wrote, slowest layer first; broken names repaired, duplicates merged."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from enginebench.analyze.trtexec.records import ProfiledLayer, ProfileDocument
from enginebench.analyze.trtexec.source import decode_json, read_text
from enginebench.analyze.trtexec.trace import list_keys
from enginebench.core.errors import ParseError
from enginebench.core.store import DECODE_ERRORS
from enginebench.core.text import count_of

# trtexec does not escape names, so a quote makes invalid JSON and "\\b" a control character. But only these figures
# can follow a name. Source: Profiler::exportJSONProfile in samples/common/sampleReporting.cpp.
_NUMBER = r"([-+]?(?:[0-9.eE+-]{1,40}|nan|inf)(?:\([a-z]{1,8}\))?)"
_FIGURES = re.compile(
    rf'", "timeMs" : {_NUMBER}, "averageMs" : {_NUMBER}(?:, "medianMs" : {_NUMBER})?'
    rf', "percentage" : {_NUMBER} \}}\s*,?\s*$'
)
# Of one entry; 7 and 8.0 wrote no median. Source: as above.
_KEYS = ("name", "timeMs", "averageMs", "medianMs", "percentage")
# An entry with whatever keys, its name with whatever text: the first key, and the figures behind the name.
_ENTRY = re.compile(rf'\{{ "(\w{{1,40}})" : "[^\n]{{0,4000}}"((?:, "\w{{1,40}}" : {_NUMBER}){{2,8}}) \}}')
# Characters in which the first entry stands; more would cost time in a hostile file.
_HEAD = 1 << 16
_NAME = '{ "name" : "'
_COUNT = re.compile(r'\{ "count" : (\d{1,18}) \}')
# What other scripts call the same figures. The unit is the end of the key; trtexec's own unit is ms.
_NAMES = ("name", "layername", "layer", "layer_name")
_TOTAL = ("time", "total", "totaltime", "sum", "duration")
_AVERAGE = ("average", "avg", "averagetime", "avgtime", "mean", "meantime")
_MEDIAN = ("median", "mediantime")
_UNITS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "sec": 1e3, "seconds": 1e3, "s": 1e3}


class RawLayer(NamedTuple):
    """One entry of a profile, in ms."""

    name: str
    total_ms: float
    average_ms: float
    median_ms: float | None


class RawProfile(NamedTuple):
    """The entries in the order of the file; `strange` counts names that JSON would have read otherwise."""

    iterations: int | None
    layers: list[RawLayer]
    strange: int = 0
    no_totals: bool = False


def parse_profile(
    path: Path,
    *,
    model: str | None = None,
    precision: str | None = None,
    batch: int | None = None,
    end_to_end_ms: float | None = None,
) -> ProfileDocument:
    """The layer times in `path`, slowest first.

    Args:
        path: what --exportProfile wrote, any version; or the same inside other JSON.
        model: recorded as given.
        precision: recorded as given.
        batch: recorded as given.
        end_to_end_ms: median GPU compute time of one query without the profiler, to say what no layer explains.

    Raises:
        ParseError: the file cannot be read, is damaged, or holds no layer with a name and a time.
    """
    return summarize_profile(read_profile(read_text(path), path), path, model, precision, batch, end_to_end_ms)


def summarize_profile(
    raw: RawProfile,
    path: Path,
    model: str | None = None,
    precision: str | None = None,
    batch: int | None = None,
    end_to_end_ms: float | None = None,
) -> ProfileDocument:
    """As `parse_profile`, from entries that were read before."""
    merged, duplicates = merge_layers(raw.layers)
    total = math.fsum(layer.total_ms for layer in merged if math.isfinite(layer.total_ms))
    averages = [layer.average_ms for layer in merged if math.isfinite(layer.average_ms)]
    average = math.fsum(averages) if averages else None
    layers = [finish_layer(layer, total, position) for position, layer in enumerate(merged)]
    layers.sort(key=lambda layer: math.inf if layer.total_ms is None else -layer.total_ms)
    return ProfileDocument(
        path=str(path),
        model=model,
        precision=precision,
        batch=batch,
        count=raw.iterations,
        total_ms=total,
        average_ms=average,
        layers=tuple(layers),
        end_to_end_ms=end_to_end_ms,
        remainder_ms=end_to_end_ms - average if end_to_end_ms is not None and average is not None else None,
        duplicates_merged=duplicates,
        names_repaired=raw.strange,
        nonfinite=sum(not math.isfinite(value) for layer in merged for value in layer[1:3]),
        notes=list_notes(raw, merged, total),
    )


def read_profile(text: str, path: Path) -> RawProfile:
    """The entries of a profile: by line if trtexec wrote it, else as JSON."""
    if _NAME in text and (raw := read_lines(text)) is not None:
        return raw
    try:
        document = decode_json(text)
    except DECODE_ERRORS as error:
        require_printed_keys(text, path)
        raise explain(error, text, path) from error
    entries = list(walk_entries(document))
    require_keys(entries, path)
    layers = [layer for entry in entries if (layer := read_entry(entry))]
    if not layers:
        raise ParseError(
            path,
            "$",
            f"no layer with a name and a time (keys there: {', '.join(list_keys(document)) or 'none'})",
            "entries with name, timeMs and averageMs, as --exportProfile writes them",
            "Is it a timing file or a layer file? A newer trtexec may have renamed a key",
        )
    no_totals = all(pick_time(entry, _TOTAL) is None for entry in entries if read_entry(entry))
    return RawProfile(find_count(entries), layers, no_totals=no_totals)


def read_lines(text: str) -> RawProfile | None:
    """The entries of a file in trtexec's own layout, with names taken as they stand; None if it is not whole.

    A name may hold anything, quotes and line ends too, so each entry reaches from its key to the next one's.
    """
    head, *pieces = text.split(_NAME)
    count = _COUNT.search(head)
    layers: list[RawLayer] = []
    strange = 0
    last = len(pieces) - 1
    for index, piece in enumerate(pieces):
        body = piece.rstrip()
        body = body.removesuffix("]") if index == last else body
        cut = body.rfind('", "timeMs" : ')
        figures = _FIGURES.match(body, cut) if cut >= 0 else None
        if figures is None or (index == last and not piece.rstrip().endswith("]")):
            return None
        name = body[:cut]
        strange += '"' in name or "\\" in name
        values = [to_number(group) for group in figures.groups()]
        layers.append(RawLayer(name, values[0], values[1], values[2] if figures[3] else None))
    return RawProfile(int(count[1]) if count else None, layers, strange)


def to_number(text: str | None) -> float:
    """The number; nan for nan, inf, and what is no number."""
    try:
        value = float(text or "nan")
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def explain(error: Exception, text: str, path: Path) -> ParseError:
    """A decoder's complaint, with the line where it arose."""
    begun = text.lstrip().startswith(("[", "{"))
    if begun and ("truncated" in str(error) or not text.rstrip().endswith(("]", "}"))):
        where = f"line {text.count(chr(10)) + 1}"
        return ParseError(path, where, "the end of the file inside the profile", "a closing ']'", "The file is cut")
    byte = re.search(r"\(byte (\d+)\)", str(error))
    where = f"line {text.encode()[: int(byte[1])].count(10) + 1}" if byte else ""
    return ParseError(path, where, str(error), "the layout of --exportProfile")


def require_printed_keys(text: str, path: Path) -> None:
    """Raises a ParseError when a file with quotes in its names, which is no JSON, has other keys than those known."""
    entry = _ENTRY.search(text[:_HEAD])
    if entry is None:
        return
    keys = [entry[1], *re.findall(r'"(\w{1,40})" :', entry[2])]
    refuse_renamed(keys, f"line {text.count(chr(10), 0, entry.start()) + 1}", path)


def require_keys(entries: list[dict[str, Any]], path: Path) -> None:
    """Raises a ParseError when entries of trtexec's own layout (they have `percentage`) lack another of its keys."""
    for index, entry in enumerate(entry for entry in entries if "percentage" in entry):
        if len(set(entry) & {"timeMs", "averageMs", "medianMs", "name"}) >= 2:
            refuse_renamed(list(entry), f"layer {index}", path)


def refuse_renamed(keys: list[str], place: str, path: Path) -> None:
    """Raises a ParseError when an entry lacks a key; a median may be lacking unless an unknown time is there."""
    missing = [key for key in _KEYS if key not in keys]
    if missing == ["medianMs"] and not any(key.endswith("Ms") and key not in _KEYS for key in keys):
        return
    if missing:
        raise ParseError(
            path,
            place,
            f"no key {', '.join(missing)} (keys there: {', '.join(keys)[:400]})",
            f"the keys {', '.join(_KEYS)}",
            "A newer trtexec may have renamed it",
        )


def walk_entries(document: Any) -> Iterator[dict[str, Any]]:
    """Every dictionary in the document, in its order; {"layer name": {...}} gives the inner one a name."""
    stack: list[tuple[Any, str | None]] = [(document, None)]
    while stack:
        node, name = stack.pop()
        if isinstance(node, dict):
            yield node if name is None or pick_text(node) else {"name": name, **node}
            stack.extend((child, key) for key, child in reversed(node.items()) if isinstance(child, dict | list))
        elif isinstance(node, list):
            stack.extend((child, None) for child in reversed(node) if isinstance(child, dict | list))


def read_entry(entry: dict[str, Any]) -> RawLayer | None:
    """The layer in a dictionary, if it has a name and a time."""
    name = pick_text(entry)
    total, average, median = (pick_time(entry, names) for names in (_TOTAL, _AVERAGE, _MEDIAN))
    if name is None or (total is None and average is None):
        return None
    total = average if total is None else total
    average = total if average is None else average
    return RawLayer(
        name, total if total is not None else math.nan, average if average is not None else math.nan, median
    )


def pick_text(entry: dict[str, Any]) -> str | None:
    """The layer's name in an entry."""
    for key, value in entry.items():
        if key.lower() in _NAMES and isinstance(value, str):
            return value
    return None


def pick_time(entry: dict[str, Any], names: tuple[str, ...]) -> float | None:
    """The first of the named times in an entry, in ms; nan where the file has null (nan or inf before)."""
    for key, value in entry.items():
        word = key.lower().replace("_", "").replace(" ", "")
        unit = next((unit for unit in _UNITS if word.endswith(unit) and word[: -len(unit)] in names), None)
        if (unit or word in names) and isinstance(value, int | float | None) and not isinstance(value, bool):
            return to_float(value) * _UNITS[unit or "ms"]
    return None


def to_float(value: float | None) -> float:
    """The number of a JSON document; nan for null, and for a whole number that no float holds."""
    try:
        return math.nan if value is None else float(value)
    except OverflowError:
        return math.nan


def find_count(entries: list[dict[str, Any]]) -> int | None:
    """The number of profiled iterations, if the document says it."""
    for entry in entries:
        count = entry.get("count", entry.get("iterations"))
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            return count
    return None


def merge_layers(layers: list[RawLayer]) -> tuple[list[RawLayer], int]:
    """(layers with one entry for each name and average, how many were left out).

    The same layer listed twice (in two branches of nested JSON, or in files that were joined) has the same name and
    the same average; two layers of one name differ in it and stay apart.
    """
    merged: dict[tuple[str, str], RawLayer] = {}
    for layer in layers:
        merged.setdefault((layer.name, repr(layer.average_ms)), layer)
    return list(merged.values()), len(layers) - len(merged)


def finish_layer(layer: RawLayer, total_ms: float, position: int) -> ProfiledLayer:
    """The layer with its share; None in place of nan."""
    total, average, median = (v if v is not None and math.isfinite(v) else None for v in layer[1:])
    share = total / total_ms if total is not None and total_ms > 0 else None
    return ProfiledLayer(
        name=layer.name, total_ms=total, average_ms=average, median_ms=median, share=share, position=position
    )


def list_notes(raw: RawProfile, layers: Sequence[RawLayer], total_ms: float) -> tuple[str, ...]:
    """What a reader of the profile should know."""
    notes = []
    if raw.iterations == 1:
        notes.append("count is 1: times are of a single iteration, as trtexec of the 8.4 era profiled CUDA graphs")
    if raw.no_totals:
        notes.append("the file has averages only: totals and shares are those of one iteration")
    if total_ms == 0:
        notes.append("all times are 0: no shares")
    lost = sum(not (math.isfinite(layer.total_ms) and math.isfinite(layer.average_ms)) for layer in layers)
    if lost and total_ms != 0:
        notes.append(f"{count_of(lost, 'layers')} with a time that is nan or inf, which the sums leave out")
    if raw.strange:
        notes.append(
            f"{raw.strange} names hold quotes or backslashes, which trtexec does not escape; read as they stand"
        )
    return tuple(notes)
