"""`read_trace`: read a timing file of trtexec 8 to 11 as columns, in bounded memory.

It is decoded in pieces with types, so that a million queries need neither a second nor a gigabyte. A file that another
script wrapped is decoded as a whole (`other_times.py`).
"""

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from json import detect_encoding
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from enginebench.core.errors import ParseError
from enginebench.core.store import DECODE_ERRORS, parsing
from enginebench.features.trtexec.other_times import Column, read_other_times
from enginebench.features.trtexec.records import Quantity
from enginebench.stats.plans.source import decode_json, decode_text, explain_json, explain_keys, open_bytes

# trtexec's own names. 8.2 and older wrote In and Out for H2d and D2h.
# Source: exportJSONTrace in samples/common/sampleReporting.cpp, tags 8.0 to 11.1.
CURRENT: dict[Quantity, str] = {
    "start_enqueue": "startEnqMs",
    "end_enqueue": "endEnqMs",
    "start_h2d": "startH2dMs",
    "start_compute": "startComputeMs",
    "end_d2h": "endD2hMs",
    "h2d": "h2dMs",
    "compute": "computeMs",
    "d2h": "d2hMs",
    "latency": "latencyMs",
}
CURRENT_OPTIONAL: dict[Quantity, str] = {"end_to_end": "endToEndMs"}
_ENQUEUE = {quantity: key for quantity, key in CURRENT.items() if "enqueue" in quantity}
_RENAMED: dict[Quantity, str] = {"start_h2d": "startInMs", "end_d2h": "endOutMs", "h2d": "inMs", "d2h": "outMs"}
OLD = {quantity: key for quantity, key in (CURRENT | _RENAMED).items() if quantity not in _ENQUEUE}
OLD_OPTIONAL = _ENQUEUE | CURRENT_OPTIONAL
CURRENT_KEYS = frozenset({*CURRENT.values(), "endH2dMs", "endComputeMs", "startD2hMs", "endToEndMs"})
OLD_KEYS = frozenset({*OLD.values(), *OLD_OPTIONAL.values(), "endInMs", "endComputeMs", "startOutMs"})

# Bytes decoded at a time: large enough that the cost of a piece vanishes, small enough that its objects stay in the
# cache of a core (4 MB took a third longer).
_PIECE = 128 << 10
# A single entry of trtexec has about 280 bytes; one that is longer than this is no entry.
_MAX_ENTRY = 1 << 16
# What another script wrote is decoded as a whole, which takes about ten times its size in memory.
_MAX_OTHER = 64 << 20
_LARGEST = float(np.finfo(np.float32).max)
_SPACE = b" \t\r\n"
_HEAD = re.compile(rb"\s*\[\s*(?=\{)")
_NONFINITE = re.compile(rb"(:\s*)[-+]?(?:nan|inf)(?:\([a-z]{0,8}\))?(?=\s*[,}])", re.IGNORECASE)
# How many keys must be trtexec's own before a missing one is called renamed, and not the file another one.
_OWN_KEYS = 6


@dataclass(frozen=True)
class Trace:
    """Columns of a timing file in ms, one value a query, nan where the file has nan or inf."""

    columns: dict[Quantity, Column]
    layout: str  # "trtexec", "trtexec<=8.2", or where another script put the queries: "$.run.times"
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


def read_trace(path: Path) -> Trace:
    """Read the queries of the timing file `path`, at least one."""
    return read_trace_bytes(open_bytes(path), path)


def read_trace_bytes(data: bytes | mmap.mmap, path: Path) -> Trace:
    """Read a trace from bytes, as `read_trace` does; `path` is only named."""
    if detect_encoding(data[:4]) != "utf-8":
        data = decode_text(bytes(data)).encode()
    head = _HEAD.match(data)
    end = data.find(b"}", head.end(), head.end() + _MAX_ENTRY) if head else -1
    fields = choose_fields(bytes(data[head.end() : end + 1]), path) if head and end >= 0 else None
    if head is None or fields is None:
        other = read_other_times(decode_other(bytes(data[: _MAX_OTHER + 1]), path), path)
        return check_range(Trace(other.columns, other.location, other.notes), path)
    columns = decode_columns(data, head.end(), list(fields), path)
    layout = "trtexec<=8.2" if "inMs" in fields else "trtexec"
    return check_range(Trace({q: np.concatenate(columns[key]) for key, q in fields.items()}, layout), path)


def check_range(trace: Trace, path: Path) -> Trace:
    """Return the trace, if every time in it is possible: trtexec keeps times in 32-bit floats."""
    for quantity, column in trace.columns.items():
        beyond = np.flatnonzero(np.abs(column) > _LARGEST)
        if len(beyond):
            actual = f"{quantity} of {column[beyond[0]]:g} ms"
            raise ParseError(path, f"entry {beyond[0]}", actual, "a time that a 32-bit float holds")
    return trace


