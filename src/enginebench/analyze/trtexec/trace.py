"""`read_trace`: a timing file as columns, whatever its layout, in bounded memory.

The layout of trtexec is decoded in pieces with types, so that a million queries need neither a second nor a
gigabyte; anything else is searched for its iterations.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from enginebench.analyze.trtexec import keys
from enginebench.analyze.trtexec.keys import KeyMeaning, Quantity, read_key
from enginebench.analyze.trtexec.source import decode_json, decode_text, guess_encoding, open_bytes
from enginebench.core.errors import ParseError
from enginebench.core.store import DECODE_ERRORS

Column = NDArray[np.float64]

# Bytes decoded at a time: large enough that the cost of a piece vanishes, small enough that its objects stay in the
# cache of a core (4 MB took a third longer).
_PIECE = 128 << 10
# A single entry of trtexec has about 280 bytes; one that is longer than this is no entry.
_MAX_ENTRY = 1 << 16
# Layouts other than trtexec's are decoded as a whole, which takes about ten times their size in memory.
_MAX_OTHER = 64 << 20
_LARGEST = float(np.finfo(np.float32).max)
_SPACE = b" \t\r\n"
_HEAD = re.compile(rb"\s*(?:\{\s*\"[^\"\\]{0,80}\"\s*:\s*){0,8}\[\s*(?=\{)")
_NONFINITE = re.compile(rb"(:\s*)[-+]?(?:nan|inf)(?:\([a-z]{0,8}\))?(?=\s*[,}])", re.IGNORECASE)
# Layers of a profile have times, too; they are no queries.
_PROFILE_KEYS = ("averageMs", "percentage")
# How many keys must be trtexec's own before a missing one is called renamed rather than never there.
_OWN_KEYS = 6


@dataclass(frozen=True)
class Trace:
    """Columns of a timing file in ms, one value a query, nan where the file says nan or inf."""

    columns: dict[Quantity, Column]
    layout: str  # "trtexec", "trtexec<=8.2", or where the iterations were found
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))


def read_trace(path: Path) -> Trace:
    """The queries of the timing file `path`, at least one.

    Raises:
        ParseError: it cannot be read, is damaged (names the byte), or lacks a key (names it and those found).
    """
    return read_trace_bytes(open_bytes(path), path)


def read_trace_bytes(data: bytes | mmap.mmap, path: Path) -> Trace:
    """As `read_trace`, from bytes; `path` is only named."""
    if guess_encoding(data[:400]) != "utf-8":
        data = decode_text(bytes(data)).encode()
    head = _HEAD.match(data)
    if head is not None:
        end = data.find(b"}", head.end(), head.end() + _MAX_ENTRY)
        first = bytes(data[head.end() : end + 1]) if end >= 0 else b""
        if first.count(b"{") == 1:
            fields = choose_fields(first, path)
            if fields is not None:
                columns = decode_columns(data, head.end(), fields, path)
                return check_range(make_trace(columns, fields), path)
    return check_range(search_trace(bytes(data[: _MAX_OTHER + 1]), path), path)


def check_range(trace: Trace, path: Path) -> Trace:
    """The trace, if every time in it could have been one: trtexec keeps times in 32-bit floats."""
    for quantity, column in trace.columns.items():
        beyond = np.flatnonzero(np.abs(column) > _LARGEST)
        if len(beyond):
            found = f"{quantity} of {column[beyond[0]]:g} ms"
            raise ParseError(path, f"entry {beyond[0]}", found, "a time that a 32-bit float holds")
    return trace


def choose_fields(first: bytes, path: Path) -> dict[str, KeyMeaning] | None:
    """key -> meaning for the keys of the first entry that matter; None when it is no timing entry.

    Raises:
        ParseError: it is trtexec's layout and a key that belongs to it is missing.
    """
    try:
        entry = msgspec.json.decode(_NONFINITE.sub(rb"\1null", first))
    except DECODE_ERRORS:
        return None
    found = [key for key, value in entry.items() if isinstance(value, int | float | None)]
    if any(key in entry for key in _PROFILE_KEYS):
        return None
    for names, optional, own in (
        (keys.CURRENT, keys.CURRENT_OPTIONAL, keys.CURRENT_KEYS),
        (keys.OLD, keys.OLD_OPTIONAL, keys.OLD_KEYS),
    ):
        if "inMs" in found and own is keys.CURRENT_KEYS:
            continue
        if len(own & set(found)) >= _OWN_KEYS:
            require_keys(names, found, path)
            pairs = [*names.items(), *((q, k) for q, k in optional.items() if k in found)]
            return {key: KeyMeaning(quantity, 1.0, True) for quantity, key in pairs}
    meanings = {key: meaning for key in found if (meaning := read_key((key,))) and key.isidentifier()}
    return drop_repeated(meanings) if any(m.quantity in ("latency", "compute") for m in meanings.values()) else None


def require_keys(names: dict[Quantity, str], found: list[str], path: Path) -> None:
    """Raises a ParseError that names the keys of trtexec's layout that are missing, and those that are there."""
    missing = [key for key in names.values() if key not in found]
    if missing:
        raise ParseError(
            path,
            "entry 0",
            f"no key {', '.join(missing)} (keys there: {', '.join(found)[:400]})",
            f"the keys {', '.join(names.values())}",
            "A newer trtexec may have renamed it",
        )


