"""A stored row that can be run again: its result, and the artifacts that it was made of."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.records import Artifact, EngineSpec, Result


class Stored(Struct, frozen=True, kw_only=True):
    """A stored row, and the artifacts from the first source to the one that its engine opens."""

    result: Result
    chain: tuple[Artifact, ...]

    @property
    def spec(self) -> EngineSpec:
        """The engine as asked for: a relabelled row is named after what ran, but its graph is the same."""
        return replace(self.result.engine, precision=self.result.requested_precision)
