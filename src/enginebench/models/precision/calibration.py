"""The calibration record: the range of every tensor of a graph, and the data from which it was taken.

It is stored as our own JSON, or as TensorRT's text cache.
"""

from __future__ import annotations

import math
import re
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field

from enginebench.core.errors import ArtifactError, ParseError, UsageError
from enginebench.core.preprocess import EXTERNAL, differ, shorten
from enginebench.core.records import ResultWarning
from enginebench.core.store import check_regular, encode, read_record, write_atomic
from enginebench.core.warnings import make_warning

if TYPE_CHECKING:
    from enginebench.models.precision.calibration_data import CalibrationData

CALIBRATION_SCHEMA = "enginebench.calibration/1"

Method = Literal["minmax", "entropy", "percentile"]

# TensorRT's calibrators by the name that the cache carries. Its legacy calibrator cuts at a quantile.
# Source: NvInferImpl.h, enum CalibrationAlgoType, TensorRT 10.0.
_METHOD_OF_ALGORITHM: dict[str, Method] = {
    "EntropyCalibration": "entropy",
    "EntropyCalibration2": "entropy",
    "MinMaxCalibration": "minmax",
    "LegacyCalibration": "percentile",
}
_ALGORITHM_OF_METHOD = {method: name for name, method in _METHOD_OF_ALGORITHM.items()}  # the newer one of entropy
_HEADER = re.compile(r"TRT-(\d+)-(\w+)")
_ENTRY = re.compile(r"(.+): ([0-9a-fA-F]{8})")
# The largest signed 8-bit number: a cache stores range / 127.
_INT8_MAX = 127
# A cache of a large network has some thousand lines of less than 100 bytes; more than this is another file.
_LARGEST_CACHE_BYTES = 16 << 20


class TensorRange(Struct, frozen=True, kw_only=True):
    """Smallest and largest value that a quantized tensor must be able to hold."""

    low: float
    high: float

    @property
    def largest(self) -> float:
        """Return the largest magnitude, from which a symmetric scale is computed."""
        return max(abs(self.low), abs(self.high))


class Calibration(Struct, frozen=True, kw_only=True):
    """Ranges of the tensors of one graph, and where they come from.

    `weights_sha256` is over the floating-point weights alone: the same network exported with another batch has it, too.
    `n` is None if the number of entries is unknown, as from a cache of TensorRT.
    """

    schema: str = CALIBRATION_SCHEMA
    model: str
    model_sha256: str | None
    weights_sha256: str | None
    method: Method
    percentile: float | None = None
    n: int | None
    source: str
    data_sha256: str | None = None
    preprocess_sha256: str | None
    seed: int = 0
    ranges: dict[str, TensorRange]
    made_by: dict[str, str] = {}
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")


def write_calibration(calibration: Calibration, path: Path) -> None:
    write_atomic(path, encode(calibration, indent=1) + b"\n")


def read_calibration(path: Path) -> Calibration:
    calibration = read_record(path, Calibration, CALIBRATION_SCHEMA, "Make it with enginebench calibrate")
    for name, tensor_range in calibration.ranges.items():
        if not (
            math.isfinite(tensor_range.low)
            and math.isfinite(tensor_range.high)
            and tensor_range.low <= tensor_range.high
        ):
            raise ParseError(
                path,
                f"$.ranges[{name!r}]",
                f"{tensor_range.low} to {tensor_range.high}",
                "two finite numbers, in order",
            )
    return calibration


def check_preprocess(calibration: Calibration | CalibrationData, model: str, preprocess_sha256: str | None) -> None:
    """Check that the calibration used inputs preprocessed as at inference, as far as this is known."""
    calibrated_on = calibration.preprocess_sha256
    if differ(calibrated_on, preprocess_sha256):
        raise ArtifactError(
            f"{model} prepares its inputs by preprocess {shorten(preprocess_sha256)}, the calibration "
            f"({calibration.source}) by {shorten(calibrated_on)}: its ranges belong to other inputs. "
            "Calibrate again with this model and input size"
        )


def explain_external(what: str) -> ResultWarning:
    """Return the warning that inputs were not preprocessed by EngineBench."""
    return make_warning("external_preprocess", what=what)


def write_calibration_cache(calibration: Calibration, path: Path, tensorrt_version: str = "10.0.1") -> None:
    """Write the ranges as TensorRT's text cache: symmetric scales, range / 127.

    Source: the cache of IInt8EntropyCalibrator2, TensorRT 7 to 10: a line `TRT-<version>-<algorithm>`, then
        `name: hex` with the scale as big-endian IEEE float32.
    """
    match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)", tensorrt_version)
    if not match:
        raise UsageError(f"TensorRT version {tensorrt_version!r}: expected major.minor.patch, as 10.0.1")
    major, minor, patch = map(int, match.groups())
    # 8.6.1 is 8601, 10.0.1 is 100001. Source: NV_TENSORRT_VERSION in NvInferVersion.h, which changed with 10.0.
    number = major * (10_000 if major >= 10 else 1000) + minor * 100 + patch
    lines = [f"TRT-{number}-{_ALGORITHM_OF_METHOD[calibration.method]}"]
    for name, tensor_range in calibration.ranges.items():
        if "\n" in name or "\r" in name:
            raise UsageError(f"tensor {name!r} has a line end in its name; TensorRT's cache cannot hold it")
        lines.append(f"{name}: {struct.pack('>f', tensor_range.largest / _INT8_MAX).hex()}")
    write_atomic(path, ("\n".join(lines) + "\n").encode())


def read_calibration_cache(path: Path) -> Calibration:
    """Read the ranges in TensorRT's text cache, which names neither the data nor the model that they come from."""
    lines = _read_text(path).splitlines() or [""]
    header = _HEADER.fullmatch(lines[0].strip())
    if not header or header[2] not in _METHOD_OF_ALGORITHM:
        algorithms = ", ".join(_METHOD_OF_ALGORITHM)
        raise ParseError(path, "line 1", repr(lines[0][:80]), f"TRT-<version>-<algorithm>, one of {algorithms}")
    ranges: dict[str, TensorRange] = {}
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        if not (entry := _ENTRY.fullmatch(line.rstrip())):
            raise ParseError(path, f"line {number}", repr(line[:80]), "`name: 8 hex digits`")
        (scale,) = struct.unpack(">f", bytes.fromhex(entry[2]))
        if not math.isfinite(scale) or scale < 0:
            raise ParseError(path, f"line {number}", f"scale {scale}", "a finite number, not below 0")
        ranges[entry[1]] = TensorRange(low=-scale * _INT8_MAX, high=scale * _INT8_MAX)
    if not ranges:
        raise ParseError(path, "", "a header without entries", "at least one line `name: 8 hex digits`")
    return Calibration(
        model="",
        model_sha256=None,
        weights_sha256=None,
        method=_METHOD_OF_ALGORITHM[header[2]],
        n=None,
        source=path.name,
        preprocess_sha256=EXTERNAL,
        ranges=ranges,
        made_by={"tensorrt": header[1]},
        warnings=(explain_external(f"ranges come from the calibration cache {path.name}"),),
    )


def _read_text(path: Path) -> str:
    try:
        if check_regular(path).stat().st_size > _LARGEST_CACHE_BYTES:
            raise ParseError(path, "", f"{path.stat().st_size} bytes", "TensorRT's text cache, some 100 kB")
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ParseError(path, f"byte {error.start}", "no text", "TensorRT's text cache") from error
    except OSError as error:
        raise ParseError(path, "", f"no readable file ({error.strerror})", "TensorRT's text cache") from error
