"""Find the first step whose outputs leave the reference, and the steps that it takes to show it.

An engine fuses steps, and a tensor that is asked for ends a fusion: with all tensors marked the fault may be gone. So
the outputs of a part of the model are compared, from its beginning to a cut, with nothing marked before the cut: the
cut is moved by bisection. Where all tensors at once show the fault as well, and nothing before it is wrong, that is not
needed. What is found is confirmed by the opposite cut: the fewest steps before it, fed with the reference's own
tensors, that still show the fault.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import TypeVar

from msgspec import Struct

from enginebench.core.errors import EngineBenchError
from enginebench.core.protocols import Array
from enginebench.core.records import Precision
from enginebench.features.locate.judging import Deviation, find_leaving
from enginebench.features.locate.program import Program

T = TypeVar("T")

# Seconds for the tensors that hide a fault, one engine each: those of a large graph take longer than all the rest.
HIDING_S = 15.0


class NamedArrays(Mapping[str, Array]):
    """The arrays of these names out of a mapping that holds them in files: only what is used is read."""

    def __init__(self, arrays: Mapping[str, Array], names: Collection[str]) -> None:
        self._arrays, self._names = arrays, names

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Fault(Struct, frozen=True, kw_only=True):
    """Steps that show a fault together, in order, from the arrays of the reference to the tensors that leave it."""

    indices: tuple[int, ...]
    wanted: tuple[str, ...]
    deviations: dict[str, Deviation]
    hidden_by: tuple[str, ...] = ()  # tensors between them; with these as outputs the fault is not there
    untried: int = 0  # tensors between them, for which there was no time


class Search:
    """Searches a program; every call of its engine is counted and reported."""

    def __init__(
        self,
        program: Program,
        precision: Precision | None,
        note: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.program, self.precision, self._note, self._clock, self.tried = program, precision, note, clock, 0
        self.producers = {name: i for i, step in enumerate(program.steps) for name in step.outputs}
        self.last_use = {name: i for i, step in enumerate(program.steps) for name in step.inputs}
        self.last_use |= dict.fromkeys(program.outputs, len(program.steps))
        # Of steps that draw random numbers the engine is given what the reference drew.
        drawn = [name for i in sorted(program.drawing) for name in program.steps[i].outputs]
        self.fed = (*program.inputs, *drawn)
        self.outputs = [
            name for name in program.outputs if name in program.values and name in self.producers and name not in drawn
        ]

    def find_first(self, start: int = 0) -> Fault | None:
        """Find the first fault of the steps from `start` on, fed with tensors of the reference, or None."""
        program, fed = self.program, self.program.values if start else self.fed
        later = [i for i in range(start, len(program.steps)) if i not in program.drawing]
        outputs = [name for name in self.outputs if self.producers[name] >= start]
        whole = self.leaves(later, outputs, fed)
        if not whole:
            return None
        if (marked := self._find_marked(later, fed)) is not None:
            return marked
        ends = [i + 1 for i in later if i not in program.folded]

        @cache
        def show(end: int) -> Mapping[str, Deviation]:
            return self.leaves(*self._before(end, start), fed)

        end = ends[bisect(ends, lambda end: bool(show(end)))]
        confirmed = self.confirm(tuple(show(end)) or outputs)
        if confirmed.deviations:
            return confirmed
        # Fed with tensors of the reference it is gone: what is known is the part from the beginning to the cut.
        indices, _ = self._before(end, start)
        shown = show(end) or whole
        return Fault(indices=tuple(indices), wanted=tuple(shown), deviations=dict(shown))

    def _find_marked(self, indices: Sequence[int], fed: Collection[str]) -> Fault | None:
        """Find the fault with every tensor as an output; None if that hides it, or something that is before it."""
        made = {i: self._list_made(i) for i in indices if i not in self.program.folded}
        for part in self.program.slice_steps(list(made)):
            try:
                shown = self.leaves(indices, [name for i in part for name in made[i]], fed)
            except EngineBenchError:  # which an engine may not take as outputs
                return None
            if shown:
                first = min(self.producers[name] for name in shown)
                if self.leaves(*self._before(first, indices[0]), fed):
                    return None
                fault = self.confirm([name for name in made[first] if name in shown])
                return fault if fault.deviations else None
        return None

    def confirm(self, wanted: Sequence[str]) -> Fault:
        """Find the fewest steps before these tensors that show the fault, fed with tensors of the reference."""
        ancestors = self._list_ancestors(wanted)

        @cache
        def show(count: int) -> Mapping[str, Deviation]:
            return self.leaves(ancestors[:count], wanted, self.program.values)

        most = next((count for count in double(len(ancestors)) if show(count)), len(ancestors))
        counts = range(1, most + 1)
        least = counts[bisect(counts, lambda count: bool(show(count)))]
        indices = tuple(sorted(ancestors[:least]))
        hidden_by, untried = self._find_hiding(indices, wanted) if show(least) else ((), 0)
        return Fault(
            indices=indices, wanted=tuple(wanted), deviations=dict(show(least)), hidden_by=hidden_by, untried=untried
        )

    def leaves(self, indices: Collection[int], wanted: Sequence[str], fed: Collection[str]) -> dict[str, Deviation]:
        """Return which of the tensors `wanted` leave the reference, computed by these steps from its tensors `fed`."""
        if not wanted:
            return {}
        self.tried += 1
        self._note(f"cut {self.tried}: {len(indices)} nodes")
        made = {name for i in indices for name in self.program.steps[i].outputs}
        names = {name for name in fed if name in self.program.values and name not in made}
        inner = NamedArrays(self.program.values, names)
        computed = self.program.compute(indices, wanted, inner, self.program.values)
        return find_leaving(self.program.values, computed, self.precision)

    def _before(self, end: int, start: int) -> tuple[list[int], list[str]]:
        """The steps before a cut, from `start` on, that what passes it needs, and the tensors that pass it."""
        crossing = self._list_crossing(end, start)
        return sorted(self._list_ancestors(crossing, start)), crossing

    def _list_crossing(self, end: int, start: int) -> list[str]:
        made = [name for i in range(start, end) if i not in self.program.folded for name in self._list_made(i)]
        return [name for name in made if self.last_use.get(name, -1) >= end]

    def _list_made(self, index: int) -> list[str]:
        """List the tensors that a step makes and that can be compared."""
        if index in self.program.drawing:
            return []
        return [name for name in self.program.steps[index].outputs if name in self.program.values]

    def _list_ancestors(self, wanted: Sequence[str], start: int = 0) -> list[int]:
        """List the steps from `start` on that these tensors need, the last first, without those on constants alone."""
        needed, names = set[int](), list(wanted)
        while names:
            index = self.producers.get(names.pop(), -1)
            if index >= start and index not in needed and index not in self.program.drawing:
                needed.add(index)
                names += self.program.steps[index].inputs
        return sorted((needed - set(self.program.folded)) or needed, reverse=True)

    def _find_hiding(self, indices: Sequence[int], wanted: Sequence[str]) -> tuple[tuple[str, ...], int]:
        """Find tensors between these steps which, asked for as well, make the fault disappear; and how many were not
        tried."""
        between = [name for i in indices for name in self._list_made(i) if name not in wanted]
        hiding, start = list[str](), self._clock()
        for i, name in enumerate(between):
            if self._clock() - start > HIDING_S:
                return tuple(hiding), len(between) - i
            if not self.leaves(indices, [*wanted, name], self.program.values):
                hiding.append(name)
        return tuple(hiding), 0


def bisect(items: Sequence[T], holds: Callable[[T], bool]) -> int:
    """Return the index of the first item that holds, where all after it do; the last one is known to hold."""
    low, high = 0, len(items) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(items[middle]) else (middle + 1, high)
    return high


def double(most: int) -> Sequence[int]:
    """Return 1, 2, 4, ... and `most`."""
    counts = [1 << i for i in range(most.bit_length()) if 1 << i < most]
    return [*counts, most]