def drop_repeated(meanings: dict[str, KeyMeaning]) -> dict[str, KeyMeaning]:
    """The first key of each quantity."""
    kept: dict[str, KeyMeaning] = {}
    for key, meaning in meanings.items():
        if meaning.quantity not in [other.quantity for other in kept.values()]:
            kept[key] = meaning
    return kept


def decode_columns(
    data: bytes | mmap.mmap, start: int, fields: dict[str, KeyMeaning], path: Path
) -> dict[str, list[Column]]:
    """key -> pieces of its column, from the array of entries whose first begins at byte `start`."""
    names = list(fields)
    attributes = [f"f{index}" for index in range(len(names))]
    entry = msgspec.defstruct(
        "Entry", [(a, float) for a in attributes], rename=dict(zip(attributes, names, strict=True)), gc=False
    )
    decoder = msgspec.json.Decoder(list[entry])  # type: ignore[valid-type]
    columns: dict[str, list[Column]] = {name: [] for name in names}
    count = 0
    for position, piece in split_entries(data, start, path):
        try:
            entries: list[Any] = decoder.decode(b"[%b]" % piece)
        except DECODE_ERRORS as error:
            entries = decode_nonfinite(piece, attributes, names, error, (path, position, count))
        for name, attribute in zip(names, attributes, strict=True):
            columns[name].append(np.fromiter(map(attrgetter(attribute), entries), np.float64, len(entries)))
        count += len(entries)
    return columns


def split_entries(data: bytes | mmap.mmap, start: int, path: Path) -> Iterator[tuple[int, bytes]]:
    """(position, entries with commas between them) until the array closes; checks what stands around it."""
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
            check_frame(data, start, stop, path)
            return
        if data[position : position + 1] != b",":
            raise explain_end(data, position, path)
        position = skip_space(data, position + 1)


def skip_space(data: bytes | mmap.mmap, position: int) -> int:
    """The position of the next byte that is not white space, or the end."""
    while position < len(data) and data[position : position + 1] in _SPACE:
        position += 1
    return position


def explain_end(data: bytes | mmap.mmap, position: int, path: Path) -> ParseError:
    """Why the array of entries does not go on at `position`."""
    if position >= len(data):
        return ParseError(
            path,
            f"byte {len(data)}",
            "the end of the file inside the list of queries",
            "a closing ']'",
            "The file is cut: trtexec was killed, or the copy is incomplete",
        )
    found = bytes(data[position : position + 20])
    return ParseError(path, f"byte {position}", repr(found.decode("utf-8", "replace")), "',' or ']' after an entry")


def check_frame(data: bytes | mmap.mmap, start: int, stop: int, path: Path) -> None:
    """Raises a ParseError unless what stands around the list of queries, data[start:stop], is JSON."""
    frame = bytes(data[:start]) + bytes(data[stop : stop + _MAX_OTHER])
    try:
        msgspec.json.decode(frame)
    except DECODE_ERRORS as error:
        raise ParseError(path, f"byte {stop + 1}", f"{error}", "the end of the file after the queries") from error


def decode_nonfinite(
    piece: bytes, attributes: list[str], names: list[str], error: Exception, place: tuple[Path, int, int]
) -> list[Any]:
    """The entries of a piece in which trtexec wrote nan or inf, which are no JSON; as nan.

    Raises:
        ParseError: that is not what is wrong with it.
    """
    path, position, count = place
    cleaned, replaced = _NONFINITE.subn(rb"\1null", piece)
    entry = msgspec.defstruct(
        "NonfiniteEntry",
        [(attribute, float | None) for attribute in attributes],
        rename=dict(zip(attributes, names, strict=True)),
    )
    try:
        if not replaced:
            raise error
        entries: list[Any] = msgspec.json.decode(b"[%b]" % cleaned, type=list[entry])  # type: ignore[valid-type]
    except DECODE_ERRORS as cause:
        raise explain_entry(cause, path, position, count) from cause
    for item in entries:
        for attribute in attributes:
            if getattr(item, attribute) is None:
                setattr(item, attribute, np.nan)
    return entries


