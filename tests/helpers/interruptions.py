"""Interruptions at any change of a file, and a clock that only the fake engine moves."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enginebench.engines.fake import FakeBackend, FakeClock
from enginebench.measure import loop, machine, memory, reference, watch
from enginebench.runs import main_job
from enginebench.runs.child.jobs import Job
from enginebench.runs.child.perform import build, measure
from in_process import Children

T = TypeVar("T")

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir")
# (number of the change ahead of which it is interrupted, whether it is killed): once, or again while it is resumed.
MOMENTS = st.lists(st.tuples(st.integers(0, 10_000), st.booleans()), min_size=1, max_size=3)
EXAMPLES = settings(max_examples=25, database=None)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Interrupted(BaseException):
    """This process was interrupted, and nothing may catch it but the test."""


class Interruptions:
    """Counts what this process changes below a folder, and ends it, as it were, ahead of one of these changes."""

    def __init__(self) -> None:
        self.count = 0
        self._root = ""
        self._at: int | None = None
        self._killed = self._dead = False
        sys.addaudithook(self._see)  # for good: an audit hook cannot be taken away

    def run(self, root: Path, work: Callable[[], T], at: int | None = None, *, killed: bool = False) -> T | None:
        """What `work` came to below `root`; None if it was interrupted, ahead of the change with the number `at`.

        killed: not even its clean-up changes a file after that.
        """
        self.count, self._root, self._at, self._killed, self._dead = 0, str(root), at, killed, False
        try:
            return work()
        except Interrupted:
            return None
        finally:
            self._root = ""

    def _see(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._root or not _changes(event, args) or not str(args[0]).startswith(self._root):
            return
        number, self.count = self.count, self.count + 1
        if self._dead or number == self._at:
            self._dead = self._killed
            raise Interrupted


def _changes(event: str, args: tuple[Any, ...]) -> bool:
    return event in CHANGES or (event == "open" and bool(args[2] & WRITING))


def check_any_moment(work: Callable[[Path], object], place: Path) -> None:
    """Checks that work which is interrupted at any moment, and done again, comes to what it comes to undisturbed."""
    calm, root, interruptions = place / "calm", place / "interrupted", Interruptions()
    wanted = interruptions.run(calm, lambda: work(calm))
    assert wanted is not None
    changes = interruptions.count

    @EXAMPLES
    @given(MOMENTS)
    def check(moments: list[tuple[int, bool]]) -> None:
        shutil.rmtree(root, ignore_errors=True)
        for at, killed in moments:
            interruptions.run(root, lambda: work(root), at % changes, killed=killed)
        assert work(root) == wanted

    check()


class Calm:
    """A watch that sees nothing."""

    def __init__(self, *_: object) -> None: ...
    def begin(self) -> None: ...
    def end(self) -> watch.BlockReading:
        return watch.BlockReading()


@pytest.fixture
def still(children: Children, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeClock]:
    """A clock that `fake` moves and nothing else: what is measured twice is measured alike."""
    clock = FakeClock()
    trial = 0

    def note(job: Job[Any]) -> None:
        nonlocal trial
        trial = getattr(job, "trial", 0)

    children.before = note
    for module in (build, measure):
        monkeypatch.setattr(module, "open_for", lambda engine, out_dir: FakeBackend(clock, trial))
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock() / 1e9))
    monkeypatch.setattr(watch, "BlockWatch", Calm)
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # nobody pulls the plug
    here = machine.describe_machine()
    monkeypatch.setattr(main_job, "describe_machine", lambda: here)
    monkeypatch.setattr(memory, "peak_memory_bytes", lambda: 1)
    monkeypatch.setattr(memory, "read_proportional_memory", lambda: 1)
    monkeypatch.setattr(reference, "time_reference", lambda repeats: [1] * repeats)
    monkeypatch.setitem(loop.measure_engine.__kwdefaults__, "clock", clock)
    yield clock
