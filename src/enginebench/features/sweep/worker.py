"""What runs on a machine of a Ray cluster: JSON in, JSON out, and nothing is raised: Ray would pickle it."""

from __future__ import annotations

import msgspec

from enginebench.features.sweep.records import Ended, GroupJob, SourcesJob
from enginebench.features.sweep.schedule import perform


class Quiet:
    """Says nothing: what matters is in the store."""

    def begin(self, total: int) -> None: ...

    def say(self, text: str) -> None: ...

    def step(self, text: str) -> None: ...

    def advance(self) -> None: ...


def answer_group(data: bytes) -> bytes:
    return _answer(data, GroupJob)


def answer_sources(data: bytes) -> bytes:
    return _answer(data, SourcesJob)


def _answer(data: bytes, kind: type[GroupJob] | type[SourcesJob]) -> bytes:
    try:
        ended = perform(msgspec.json.decode(data, type=kind), Quiet())
    except Exception as error:  # the driver is told in words, whatever it is
        ended = Ended(ok=False, reason=f"{type(error).__name__}: {error}", kind=type(error).__name__)
    return msgspec.json.encode(ended)