def explain_entry(error: Exception, path: Path, position: int, count: int) -> ParseError:
    """A decoder's complaint about one piece, placed in the file."""
    text, _, where = str(error).partition(" - at `")
    if byte := re.search(r"\(byte (\d+)\)", text):
        place = f"byte {position + int(byte[1]) - 1}"
    elif item := re.match(r"\$\[(\d+)\]\.?(.*?)`", where):
        place = f"entry {count + int(item[1])}" + (f", key {item[2]}" if item[2] else "")
    else:
        place = f"after byte {position}"
    return ParseError(path, place, text[0].lower() + text[1:], "an entry with the keys of the first one")


def make_trace(columns: dict[str, list[Column]], fields: dict[str, KeyMeaning]) -> Trace:
    """The trace of the decoded pieces, in ms."""
    arrays: dict[Quantity, Column] = {}
    for key, meaning in fields.items():
        column = np.concatenate(columns[key])
        arrays[meaning.quantity] = column if meaning.scale_ms == 1.0 else column * meaning.scale_ms
    own = set(fields) & (keys.CURRENT_KEYS | keys.OLD_KEYS)
    if len(own) >= _OWN_KEYS:
        layout = "trtexec<=8.2" if "inMs" in fields else "trtexec"
        return Trace(arrays, layout)
    return Trace(complete_latency(arrays), "list of entries", (*note_units(fields), *note_sum(arrays)))


def note_units(fields: dict[str, KeyMeaning]) -> tuple[str, ...]:
    """A note for keys that do not say their unit."""
    bare = [key for key, meaning in fields.items() if not meaning.unit_given]
    return (f"no unit in {', '.join(bare)}: read as ms, the unit of trtexec",) if bare else ()


def complete_latency(columns: dict[Quantity, Column]) -> dict[Quantity, Column]:
    """The columns with a latency: the sum of its parts, or the compute time alone, where the file has none.

    Source: latency = h2d + compute + d2h, InferenceTime::latency in samples/common/sampleReporting.h.
    """
    if "latency" in columns:
        return columns
    parts: list[Quantity] = ["h2d", "compute", "d2h"]
    present = [columns[part] for part in parts if part in columns]
    return {**columns, "latency": np.sum(present, axis=0)}


def note_sum(columns: dict[Quantity, Column]) -> tuple[str, ...]:
    """A note where the latency is made of its parts, which may not be all of them."""
    if "latency" in columns:
        return ()
    parts = [part for part in ("h2d", "compute", "d2h") if part in columns]
    return (f"no key for the latency: it is {' + '.join(parts)}, which is all that the file has of it",)


def note_others(chosen: str, found: list[str]) -> tuple[str, ...]:
    """A note where a document holds more than one trace."""
    # A column is found once more by itself, inside its table. A hundred say enough of a file full of traces.
    found = found[:100]
    whole = [where for where in found if not any(where.startswith(f"{outer}.") for outer in found)]
    others = [where for where in whole if where != chosen and not chosen.startswith(f"{where}.")]
    if not others:
        return ()
    return (f"other traces in this file: figures are of {chosen}, not of {', '.join(others)[:200]}",)


def search_trace(data: bytes, path: Path) -> Trace:
    """The iterations somewhere in a JSON document: a list of entries, a table of lists, entries by number, or numbers.

    Raises:
        ParseError: it is no JSON, too large for this, or holds nothing that looks like a timing.
    """
    if len(data) > _MAX_OTHER:
        raise ParseError(path, "byte 0", "a large file that is no list of queries", "the layout of --exportTimes")
    try:
        document = decode_json(bytes(data).decode())
    except DECODE_ERRORS as error:
        raise explain_document(error, path, data) from error
    candidates = list(find_tables(document))
    if not candidates:
        raise ParseError(
            path,
            "$",
            f"no iteration times (keys there: {', '.join(list_keys(document)) or 'none'})",
            "a list of queries with latencyMs, as --exportTimes writes it",
            "Is it a profile, a layer file, or the JSON of another tool?",
        )
    where, table = max(candidates, key=lambda candidate: len(next(iter(candidate[1].values()))))
    meanings = {key: meaning for key in table if (meaning := read_key(key))}
    columns = {meaning.quantity: to_column(table[key], meaning, key, path) for key, meaning in meanings.items()}
    check_lengths(columns, where, path)
    notes = (
        *note_units({".".join(key): meaning for key, meaning in meanings.items()}),
        *note_sum(columns),
        *note_others(where, [place for place, _ in candidates]),
    )
    return Trace(complete_latency(columns), where, notes)


