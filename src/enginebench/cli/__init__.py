"""The door: one file a verb, no logic."""

from enginebench.cli.door import main

__all__ = ["main"]
