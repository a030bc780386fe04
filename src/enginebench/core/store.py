"""Records as files: atomic writes and copies, reads that name file and field, and upgrades of older schemas.

A record of many figures holds them in groups, so that the code can be read in parts; JSON has them one by one, under
the names that its readers know.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, get_args, get_type_hints

import msgspec

from enginebench.core.errors import ArtifactError, EngineBenchError, ParseError, explaining
from enginebench.core.judging import hash_file as hash_file
from enginebench.core.records import RESULT_SCHEMA, Artifact, FileHash, Result

R = TypeVar("R", bound=msgspec.Struct)

# The document in a bundle's folder, which makes it one.
BUNDLE = "bundle.json"

# An object of a JSON document, as it was decoded: what it holds is checked where it is read.
JsonObject = dict[str, Any]


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Fields that belong together. A record that holds them names them once; JSON has them one by one."""


@cache
def list_groups(record: type[msgspec.Struct]) -> dict[str, type[Group]]:
    """List the groups among the fields of a record: {name of the field: its type}."""
    hints = get_type_hints(record)
    return {name: hint for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, Group)}


@cache
def list_figures(record: type[msgspec.Struct]) -> tuple[tuple[str, msgspec.structs.FieldInfo], ...]:
    """List (place, field) of all that a record holds: `p50_ms`, and of a group `times.p90_ms`."""
    groups = list_groups(record)
    figures: list[tuple[str, msgspec.structs.FieldInfo]] = []
    for field in msgspec.structs.fields(record):
        if field.name in groups:
            figures += [(f"{field.name}.{inner.name}", inner) for inner in msgspec.structs.fields(groups[field.name])]
        else:
            figures.append((field.name, field))
    return tuple(figures)


@cache
def list_holders(document: type[msgspec.Struct]) -> dict[str, type[msgspec.Struct]]:
    """List the fields of a document that hold records with groups: {name of the field: type of the records}."""
    holders: dict[str, type[msgspec.Struct]] = {}
    for name, hint in get_type_hints(document).items():
        for kind in (hint, *get_args(hint)):
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and list_groups(kind):
                holders[name] = kind
    return holders


def flatten(document: msgspec.Struct) -> msgspec.Struct | JsonObject:
    """Return what is encoded for a document: itself, or an object with the groups of its records taken apart."""
    holders = list_holders(type(document))
    if not holders:
        return document
    flat: JsonObject = {}
    for field in msgspec.structs.fields(document):
        value = getattr(document, field.name)
        if field.name in holders and isinstance(value, tuple):
            value = tuple(map(_flatten_record, value))
        elif field.name in holders and value is not None:
            value = _flatten_record(value)
        flat[field.encode_name] = value
    return flat


def gather(document: JsonObject, kind: type[msgspec.Struct]) -> JsonObject:
    """Put the fields of each group of a decoded document together again; what does not fit is left to its checks."""
    for name, record in list_holders(kind).items():
        held = document.get(name)
        if isinstance(held, list):
            document[name] = [_gather_record(one, record) for one in held]
        else:
            document[name] = _gather_record(held, record)
    return document


def _flatten_record(record: msgspec.Struct) -> JsonObject:
    return {field.encode_name: attrgetter(path)(record) for path, field in list_figures(type(record))}


def _gather_record(flat: Any, record: type[msgspec.Struct]) -> Any:
    if not isinstance(flat, dict):
        return flat
    rest = dict(flat)
    gathered: dict[str, JsonObject] = {}
    for name, group in list_groups(record).items():
        keys = [inner.encode_name for inner in msgspec.structs.fields(group) if inner.encode_name in rest]
        gathered[name] = {key: rest.pop(key) for key in keys}
    return rest | gathered


# What a decoder of JSON raises on bytes that are none, or in which brackets are nested too deep for it.
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

# A figure of more bits is none: counts, bytes and nanoseconds fit, and NumPy has no such integers.
LARGEST = 2**64 - 1
# Of one document. A result with a million samples and their device times is about 20 MB.
DOCUMENT_LIMIT_BYTES = 512 << 20
# As many digits as that has at least; the decimals of a float may be as many. All digits are looked for as zeros, which
# takes a tenth of the time of a regular expression.
LONG_NUMBER = b"0" * 20
DIGITS_AS_ZEROS = bytes.maketrans(b"123456789", b"0" * 9)

# Asks for the blocks of another file, to be shared until either is written. Source: linux/fs.h, _IOW(0x94, 9, int).
FICLONE = 0x40049409


