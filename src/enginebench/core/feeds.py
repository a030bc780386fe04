"""Arrays for an engine's inputs: made from a seed, joined, and cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from enginebench.core.engine_api import TEXT, concrete_shape
from enginebench.core.engine_api import check_feeds as check_feeds
from enginebench.core.engine_api import has_dtype as has_dtype
from enginebench.core.records import TensorSpec

if TYPE_CHECKING:
    from enginebench.core.protocols import Array, Feeds

# Integer inputs are token ids or indices as a rule; every vocabulary has this many entries.
INTEGER_RANGE = 100
# What stands in an input of text: a model's own words are in the graph at best, and these are in none.
WORDS = ("a", "the", "red", "green", "blue", "yes", "no", "1", "2", "3")


def random_feeds(specs: Sequence[TensorSpec], batch: int, seed: int) -> dict[str, Array]:
    """Seeded arrays: within the `values` of a spec; else normal floats, integers in [0, 100), coin-flip booleans.

    The same seed gives the same arrays on every machine (PCG64), in whatever order the inputs are listed: an engine may
    list those of a graph in another order than the graph.
    """
    rng = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for spec in sorted(specs, key=lambda spec: spec.name):
        shape, dtype = concrete_shape(spec, batch), np.dtype(spec.dtype)
        if spec.dtype == TEXT:
            feeds[spec.name] = rng.choice(WORDS, shape)
        elif spec.values is not None:
            low, high = spec.values  # even over them, whole numbers where the dtype has no others
            whole = dtype.kind != "f"
            drawn = rng.integers(int(low), int(high), shape, endpoint=True) if whole else rng.uniform(low, high, shape)
            feeds[spec.name] = np.asarray(drawn).astype(dtype)
        elif dtype.kind == "f":
            feeds[spec.name] = rng.standard_normal(shape, dtype=np.float32).astype(dtype)
        elif dtype.kind == "b":
            feeds[spec.name] = rng.integers(0, 2, shape).astype(dtype)
        else:
            feeds[spec.name] = rng.integers(0, INTEGER_RANGE, shape).astype(dtype)
    return {spec.name: feeds[spec.name] for spec in specs}


def fill_batch(samples: Sequence[Feeds], size: int | None = None) -> dict[str, Array]:
    """The samples as one batch of `size` entries, filled up with copies of the last; one sample stays as it is."""
    missing = 0 if size is None else size - sum_entries(samples)
    if len(samples) == 1 and missing <= 0:
        return dict(samples[0])
    padded = [*samples, *([{n: a[-1:] for n, a in samples[-1].items()}] * max(0, missing))]
    return {name: np.concatenate([feeds[name] for feeds in padded]) for name in samples[0]}


def sum_entries(samples: Sequence[Feeds]) -> int:
    """Entries on the first axis of all samples together."""
    return sum(len(next(iter(feeds.values()), ())) for feeds in samples)


def drop_filling(outputs: Mapping[str, Array], entries: int, size: int) -> dict[str, Array]:
    """The outputs without the entries that only filled the batch up."""
    if entries >= size:
        return dict(outputs)
    return {name: a[:entries] if a.ndim and len(a) == size else a for name, a in outputs.items()}


def choose_buckets(max_batch: int, few: bool = False) -> tuple[int, ...]:
    """The batches for which an engine with fixed ones is made: powers of two up to `max_batch`, and that itself."""
    # Few: each can take long to make.
    smaller = (1, max_batch // 4 or 1, max_batch // 2 or 1) if few else (1 << i for i in range(max_batch.bit_length()))
    return tuple(sorted({max_batch, *smaller}))
