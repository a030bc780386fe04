"""Read bytes and text of an artifact, however a shell or an archive wrapped them."""

import gzip
import io
import mmap
import re
import zlib
from collections.abc import Iterable
from json import detect_encoding
from pathlib import Path
from typing import Any

import msgspec

from enginebench.core.errors import ParseError
from enginebench.core.store import check_regular

# Largest content read from one file. A trace of ten million queries is 2.8 GB; anything above this is no artifact of
# trtexec that a person waits for, or a compressed bomb.
MAX_BYTES = 4 << 30
# Largest log, profile or layer file, and largest content of a gzip file: these are read whole. Verbose build logs of
# large models have some hundred MB.
MAX_TEXT_BYTES = 512 << 20
# TensorRT and trtexec escape nothing in names: 0x1E stands between the operators of every layer's `Metadata`.
_CONTROL = re.compile(r"[\x01-\x08\x0b\x0c\x0e-\x1f]")
# C++ prints what JSON has no numbers for.
_NONFINITE = re.compile(r"(:\s*)[-+]?(?:nan|inf)(?:\([a-z]{0,8}\))?(?=\s*[,}\]])", re.IGNORECASE)
_GZIP = b"\x1f\x8b"
# ECMA-48 control sequences (colours), operating-system commands (titles) and two-byte escapes.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)|[@-Z\\-_])")


def open_bytes(path: Path) -> bytes | mmap.mmap:
    """Return the content of `path` without copying it into memory; unpacked when it is gzip."""
    try:
        with check_regular(path).open("rb") as file:
            if path.is_fifo():  # of the shell: it can be read once, and has no size
                packed = file.read(MAX_TEXT_BYTES + 1)
                return unpack_gzip(path, packed) if packed[:2] == _GZIP else packed
            size = path.stat().st_size
            if size > MAX_BYTES:
                raise ParseError(path, "", f"{size} bytes", f"at most {MAX_BYTES} bytes")
            if size == 0:
                raise ParseError(path, "", "an empty file", "what trtexec wrote")
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ParseError(path, "", f"no readable file ({reason})", "what trtexec wrote") from error
    if data[:2] == _GZIP:
        return unpack_gzip(path, data[:])
    return data


def unpack_gzip(path: Path, packed: bytes) -> bytes:
    """Return the unpacked content of a gzip file, all its members one behind the other."""
    try:
        # One byte more than there is room for shows that there is more, and a compressed bomb is unpacked no further.
        data = gzip.GzipFile(fileobj=io.BytesIO(packed)).read(MAX_TEXT_BYTES + 1)
    except EOFError as error:
        raise ParseError(path, "", "gzip data that is cut", "a whole gzip file") from error
    except (OSError, zlib.error) as error:
        raise ParseError(path, "", f"damaged gzip data ({error})", "a whole gzip file") from error
    if len(data) > MAX_TEXT_BYTES:
        actual, advice = f"more than {MAX_TEXT_BYTES} bytes inside", "Unpack it by hand if it is genuine"
        raise ParseError(path, "", actual, "a whole gzip file", advice)
    if not data:
        raise ParseError(path, "", "an empty file inside gzip", "what trtexec wrote")
    return data


def read_text(path: Path) -> str:
    """Return the text of a small artifact, decoded and without terminal control sequences."""
    data = open_bytes(path)
    if len(data) > MAX_TEXT_BYTES:
        raise ParseError(path, "", f"{len(data)} bytes", f"a text of at most {MAX_TEXT_BYTES} bytes")
    return decode_text(data[:])


def decode_json(text: str) -> Any:
    """Decode JSON of TensorRT: control characters in texts are kept, numbers such as nan become null."""
    escaped = _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return msgspec.json.decode(_NONFINITE.sub(r"\1null", escaped))


def explain_json(error: Exception, path: Path, size: int, expected: str) -> ParseError:
    """Make the error for a decoder's complaint about a document of so many bytes."""
    if "truncated" in str(error):
        return ParseError(path, f"byte {size}", "the end of the file inside the JSON", expected)
    byte = re.search(r"\(byte (\d+)\)", str(error))
    return ParseError(path, f"byte {byte[1]}" if byte else "", str(error), expected)


def explain_keys(
    path: Path, location: str, missing: str, there: Iterable[str], expected: str, newer: str = "a newer trtexec"
) -> ParseError:
    """Make the error for a missing key, with the keys that are there instead."""
    actual = f"no key {missing} (keys there: {', '.join(there)[:400]})"
    return ParseError(path, location, actual, expected, f"{newer[0].upper()}{newer[1:]} may have renamed it")


def decode_text(data: bytes) -> str:
    """Decode `data` as text with "\\n" line ends: UTF-8, or UTF-16 as a Windows shell writes it; never fails.

    Invalid bytes become U+FFFD. Colours and other terminal sequences are removed.
    """
    # Like JSON, a log begins with ASCII: in UTF-16 every second byte of that is zero, which is how it is recognized.
    text = data.decode(detect_encoding(data), errors="replace").lstrip("\ufeff")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\x00", "")


def list_keys(document: Any) -> list[str]:
    """Return up to twenty keys of the outer levels of a document, for messages."""
    keys: list[str] = []
    level = [document]
    for _ in range(3):
        inner: list[Any] = []
        for node in level[:20]:
            if isinstance(node, dict):
                keys += [key[:40] for key in node if key[:40] not in keys][:20]
                inner += list(node.values())[:20]
            elif isinstance(node, list):
                inner += node[:3]
        level = inner
    return keys[:20]
