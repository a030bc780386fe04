"""The interface for showing progress."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, get_args

from enginebench.core.records import Result, RunPart


class PartTimes:
    """The seconds that each part of a run took, those before it was continued included."""

    def __init__(self, before: Mapping[RunPart, float] | None = None) -> None:
        self._seconds: dict[RunPart, float] = dict(before or {})
        self._part: RunPart | None = None
        self._start = 0.0

    def begin(self, part: RunPart | None) -> None:
        """End the part that is going on, and begin this one; None: nothing goes on then."""
        now = time.monotonic()
        if self._part is not None:
            self._seconds[self._part] = self._seconds.get(self._part, 0.0) + now - self._start
        self._part, self._start = part, now

    def end(self) -> dict[RunPart, float]:
        """End the part that is going on, and return the seconds of each."""
        self.begin(None)
        return {part: round(self._seconds[part], 1) for part in get_args(RunPart) if part in self._seconds}


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
