"""The rotating set of inputs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enginebench.measure.caches import MAX_SET_BYTES, OBJECT_BYTES, rotate_feeds, rotating_count

MIB = 1024 * 1024


@given(st.integers(0, 1 << 30), st.integers(0, 1 << 30))
def test_the_set_is_larger_than_the_cache_and_bounded(input_bytes: int, cache: int) -> None:
    count = rotating_count(input_bytes, cache)
    total, each = count * (input_bytes + OBJECT_BYTES), input_bytes + OBJECT_BYTES
    assert count >= 2
    assert total > cache
    assert total < max(MAX_SET_BYTES, cache) + 2 * each or count == 2


def test_twice_the_cache() -> None:
    assert rotating_count(602_112, 32 * MIB) == 112


def test_a_cache_larger_than_the_bound_is_just_exceeded() -> None:
    assert rotating_count(MIB, 512 * MIB) in (512, 513)


def test_an_unknown_cache_is_taken_for_a_large_one() -> None:
    assert rotating_count(MIB, None) == pytest.approx(192, abs=1)


def test_copies_are_equal_and_lie_at_addresses_of_their_own() -> None:
    feeds = {"x": np.arange(12, dtype=np.float32).reshape(1, 3, 4), "n": np.array(7, np.int64)}
    copies = rotate_feeds(feeds, 5)
    assert len(copies) == 5
    for copy in copies:
        for name, array in feeds.items():
            assert copy[name].shape == array.shape
            assert copy[name].dtype == array.dtype
            assert copy[name].flags.c_contiguous
            np.testing.assert_array_equal(copy[name], array)
    starts = {copy["x"].ctypes.data for copy in copies}
    assert len(starts) == 5
    assert feeds["x"].ctypes.data not in starts


def test_a_transposed_input_becomes_contiguous() -> None:
    feeds = {"x": np.arange(6.0).reshape(2, 3).T}
    copy = rotate_feeds(feeds, 2)[1]["x"]
    assert copy.flags.c_contiguous
    np.testing.assert_array_equal(copy, feeds["x"])
