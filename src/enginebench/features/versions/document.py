"""The JSON document of `bisect`."""

from typing import Literal

from msgspec import Struct

from enginebench.stats.diff import DiffRow


class BisectDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `bisect`. `first_bad` is None if no version is bad, or if `undecided` has several."""

    schema: str = "enginebench.bisect/2"
    package: str
    engine: str
    by: Literal["time", "drift"]
    good: str
    bad: str
    first_bad: str | None = None
    last_good: str | None = None
    undecided: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()  # differences in the engines' own records of the first bad version
    tried: tuple[DiffRow, ...]  # compared with the good version; `id` is the version, a ratio below 1 is slower
