"""The calibration record: what every tensor of a graph ranged over, and by which data that was seen.

Two files hold it: our own JSON, and TensorRT's text cache (`calibration_cache`).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from enginebench.core.caveats import make_caveat
from enginebench.core.errors import ArtifactError, ParseError
from enginebench.core.preprocess import differ, shorten
from enginebench.core.records import Caveat
from enginebench.core.store import encode, read_record, write_atomic

if TYPE_CHECKING:
    from enginebench.models.precision.calibration_data import CalibrationData

CALIBRATION_SCHEMA = "enginebench.calibration/1"

Method = Literal["minmax", "entropy", "percentile"]


class TensorRange(Struct, frozen=True, kw_only=True):
    """Smallest and largest value that a quantized tensor must be able to hold."""

    low: float
    high: float

    @property
    def largest(self) -> float:
        """Largest magnitude: what a symmetric scale is made from."""
        return max(abs(self.low), abs(self.high))


class Calibration(Struct, frozen=True, kw_only=True):
    """Ranges of the tensors of one graph, and where they come from.

    `weights_sha256` is over the floating-point weights alone: the same network exported with another batch has it, too.
    `n` of None means that nobody knows (a cache of TensorRT does not say).
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
    caveats: tuple[Caveat, ...] = ()


def write_calibration(calibration: Calibration, path: Path) -> None:
    """Writes the record as JSON."""
    write_atomic(path, encode(calibration, indent=1) + b"\n")


def read_calibration(path: Path) -> Calibration:
    """The record in a JSON file."""
    calibration = read_record(path, Calibration)
    if calibration.schema != CALIBRATION_SCHEMA:
        raise ParseError(
            path, "$.schema", repr(calibration.schema), repr(CALIBRATION_SCHEMA), "Make it with enginebench calibrate"
        )
    for name, found in calibration.ranges.items():
        if not (math.isfinite(found.low) and math.isfinite(found.high) and found.low <= found.high):
            raise ParseError(
                path, f"$.ranges[{name!r}]", f"{found.low} to {found.high}", "two finite numbers, in order"
            )
    return calibration


def check_preprocess(calibration: Calibration | CalibrationData, model: str, preprocess_sha256: str | None) -> None:
    """Checks that the calibration saw inputs prepared as at inference, as far as this is known."""
    seen = calibration.preprocess_sha256
    if differ(seen, preprocess_sha256):
        raise ArtifactError(
            f"{model} prepares its inputs by preprocess {shorten(preprocess_sha256)}, the calibration "
            f"({calibration.source}) by {shorten(seen)}: its ranges belong to other inputs. "
            "Calibrate again with this model and input size"
        )


def explain_external(what: str) -> Caveat:
    """The caveat of ranges from inputs that our own Preprocess did not make."""
    return make_caveat("external_preprocess", what=what)
