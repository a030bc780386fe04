"""Read iteration times that another script wrapped into JSON of its own: lists, columns, numbered entries, other
units."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from enginebench.core.errors import ParseError
from enginebench.features.trtexec.records import Quantity
from enginebench.stats.plans.keys import (
    UNITS_MS,
    choose_time_keys,
    flatten_entry,
    is_time,
    list_json_nodes,
    list_numbered,
    note_others,
    note_units,
    read_column,
    read_time_key,
)
from enginebench.stats.plans.source import list_keys

Column = NDArray[np.float64]

# What scripts around trtexec call its times, in small letters and without a unit. Of two keys for one time the one that
# stands first here counts: an entry with `latency` and `time` may hold a time of day.
_WORDS: dict[Quantity, tuple[str, ...]] = {
    "latency": (
        *("latency", "latencies", "latencytime", "hostlatency", "inferencetime", "inferencetimes", "periteration"),
        *("iterationtime", "iterationtimes", "time", "times", "timing", "timings", "runtime", "runtimes", "duration"),
        *("durations", "elapsed", "elapsedtime", "iterations"),
    ),
    "compute": ("compute", "gpucompute", "gpucomputetime", "computetime", "gputime", "gpulatency"),
    "h2d": ("h2d", "h2dlatency", "h2dtime"),
    "d2h": ("d2h", "d2hlatency", "d2htime"),
    "end_to_end": ("endtoend", "endtoendhostlatency", "endtoendlatency", "e2e"),
    "enqueue": ("enqueue", "enqueuetime", "enq"),
    "start_enqueue": ("startenq", "startenqueue"),
    "end_enqueue": ("endenq", "endenqueue"),
    "start_h2d": ("starth2d",),
    "start_compute": ("startcompute",),
    "end_d2h": ("endd2h",),
}
NAMES: dict[str, Quantity] = {word: quantity for quantity, words in _WORDS.items() for word in words}
# Of which a latency is made where it has no key of its own.
# Source: InferenceTime::latency in samples/common/sampleReporting.h: h2d + compute + d2h.
PARTS: tuple[Quantity, ...] = ("h2d", "compute", "d2h")
# Texts that an entry may hold beside its times. With others, such as a name, it is a layer or a configuration.
_TEXTS = re.compile(r"(?:time_?|start_?|end_?)?(?:stamp|date|time_?of_?day)|units?|time_?unit", re.IGNORECASE)
EXPECTED = (
    'a list of queries with latencyMs, as --exportTimes writes it, or such a list under a key: {"times": [1.5, 1.6]}, '
    '{"perIteration": [{"latency_us": 1500}]}, {"latency_ms": [1.5, 1.6]}'
)


class QueryTable(NamedTuple):
    """A list of queries in a document: its place, its entries, and the key of each time."""

    location: str
    entries: Sequence[Mapping[str, Any]]  # one a query
    keys: dict[str, tuple[str, float | None]]  # quantity -> (key, milliseconds in one of its unit)


class OtherTimes(NamedTuple):
    columns: dict[Quantity, Column]  # in ms
    location: str
    notes: tuple[str, ...]


def read_other_times(document: Any, path: Path) -> OtherTimes:
    """Read the queries in a JSON document that trtexec did not write: of several lists the longest.

    Raises:
        ParseError: it holds no list of times under a known key, or one that is damaged.
    """
    tables = list(_list_query_tables(document, path))
    if not tables:
        actual = f"no iteration times (keys there: {', '.join(list_keys(document)) or 'none'})"
        raise ParseError(path, "$", actual, EXPECTED, "Is it a profile, a layer file, or the JSON of another tool?")
    table = max(tables, key=lambda one: len(one.entries))
    columns: dict[Quantity, Column] = {}
    for quantity in _WORDS:
        if quantity in table.keys:
            key, unit_ms = table.keys[quantity]
            columns[quantity] = read_column(table.entries, key, unit_ms or 1.0, table.location, path)
    notes = [*note_units([key for key, unit_ms in table.keys.values() if unit_ms is None])]
    if "latency" not in columns:
        parts = [part for part in PARTS if part in columns]
        columns["latency"] = np.sum([columns[part] for part in parts], axis=0)
        notes.append(f"no key for the latency: it is {' + '.join(parts)}, which is all that the file has of it")
    notes += note_others(table.location, [one.location for one in tables], "lists of times")
    return OtherTimes(columns, table.location, tuple(notes))


def _list_query_tables(document: Any, path: Path) -> Iterator[QueryTable]:
    """Yield every list of queries in the nested dictionaries of a document."""
    for node in list_json_nodes(document, path):
        named = read_time_key(node.key, NAMES)
        items = node.value if isinstance(node.value, list) else list_numbered(node.value)
        if items and isinstance(items[0], dict):
            entries = [flatten_entry(item) if isinstance(item, dict) else {} for item in items]
            yield from _find_queries(node.location, entries, node.unit_ms)
        elif isinstance(node.value, dict):
            yield from _find_columns(node.location, node.value, node.unit_ms, path)
            # {"times": {"0": 1.5, "1": 1.6}}
            if items and named is not None and is_time(items[0]):
                unit_ms = named.unit_ms or node.unit_ms
                yield QueryTable(
                    node.location, [{node.key: item} for item in items], {NAMES[named.name]: (node.key, unit_ms)}
                )


def _find_queries(location: str, entries: Sequence[Mapping[str, Any]], unit_ms: float | None) -> Iterator[QueryTable]:
    """Yield a table of entries, if they have the time of a query: a latency, or a part of it."""
    if any(isinstance(value, str) and not _TEXTS.fullmatch(key) for key, value in entries[0].items()):
        return
    numbers = [key for key, value in entries[0].items() if is_time(value)]
    keys = {quantity: (key, own or unit_ms) for quantity, (key, own) in choose_time_keys(numbers, NAMES).items()}
    if {"latency", *PARTS} & keys.keys():
        yield QueryTable(location, entries, keys)


def _find_columns(location: str, node: Mapping[str, Any], unit_ms: float | None, path: Path) -> Iterator[QueryTable]:
    """Yield the table of lists of numbers in a dictionary, one for each time: `{"latency_ms": [1, 2], "h2dMs":
    [...]}`."""
    united = {key: value for key, value in node.items() if isinstance(value, dict) and value.keys() <= UNITS_MS.keys()}
    flat = {**node, **flatten_entry(united)}  # {"latency": {"ms": [1, 2]}}
    lists = {key: value for key, value in flat.items() if isinstance(value, list) and value and is_time(value[0])}
    keys = choose_time_keys(list(lists), NAMES)
    if not {"latency", *PARTS} & keys.keys():
        return
    lengths = {key: len(lists[key]) for key, _ in keys.values()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{length} of {key}" for key, length in lengths.items())
        raise ParseError(path, location, f"columns of different lengths: {counts}", "one value a query in each")
    rows = [dict(zip(lengths, row, strict=True)) for row in zip(*(lists[key] for key in lengths), strict=True)]
    at = f"{location}.{next(iter(lengths))}" if len(lengths) == 1 else location
    yield QueryTable(at, rows, {quantity: (key, own or unit_ms) for quantity, (key, own) in keys.items()})
