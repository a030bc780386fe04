"""Shapes that a user names, against those of a model."""

import pytest

from enginebench.core.errors import UsageError
from enginebench.core.records import TensorSpec
from enginebench.core.shapes import match_axes

IDS = TensorSpec(name="ids", dtype="int64", shape=("batch", "seq"))
MASK = TensorSpec(name="mask", dtype="int64", shape=("batch", 1, "seq", "seq"))


def test_two_lengths_of_one_axis_are_refused() -> None:
    with pytest.raises(UsageError, match="axis 'seq' is 128 elsewhere, and 64 here"):
        match_axes((IDS, MASK), {"ids": (4, 128), "mask": (4, 1, 64, 64)})
