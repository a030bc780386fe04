"""Progress of a verb that a program called: nothing, a bar in a notebook, or the command line's display."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from enginebench.core.text import clean_lines
from enginebench.report.progress import LiveReporter, PlainReporter
from enginebench.runs.progress import Reporter, Silent


class NotebookReporter:
    """A bar in the output of a notebook's cell, drawn anew when something happens: no thread, no widgets."""

    def __init__(self, display: Any) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            auto_refresh=False,
        )
        self._task = self._progress.add_task("starting", total=1)
        self._shown = display(self._progress, display_id=True)

    def begin(self, total: int) -> None:
        self._update(total=total, completed=0)

    def say(self, text: str) -> None:
        self.step(text)

    def step(self, text: str) -> None:
        self._update(description=clean_lines(text)[:70])

    def advance(self) -> None:
        self._update(advance=1)

    def _update(self, **change: Any) -> None:
        self._progress.update(self._task, **change)
        self._shown.update(self._progress)


@contextmanager
def open_progress(progress: bool | None) -> Iterator[Reporter]:
    """Where progress goes. None: a bar in a notebook, silence elsewhere; True: stderr outside of a notebook, too."""
    display = find_display() if progress is not False else None
    if display is not None:
        yield NotebookReporter(display)
    elif progress:
        from rich.console import Console

        console = Console(stderr=True)
        with LiveReporter(console) if console.is_terminal else PlainReporter() as reporter:
            yield reporter
    else:
        yield Silent()


def find_display() -> Any:
    """IPython's `display` in a notebook; else None. IPython is asked only if it was imported already."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    # The shell of Jupyter's kernel, or one derived from it, as Colab's; a terminal has another one.
    if not any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__):
        return None
    from IPython.display import display

    return display
