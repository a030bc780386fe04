"""A mix of requests of several shapes: rounds of calls, and the times of the mean request."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct

from enginebench.core.protocols import Engine, Feeds

# Calls of a round of a mix at most: a shape that fewer requests have comes this often, and counts by its weight.
MOST_CALLS = 40
# A round is longer only if its fractions come this much nearer to the weights.
CLOSE = 0.01
# Orders of the calls of a round, one after another: what follows what is as random as in the requests.
ORDERS = 64
# So many rounds are all at an end of their cells' sorted calls; of more some lie between.
MOST_ENDS = 2


class MixPart(Struct, frozen=True):
    """The engine of one cell of a mix, with its inputs as `measure_engine` takes them, and its fraction of requests."""

    engine: Engine
    feeds: Sequence[Feeds]
    weight: float


def plan_round(weights: Sequence[float]) -> tuple[int, ...]:
    """Return how many calls of each cell of a mix a round has: as few as have nearly the weights, each at least one."""
    if not weights:
        return ()
    best: tuple[float, tuple[int, ...]] = (math.inf, ())
    for total in range(len(weights), max(len(weights), MOST_CALLS) + 1):
        counts = tuple(max(1, round(weight * total)) for weight in weights)
        error = max(abs(count / sum(counts) - weight) for count, weight in zip(counts, weights, strict=True))
        if error < best[0] - CLOSE:  # a longer round must gain something
            best = error, counts
    return best[1]


def shuffle_round(counts: Sequence[int]) -> list[tuple[int, ...]]:
    """Return orders of the calls of a round, by the places of their cells."""
    cells = [cell for cell, count in enumerate(counts) for _ in range(count)]
    rng = np.random.default_rng(0)
    return [tuple(map(int, rng.permutation(cells))) for _ in range(ORDERS)] if cells else [()]


def join_io(part: MixPart) -> Callable[[], object]:
    """Return the calls of scope `io` as one, each time on the next of the part's inputs."""
    bind, run, fetch, feeds = part.engine.bind, part.engine.run, part.engine.fetch, itertools.cycle(part.feeds)

    def call() -> None:
        bind(next(feeds))
        run()
        fetch()

    return call


def join_cells(cells_ns: Sequence[Sequence[int]], weights: Sequence[float], rounds_ns: Sequence[int]) -> list[int]:
    """Return a time of the mean request for each round, of which every quantile is the weighted mean of the cells' own.

    So the median is the weighted mean of the cells' medians, and the mean that of their means. A round's own mean would
    be no such figure: where other programs interrupt one call of each round, half of the rounds hold an interruption.
    The slowest rounds have the largest times, so that what changes over time still shows. Of one or two rounds, each of
    them has an end of the cells' calls, where one call that was interrupted would decide the median: their times are
    the quantiles in the middle of their shares, and their mean leaves such a call out.

    Args:
        cells_ns: calls of each cell, an equal number from each round.
        rounds_ns: the weighted mean of each round as it was.
    """
    rounds = len(rounds_ns)
    quantiles = np.zeros(rounds)
    for own, weight in zip(cells_ns, weights, strict=True):
        shares = np.sort(np.asarray(own, dtype=np.float64)).reshape(rounds, -1)
        quantiles += weight * (shares.mean(axis=1) if rounds > MOST_ENDS else np.median(shares, axis=1))
    times = np.empty(rounds)
    times[np.argsort(np.asarray(rounds_ns), kind="stable")] = quantiles
    joined: list[int] = np.rint(times).astype(np.int64).tolist()
    return joined
