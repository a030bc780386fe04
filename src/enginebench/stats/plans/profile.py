"""`read_layer_profile`: read --exportProfile, slowest layer first; broken names repaired, duplicates merged."""

import math
import re
from collections.abc import Sequence
from pathlib import Path

from enginebench.core.errors import ParseError
from enginebench.core.store import DECODE_ERRORS
from enginebench.core.text import count_of
from enginebench.stats.layer_records import ProfiledLayer, ProfileDocument
from enginebench.stats.plans.other_profile import RawLayer, RawProfile, read_other_profile
from enginebench.stats.plans.source import decode_json, explain_keys, read_text

# trtexec does not escape names, so a quote makes invalid JSON and "\\b" a control character. But only these figures
# can follow a name. Source: Profiler::exportJSONProfile in samples/common/sampleReporting.cpp.
_NUMBER = r"([-+]?(?:[0-9.eE+-]{1,40}|nan|inf)(?:\([a-z]{1,8}\))?)"
_FIGURES = re.compile(
    rf'", "timeMs" : {_NUMBER}, "averageMs" : {_NUMBER}(?:, "medianMs" : {_NUMBER})?'
    rf', "percentage" : {_NUMBER} \}}\s*,?\s*$'
)
# Of one entry; 8.0 wrote no median. Source: as above.
_KEYS = ("name", "timeMs", "averageMs", "medianMs", "percentage")
# An entry with whatever keys, its name with whatever text: the first key, and the figures behind the name.
_ENTRY = re.compile(rf'\{{ "(\w{{1,40}})" : "[^\n]{{0,4000}}"((?:, "\w{{1,40}}" : {_NUMBER}){{2,8}}) \}}')
# Characters in which the first entry stands; more would cost time in a hostile file.
_HEAD = 1 << 16
_NAME = '{ "name" : "'
_COUNT = re.compile(r'\{ "count" : (\d{1,18}) \}')


def read_layer_profile(path: Path, *, end_to_end_ms: float | None = None) -> ProfileDocument:
    """Read the layer times in `path`, slowest first.

    Args:
        path: written by --exportProfile of trtexec 8 to 11, perhaps rewritten by a JSON library or wrapped by a script.
        end_to_end_ms: median GPU compute time of one query without the profiler, for the time outside of all layers.
    """
    return summarize_profile(read_profile(read_text(path), path), path, end_to_end_ms)


def summarize_profile(raw: RawProfile, path: Path, end_to_end_ms: float | None = None) -> ProfileDocument:
    """Summarize entries that were read before, as `read_layer_profile` does."""
    # The same layer listed twice (in files that were joined) has the same name and the same average; two layers of one
    # name differ in it and stay apart.
    alike: dict[tuple[str, str], RawLayer] = {}
    for raw_layer in raw.layers:
        alike.setdefault((raw_layer.name, repr(raw_layer.average_ms)), raw_layer)
    merged = list(alike.values())
    total = math.fsum(layer.total_ms for layer in merged if layer.total_ms is not None)
    averages = [layer.average_ms for layer in merged if layer.average_ms is not None]
    average = math.fsum(averages) if averages else None
    layers = [finish_layer(layer, total, position) for position, layer in enumerate(merged)]
    layers.sort(key=lambda layer: math.inf if layer.total_ms is None else -layer.total_ms)
    return ProfileDocument(
        path=str(path),
        count=raw.iterations,
        total_ms=total,
        average_ms=average,
        layers=tuple(layers),
        end_to_end_ms=end_to_end_ms,
        remainder_ms=end_to_end_ms - average if end_to_end_ms is not None and average is not None else None,
        duplicates_merged=len(raw.layers) - len(merged),
        names_repaired=raw.strange,
        nonfinite=sum(time is None for layer in merged for time in (layer.total_ms, layer.average_ms)),
        notes=list_notes(raw, merged, total),
    )


