"""Progress as text: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from enginebench.core.text import clean_lines

# Of a bar: what runs, how much of it is done, since when.
COLUMNS = (
    TextColumn("{task.description}", markup=False),
    BarColumn(bar_width=20),
    TextColumn("{task.completed:.0f}/{task.total:.0f}"),
    TimeElapsedColumn(),
)


class LiveReporter:
    """A bar that says what runs now."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # The display itself must not disturb what is measured.
        self._progress = Progress(SpinnerColumn(), *COLUMNS, console=console, transient=True, refresh_per_second=2)
        self._task = self._progress.add_task("starting", total=1)

    def __enter__(self) -> LiveReporter:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, total: int) -> None:
        self._progress.update(self._task, total=total, completed=0)

    def say(self, text: str) -> None:
        self._console.print(Text(clean_lines(text)))

    def step(self, text: str) -> None:
        self._progress.update(self._task, description=clean_lines(text))

    def advance(self) -> None:
        self._progress.advance(self._task)


class PlainReporter:
    """A line for each thing that begins."""

    def __init__(self) -> None:
        self._done, self._total, self._last = 0, 0, ""

    def __enter__(self) -> PlainReporter:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, total: int) -> None:
        self._done, self._total = 0, total

    def say(self, text: str) -> None:
        print(clean_lines(text), file=sys.stderr, flush=True)

    def step(self, text: str) -> None:
        if text != self._last:
            self._last = text
            self.say(f"[{self._done}/{self._total}] {text}" if self._total else text)

    def advance(self) -> None:
        self._done += 1
