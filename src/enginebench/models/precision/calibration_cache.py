"""The ranges of a calibration as TensorRT's text cache."""

import math
import re
import struct
from pathlib import Path

from enginebench.core.errors import ParseError, UsageError
from enginebench.core.preprocess import EXTERNAL
from enginebench.core.store import write_atomic
from enginebench.models.precision.calibration import Calibration, Method, TensorRange, explain_external

# TensorRT's calibrators by the name that the cache carries. Its legacy calibrator cuts at a quantile.
# Source: NvInferImpl.h, enum CalibrationAlgoType, TensorRT 10.0.
_METHOD_OF_ALGORITHM: dict[str, Method] = {
    "EntropyCalibration": "entropy",
    "EntropyCalibration2": "entropy",
    "MinMaxCalibration": "minmax",
    "LegacyCalibration": "percentile",
}
_ALGORITHM_OF_METHOD: dict[Method, str] = {
    "entropy": "EntropyCalibration2",
    "minmax": "MinMaxCalibration",
    "percentile": "LegacyCalibration",
}
_HEADER = re.compile(r"TRT-(\d+)-(\w+)")
_ENTRY = re.compile(r"(.+): ([0-9a-fA-F]{8})")
# The largest signed 8-bit number: a cache stores range / 127.
_INT8_MAX = 127
# A cache of a large network has some thousand lines of less than 100 bytes; more than this is another file.
_LARGEST_CACHE_BYTES = 16 << 20


def write_calibration_cache(calibration: Calibration, path: Path, tensorrt_version: str = "10.0.1") -> None:
    """Writes the ranges as TensorRT's text cache: symmetric scales, range / 127.

    Source: the cache of IInt8EntropyCalibrator2, TensorRT 7 to 10: a line `TRT-<version>-<algorithm>`, then
        `name: hex` with the scale as big-endian IEEE float32.
    """
    lines = [f"TRT-{_encode_version(tensorrt_version)}-{_ALGORITHM_OF_METHOD[calibration.method]}"]
    for name, found in calibration.ranges.items():
        if "\n" in name or "\r" in name:
            raise UsageError(f"tensor {name!r} has a line end in its name; TensorRT's cache cannot hold it")
        lines.append(f"{name}: {struct.pack('>f', found.largest / _INT8_MAX).hex()}")
    write_atomic(path, ("\n".join(lines) + "\n").encode())


def _encode_version(text: str) -> int:
    """8.6.1 -> 8601, 10.0.1 -> 100001. Source: NV_TENSORRT_VERSION in NvInferVersion.h, which changed with 10.0."""
    match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", text)
    if not match:
        raise UsageError(f"TensorRT version {text!r}: expected major.minor.patch, as 10.0.1")
    major, minor, patch = map(int, match.groups())
    return major * 10_000 + minor * 100 + patch if major >= 10 else major * 1000 + minor * 100 + patch


def read_calibration_cache(path: Path) -> Calibration:
    """The ranges in TensorRT's text cache. It says neither which data nor which model made them."""
    lines = _read_text(path).splitlines()
    method = _read_header(path, lines[0] if lines else "")
    ranges: dict[str, TensorRange] = {}
    for number, line in enumerate(lines[1:], start=2):
        if line.strip():
            name, scale = _read_entry(path, number, line)
            ranges[name] = TensorRange(low=-scale * _INT8_MAX, high=scale * _INT8_MAX)
    if not ranges:
        raise ParseError(path, "", "a header without entries", "at least one line `name: 8 hex digits`")
    return Calibration(
        model="",
        model_sha256=None,
        weights_sha256=None,
        method=method,
        n=None,
        source=path.name,
        preprocess_sha256=EXTERNAL,
        ranges=ranges,
        made_by={"tensorrt": lines[0].split("-")[1]},
        caveats=(explain_external(f"ranges come from TensorRT's cache {path.name}"),),
    )


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST_CACHE_BYTES:
            raise ParseError(path, "", f"{path.stat().st_size} bytes", "TensorRT's text cache, some 100 kB")
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ParseError(path, f"byte {error.start}", "no text", "TensorRT's text cache") from error
    except OSError as error:
        raise ParseError(path, "", f"no readable file ({error.strerror})", "TensorRT's text cache") from error


def _read_header(path: Path, line: str) -> Method:
    match = _HEADER.fullmatch(line.strip())
    if not match or match[2] not in _METHOD_OF_ALGORITHM:
        known = ", ".join(_METHOD_OF_ALGORITHM)
        raise ParseError(path, "line 1", repr(line[:80]), f"TRT-<version>-<algorithm>, one of {known}")
    return _METHOD_OF_ALGORITHM[match[2]]


def _read_entry(path: Path, number: int, line: str) -> tuple[str, float]:
    match = _ENTRY.fullmatch(line.rstrip())
    if not match:
        raise ParseError(path, f"line {number}", repr(line[:80]), "`name: 8 hex digits`")
    (scale,) = struct.unpack(">f", bytes.fromhex(match[2]))
    if not math.isfinite(scale) or scale < 0:
        raise ParseError(path, f"line {number}", f"scale {scale}", "a finite number, not below 0")
    return match[1], scale
