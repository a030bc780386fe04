"""A store: the files of a sweep in a folder, or in an object store through fsspec.

Its contents are treated as untrusted input.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote, unquote

import msgspec

from enginebench.core.errors import ArtifactError, MissingDependency, ParseError, UsageError, importing
from enginebench.core.store import DECODE_ERRORS, DOCUMENT_LIMIT_BYTES, copy_file, encode, explain_access, write_atomic
from enginebench.runs.folder import check_inside

R = TypeVar("R", bound=msgspec.Struct)

# A name in a store: folders and files of letters, digits and a few signs; no `..`, nothing hidden.
_NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9_@~+=-][A-Za-z0-9_.@~+=,-]*(/[A-Za-z0-9_@~+=-][A-Za-z0-9_.@~+=,-]*)*")
# Stores that write a file as a whole or not at all. Others would show half a file to readers.
OBJECT_STORES = ("s3", "s3a", "gs", "gcs", "abfs", "az", "memory")
INSTALL = 'pip install "enginebench[fleet]"'


def check_key(name: str) -> str:
    """`name`, which stays inside of the store."""
    if not _NAME.fullmatch(name) or len(name) > 1000:
        raise ArtifactError(f"{name!r} is not a file name in a store; it is not read")
    return name


def open_store(url: str) -> Store:
    """The store at `url`: a folder, file://FOLDER, or an object store such as s3://BUCKET/PREFIX."""
    protocol, separator, folder = url.partition("://")
    if not separator:
        return FolderStore(Path(url))
    if protocol == "file":
        return FolderStore(Path(folder))
    if protocol not in OBJECT_STORES:
        raise UsageError(f"{url}: a store is a folder, or an object store: {', '.join(OBJECT_STORES[:-1])}")
    return ObjectStore(url)


class FolderStore:
    """A folder that all machines of the sweep see under the same path. Links inside it are not followed.

    `read` returns None, and `fetch` False, if there is no such file; `names` has beside each name a mark that changes
    with the file. A reader sees the old file or the new one, never half of one.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.url = str(self.root)

    def _find(self, name: str) -> Path:
        path = self.root / check_key(name)
        check_inside(self.root, path)
        return path

    def read(self, name: str) -> bytes | None:
        path = self._find(name)
        with explain_access(f"cannot read {path}"), suppress(FileNotFoundError, NotADirectoryError):
            if path.stat().st_size > DOCUMENT_LIMIT_BYTES:
                raise _too_large(str(path))
            return path.read_bytes()
        return None

    def write(self, name: str, data: bytes) -> None:
        write_atomic(self._find(name), data)

    def names(self, folder: str) -> list[tuple[str, str]]:
        listed = []
        for parent, _, files in os.walk(self.root / check_key(folder)):
            for path in (Path(parent, file) for file in files):
                name = path.relative_to(self.root).as_posix()
                if _NAME.fullmatch(name) and path.is_file() and not path.is_symlink():
                    state = path.stat()
                    listed.append((name, f"{state.st_size}-{state.st_mtime_ns}"))
        return sorted(listed)

    def fetch(self, name: str, path: Path) -> bool:
        source = self._find(name)
        if not source.is_file():
            return False
        copy_file(source, path)
        return True

    def send(self, path: Path, name: str) -> None:
        copy_file(path, self._find(name))


class ObjectStore:
    def __init__(self, url: str) -> None:
        with importing("fsspec, which reaches object stores,", INSTALL, ImportError):
            import fsspec
        self.url = url.rstrip("/")
        protocol = url.partition("://")[0]
        with importing(f"what fsspec needs for {protocol}://", INSTALL, ImportError):
            # Listings are never taken from a cache: other machines write meanwhile.
            options: dict[str, Any] = {} if protocol == "memory" else {"use_listings_cache": False}
            self._files, self._root = fsspec.core.url_to_fs(self.url, **options)
        self._root = self._root.rstrip("/")

    def _path(self, name: str) -> str:
        return f"{self._root}/{check_key(name)}"

    def read(self, name: str) -> bytes | None:
        with _explain(self.url, "read"):
            try:
                if int(self._files.info(self._path(name))["size"] or 0) > DOCUMENT_LIMIT_BYTES:
                    raise _too_large(f"{self.url}/{name}")
                return bytes(self._files.cat_file(self._path(name)))
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        with _explain(self.url, "write"):
            self._files.pipe_file(self._path(name), data)

    def names(self, folder: str) -> list[tuple[str, str]]:
        with _explain(self.url, "list"):
            try:
                files = self._files.find(self._path(folder), detail=True)
            except FileNotFoundError:
                return []
        listed = []
        for path, info in files.items():
            name = str(path).removeprefix(f"{self._root}/").removeprefix(f"{self._root.lstrip('/')}/")
            state = info.get("ETag") or info.get("etag") or info.get("LastModified") or info.get("created")
            if _NAME.fullmatch(name):
                listed.append((name, f"{info.get('size')}-{str(state).strip(chr(34))}"))
        return sorted(listed)

    def fetch(self, name: str, path: Path) -> bool:
        with _explain(self.url, "read"):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._files.get_file(self._path(name), str(path))
            except FileNotFoundError:
                path.unlink(missing_ok=True)
                return False
        return True

    def send(self, path: Path, name: str) -> None:
        with _explain(self.url, "write"):
            self._files.put_file(str(path), self._path(name))


Store: TypeAlias = FolderStore | ObjectStore


def _too_large(path: str) -> ArtifactError:
    return ArtifactError(
        f"{path} is larger than {DOCUMENT_LIMIT_BYTES >> 20} MiB: no EngineBench document; it is not read"
    )


@contextmanager
def _explain(url: str, doing: str) -> Iterator[None]:
    """Raise ArtifactError for any error of the library of an object store: each has its own classes."""
    try:
        yield
    except (ArtifactError, MissingDependency, KeyboardInterrupt):
        raise
    except Exception as error:
        lines = str(error).strip().splitlines()
        raise ArtifactError(
            f"cannot {doing} the store {url}: {type(error).__name__}: {lines[0] if lines else ''}. "
            "Check its address, and the credentials that fsspec finds for it"
        ) from error


def read_document(store: Store, name: str, kind: type[R]) -> R | None:
    data = store.read(name)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except DECODE_ERRORS as error:
        fault = str(error)
        raise ParseError(f"{store.url}/{name}", "", fault[0].lower() + fault[1:], kind.__name__) from error


def store_document(store: Store, name: str, record: msgspec.Struct) -> None:
    store.write(name, encode(record))


def fetch_folder(store: Store, prefix: str, folder: Path, kinds: tuple[str, ...] = ("",)) -> None:
    """Copy what lies below `prefix` to the same places below `folder`, as far as it begins with one of `kinds`."""
    for name, _ in store.names(prefix):
        inner = unquote(name.removeprefix(f"{prefix}/").replace("=", "%"))
        if inner.startswith(kinds):
            check_inside(folder, folder / inner)
            store.fetch(name, folder / inner)


def send_files(store: Store, prefix: str, folder: Path, paths: Iterable[Path]) -> None:
    """Copy files of `folder` to the same places below `prefix`; signs that no store takes are written as `=3C`."""
    for path in sorted(paths):
        store.send(path, f"{prefix}/{quote(path.relative_to(folder.absolute()).as_posix()).replace('%', '=')}")
