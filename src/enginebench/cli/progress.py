"""Progress on stderr: one live line on a terminal, plain lines when piped."""

from __future__ import annotations

from rich.console import Console

from enginebench.report.progress import LiveReporter, PlainReporter


def open_reporter() -> LiveReporter | PlainReporter:
    """The live display if stderr is a terminal, else plain lines."""
    console = Console(stderr=True)
    return LiveReporter(console) if console.is_terminal else PlainReporter()
