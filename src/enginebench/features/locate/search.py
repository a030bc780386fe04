"""Find the first step whose outputs leave the reference, and the steps that it takes to show it.

An engine fuses steps, and a tensor that is asked for ends a fusion: with all tensors marked the fault may be gone. So
the outputs of a part of the model are compared, from its beginning to a cut, with nothing marked before the cut: the
cut is moved by bisection. What is found is confirmed by the opposite cut: the fewest steps before it, fed with the
reference's own tensors, that still show the fault.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import TypeVar

from msgspec import Struct

from enginebench.core.protocols import Array
from enginebench.core.records import Precision
from enginebench.features.locate.judging import Deviation, find_leaving
from enginebench.features.locate.program import Program

T = TypeVar("T")


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

    places: tuple[int, ...]
    wanted: tuple[str, ...]
    deviations: dict[str, Deviation]
    hidden_by: tuple[str, ...] = ()  # tensors between them; with these as outputs the fault is not there


class Search:
    """Searches a program; every call of its engine is counted and reported."""

    def __init__(self, program: Program, precision: Precision | None, note: Callable[[str], None]) -> None:
        self.program, self.precision, self._note, self.tried = program, precision, note, 0
        self.producers = {name: i for i, step in enumerate(program.steps) for name in step.outputs}
        self.last_use = {name: i for i, step in enumerate(program.steps) for name in step.inputs}
        self.last_use |= dict.fromkeys(program.outputs, len(program.steps))

    def find_first(self) -> Fault | None:
        """Find the first fault of the program; None if its outputs keep to the reference."""
        program = self.program
        outputs = [name for name in program.outputs if name in program.values and name in self.producers]
        whole = self.leaves(range(len(program.steps)), outputs, program.inputs)
        if not whole:
            return None
        ends = [i + 1 for i in range(len(program.steps)) if i not in program.folded]

        @cache
        def show(end: int) -> Mapping[str, Deviation]:
            return self.leaves(*self._before(end), program.inputs)

        end = ends[bisect(ends, lambda end: bool(show(end)))]
        confirmed = self.confirm(tuple(show(end)) or outputs)
        if confirmed.deviations:
            return confirmed
        # Fed with tensors of the reference it is gone: what is known is the part from the beginning to the cut.
        places, _ = self._before(end)
        shown = show(end) or whole
        return Fault(places=tuple(places), wanted=tuple(shown), deviations=dict(shown))

    def confirm(self, wanted: Sequence[str]) -> Fault:
        """Find the fewest steps before these tensors that show the fault, fed with tensors of the reference."""
        ancestors = self._list_ancestors(wanted)

        @cache
        def show(count: int) -> Mapping[str, Deviation]:
            return self.leaves(ancestors[:count], wanted, self.program.values)

        most = next((count for count in double(len(ancestors)) if show(count)), len(ancestors))
        counts = range(1, most + 1)
        least = counts[bisect(counts, lambda count: bool(show(count)))]
        places = tuple(sorted(ancestors[:least]))
        return Fault(
            places=places,
            wanted=tuple(wanted),
            deviations=dict(show(least)),
            hidden_by=self._find_hiding(places, wanted),
        )

    def leaves(self, places: Collection[int], wanted: Sequence[str], fed: Collection[str]) -> dict[str, Deviation]:
        """Return which of the tensors `wanted` leave the reference, computed by these steps from its tensors `fed`."""
        if not wanted:
            return {}
        self.tried += 1
        self._note(f"cut {self.tried}: {len(places)} nodes")
        made = {name for i in places for name in self.program.steps[i].outputs}
        names = {name for name in fed if name in self.program.values and name not in made}
        inner = NamedArrays(self.program.values, names)
        computed = self.program.compute(places, wanted, inner, self.program.values)
        return find_leaving(self.program.values, computed, self.precision)

    def _before(self, end: int) -> tuple[list[int], list[str]]:
        """The steps before a cut that what passes it needs, and the tensors that pass it."""
        crossing = self._list_crossing(end)
        return sorted(self._list_ancestors(crossing)), crossing

    def _list_crossing(self, end: int) -> list[str]:
        last, folded = self.last_use, self.program.folded
        return [
            name
            for i, step in enumerate(self.program.steps[:end])
            for name in step.outputs
            if i not in folded and last.get(name, -1) >= end and name in self.program.values
        ]

    def _list_ancestors(self, wanted: Sequence[str]) -> list[int]:
        """List the steps that these tensors need, the last first, without those on constants alone."""
        needed, names = set[int](), list(wanted)
        while names:
            place = self.producers.get(names.pop())
            if place is not None and place not in needed:
                needed.add(place)
                names += self.program.steps[place].inputs
        return sorted((needed - set(self.program.folded)) or needed, reverse=True)

    def _find_hiding(self, places: Sequence[int], wanted: Sequence[str]) -> tuple[str, ...]:
        """Find tensors between these steps which, asked for as well, make the fault disappear."""
        between = [
            name
            for i in places
            for name in self.program.steps[i].outputs
            if name not in wanted and name in self.program.values
        ]
        if not between:
            return ()
        return tuple(name for name in between if not self.leaves(places, [*wanted, name], self.program.values))


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
