"""The variables under which a child finds its pipes; apart, since a child needs nothing else of what starts it."""

from __future__ import annotations

RESULT_FD = "ENGINEBENCH_RESULT_FD"
# On it a child that is sure of its answer is told when it may make the record: others may still be at work.
TURN_FD = "ENGINEBENCH_TURN_FD"
