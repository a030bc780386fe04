"""Progress as text: a table that fills up and a line below it on a terminal, plain lines elsewhere.

Nothing here has a thread: a display that redraws itself while something is timed would disturb it. What is shown
changes only when a step begins or ends.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from enginebench.core.records import Result
from enginebench.core.text import clean_lines

# Of a bar: what runs, how much of it is done, since when.
COLUMNS = (
    TextColumn("{task.description}", markup=False),
    BarColumn(bar_width=20),
    TextColumn("{task.completed:.0f}/{task.total:.0f}"),
    TimeElapsedColumn(),
)


class LiveReporter:
    """The configurations that have times, fastest first, above a bar with the current step."""

    def __init__(self, console: Console, draw: Callable[[Sequence[Result]], RenderableType | None]) -> None:
        """`draw`: the table of a run's results, as its report shows it; None where nothing has a time yet."""
        self._console, self._draw = console, draw
        self._table: RenderableType | None = None
        self._progress = Progress(*COLUMNS, console=console, auto_refresh=False)
        self._task = self._progress.add_task("starting", total=1)
        self._live = Live(self._compose(), console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> LiveReporter:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def begin(self, total: int) -> None:
        self._progress.update(self._task, total=total, completed=0)
        self._refresh()

    def say(self, text: str) -> None:
        self._console.print(Text(clean_lines(text)))

    def step(self, text: str) -> None:
        self._progress.update(self._task, description=clean_lines(text))
        self._refresh()

    def advance(self) -> None:
        self._progress.advance(self._task)
        self._refresh()

    def show(self, results: Sequence[Result]) -> None:
        self._table = self._draw(results)
        self._refresh()

    def _refresh(self) -> None:
        self._live.update(self._compose(), refresh=True)

    def _compose(self) -> RenderableType:
        parts = [self._table, Text("")] if self._table is not None else []
        return Group(*(part for part in (*parts, self._progress) if part is not None))


class PlainReporter:
    """Lines of plain text, each with the seconds since the start in front."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._start = clock, clock()
        self._done, self._total, self._last = 0, 0, ""

    def __enter__(self) -> PlainReporter:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, total: int) -> None:
        self._done, self._total = 0, total

    def say(self, text: str) -> None:
        print(clean_lines(f"{self._clock() - self._start:4.0f} s {text}"), file=sys.stderr, flush=True)

    def step(self, text: str) -> None:
        if text != self._last:
            self._last = text
            self.say(f"[{self._done}/{self._total}] {text}" if self._total else text)

    def advance(self) -> None:
        self._done += 1

    def show(self, results: Sequence[Result]) -> None:
        """Plain lines have no table that fills up."""
