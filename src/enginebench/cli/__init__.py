"""The door: arguments into requests, errors into messages and exit codes; `verbs` has one file a verb. No logic."""

from enginebench.door import main

__all__ = ["main"]
