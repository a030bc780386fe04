"""Fewer trials where more would show nothing else: looks after 6, 8 and 10 of them, the error of all three kept at 5 %.

A row ends at a look once no comparison with another row of its setting can change. The interval that is printed then is
that of its look, wider than Student's t of as many trials: so it covers the true ratio wherever a row may have ended.

Sources: K. K. G. Lan, D. L. DeMets, "Discrete sequential boundaries for clinical trials", Biometrika 70 (1983); of the
    intervals C. Jennison, B. W. Turnbull, "Interim analyses: the repeated confidence interval approach", J. Roy. Stat.
    Soc. B 51 (1989).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

from msgspec.structs import replace

from enginebench.analyze.compare import choose_clock, judge_spread, spread_pairs
from enginebench.analyze.intervals import Spread, quantile_of_t
from enginebench.analyze.quantiles import median
from enginebench.core.limits import LEVELS, MOST
from enginebench.core.records import Measurement, Result

# The level of a row whose number of trials was fixed beforehand.
FIXED = 0.95
# Trials to come are expected to move the mean no further than this quantile of what they may.
EXPECTED = 0.95


def find_level(*rows: Result) -> float:
    """The level of the interval of a comparison of these rows: that of the first look at which one of them ended."""
    looks = [row.look for row in rows if row.look is not None]
    if not looks:
        return FIXED
    return next((level for trials, level in LEVELS.items() if min(looks) <= trials), LEVELS[MOST])


def list_open(rows: Sequence[Result], trials: int, margin: float) -> set[str]:
    """Ids of the rows of one setting of which a comparison with another may change after so many trials.

    A row that ended before takes part in nothing: what was shown with it stays.

    Args:
        trials: a look; later repetitions do not count.
    """
    brief = [_shorten(row, trials) for row in rows if row.look is None or row.look >= trials]
    found: set[str] = set()
    for base, cand in combinations([row for row in brief if len(row.measurements) == trials], 2):
        _, times, _ = choose_clock(base.measurements, cand.measurements)
        spread = spread_pairs(base.measurements, cand.measurements, times)[0] if times else None
        if spread is not None and can_change(spread, trials, margin):
            found |= {base.id, cand.id}
    return found


def can_change(spread: Spread, trials: int, margin: float) -> bool:
    """Whether more trials are likely to say something else about a mean log ratio.

    Not where a verdict is shown. Nor where none will be: as far as the mean may move until the last look, its interval
    will still reach across the margin, if the values scatter as they did.
    """
    if trials >= MOST or spread.error is None or judge_spread(spread, margin, LEVELS[trials])[0] != "not_shown":
        return False
    deviation, m, level = spread.error * math.sqrt(spread.n), math.log1p(margin), LEVELS[MOST]
    moved = quantile_of_t(EXPECTED, spread.n - 1) * deviation * math.sqrt(1 / spread.n - 1 / MOST)
    wide, narrow = (quantile_of_t(p, MOST - 1) * deviation / math.sqrt(MOST) for p in ((1 + level) / 2, level))
    mean = abs(spread.mean)
    return mean + moved - wide > m or max(0.0, mean - moved) + narrow < m


def _shorten(row: Result, trials: int) -> Result:
    """The row with its first trials, each as its median alone."""
    return replace(row, measurements=tuple(keep_median(m) for m in row.measurements if m.repetition < trials))


def keep_median(measurement: Measurement) -> Measurement:
    """The measurement with one sample, its median: all that comparisons look at."""
    kept = {name: getattr(measurement, name) for name in ("latency_ns", "device_ns")}
    return replace(measurement, **{name: [median(values)] if values else values for name, values in kept.items()})
