"""The file of `--targets`: the target of every sample, by its index or its name."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from enginebench.core.array_files import read_array_file
from enginebench.core.errors import ParseError, UsageError
from enginebench.core.store import check_regular, parsing
from enginebench.stats.metrics.metric import Targets

FORMS = "an .npz, .npy, .json, .csv or .txt file with an entry for each sample"
# Heads of the column of a table that names the samples.
NAME_COLUMNS = ("file", "name", "sample", "image")


def read_targets(path: Path) -> Targets:
    """Return the targets, in the order of the file.

    An .npy file has one array; an .npz one, or several by name; a .json a list, an object by sample, or
    {"targets": ..., "vocabulary": [...], "blank": 0}; a .csv a column of targets, and one of file names if it has two;
    a .txt a line for each sample.
    """
    readers: dict[str, Callable[[Path], Targets]] = {
        ".npy": lambda path: Targets(values=next(iter(read_array_file(path, FORMS).values()))),
        ".npz": _read_arrays,
        ".json": _read_json,
        ".csv": _read_csv,
        ".txt": _read_lines,
    }
    read = readers.get(path.suffix.lower())
    if read is None or not path.is_file():
        raise ParseError(path, "", "no such file" if read else f"the ending {path.suffix!r}", FORMS)
    with parsing(path, FORMS, ValueError, TypeError, OSError, EOFError, RecursionError):
        return read(path)


def _read_arrays(path: Path) -> Targets:
    arrays = read_array_file(path, FORMS)
    more = _read_more({name: arrays.pop(name) for name in ("vocabulary", "blank") if name in arrays})
    if not arrays:
        raise ValueError("no array of targets")
    return Targets(values=next(iter(arrays.values())) if len(arrays) == 1 else arrays, **more)


class _More(TypedDict, total=False):
    """The entries of a file beside its targets."""

    vocabulary: tuple[str, ...] | None
    blank: int | None


def _read_more(entries: Mapping[str, Any]) -> _More:
    vocabulary, blank = entries.get("vocabulary"), entries.get("blank", 0)
    words = None if vocabulary is None else tuple(map(str, vocabulary))
    return {"vocabulary": words, "blank": None if blank is None else int(blank)}


def _read_json(path: Path) -> Targets:
    content = json.loads(check_regular(path).read_text(encoding="utf-8"))
    more: _More = {}
    if isinstance(content, dict) and "targets" in content:
        more, content = _read_more(content), content["targets"]
    if isinstance(content, dict):
        return Targets(values=_as_values(list(content.values())), names=tuple(content), **more)
    if not isinstance(content, list):
        raise ValueError(f"a {type(content).__name__}, not a list of targets")
    return Targets(values=_as_values(content), **more)


def _read_csv(path: Path) -> Targets:
    rows = [row for row in csv.reader(io.StringIO(check_regular(path).read_text(encoding="utf-8-sig"))) if row]
    widths = {len(row) for row in rows}
    if widths not in ({1}, {2}):
        raise ValueError(f"rows of {', '.join(map(str, sorted(widths)))} columns; expected one, or a name and a target")
    named = widths == {2}
    head = named and rows[0][0].strip().lower() in NAME_COLUMNS
    head = head or (
        not named and len(rows) > 1 and not _is_number(rows[0][0]) and all(_is_number(r[0]) for r in rows[1:])
    )
    body = rows[1:] if head else rows
    values = _as_values([_read_cell(row[-1]) for row in body])
    return Targets(values=values, names=tuple(row[0].strip() for row in body) if named else None)


def _read_lines(path: Path) -> Targets:
    lines = check_regular(path).read_text(encoding="utf-8-sig").splitlines()
    return Targets(values=_as_values([_read_cell(line) for line in lines]))


def _is_number(text: str) -> bool:
    return not isinstance(_read_cell(text), str)


def _read_cell(text: str) -> str | int | float:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _as_values(entries: Sequence[Any]) -> Any:
    """An array where all entries are numbers of one shape, else the list; where one is text, all are."""
    if any(isinstance(entry, str) for entry in entries):
        return [str(entry) for entry in entries]
    if entries and not any(isinstance(entry, Mapping) for entry in entries):
        with suppress(ValueError):  # shapes that differ
            return np.asarray(entries)
    return list(entries)


def match_targets(targets: Targets, n: int, names: Sequence[str] | None, cut: bool) -> Targets:
    """The targets in the order of the samples, by `names` if these have any; `cut`: there may be more of them."""
    if targets.names is None:
        if names is not None:
            raise UsageError("images are matched with their targets by name; give a .csv of file,target or a .json")
        count = _count(targets)
        if count != n and not (cut and count > n):
            raise UsageError(f"--targets has {count} entries, and there are {n} samples; expected as many")
        return targets.pick(slice(0, n))
    if names is None:
        raise UsageError("--targets names its samples, but these have no names; give the targets in their order")
    indices = {name: i for i, name in enumerate(targets.names)}
    missing = [name for name in names if name not in indices]
    if missing:
        raise UsageError(f"--targets has no entry for {missing[0]!r} ({len(missing)} of {len(names)} samples)")
    return targets.pick(np.array([indices[name] for name in names], np.int64))


def _count(targets: Targets) -> int:
    values = targets.values
    return len(next(iter(values.values()))) if isinstance(values, dict) else len(values)
