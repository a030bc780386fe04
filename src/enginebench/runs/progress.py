"""The interface for showing progress."""

from collections.abc import Callable, Sequence
from typing import Protocol

from enginebench.core.records import Result


class Reporter(Protocol):
    """Where progress goes: a live display on a terminal, plain lines elsewhere."""

    def begin(self, total: int) -> None: ...
    def say(self, text: str) -> None: ...
    def step(self, text: str) -> None: ...
    def advance(self) -> None: ...
    def show(self, results: Sequence[Result]) -> None:
        """Show the configurations as they stand; called between trials alone."""


def report_steps(reporter: Reporter, what: str) -> Callable[[str], None]:
    """Shows each text as a step of what it is about."""
    return lambda text: reporter.step(f"{what}: {text}")


class Silent:
    def begin(self, total: int) -> None: ...
    def say(self, text: str) -> None: ...
    def step(self, text: str) -> None: ...
    def advance(self) -> None: ...
    def show(self, results: Sequence[Result]) -> None: ...