def explain_document(error: Exception, path: Path, data: bytes) -> ParseError:
    """A decoder's complaint about a whole document."""
    text = str(error)
    byte = re.search(r"\(byte (\d+)\)", text)
    if "truncated" in text:
        return ParseError(path, f"byte {len(data)}", "the end of the file inside the JSON", "a whole JSON document")
    return ParseError(path, f"byte {byte[1]}" if byte else "", text, "a JSON document")


Table = dict[tuple[str, ...], list[Any]]


def find_tables(document: Any) -> Iterator[tuple[str, Table]]:
    """(where, key path -> values) of everything in the document that could be a trace."""
    stack: list[tuple[tuple[str, ...], Any]] = [((), document)]
    while stack:
        path, node = stack.pop()
        table = tabulate(path, node)
        if table:
            yield "$" + "".join(f".{part}" for part in path), table
        children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, child in children:
            if isinstance(child, dict | list) and len(path) < 100:
                stack.append(((*path, str(key)), child))


def tabulate(path: tuple[str, ...], node: Any) -> Table | None:
    """`node` as a table of times, if it is a list or dictionary of entries, of numbers, or of columns."""
    if isinstance(node, list) and is_numbers(node):
        named = tuple(part for part in path if not part.isdigit()) or ("times",)
        return {named: node} if read_key(named) else None
    if isinstance(node, dict) and any(isinstance(value, list) for value in node.values()):
        columns: Table = {(*path, key): value for key, value in node.items() if is_numbers(value) and read_key((key,))}
        return keep_latency(columns)
    entries = list(node.values()) if isinstance(node, dict) else node if isinstance(node, list) else []
    if not entries or not all(isinstance(entry, dict) for entry in entries):
        return None
    if any(key in entry for entry in entries for key in _PROFILE_KEYS):
        return None
    flat = [flatten_entry(entry) for entry in entries]
    shared = [key for key in flat[0] if read_key(key) and all(key in entry for entry in flat)]
    return keep_latency({key: [entry[key] for entry in flat] for key in shared})


def is_numbers(value: Any) -> bool:
    """Whether it is a list of numbers (None stands for nan and inf)."""
    return (
        isinstance(value, list)
        and any(item is not None for item in value)
        and all(isinstance(item, int | float | None) and not isinstance(item, bool) for item in value)
    )


def keep_latency(table: Table) -> Table | None:
    """The table with the first key of each quantity, if it says how long a query took."""
    kept: Table = {}
    seen: set[Quantity] = set()
    for key, values in table.items():
        meaning = read_key(key)
        if meaning and meaning.quantity not in seen:
            seen.add(meaning.quantity)
            kept[key] = values
    return kept if seen & {"latency", "compute"} else None


def flatten_entry(entry: dict[str, Any]) -> dict[tuple[str, ...], float | None]:
    """The numbers of an entry and of the dictionaries in it, by key path."""
    flat: dict[tuple[str, ...], float | None] = {}
    for key, value in entry.items():
        if isinstance(value, dict):
            for inner, number in value.items():
                if isinstance(number, int | float | None) and not isinstance(number, bool):
                    flat[key, inner] = number
        elif isinstance(value, int | float | None) and not isinstance(value, bool):
            flat[(key,)] = value
    return flat


def to_column(values: list[Any], meaning: KeyMeaning, key: tuple[str, ...], path: Path) -> Column:
    """The values in ms."""
    try:
        return np.array(values, dtype=np.float64) * meaning.scale_ms
    except (TypeError, ValueError, OverflowError) as error:
        raise ParseError(path, f"$.{'.'.join(key)}", str(error), "a list of numbers") from error


def check_lengths(columns: dict[Quantity, Column], where: str, path: Path) -> None:
    """Raises a ParseError when columns have different lengths."""
    lengths = {quantity: len(column) for quantity, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ParseError(path, where, f"columns of lengths {lengths}", "one value a query in each")


def list_keys(document: Any) -> list[str]:
    """Up to twenty keys of the outer levels of a document, for messages."""
    found: list[str] = []
    level = [document]
    for _ in range(3):
        inner: list[Any] = []
        for node in level[:20]:
            if isinstance(node, dict):
                found += [key[:40] for key in node if key[:40] not in found][:20]
                inner += list(node.values())[:20]
            elif isinstance(node, list):
                inner += node[:3]
        level = inner
    return found[:20]
