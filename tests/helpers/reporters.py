"""Reporters for tests."""


class Silent:
    """A reporter that keeps what it was told."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.said: list[str] = []

    def begin(self, total: int) -> None: ...

    def say(self, text: str) -> None:
        self.said.append(text)

    def step(self, text: str) -> None:
        self.steps.append(text)

    def advance(self) -> None: ...

    def show(self, results: object) -> None: ...