def _name_scores(document: JsonObject) -> JsonObject:
    """Upgrade a document of schema 1, which had top-1 and top-5 alone, to schema 2."""
    accuracy = document.pop("accuracy", None) or {}
    metrics = [name for name in ("top1", "top5") if accuracy.get(name)]
    scores = [{"metric": name, "value": accuracy[name], "share": True} for name in metrics]
    if scores:
        scores[0] |= {"delta": accuracy.get("delta"), "mcnemar_p": accuracy.get("mcnemar_p")}
    return document | {"schema": "enginebench.result/2", "scores": scores}


# Older result schemas, each with the function that makes the next one of it.
# History: 1 is the first; 2 has scores by any metric in place of top-1 and top-5.
UPGRADES: dict[str, Callable[[JsonObject], JsonObject]] = {"enginebench.result/1": _name_scores}


def encode(record: msgspec.Struct, indent: int = 0) -> bytes:
    data = msgspec.json.encode(flatten(record))
    return msgspec.json.format(data, indent=indent) if indent else data


def find_cache() -> Path:
    """Return the folder of the user's caches. Source: XDG Base Directory 0.8, `XDG_CACHE_HOME`."""
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(chosen) if Path(chosen).is_absolute() else Path("~/.cache").expanduser()
    return base / "enginebench"


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader, or a kill, sees the old file or the new one, never half of it."""
    with replace_atomic(path) as file:
        file.write(data)


def refuse_pointer(path: Path) -> None:
    """Refuse what Git LFS leaves in place of a file. Source: Git LFS specification, "The Pointer"."""
    with suppress(OSError), (path if path.is_file() else Path(os.devnull)).open("rb") as file:  # a pipe waits
        if file.read(42) == b"version https://git-lfs.github.com/spec/v1":
            raise ParseError(path, "", "a pointer of Git LFS", "the file itself", "Fetch it: git lfs pull")


def write_document(document: msgspec.Struct, path: Path) -> Path:
    """Write a document as JSON for readers to `path`."""
    write_atomic(path, encode(document, indent=2) + b"\n")
    return path


def copy_file(source: Path, target: Path) -> None:
    """Copy the content of `source` to `target`, so that a change of one never changes the other.

    Never a link: onnx 1.23 and newer refuse external data with several links, and overwriting one overwrites both.
    Where the file system can, the two share their blocks until one is written; a reader, or a kill, sees the old file,
    the new one or none, never half of it.
    """
    with explain_reading(source):
        original = check_regular(source).open("rb")
    with original, replace_atomic(target) as file:
        with suppress(OSError):  # Btrfs, XFS, ...; another file system shares nothing, and nothing was written
            fcntl.ioctl(file.fileno(), FICLONE, original.fileno())
            return
        chunk = b"more"
        while chunk:
            with explain_reading(source):
                chunk = original.read(1 << 20)
            file.write(chunk)


def explain_access(
    what: str, cure: str = "", kind: type[EngineBenchError] = ArtifactError
) -> AbstractContextManager[None]:
    """Format the system's error for a file, without its path."""
    return explaining(kind, what, OSError, describe=lambda error: error.strerror or error, cure=cure)


# Where a shell puts the pipes that it opened for a command, and its own input.
_OPENED = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")


def check_regular(path: Path) -> Path:
    """Return the path of a file that can be read to its end.

    A pipe waits for a writer, and a device may never end. What the shell opened (`<(COMMAND)`) has a writer.

    Raises:
        OSError: it is a pipe, a device or a socket.
    """
    mode = path.stat().st_mode
    opened = stat.S_ISFIFO(mode) and str(path).startswith(_OPENED)
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or opened):
        raise OSError(errno.EINVAL, "a pipe or a device, not a regular file", str(path))
    return path


def explain_reading(path: Path) -> AbstractContextManager[None]:
    return explain_access(f"cannot read {path}", "Check the path and its permissions")


def explain_writing(path: Path) -> AbstractContextManager[None]:
    return explain_access(f"cannot write {path}", "Free space or choose another path")


def check_writable(path: Path) -> None:
    """Check, before anything is measured for it, that a file, or a folder of files, can be written there."""
    with explain_writing(path):
        nearest = path if path.is_dir() else next(nearest for nearest in path.absolute().parents if nearest.exists())
        if nearest == path or not os.access(path, os.W_OK):  # what is there may be a pipe
            tempfile.TemporaryFile(dir=nearest).close()


