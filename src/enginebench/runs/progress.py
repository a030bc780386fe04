"""The interface for showing progress."""

from typing import Protocol


class Reporter(Protocol):
    """Where progress goes: a live display on a terminal, plain lines elsewhere."""

    def begin(self, total: int) -> None: ...

    def say(self, text: str) -> None: ...

    def step(self, text: str) -> None: ...

    def advance(self) -> None: ...


class Silent:
    """Says nothing."""

    def begin(self, total: int) -> None: ...

    def say(self, text: str) -> None: ...

    def step(self, text: str) -> None: ...

    def advance(self) -> None: ...
