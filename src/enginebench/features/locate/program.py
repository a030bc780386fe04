"""The interface of a search to a model on its engine: steps in an order, their tensors, two ways to compute them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from enginebench.core.protocols import Array

Arrays = Mapping[str, Array]


class Step(Struct, frozen=True, kw_only=True):
    """A node of a graph, or an operation of a program."""

    name: str
    kind: str
    inputs: tuple[str, ...]  # names of tensors; constants, too
    outputs: tuple[str, ...]


class Program(Protocol):
    """A model on an engine, beside its reference: the same model, computed step by step as it is written."""

    @property
    def steps(self) -> Sequence[Step]: ...

    @property
    def inputs(self) -> tuple[str, ...]: ...

    @property
    def outputs(self) -> tuple[str, ...]: ...

    @property
    def folded(self) -> Collection[int]:
        """The steps on constants alone."""

    @property
    def drawing(self) -> Collection[int]:
        """The steps that draw random numbers."""

    @property
    def values(self) -> Arrays:
        """The values of the reference, for each tensor that is an array."""

    def slice_steps(self, indices: Sequence[int]) -> Sequence[Sequence[int]]:
        """Return the steps in parts whose tensors fit into the memory that may be used at a time."""

    def compute(self, indices: Collection[int], wanted: Sequence[str], values: Arrays, like: Arrays) -> Arrays:
        """Return what the engine computes for the tensors `wanted`, by these steps, from the arrays `values`.

        Args:
            like: arrays of the types and shapes that the tensors have.
        """

    def expect(self, indices: Collection[int], wanted: Sequence[str], values: Arrays) -> Arrays:
        """Return what the reference computes for the same."""


class Ordered(Protocol):
    """Steps in an order in which they can run, and which of them makes a tensor."""

    @property
    def steps(self) -> Sequence[Step]: ...

    @property
    def folded(self) -> Collection[int]: ...

    @property
    def producers(self) -> Mapping[str, int]: ...


def complete_steps(
    program: Ordered, indices: Collection[int], wanted: Sequence[str], values: Collection[str]
) -> list[int]:
    """Return the steps, in order, with those before them that make what there is no array for."""
    places_needed = set[int]()
    waiting = [*indices, *(program.producers[name] for name in wanted if name in program.producers)]
    while waiting:
        index = waiting.pop()
        if index in places_needed:
            continue
        places_needed.add(index)
        before = {name: program.producers[name] for name in program.steps[index].inputs if name in program.producers}
        waiting += [i for name, i in before.items() if i in program.folded or name not in values]
    return sorted(places_needed)


def slice_sizes(indices: Sequence[int], measure: Callable[[int], int], slice_bytes: int) -> list[list[int]]:
    """Return the steps in parts whose tensors take so many bytes; `measure` says how many those of a step take."""
    slices, left = list[list[int]](), 0
    for index in indices:
        need = measure(index)
        if need > left or not slices:
            slices.append([])
            left = slice_bytes
        slices[-1].append(index)
        left -= need
    return slices
