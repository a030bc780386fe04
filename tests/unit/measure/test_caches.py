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


@pytest.mark.parametrize(
    ("input_bytes", "cache", "count"),
    [(602_112, 32 * MIB, 112), (MIB, 512 * MIB, 512), (MIB, None, 192)],  # twice, just exceeded, unknown and so large
)
def test_the_size_of_the_set(input_bytes: int, cache: int | None, count: int) -> None:
    assert rotating_count(input_bytes, cache) == pytest.approx(count, abs=1 if count > 112 else 0)


def test_copies_are_equal_contiguous_and_lie_at_addresses_of_their_own() -> None:
    feeds = {
        "x": np.arange(12, dtype=np.float32).reshape(1, 3, 4),
        "n": np.array(7),
        "t": np.arange(6.0).reshape(2, 3).T,
    }
    copies = rotate_feeds(feeds, 5)
    for name, array in feeds.items():
        for copy in (copy[name] for copy in copies):
            assert (copy.shape, copy.dtype, copy.flags.c_contiguous) == (array.shape, array.dtype, True)
            np.testing.assert_array_equal(copy, array)
        assert len({array.ctypes.data, *(copy[name].ctypes.data for copy in copies)}) == 6
