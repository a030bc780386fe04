"""The interface for showing progress."""

from collections.abc import Callable, Sequence
from typing import Protocol

from enginebench.core.records import Result


class Reporter(Protocol):
    """Receive progress: shown live on a terminal, as plain lines elsewhere."""

    def begin(self, total: int) -> None: ...
    def say(self, text: str) -> None: ...
    def step(self, text: str) -> None: ...
    def advance(self) -> None: ...
    def show(self, results: Sequence[Result]) -> None:
        """Show the results so far; called between trials only."""


def report_steps(reporter: Reporter, subject: str) -> Callable[[str], None]:
    """Make a function that reports each text as a step of `subject`."""
    return lambda text: reporter.step(f"{subject}: {text}")


class Silent:
    def begin(self, total: int) -> None: ...
    def say(self, text: str) -> None: ...
    def step(self, text: str) -> None: ...
    def advance(self) -> None: ...
    def show(self, results: Sequence[Result]) -> None: ...