def choose_fields(first: bytes, path: Path) -> dict[str, Quantity] | None:
    """Return key -> quantity for the relevant keys of the first entry; None if it is no timing entry."""
    try:
        entry = msgspec.json.decode(_NONFINITE.sub(rb"\1null", first))
    except DECODE_ERRORS:
        return None
    keys = [key for key, value in entry.items() if isinstance(value, int | float | None)]
    old = "inMs" in keys
    names, optional, own = (OLD, OLD_OPTIONAL, OLD_KEYS) if old else (CURRENT, CURRENT_OPTIONAL, CURRENT_KEYS)
    if len(own & set(keys)) < _OWN_KEYS:
        return None
    if missing := [key for key in names.values() if key not in keys]:
        raise explain_keys(path, "entry 0", ", ".join(missing), keys, f"the keys {', '.join(names.values())}")
    return {key: quantity for quantity, key in (names | optional).items() if key in keys}


def decode_columns(data: bytes | mmap.mmap, start: int, names: list[str], path: Path) -> dict[str, list[Column]]:
    """Return key -> pieces of its column, from the array of entries whose first begins at byte `start`."""
    attributes = [f"f{index}" for index in range(len(names))]
    kinds = [[(a, kind) for a in attributes] for kind in (float, float | None)]
    keys = dict(zip(attributes, names, strict=True))
    entry, loose = (msgspec.defstruct("Entry", kind, rename=keys, gc=False) for kind in kinds)
    decoder = msgspec.json.Decoder(list[entry])  # type: ignore[valid-type]
    columns: dict[str, list[Column]] = {name: [] for name in names}
    count = 0
    for position, piece in split_entries(data, start, path):
        try:
            entries: list[Any] = decoder.decode(b"[%b]" % piece)
        except DECODE_ERRORS as error:
            # trtexec wrote nan or inf, which are no JSON: they are read as None.
            cleaned, replaced = _NONFINITE.subn(rb"\1null", piece)
            try:
                if not replaced:
                    raise error
                entries = msgspec.json.decode(b"[%b]" % cleaned, type=list[loose])  # type: ignore[valid-type]
            except DECODE_ERRORS as cause:
                raise explain_entry(cause, path, position, count) from cause
        for name, attribute in zip(names, attributes, strict=True):
            columns[name].append(np.array(list(map(attrgetter(attribute), entries)), np.float64))  # nan of None
        count += len(entries)
    return columns


def split_entries(data: bytes | mmap.mmap, start: int, path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (position, entries with commas between them) until the array closes; check the text around it."""
    # Entries hold numbers only, so the first bracket closes their array.
    stop = data.find(b"]", start)
    if stop < 0:
        raise explain_end(data, len(data), path)
    position = start
    while True:
        end = data.rfind(b"}", position, min(position + _PIECE, stop))
        if end < 0 or data[position : position + 1] != b"{":
            raise explain_end(data, position, path)
        yield position, bytes(data[position : end + 1])
        position = skip_space(data, end + 1)
        if position == stop:
            break
        if data[position : position + 1] != b",":
            raise explain_end(data, position, path)
        position = skip_space(data, position + 1)
    frame = bytes(data[:start]) + bytes(data[stop : stop + _MAX_OTHER])
    with parsing(path, "the end of the file after the queries", where=f"byte {stop + 1}"):
        msgspec.json.decode(frame)


def skip_space(data: bytes | mmap.mmap, position: int) -> int:
    """Return the position of the next byte that is not white space, or the end."""
    while position < len(data) and data[position : position + 1] in _SPACE:
        position += 1
    return position


def explain_end(data: bytes | mmap.mmap, position: int, path: Path) -> ParseError:
    """Make the error for an array of entries that does not continue at `position`."""
    if position >= len(data):
        cut, advice = "the end of the file inside the list of queries", "trtexec was killed, or the copy is incomplete"
        return ParseError(path, f"byte {len(data)}", cut, "a closing ']'", f"The file is cut: {advice}")
    actual = bytes(data[position : position + 20])
    return ParseError(path, f"byte {position}", repr(actual.decode("utf-8", "replace")), "',' or ']' after an entry")


def explain_entry(error: Exception, path: Path, position: int, count: int) -> ParseError:
    """Make the error for a decoder's complaint about one piece, with its place in the file."""
    text, _, where = str(error).partition(" - at `")
    if byte := re.search(r"\(byte (\d+)\)", text):
        location = f"byte {position + int(byte[1]) - 1}"
    elif item := re.match(r"\$\[(\d+)\]\.?(.*?)`", where):
        location = f"entry {count + int(item[1])}" + (f", key {item[2]}" if item[2] else "")
    else:
        location = f"after byte {position}"
    return ParseError(path, location, text[0].lower() + text[1:], "an entry with the keys of the first one")


def decode_other(data: bytes, path: Path) -> Any:
    """Decode a file that is no list of trtexec's own queries as JSON."""
    if len(data) > _MAX_OTHER:
        raise ParseError(path, "byte 0", "a large file that is not a list of queries", "the layout of --exportTimes")
    try:
        return decode_json(data.decode())
    except DECODE_ERRORS as error:
        whole = "whole " if "truncated" in str(error) else ""
        raise explain_json(error, path, len(data), f"a {whole}JSON document") from error
