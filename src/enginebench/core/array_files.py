"""Files of NumPy arrays, which may come from anybody: what one declares is checked before anything is unpacked.

A header can claim terabytes, and a few megabytes of compressed zeros unpack to gigabytes. So the header of each array
is read first: its size against the size of the file, and what it unpacks to against what it takes up there.
"""

import math
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias, cast

import numpy as np

from enginebench.core.errors import EngineBenchError, ParseError
from enginebench.core.protocols import Array
from enginebench.core.store import refuse_pointer

# The one array of an .npy file goes to the one input, whatever that is called.
ONLY = ""
# Arrays of floats that were measured or photographed compress to a half at best, masks and padding to a hundredth.
# Source: zlib's technical details (no data at all compresses to less than 1/1032); our own images, masks and tokens.
MOST_RATIO = 100
# Below this much any ratio is taken: a machine that runs a model unpacks it without notice.
ALWAYS_BYTES = 256 << 20
# numpy.lib.format: the magic bytes that an .npy file begins with; those of a zip file with entries, and without.
NPY, ZIP = b"\x93NUMPY", (b"PK\x03\x04", b"PK\x05\x06")


class Declared(NamedTuple):
    """The declared shape and dtype of an array, and its position in the file."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    by_columns: bool  # its first axis varies fastest
    member: zipfile.ZipInfo | None = None  # None: the array is all of the file

    @property
    def size_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def stand_in(self) -> Array:
        """An array of this shape and dtype that takes no memory; its values are zeros, or empty text."""
        return np.broadcast_to(np.zeros((), self.dtype), self.shape)


def declare_arrays(path: Path, expected: str) -> dict[str, Array]:
    """The arrays of a file by name, of the shape and dtype that they have there, but without their values.

    That of an .npy file is named `ONLY`. Nothing is unpacked.

    Args:
        expected: what the file should have been, for the error.
    """
    with _open(path, expected, compressed=True) as (_, declared):
        return {name: one.stand_in() for name, one in declared.items()}


def read_array_file(
    path: Path,
    expected: str,
    *,
    names: Sequence[str] | None = None,
    entries: int | None = None,
    compressed: bool = True,
) -> dict[str, Array]:
    """The arrays of a file by name, once their sizes are believable; of each at most the first `entries` of axis 0.

    Args:
        names: of the arrays to read; None: all.
        expected: what the file should have been, for the error.
        compressed: whether arrays may be compressed; those that this package wrote never are.

    Raises:
        ParseError: the file cannot be read, holds Python objects, or declares more than it can hold.
    """
    with _open(path, expected, compressed) as (source, declared):
        return {
            name: _read_values(source, one, entries) for name, one in declared.items() if names is None or name in names
        }


def explain_unread(path: Path, error: Exception, expected: str) -> ParseError:
    """Make the error for a file that NumPy cannot read."""
    refuse_pointer(path)
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    plain = {
        "No such file": "no such file",
        "Object arrays": "Python objects, which are never loaded",
        "malformed node or string": "a damaged header",  # the rest of the sentence is an address in memory
    }
    return ParseError(path, "", next((text for part, text in plain.items() if part in reason), reason), expected)


Source: TypeAlias = IO[bytes] | zipfile.ZipFile


@contextmanager
def _open(path: Path, expected: str, compressed: bool) -> Iterator[tuple[Source, dict[str, Declared]]]:
    """The open file, and the arrays in it."""
    try:
        if path.exists() and not path.is_file():  # of a pipe it would wait for a writer
            raise ValueError("no regular file")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = file.read(len(NPY))
            file.seek(0)
            if start.startswith(ZIP):
                with zipfile.ZipFile(file) as archive:
                    yield archive, _declare_members(archive, size, compressed)
            elif start == NPY:
                yield file, {ONLY: _declare(file, size)}
            else:
                raise ValueError("neither an .npz nor an .npy file" if start else "an empty file")
    except EngineBenchError:
        raise
    except Exception as error:  # zip, its compressors, NumPy and the file system each have errors of their own
        raise explain_unread(path, error, expected) from error


def _declare_members(archive: zipfile.ZipFile, size: int, compressed: bool) -> dict[str, Declared]:
    """The arrays of an archive of `size` bytes."""
    members = archive.infolist()
    unpacked = sum(member.file_size for member in members)
    if unpacked > max(ALWAYS_BYTES, MOST_RATIO * size):
        raise ValueError(
            f"arrays that unpack to {unpacked / 2**30:.1f} GiB, {unpacked / size:.0f} times the size of the file. If "
            "they are right, write them with numpy.savez, which compresses nothing"
        )
    arrays: dict[str, Declared] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name in arrays:
            raise ValueError(f"two arrays {name!r}")
        if member.compress_type != zipfile.ZIP_STORED and not compressed:
            raise ValueError(f"a compressed array {name!r}, which enginebench never writes")
        with archive.open(member) as file:
            arrays[name] = _declare(file, member.file_size, f"{name!r}: ")._replace(member=member)
    return arrays


def _declare(file: IO[bytes], size: int, lead: str = "") -> Declared:
    """Read the header of an array, which may take `size` bytes with its header."""
    declared = _read_header(file, lead)
    held = max(0, size - file.tell())
    # NumPy counts the entries of axes that are not empty, too.
    if declared.size_bytes > held or math.prod(filter(None, declared.shape)) > np.iinfo(np.intp).max:
        shape = "x".join(map(str, declared.shape)) or "scalar"
        what = f"{lead}{declared.dtype}[{shape}] in the header, which is {declared.size_bytes} bytes"
        raise ValueError(f"{what}, and {held} bytes of values")
    return declared


def _read_header(file: IO[bytes], lead: str = "") -> Declared:
    """Read the header of an array; the file is then positioned after it."""
    formats: dict[tuple[int, ...], Any] = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if file.read(len(NPY)) != NPY:
        raise ValueError(f"{lead}no array of NumPy")
    version = tuple(file.read(2))
    if version not in formats:
        raise ValueError(f"{lead}format {'.'.join(map(str, version))}; only 1.0 and 2.0 are read")
    shape, by_columns, dtype = formats[version](file)
    if dtype.hasobject:
        raise ValueError("Python objects, which are never loaded")
    if min(shape, default=0) < 0:
        raise ValueError(f"{lead}the shape {shape}")
    return Declared(dtype, shape, by_columns)


def _read_values(source: Source, declared: Declared, entries: int | None) -> Array:
    """The values of an array; only those of the first entries where the rest need not be unpacked for them."""
    shape, dtype = declared.shape, declared.dtype
    with ExitStack() as stack:
        if isinstance(source, zipfile.ZipFile):
            assert declared.member is not None
            file = stack.enter_context(source.open(declared.member))
        else:
            file = source
            file.seek(0)
        if entries is None or not shape or shape[0] <= entries or declared.by_columns or not declared.size_bytes:
            whole: Array = np.lib.format.read_array(cast("Any", file), allow_pickle=False)
            return whole if entries is None or not shape else whole[:entries]
        _read_header(file)
        cut = (entries, *shape[1:])
        data = file.read(math.prod(cut) * dtype.itemsize)
        return np.frombuffer(bytearray(data), dtype).reshape(cut)