def read_profile(text: str, path: Path) -> RawProfile:
    """Read the entries of a profile: by line if trtexec wrote it, else as JSON."""
    if _NAME in text and (raw := read_lines(text)) is not None:
        return raw
    try:
        document = decode_json(text)
    except DECODE_ERRORS as error:
        # A file with quotes in its names, which is no JSON, may have other keys than those known.
        if printed := _ENTRY.search(text[:_HEAD]):
            keys = [printed[1], *re.findall(r'"(\w{1,40})" :', printed[2])]
            refuse_renamed(keys, f"line {text.count(chr(10), 0, printed.start()) + 1}", path)
        raise explain_cut(error, text, path) from error
    entries = [entry for entry in document if isinstance(entry, dict)] if isinstance(document, list) else []
    for index, entry in enumerate(entry for entry in entries if "percentage" in entry):  # trtexec's own layout
        if len(set(entry) & {"timeMs", "averageMs", "medianMs", "name"}) >= 2:
            refuse_renamed(list(entry), f"layer {index}", path)
    return read_other_profile(document, path)


def read_lines(text: str) -> RawProfile | None:
    """Read the entries of a file in trtexec's own layout, with names taken literally; None if it is incomplete.

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
        if '"' in name or "\\" in name:
            strange += 1
        values = [to_number(group) for group in figures.groups()]
        layers.append(RawLayer(name, total_ms=values[0], average_ms=values[1], median_ms=values[2]))
    return RawProfile(int(count[1]) if count else None, layers, strange)


def to_number(text: str | None) -> float | None:
    """Return the finite number in the text; None for nan, inf, no text and text that is no number."""
    try:
        number = None if text is None else float(text)
    except ValueError:
        return None
    return number if number is not None and math.isfinite(number) else None


def explain_cut(error: Exception, text: str, path: Path) -> ParseError:
    """Make the error for a decoder's complaint, with its line."""
    begun = text.lstrip().startswith(("[", "{"))
    if begun and ("truncated" in str(error) or not text.rstrip().endswith(("]", "}"))):
        where = f"line {text.count(chr(10)) + 1}"
        return ParseError(path, where, "the end of the file inside the profile", "a closing ']'", "The file is cut")
    byte = re.search(r"\(byte (\d+)\)", str(error))
    where = f"line {text.encode()[: int(byte[1])].count(10) + 1}" if byte else ""
    return ParseError(path, where, str(error), "the layout of --exportProfile")


def refuse_renamed(keys: list[str], location: str, path: Path) -> None:
    """Raise a ParseError when an entry lacks a key; a median may be lacking unless an unknown time is there."""
    missing = [key for key in _KEYS if key not in keys]
    only_median = missing == ["medianMs"] and not any(key.endswith("Ms") and key not in _KEYS for key in keys)
    if missing and not only_median:
        raise explain_keys(path, location, ", ".join(missing), keys, f"the keys {', '.join(_KEYS)}")


def finish_layer(layer: RawLayer, total_ms: float, position: int) -> ProfiledLayer:
    """Add a layer's fraction of the total."""
    share = layer.total_ms / total_ms if layer.total_ms is not None and total_ms > 0 else None
    return ProfiledLayer(
        name=layer.name,
        total_ms=layer.total_ms,
        average_ms=layer.average_ms,
        median_ms=layer.median_ms,
        share=share,
        position=position,
    )


def list_notes(raw: RawProfile, layers: Sequence[RawLayer], total_ms: float) -> tuple[str, ...]:
    """List notes for the reader of the profile."""
    notes = [*raw.notes]
    if (merged := len(raw.layers) - len(layers)) > 0:
        notes.append(f"{count_of(merged, 'entries')} merged: each has the name and the average of another")
    if raw.iterations == 1:
        notes.append("count is 1: times are of a single iteration, as trtexec of the 8.4 era profiled CUDA graphs")
    if total_ms == 0:
        notes.append("all times are 0: no percentages")
    lost = sum(layer.total_ms is None or layer.average_ms is None for layer in layers)
    if lost and total_ms != 0:
        notes.append(f"{count_of(lost, 'layers')} with a time that is nan or inf, which the sums leave out")
    if raw.strange:
        notes.append(
            f"{count_of(raw.strange, 'names')} with quotes or backslashes, which trtexec does not escape; read as they "
            "stand"
        )
    if negative := sum((time or 0.0) < 0 for layer in layers for time in (layer.total_ms, layer.average_ms)):
        notes.append(f"{count_of(negative, 'times')} below zero, which no clock gives: the figures contain them")
    return tuple(notes)
