"""A set of inputs that no cache can hold, so that scope `io` really reads them from memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from enginebench.core.protocols import Feeds

# Real replacement is not strictly least recently used, and inner caches may hold lines that the last one does not:
# once the cache's size would still leave hits.
CACHE_MULTIPLE = 2
MAX_SET_BYTES = 256 * 1024 * 1024
# Where the size of the cache is unknown; larger than the last-level caches of today's desktop CPUs.
UNKNOWN_CACHE_BYTES = 96 * 1024 * 1024
# A dict with one entry (184), an array object (112) and its place in the list (8) are read along with each input.
OBJECT_BYTES = 300


def rotating_count(input_bytes: int, last_level_cache_bytes: int | None) -> int:
    """How many inputs make a set of twice the last-level cache, their Python objects counted; at least 2.

    The set stays within 256 MiB unless the cache itself is larger: then it is just larger than the cache.

    Args:
        last_level_cache_bytes: None where it is unknown; 96 MiB are assumed then.
    """
    cache = UNKNOWN_CACHE_BYTES if last_level_cache_bytes is None else last_level_cache_bytes
    each = input_bytes + OBJECT_BYTES
    wanted = min(CACHE_MULTIPLE * cache, max(MAX_SET_BYTES, cache + each))
    return max(2, math.ceil(wanted / each))


def rotate_feeds(feeds: Feeds, count: int) -> list[Feeds]:
    """`count` copies of `feeds`, every one at an address of its own.

    The copies of an input lie behind one another in one array, so that many small inputs cost no more than one large.
    """
    stacked = {name: np.repeat(np.ascontiguousarray(array)[np.newaxis], count, axis=0) for name, array in feeds.items()}
    return [{name: rows[i : i + 1].reshape(feeds[name].shape) for name, rows in stacked.items()} for i in range(count)]
