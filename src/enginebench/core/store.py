"""Records as files: atomic writes, reads that name file and field, and upgrades of older schemas."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from enginebench.core.errors import ArtifactError, ParseError
from enginebench.core.records import RESULT_SCHEMA, FileHash, Result

R = TypeVar("R", bound=msgspec.Struct)

# Older result schemas, each with the function that makes the next one of it.
# History: 1 (0.1.0) is the first.
UPGRADES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {}


def encode(record: msgspec.Struct, indent: int = 0) -> bytes:
    """The record as JSON bytes."""
    data = msgspec.json.encode(record)
    return msgspec.json.format(data, indent=indent) if indent else data


def write_atomic(path: Path, data: bytes) -> None:
    """Writes `data` to `path` so that a reader, or a kill, sees the old file or the new one, never half of it.

    Raises:
        ArtifactError: the folder is read-only, the disk is full, or similar; the old file is untouched.
    """
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:60]}.", suffix=".tmp")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o666 & ~_umask())
        Path(temporary).replace(path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        reason = error.strerror or error
        raise ArtifactError(f"cannot write {path}: {reason}. Free space or choose another --out") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_record(path: Path, kind: type[R]) -> R:
    """The record of `kind` stored in `path`.

    Raises:
        ParseError: the file is missing, empty, no JSON, or a field has the wrong type; names file and field.
    """
    data = _read_bytes(path)
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise _explain(path, error, kind.__name__) from error


def read_result(path: Path) -> Result:
    """The row stored in `path`, upgraded if an older version wrote it.

    Raises:
        ParseError: it is not a result, it is damaged, or a newer version wrote it; names file and field.
    """
    data = _read_bytes(path)
    schema = _read_schema(path, data)
    if schema == RESULT_SCHEMA:
        return read_record(path, Result)
    if schema not in UPGRADES:
        raise ParseError(
            path,
            "$.schema",
            repr(schema),
            f"{RESULT_SCHEMA!r} or older",
            "Was it written by a newer version? Upgrade enginebench",
        )
    document: dict[str, Any] = json.loads(data)
    while schema in UPGRADES:
        document = UPGRADES[schema](document)
        schema = str(document["schema"])
    try:
        return msgspec.convert(document, Result)
    except msgspec.ValidationError as error:
        raise _explain(path, error, "Result") from error


class _Head(msgspec.Struct):
    schema: str


def _read_schema(path: Path, data: bytes) -> str:
    try:
        return msgspec.json.decode(data, type=_Head).schema
    except msgspec.DecodeError as error:
        raise _explain(path, error, "a JSON document with a field `schema`") from error


def _read_bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ParseError(path, "", f"no readable file ({error.strerror})", "a JSON file") from error
    if not data:
        raise ParseError(path, "", "an empty file", "a JSON document")
    return data


def _explain(path: Path, error: Exception, expected: str) -> ParseError:
    text, _, where = str(error).partition(" - at `")
    found = text if text[:2].isupper() else text[0].lower() + text[1:]
    return ParseError(path, where.rstrip("`"), found, expected)


def hash_file(path: Path) -> str:
    """The SHA-256 of a file, as 64 hex digits; read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def hash_files(paths: list[Path], base: Path) -> tuple[str, tuple[FileHash, ...]]:
    """(hash over all, one entry each); paths are stored relative to `base` where they lie inside it."""
    entries = []
    for path in paths:
        name = str(path.relative_to(base)) if path.is_relative_to(base) else path.name
        entries.append(FileHash(path=name, sha256=hash_file(path), size_bytes=path.stat().st_size))
    if len(entries) == 1:
        return entries[0].sha256, tuple(entries)
    joined = "\n".join(f"{e.sha256}  {e.path}" for e in entries)
    return hashlib.sha256(joined.encode()).hexdigest(), tuple(entries)
