"""Read times from JSON that another script made of trtexec's files, by known keys and units.

Only nested dictionaries are searched, and only keys of the tables below are times. Anything else is refused, with the
keys that the file has.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from enginebench.core.errors import ParseError
from enginebench.core.text import name_type

# Milliseconds in one of a unit, which is the last word of a key, or the text beside a key of `UNIT_KEYS`.
UNITS_MS = {
    **dict.fromkeys(("ns", "nsec", "nanos", "nanosecond", "nanoseconds"), 1e-6),
    **dict.fromkeys(("us", "µs", "μs", "usec", "micros", "microsecond", "microseconds"), 1e-3),
    **dict.fromkeys(("ms", "msec", "millis", "millisecond", "milliseconds"), 1.0),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1e3),
}
# Units that may follow a word without a separator ("latencyms"); "s" may not, since "times" is a plural.
_GLUED = ("ns", "us", "ms")
UNIT_KEYS = ("unit", "units", "time_unit", "timeUnit")
# Dictionaries inside of one another that are opened: scripts nest by model, precision and run.
MOST_DEPTH = 6
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-zµμ0-9]+")
# A key that numbers its entry: "0", "iteration_12". Others end in a number, too, and number nothing: "fp16", "batch8".
_NUMBERED = re.compile(r"((?:iter|iteration|query|entry|inference)?[ _-]?)(\d{1,18})", re.IGNORECASE)
# A key that is longer than this names no time.
_LONGEST_KEY = 80


class TimeKey(NamedTuple):
    """A key taken apart: what it names, in small letters without separators, and milliseconds in one of its unit."""

    name: str
    unit_ms: float | None  # None: it has no unit


class JsonNode(NamedTuple):
    """A value in nested dictionaries: `location` as in `$.run.times`, its own key, and the unit stated around it."""

    location: str
    key: str
    value: Any
    unit_ms: float | None


def read_time_key(key: str, names: Mapping[str, object]) -> TimeKey | None:
    """Read `latency_us` as `latency` in microseconds; None if it names none of `names`."""
    words = [word.lower() for word in _WORD.findall(key[:_LONGEST_KEY])]
    if words and words[-1] in UNITS_MS and (name := "".join(words[:-1])) in names:
        return TimeKey(name, UNITS_MS[words[-1]])
    if (whole := "".join(words)) in names:
        return TimeKey(whole, None)
    return next((TimeKey(whole[:-2], UNITS_MS[u]) for u in _GLUED if whole.endswith(u) and whole[:-2] in names), None)


def choose_time_keys(keys: Sequence[str], names: Mapping[str, str]) -> dict[str, tuple[str, float | None]]:
    """Return {meaning: (key, milliseconds in one of its unit)}; of several keys the one whose name is first in
    `names`."""
    order = list(names)
    matches = [
        (order.index(time_key.name), key, time_key)
        for key in keys
        if (time_key := read_time_key(key, names)) is not None
    ]
    chosen: dict[str, tuple[str, float | None]] = {}
    for _, key, time_key in sorted(matches, key=lambda item: item[0]):
        chosen.setdefault(names[time_key.name], (key, time_key.unit_ms))
    return chosen


def list_json_nodes(document: Any, path: Path) -> Iterator[JsonNode]:
    """Yield the document, and every value in its nested dictionaries, outer ones first.

    Raises:
        ParseError: a unit is stated that is not known.
    """
    stack = [(JsonNode("$", "", document, None), 0)]
    while stack:
        node, depth = stack.pop()
        if isinstance(node.value, dict):
            node = node._replace(unit_ms=_read_unit(node, path))
            if depth < MOST_DEPTH:
                inner = [
                    JsonNode(f"{node.location}.{key[:40]}", key, value, node.unit_ms)
                    for key, value in node.value.items()
                ]
                stack += [(child, depth + 1) for child in reversed(inner) if isinstance(child.value, dict | list)]
        yield node


def _read_unit(node: JsonNode, path: Path) -> float | None:
    """Return the milliseconds in one of the unit that a dictionary states for its times, else of the one stated around
    it."""
    for key in UNIT_KEYS:
        if isinstance(text := node.value.get(key), str):
            if text.lower() not in UNITS_MS:
                raise ParseError(path, f"{node.location}.{key}", f"the unit {text[:40]!r}", "ns, us, ms or s")
            return UNITS_MS[text.lower()]
    return node.unit_ms


def list_numbered(value: Any) -> list[Any] | None:
    """Return the entries of a dictionary whose keys number them without a gap, in that order; else None.

    Numbers with gaps are something else: batch sizes, or percentiles.
    """
    if not isinstance(value, dict) or not value:
        return None
    matches = [_NUMBERED.fullmatch(key) for key in value]
    numbered = {int(match[2]): entry for match, entry in zip(matches, value.values(), strict=True) if match}
    prefixes = {match[1] for match in matches if match}
    if len(numbered) < len(value) or len(prefixes) > 1 or max(numbered) - min(numbered) >= len(numbered):
        return None
    return [numbered[number] for number in sorted(numbered)]


def flatten_entry(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Flatten the dictionaries in an entry: `{"latency": {"ms": 1}}` becomes `{"latency_ms": 1}`."""
    flat: dict[str, object] = {}
    for key, value in entry.items():
        flat |= {f"{key}_{name}": item for name, item in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def is_time(value: Any) -> bool:
    """Whether a value can be a time: a number, or null, which was nan or inf."""
    return isinstance(value, int | float | None) and not isinstance(value, bool)


def read_time_value(value: Any, location: str, path: Path, unit_ms: float = 1.0) -> float | None:
    """Return the time in ms; None for null, which was nan or inf, and for what is too large for a float."""
    if not is_time(value):
        raise ParseError(path, location, f"{name_type(value)}", "a number")
    try:
        time_ms = None if value is None else float(value) * unit_ms
    except OverflowError:
        return None
    return time_ms if time_ms is not None and math.isfinite(time_ms) else None


def read_column(
    entries: Sequence[Mapping[str, Any]], key: str, unit_ms: float, location: str, path: Path
) -> NDArray[np.float64]:
    """Return the times of one key of all entries, in ms.

    Raises:
        ParseError: an entry lacks the key, or has no number there.
    """
    for index, entry in enumerate(entries):
        if key not in entry:
            there = ", ".join(entry)[:200] or "none"
            raise ParseError(
                path, f"{location}, entry {index}", f"no key {key} (keys there: {there})", "the keys of the first"
            )
    numbers = [
        read_time_value(entry[key], f"{location}, entry {i}, key {key}", path) for i, entry in enumerate(entries)
    ]
    return np.array(numbers, np.float64) * unit_ms


def note_units(bare: Sequence[str]) -> tuple[str, ...]:
    """Note keys that have no unit."""
    return (f"no unit in {', '.join(bare)}: read as ms, the unit of trtexec",) if bare else ()


def note_others(chosen: str, locations: Sequence[str], what: str) -> tuple[str, ...]:
    """Note what else a file holds, beside the source of the figures."""
    others = [location for location in locations if location != chosen]
    return (f"other {what} in this file: figures are of {chosen}, not of {', '.join(others)[:200]}",) if others else ()
