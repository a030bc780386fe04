"""A log as lines, and its lines as runs.

Source: the banners, prefixes and their order are those of samples/common/sampleReporting, logging and trtexec of
NVIDIA/TensorRT, tags 8.0 to 11.1.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

_PREFIX = re.compile(r"\[\d\d/\d\d/\d{4}-\d\d:\d\d:\d\d\] \[([FEWIV])\] ?(\[TRT\] ?)?")
_BANNER = re.compile(
    r"&&&& (RUNNING|PASSED|FAILED|WAIVED) TensorRT\.trtexec"
    r"(?: \[TensorRT v(\d{1,9})\])?(?: \[b(\d{1,9})\])?(?: # (.*))?"
)
# The one message of the library that is about the engine.
ENGINE_SIZE = "Loaded engine size: "
_TASK = re.compile(r"&&&& (TASK_BEGIN|TASK_END|TASK_ABORT) ")
# A second one of these in a run without banners belongs to the next run.
_ONCE = frozenset({"=== Model Options ===", "=== Performance summary ==="})


class Line(NamedTuple):
    """One message: its level (None: printed without prefix), who wrote it, and its text."""

    number: int
    level: str | None
    library: bool
    text: str


class Banner(NamedTuple):
    """A `&&&&` line."""

    verdict: str
    version: str | None
    build: int | None
    command: str | None


@dataclass
class RunLines:
    first_line: int
    parent: int | None = None
    opening: Banner | None = None
    closing: Banner | None = None
    aborted: bool = False
    lines: list[Line] = field(default_factory=list)

    @property
    def banner(self) -> Banner | None:
        return self.opening or self.closing


def split_lines(text: str) -> Iterator[Line]:
    """The messages of a log. A print without line end in front of a message becomes a line of its own."""
    # One by one: a list of all lines would take more memory than a verbose log itself.
    for number, found in enumerate(re.finditer(r"^[^\n]*", text, re.MULTILINE), 1):
        raw = found[0]
        matches = list(_PREFIX.finditer(raw))
        head = raw[: matches[0].start()] if matches else raw
        if head.strip() or not matches:
            yield Line(number, None, False, head)
        ends = [match.start() for match in matches[1:]] + [len(raw)]
        for match, end in zip(matches, ends, strict=False):
            yield Line(number, match[1], match[2] is not None, raw[match.end() : end].rstrip())


def read_banner(text: str) -> Banner | None:
    """The banner in a line, if there is one; it may stand behind a print that did not end its line."""
    match = _BANNER.search(text) if "&&&&" in text else None
    if match is None:
        return None
    version = decode_version(match[2]) if match[2] else None
    return Banner(match[1], version, int(match[3]) if match[3] else None, (match[4] or "").strip() or None)


def decode_version(digits: str) -> str:
    """ "8.6.1" of "8601" and "10.16.1" of "101601".

    Source: NV_TENSORRT_VERSION is major*1000 + minor*100 + patch up to 9.x, major*10000 + minor*100 + patch from 10.0.
    """
    number = int(digits)
    base = 10000 if number >= 100000 else 1000
    return f"{number // base}.{number % base // 100}.{number % 100}"


class RunSplitter:
    """Sorts lines into runs: a run is opened by RUNNING and closed by the banner with the same command line.

    Runs inside a tuning run (between TASK_BEGIN and TASK_END) have a parent. Messages behind the last banner belong
    to the run that ended last, because the two output pipes are not ordered.
    """

    def __init__(self) -> None:
        self.runs: list[RunLines] = []
        self._open: list[int] = []
        self._task_depth: int | None = None
        self._last: int | None = None
        self._seen: set[str] = set()

    def add(self, line: Line) -> None:
        # A verbose build has a million lines of the library in which nothing is about the run.
        chatter = line.level == "V" or (line.library and line.level == "I" and not line.text.startswith(ENGINE_SIZE))
        banner = read_banner(line.text) if line.level is None else None
        if banner is not None:
            self._start(line, banner) if banner.verdict == "RUNNING" else self._finish(line, banner)
        elif line.level is None and (task := _TASK.search(line.text)):
            self._switch_task(task[1])
        elif not (chatter and self.runs):
            self._append(line)

    def _start(self, line: Line, banner: Banner) -> None:
        early: list[Line] = []
        inside = self._task_depth is not None and len(self._open) >= self._task_depth
        if not inside:
            # Warnings and errors that were flushed before the first banner belong to the run that follows.
            if len(self.runs) == 1 and self._open and self.runs[0].banner is None:
                lines = self.runs[0].lines
                if all(line.level in ("W", "E", "F", None) for line in lines):
                    early, self.runs = lines, []
            self._open.clear()
        parent = self._open[self._task_depth - 1] if inside and self._task_depth else None
        self._push(RunLines(line.number, parent=parent, opening=banner, lines=early))

    def _finish(self, line: Line, banner: Banner) -> None:
        if not self._open:
            self._push(RunLines(line.number))
        openings = [self.runs[index].opening for index in self._open]
        fits = [depth for depth, one in enumerate(openings) if (one and one.command) == banner.command]
        depth = (fits or [len(openings) - 1])[-1]
        self._last = self._open[depth]
        self.runs[self._last].closing = banner
        del self._open[depth:]
        self._seen.clear()

    def _switch_task(self, kind: str) -> None:
        if kind == "TASK_BEGIN":
            self._task_depth = len(self._open) or None
        elif self._task_depth is not None:
            for index in self._open[self._task_depth :]:
                self.runs[index].aborted = kind == "TASK_ABORT"
            del self._open[self._task_depth :]
            self._task_depth = None

    def _append(self, line: Line) -> None:
        if self._open and line.level is not None and line.text in _ONCE:
            if line.text in self._seen and self._task_depth is None:
                self._open.clear()
                self._last = None
            self._seen.add(line.text)
        if not self._open and self._last is not None and not (line.level == "I" and line.text in _ONCE):
            self.runs[self._last].lines.append(line)
            return
        if not self._open:
            if line.level is None and not line.text.strip():
                return
            self._push(RunLines(line.number))
            self._seen.add(line.text)
        self.runs[self._open[-1]].lines.append(line)

    def _push(self, run: RunLines) -> None:
        self.runs.append(run)
        self._open.append(len(self.runs) - 1)
        self._seen = set()


def split_runs(text: str) -> list[RunLines]:
    """The runs in a log, in the order in which they started."""
    splitter = RunSplitter()
    for line in split_lines(text):
        splitter.add(line)
    return splitter.runs
