"""Files of arrays that claim more than they hold, or unpack to more than anybody sends: refused, nothing unpacked."""

import io
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from enginebench.core import array_files
from enginebench.core.array_files import ONLY, declare_arrays, read_array_file
from enginebench.core.errors import ParseError


def head(shape: str, dtype: str = "<f4", version: bytes = b"\x01\x00") -> bytes:
    """An .npy file that ends behind its header."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(text)) + text


def pack(*members: tuple[str, bytes], how: int = zipfile.ZIP_STORED) -> bytes:
    """An archive of these files."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", how) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return made.getvalue()


def save(array: np.ndarray) -> bytes:
    made = io.BytesIO()
    np.save(made, array)
    return made.getvalue()


FOUR = head("(1, 4)") + b"\0" * 16
# name of the file -> its bytes, and what is said of it
HOSTILE: dict[str, tuple[bytes, str]] = {
    "terabytes.npy": (head(f"(1, {2**40})") + b"1234", r"float32\[1x1099511627776\] in the header.* 4 bytes of"),
    "terabytes.npz": (pack(("x.npy", head(f"(1, {2**40})") + b"1234")), "'x': float32.* and 4 bytes"),
    "uncountable.npy": (head(f"({2**62}, {2**62}, 0)"), "is 0 bytes, and 0 bytes"),
    "wide_text.npy": (head("(1,)", "<U500000000"), "is 2000000000 bytes, and 0 bytes"),
    "negative.npy": (head("(-4, 4)") + b"\0" * 16, r"the shape \(-4, 4\)"),
    "half.npz": (pack(("x.npy", FOUR[:-8])), "is 16 bytes, and 8 bytes"),
    "twice.npz": (pack(("x.npy", FOUR), ("x", FOUR)), "two arrays 'x'"),
    "text.npz": (pack(("x.npy", FOUR), ("read.txt", b"me")), "'read.txt': no array of NumPy"),
    "version.npy": (head("(1,)", version=b"\x09\x09"), "format 9.9; only 1.0 and 2.0"),
    "header.npy": (b"\x93NUMPY\x01\x00" + struct.pack("<H", 30) + b"__import__('os').system('x')  ", "damaged header"),
    "brackets.npy": (b"\x93NUMPY\x01\x00" + struct.pack("<H", 9000) + b"(" * 9000, ""),
    "cut.npz": (pack(("x.npy", FOUR))[:-10], "not a zip file"),
    "cut.npy": (b"\x93NUM", "neither an .npz nor an .npy file"),
    "empty.npz": (b"", "an empty file"),
    "encrypted.npz": (pack(("x.npy", FOUR)).replace(b"\x14\0\0\0\0\0", b"\x14\0\1\0\0\0"), "encrypted"),
    "method.npz": (pack(("x.npy", FOUR)).replace(b"\x14\0\0\0\0\0", b"\x14\0\0\0\x63\0"), "compression"),
}


@pytest.mark.parametrize("ask", [declare_arrays, read_array_file])
@pytest.mark.parametrize("name", HOSTILE)
def test_what_no_file_can_hold_is_refused(name: str, ask: Callable[[Path, str], object], tmp_path: Path) -> None:
    data, said = HOSTILE[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ParseError, match=f"{name}.*: found .*{said}.*expected arrays"):
        ask(tmp_path / name, "arrays")


def test_zeros_that_unpack_to_gigabytes_are_refused_before_they_are(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(array_files, "ALWAYS_BYTES", 1 << 20)
    (tmp_path / "bomb.npz").write_bytes(
        pack(("x.npy", head("(1024, 1024)") + bytes(4 << 20)), how=zipfile.ZIP_DEFLATED)
    )
    tracemalloc.start()
    with pytest.raises(ParseError, match=r"unpack to 0\.0 GiB, \d+ times the size of the file.*numpy\.savez"):
        read_array_file(tmp_path / "bomb.npz", "arrays")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
    np.savez(tmp_path / "bomb.npz", x=np.zeros((1024, 1024), np.float32))  # as large, and all of it is there
    assert read_array_file(tmp_path / "bomb.npz", "arrays")["x"].nbytes == 4 << 20
    noise = np.random.default_rng(0).random((1024, 512))
    np.savez_compressed(tmp_path / "noise.npz", x=noise)
    assert np.array_equal(read_array_file(tmp_path / "noise.npz", "arrays")["x"], noise)


def test_files_of_ours_are_never_compressed(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "outputs.npz", x=np.zeros(4))
    with pytest.raises(ParseError, match="a compressed array 'x', which enginebench never writes"):
        read_array_file(tmp_path / "outputs.npz", "outputs", compressed=False)


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_values_are_those_of_numpy_and_of_some_entries_the_first(write, tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray] = {
        "rows": np.arange(24.0).reshape(4, 3, 2),
        "columns": np.asfortranarray(np.arange(12, dtype=np.int8).reshape(4, 3)),
        "scalar": np.array(3, np.uint8),
        "words": np.array(["a", "längere", ""]),
        "none": np.zeros((0, 4), np.float16),
        "yes": np.array([True, False]),
    }
    write(tmp_path / "a.npz", **arrays)
    for entries in (None, 1, 2, 9):
        found = read_array_file(tmp_path / "a.npz", "arrays", entries=entries)
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            expected = array[:entries] if array.ndim else array
            assert found[name].dtype == expected.dtype and np.array_equal(found[name], expected), name
            assert found[name].flags.writeable
    assert list(read_array_file(tmp_path / "a.npz", "arrays", names=("yes",))) == ["yes"]
    for name, array in declare_arrays(tmp_path / "a.npz", "arrays").items():
        assert (array.shape, array.dtype) == (arrays[name].shape, arrays[name].dtype)
    (tmp_path / "a.npy").write_bytes(save(arrays["rows"]))
    assert np.array_equal(read_array_file(tmp_path / "a.npy", "arrays")[ONLY], arrays["rows"])
