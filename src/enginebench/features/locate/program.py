"""The interface of a search to a model on its engine: steps in an order, their tensors, two ways to compute them."""

from collections.abc import Collection, Mapping, Sequence
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

    def slice_steps(self, places: Sequence[int]) -> Sequence[Sequence[int]]:
        """Return the steps in parts whose tensors fit into the memory that may be used at a time."""

    def compute(self, places: Collection[int], wanted: Sequence[str], values: Arrays, like: Arrays) -> Arrays:
        """Return what the engine computes for the tensors `wanted`, by these steps, from the arrays `values`.

        Args:
            like: arrays of the types and shapes that the tensors have.
        """

    def expect(self, places: Collection[int], wanted: Sequence[str], values: Arrays) -> Arrays:
        """Return what the reference computes for the same."""
