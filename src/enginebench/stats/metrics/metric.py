"""The definition of a metric: counts of every sample that are added up, or one figure of all samples together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from enginebench.core.protocols import Array
from enginebench.core.records import Facts as Facts

Floats = NDArray[np.float64]
Picks = NDArray[np.int64]

# The outputs of a model by name, samples along the first axis; a list of the samples' arrays where their shapes differ.
Outputs: TypeAlias = Mapping[str, Any]


class Targets(Struct, frozen=True, kw_only=True, eq=False):
    """The expected outputs, one for each sample.

    `vocabulary` and `blank` define how sequences of tokens are read: the text of each token, and the token that
    separates.
    """

    values: Any  # an array [samples, ...], or a list with an entry for each
    names: tuple[str, ...] | None = None  # of the samples, where the file names them
    vocabulary: tuple[str, ...] | None = None
    blank: int | None = 0
    whole: int | None = None  # how many all are that these were picked from; None: these

    def __len__(self) -> int:
        return len(self.values)

    def pick(self, picks: slice | Picks) -> Targets:
        return Targets(
            values=pick_samples(self.values, picks),
            vocabulary=self.vocabulary,
            blank=self.blank,
            whole=self.whole or count_samples(self.values),
        )

    def find_shape(self, part: Array) -> tuple[int, ...]:
        """Return the shape of outputs or targets over all samples, from the part that was read together."""
        return (self.whole or len(part), *part.shape[1:])


def pick_samples(values: Any, picks: slice | Picks) -> Any:
    if isinstance(values, Mapping):
        return {name: pick_samples(part, picks) for name, part in values.items()}
    if isinstance(values, np.ndarray) or isinstance(picks, slice):
        return values[picks]
    return [values[i] for i in picks]


def count_samples(values: Any) -> int:
    """Count the entries of an array, a list, or a dictionary of them."""
    return count_samples(next(iter(values.values()))) if isinstance(values, Mapping) else len(values)


# Of outputs and targets of the same samples: [samples, columns]; None where no output could be wrong.
Count: TypeAlias = Callable[[Outputs, Targets], "Floats | None"]
# From columns that were added up over samples, [..., columns], to the figure, [...].
Finish: TypeAlias = Callable[["Floats"], "Floats"]
# Of samples picked by their place, with trials: the figure.
ScorePicks: TypeAlias = Callable[["Picks"], float]


def divide(sums: Floats) -> Floats:
    """Divide the first column by the second: a mean, or errors over lengths."""
    with np.errstate(invalid="ignore", divide="ignore"):
        quotient: Floats = sums[..., 0] / sums[..., 1]
    return quotient


def widen_counts(first: Floats, second: Floats) -> tuple[Floats, Floats]:
    """Give both as many columns as the wider one: a class that only later samples name occurred 0 times before."""
    columns = max(first.shape[1], second.shape[1])
    wide = [np.pad(c, ((0, 0), (0, columns - c.shape[1]))) if c.shape[1] < columns else c for c in (first, second)]
    return wide[0], wide[1]


class Metric(Struct, frozen=True, kw_only=True, eq=False):
    """A metric that either counts sample by sample (`count`), or evaluates all samples together (`prepare`).

    Counts are reduced as the outputs arrive, so that no output is kept.
    """

    name: str
    higher_is_better: bool = True
    share: bool = True
    count: Count | None = None
    finish: Finish = divide
    prepare: Callable[[Outputs, Targets], ScorePicks] | None = None

    @property
    def facts(self) -> Facts:
        return Facts(name=self.name, higher_is_better=self.higher_is_better, share=self.share)


def average(values: Sequence[float] | Array) -> Floats:
    """Return columns whose quotient is the mean of one value for each sample."""
    column = np.asarray(values, np.float64)
    return np.stack([column, np.ones_like(column)], axis=1)