@contextmanager
def replace_atomic(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which replaces `path` when it is complete; otherwise it is removed and the old one stays.

    A device or a pipe (`/dev/null`, `/dev/stdout`) is written to, as the shell's `>` does: root could replace it, and
    a file would take its place for every program of the machine.
    """
    with explain_writing(path), ExitStack() as clean:
        if path.exists() and not path.is_file():
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)  # refused, not waited for, where no reader is
            os.set_blocking(descriptor, True)
            with os.fdopen(descriptor, "wb") as file:
                yield file
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:60]}.", suffix=".tmp")
        clean.callback(Path(temporary).unlink, missing_ok=True)  # an interrupt, too, leaves nothing behind
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.umask(mask := os.umask(0))
        Path(temporary).chmod(0o666 & ~mask)
        Path(temporary).replace(path)


@contextmanager
def open_partial(target: Path) -> Iterator[Path]:
    """An empty folder on the disk of `target`, which must have a parent; at its end it is removed, if still there.

    Folders for the same target that killed processes left are removed first. A living process holds a lock on its
    folder, which the kernel frees however the process ends. On file systems without locks nobody can tell who lives:
    there nothing is removed.
    """
    _remove_abandoned(target)
    folder, handle = _make_locked_folder(target.absolute().parent, _name_partial(target))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


@contextmanager
def open_temporary() -> Iterator[Path]:
    """An empty folder for files that are needed only for a while; those that killed processes left are removed."""
    with open_partial(Path(tempfile.gettempdir()) / "enginebench") as folder:
        yield folder


@contextmanager
def removing_partial(target: Path) -> Iterator[None]:
    """Remove, if the block fails, the folders of `open_partial` that child processes which were killed in it left."""
    try:
        yield
    except BaseException:
        with suppress(OSError):  # the folder around it is gone, or never was
            _remove_abandoned(target)
        raise


def _name_partial(target: Path) -> str:
    return f".{target.name[:60]}.partial-"


def _make_locked_folder(parent: Path, prefix: str) -> tuple[Path, int]:
    """(a new folder, the open descriptor that holds its lock)."""
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # taken for abandoned before it was locked
            continue
        with suppress(OSError):  # no locks here
            fcntl.flock(handle, fcntl.LOCK_EX)
        if folder.exists():
            return folder, handle
        os.close(handle)


def _remove_abandoned(target: Path) -> None:
    for folder in target.absolute().parent.iterdir():
        if not folder.name.startswith(_name_partial(target)):
            continue
        with suppress(OSError):  # a link, a file, or just removed by another process
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while its process lives
                # Nothing but logs: an error names one of them, so that they are still to be read.
                files = [path for path in folder.rglob("*") if path.is_file()]
                if not files or any(path.suffix != ".log" for path in files):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(handle)


@contextmanager
def parsing(path: Path, expected: str, *caught: type[Exception], where: str = "", advice: str = "") -> Iterator[None]:
    """Raise an error of a decoder as ParseError; without `where` the position is the field that msgspec names."""
    caught = caught or DECODE_ERRORS
    try:
        yield
    except caught as error:
        words = "brackets nested too deep" if isinstance(error, RecursionError) else str(error) or type(error).__name__
        text, _, field = (words, "", where) if where else words.partition(" - at `")
        fault = text if text[:2].isupper() else text[0].lower() + text[1:]
        fault = "JSON that was cut off" if fault == "input data was truncated" else fault
        fault = re.sub(r"^expected (.+), got (.+)$", r"\2 instead of \1", fault)
        raise ParseError(path, field.rstrip("`"), fault, expected, advice) from error


def read_record(path: Path, kind: type[R], schema: str = "", advice: str = "") -> R:
    """The record in a file; with `schema`, one of this alone."""
    record = _decode(path, _read_bytes(path), kind, advice)
    if schema and (stored_schema := getattr(record, "schema", "")) != schema:
        raise ParseError(path, "$.schema", repr(stored_schema), repr(schema), advice or "Upgrade enginebench")
    return record


def _name_flat(message: str, kind: type[msgspec.Struct]) -> str:
    """Name a field of a group as it is in the file: `$.rows[0].p90_ms` for `$.rows[0].times.p90_ms`."""
    for name, record in list_holders(kind).items():
        groups = "|".join(list_groups(record))
        message = re.sub(rf"(`\$\.{name}(?:\[[^\]]*\])?)\.(?:{groups})\b", r"\1", message)
    return message


def _decode(path: Path, data: bytes, kind: type[R], advice: str = "") -> R:
    with parsing(path, kind.__name__, advice=advice):
        if issubclass(kind, msgspec.Struct) and list_holders(kind):
            document = msgspec.json.decode(data, type=JsonObject)
            try:
                return msgspec.convert(gather(document, kind), kind)
            except msgspec.ValidationError as error:
                raise msgspec.ValidationError(_name_flat(str(error), kind)) from error
        return msgspec.json.decode(data, type=kind)


def is_bundle(path: Path) -> bool:
    """Whether a folder holds a bundle, be it damaged."""
    return (path / BUNDLE).exists()


def is_result(schema: str) -> bool:
    """Return whether a schema is that of a stored result, of this version or an older one."""
    return schema == RESULT_SCHEMA or schema in UPGRADES


def read_result(path: Path) -> Result:
    """Read the result stored in `path`, upgraded if an older version wrote it."""
    data = _read_bytes(path)
    schema = _decode_schema(path, data)
    if schema == RESULT_SCHEMA:
        return _check_trials(path, _decode(path, data, Result))
    if schema not in UPGRADES:
        advice = "Was it written by a newer version? Upgrade enginebench"
        raise ParseError(path, "$.schema", repr(schema), f"{RESULT_SCHEMA!r} or older", advice)
    with parsing(path, "Result"):
        document: JsonObject = json.loads(data)
        while schema in UPGRADES:
            document = UPGRADES[schema](document)
            schema = str(document["schema"])
        return _check_trials(path, msgspec.convert(document, Result))


def _check_trials(path: Path, result: Result) -> Result:
    """Check that no trial is stored twice: the same figures, counted again, would narrow every interval."""
    counts = Counter(one.trial for one in result.measurements)
    if repeated := [number for number, count in counts.items() if count > 1]:
        fault = f"trial {repeated[0] + 1} {counts[repeated[0]]} times"
        raise ParseError(path, "$.measurements", fault, "each trial once", "Was the file edited? Measure it again")
    return result


def read_schema(path: Path) -> str:
    return _decode_schema(path, _read_bytes(path))


class _Head(msgspec.Struct):
    schema: str


def _decode_schema(path: Path, data: bytes) -> str:
    with parsing(path, "a JSON document with a field `schema`"):
        return msgspec.json.decode(data, type=_Head).schema


def _read_bytes(path: Path) -> bytes:
    try:
        size = check_regular(path).stat().st_size
        if size > DOCUMENT_LIMIT_BYTES:
            raise ParseError(path, "", f"{size >> 20} MiB", f"at most {DOCUMENT_LIMIT_BYTES >> 20} MiB")
        data = path.read_bytes()
    except OSError as error:
        raise ParseError(path, "", f"no readable file ({error.strerror})", "a JSON file") from error
    if not data:
        raise ParseError(path, "", "an empty file", "a JSON document")
    if LONG_NUMBER in data.translate(DIGITS_AS_ZEROS):
        with parsing(path, "whole numbers of at most 64 bits", ValueError, RecursionError):
            json.loads(data, parse_int=_check_integer)
    return data


def _check_integer(text: str) -> int:
    if len(text) > len(str(LARGEST)) + 1 or abs(int(text)) > LARGEST:
        raise ValueError(f"the number {text[:20]}... of {len(text)} digits")
    return int(text)


def hash_files(paths: list[Path], base: Path) -> tuple[str, tuple[FileHash, ...]]:
    """(hash over all, one entry each); paths are stored relative to `base` where they lie inside it."""
    names = [str(path.relative_to(base)) if path.is_relative_to(base) else path.name for path in paths]
    entries = tuple(
        FileHash(path=name, sha256=hash_file(path), size_bytes=path.stat().st_size)
        for name, path in zip(names, paths, strict=True)
    )
    joined = "\n".join(f"{e.sha256}  {e.path}" for e in entries)
    return entries[0].sha256 if len(entries) == 1 else hashlib.sha256(joined.encode()).hexdigest(), entries


def bring_files(files: Sequence[FileHash], base: Path, home: Path) -> None:
    """Copy the files, whose paths are relative to `base`, to `home`: nothing done to the originals alters it."""
    for file in files:
        copy_file(base / file.path, home / file.path)
        if hash_file(home / file.path) != file.sha256:
            raise ArtifactError(
                f"{base / file.path} was changed while it was being copied. Wait until it is complete, then try again"
            )


def derive(parent: Artifact, files: list[Path], root: Path, **changes: Any) -> Artifact:
    """Describe the artifact that was made of another one: the first of these files is its path, and all are hashed."""
    sha256, hashed = hash_files(files, root)
    own = {"path": str(files[0]), "sha256": sha256, "files": hashed, "parent_sha256": parent.sha256}
    return msgspec.structs.replace(parent, **own, **changes)
