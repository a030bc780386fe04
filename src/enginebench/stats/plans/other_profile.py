"""Read layer times from JSON that trtexec did not write itself: rewritten by a library, or wrapped by another
script."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from enginebench.core.errors import ParseError
from enginebench.stats.plans.keys import (
    JsonNode,
    choose_time_keys,
    flatten_entry,
    is_time,
    list_json_nodes,
    note_others,
    note_units,
    read_time_key,
    read_time_value,
)
from enginebench.stats.plans.source import list_keys

# What scripts call a layer and its times, in small letters and without a unit. Of two keys for one the first counts.
NAMES = dict.fromkeys(("layername", "layer", "name"), "name")
TIMES = {
    **dict.fromkeys(("total", "totaltime", "time", "layertime", "latency", "duration"), "total"),
    **dict.fromkeys(("average", "averagetime", "avg", "avgtime", "mean", "meantime"), "average"),
    **dict.fromkeys(("median", "mediantime"), "median"),
}
# Under which layers may stand as `{"conv1": 0.5}`, a name and a time and nothing else.
LISTS = dict.fromkeys(("layers", "profile", "layertimes", "layerprofile", "perlayer", "perlayertimes"), "layers")
COUNTS = ("count", "iterations")
EXPECTED = (
    "entries with name, timeMs and averageMs, as --exportProfile writes them, or entries with a name and a time: "
    '{"layers": [{"name": "conv1", "average_ms": 0.5}]}'
)


class RawLayer(NamedTuple):
    """One entry of a profile, in ms; None: not in the file, or nan or inf."""

    name: str
    total_ms: float | None
    average_ms: float | None
    median_ms: float | None


class RawProfile(NamedTuple):
    """The entries in the order of the file; `strange` counts names that are no valid JSON text."""

    iterations: int | None
    layers: list[RawLayer]
    strange: int = 0
    notes: tuple[str, ...] = ()


class LayerTable(NamedTuple):
    """A list of layers in a document: each entry with its location and its name."""

    location: str
    entries: Sequence[tuple[str, str, Mapping[str, Any]]]
    keys: dict[str, tuple[str, float | None]]  # "total", "average", "median" -> (key, milliseconds in one of its unit)


def read_other_profile(document: Any, path: Path) -> RawProfile:
    """Read the layers in a JSON document: of several lists of layers the longest.

    A list whose layers are all in the longest one repeats these; any other is named in a note.

    Raises:
        ParseError: it holds no list of layers with times under known keys, or one that is damaged.
    """
    count = _find_count(document, path)
    tables = [table for node in list_json_nodes(document, path) if (table := _find_table(node, path)) is not None]
    if not tables:
        actual = f"no layer with a name and a time (keys there: {', '.join(list_keys(document)) or 'none'})"
        advice = "Is it a timing file or a layer file? A newer trtexec may have renamed a key"
        raise ParseError(path, "$", actual, EXPECTED, advice)
    chosen = max(tables, key=lambda table: len(table.entries))
    layers = _read_table_layers(chosen, count, path)
    identities, others = {_identify(layer) for layer in layers}, list[str]()
    for table in tables:
        repeated = _read_table_layers(table, count, path) if table is not chosen else []
        if all(_identify(layer) in identities for layer in repeated):
            layers += repeated
        else:
            others.append(table.location)
    bare = [key for key, unit_ms in chosen.keys.values() if unit_ms is None]
    notes = (*note_units(bare), *_note_missing(chosen, count), *note_others(chosen.location, others, "profiles"))
    return RawProfile(count, layers, notes=notes)


def _identify(layer: RawLayer) -> tuple[str, str]:
    """Return the key by which two entries are one layer."""
    return layer.name, repr(layer.average_ms)


def _find_count(document: Any, path: Path) -> int | None:
    """Return the number of profiled iterations: of an entry, as trtexec writes it, or of a dictionary around the
    layers."""
    for node in list_json_nodes(document, path):
        entries = node.value if isinstance(node.value, list) else [node.value]
        for entry in entries:
            if not isinstance(entry, dict):
                continue
            for value in (entry.get(key) for key in COUNTS):
                if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                    return value
    return None


def _find_table(node: JsonNode, path: Path) -> LayerTable | None:
    """Read a value as a list of layers: entries, columns, entries by name, or times by name. None if it is none."""
    value = node.value
    if isinstance(value, list):
        entries = [flatten_entry(entry) if isinstance(entry, dict) else {} for entry in value]
        return _find_entries(node, entries, path)
    if not isinstance(value, dict):
        return None
    lists = {key: column for key, column in value.items() if isinstance(column, list)}
    if "name" in choose_time_keys(list(lists), NAMES) and choose_time_keys(list(lists), TIMES):
        return _find_entries(node, _transpose(node, lists, path), path)
    inner = {name: entry for name, entry in value.items() if name not in COUNTS and not isinstance(entry, str)}
    list_key = read_time_key(node.key, LISTS)
    if inner and list_key is not None and all(is_time(time) for time in inner.values()):
        unit_ms = list_key.unit_ms or node.unit_ms
        timed = [(f"{node.location}.{name[:40]}", name, {"time": time}) for name, time in inner.items()]
        return LayerTable(node.location, timed, {"total": ("time", unit_ms)})
    # One dictionary with times may be anything, such as a summary; several of the same keys are layers.
    if len(inner) < 2 and list_key is None:
        return None
    named = {name: flatten_entry(entry) for name, entry in inner.items() if isinstance(entry, dict)}
    keys = _choose_times(next(iter(named.values()), {}), node)
    if not keys or len(named) < len(inner) or any(choose_time_keys(list(entry), NAMES) for entry in named.values()):
        return None
    if not all(key in entry for entry in named.values() for key, _ in keys.values()):
        return None
    return LayerTable(
        node.location, [(f"{node.location}.{name[:40]}", name, entry) for name, entry in named.items()], keys
    )


def _find_entries(node: JsonNode, entries: Sequence[Mapping[str, Any]], path: Path) -> LayerTable | None:
    """Read a list whose entries have a name and a time as a table; entries with nothing but a count are left out."""
    counted = [(index, entry) for index, entry in enumerate(entries) if not entry or not entry.keys() <= {*COUNTS}]
    first = next((entry for _, entry in counted if choose_time_keys(list(entry), NAMES)), None)
    keys = _choose_times(first, node) if first is not None else {}
    if first is None or not {"total", "average"} & keys.keys():
        return None
    name_key = choose_time_keys(list(first), NAMES)["name"][0]
    for index, entry in counted:
        lacking = [key for key in (name_key, *(key for key, _ in keys.values())) if key not in entry]
        if lacking or not isinstance(entry[name_key], str):
            what = f"no key {', '.join(lacking)}" if lacking else f"a {name_key} that is no text"
            there = ", ".join(entry)[:200] or "none"
            raise ParseError(path, f"{node.location}, entry {index}", f"{what} (keys there: {there})", EXPECTED)
    located = [(f"{node.location}, entry {index}", str(entry[name_key]), entry) for index, entry in counted]
    return LayerTable(node.location, located, keys)


def _choose_times(entry: Mapping[str, Any], node: JsonNode) -> dict[str, tuple[str, float | None]]:
    numbers = [key for key, value in entry.items() if is_time(value)]
    return {time: (key, own or node.unit_ms) for time, (key, own) in choose_time_keys(numbers, TIMES).items()}


def _transpose(node: JsonNode, lists: Mapping[str, Sequence[Any]], path: Path) -> list[Mapping[str, Any]]:
    """Turn columns into entries: `{"name": ["a", "b"], "average_ms": [1, 2]}`."""
    columns = [key for key in lists if choose_time_keys([key], {**NAMES, **TIMES})]
    lengths = {key: len(lists[key]) for key in columns}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{length} of {key}" for key, length in lengths.items())
        raise ParseError(path, node.location, f"columns of different lengths: {counts}", "one value a layer in each")
    return [dict(zip(columns, row, strict=True)) for row in zip(*(lists[key] for key in columns), strict=True)]


def _read_table_layers(table: LayerTable, count: int | None, path: Path) -> list[RawLayer]:
    layers = []
    for location, name, entry in table.entries:
        times = {}
        for time, (key, unit_ms) in table.keys.items():
            times[time] = read_time_value(entry[key], f"{location}, key {key}", path, unit_ms or 1.0)
        total, average = times.get("total"), times.get("average")
        if "total" not in times and average is not None:
            total = average * (count or 1)
        if "average" not in times and total is not None:
            average = total / (count or 1)
        layers.append(RawLayer(name, total, average, times.get("median")))
    return layers


def _note_missing(table: LayerTable, count: int | None) -> tuple[str, ...]:
    """Note totals or averages that the file lacks and no count supplies."""
    if count or {"total", "average"} <= table.keys.keys():
        return ()
    if "average" in table.keys:
        return ("the file has averages only: totals and percentages are those of one iteration",)
    return ("the file has one time a layer and no count of iterations: read as the time of one iteration",)
