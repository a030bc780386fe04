"""Split a log into lines, and its lines into runs.

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
# The prefix in a log whose time stamps were cut away.
_LEVEL = re.compile(r"^\s*\[([FEWIV])\] ?(\[TRT\] ?)?")
# What a comment in a source file, or a quotation in a message, puts in front of each line of a log.
_MARK = re.compile(r"\s*(#+|//+|>+|--+|;+|%+|\*+)\s*")
# The one message of the library that is about the engine.
ENGINE_SIZE = "Loaded engine size: "
_TASK = re.compile(r"&&&& (TASK_BEGIN|TASK_END|TASK_ABORT) ")
# A second one of these in a run without banners belongs to the next run.
_ONCE = frozenset({"=== Model Options ===", "=== Performance summary ==="})


class Line(NamedTuple):
    """One message: its level (None: printed without prefix), whether the library wrote it, and its text."""

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


@dataclass(eq=False)
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
    """Yield the messages of a log. A print without line end in front of a message becomes a line of its own."""
    prefix, mark = read_style(text)
    # One by one: a list of all lines would take more memory than a verbose log itself.
    for number, whole_line in enumerate(re.finditer(r"^[^\n]*", text, re.MULTILINE), 1):
        raw = whole_line[0]
        if mark and raw.lstrip().startswith(mark):
            raw = raw.lstrip().removeprefix(mark).removeprefix(" ")
        matches = list(prefix.finditer(raw))
        head = raw[: matches[0].start()] if matches else raw
        if head.strip() or not matches:
            yield Line(number, None, False, head)
        ends = [match.start() for match in matches[1:]] + [len(raw)]
        for match, end in zip(matches, ends, strict=False):
            yield Line(number, match[1], match[2] is not None, raw[match.end() : end].rstrip())


def read_style(text: str) -> tuple[re.Pattern[str], str]:
    """Return (the prefix of messages in this log, the mark of a comment or quotation in front of its lines or "").

    Messages without time stamps are read only if there is a banner of trtexec: other tools print `[E] ...`, too.
    """
    banner = _BANNER.search(text)
    if banner is None:
        return _PREFIX, ""
    mark = _MARK.fullmatch(text, text.rfind("\n", 0, banner.start()) + 1, banner.start())
    return _PREFIX if _PREFIX.search(text) else _LEVEL, mark[1] if mark else ""


def read_banner(text: str) -> Banner | None:
    """Return the banner in a line, if there is one; it may follow a print that did not end its line."""
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


def split_log_runs(text: str) -> list[RunLines]:
    """Return the runs in a log, in the order in which they started.

    A run is opened by RUNNING and closed by the banner with the same command line; inside a task of a tuning run it has
    a parent. Messages behind the last banner belong to the run that ended last: the two output pipes are not ordered.
    """
    runs: list[RunLines] = []
    opened: list[RunLines] = []
    last: RunLines | None = None
    inside = False
    outermost = 0  # the place in `runs` of the first of `opened`

    def push(run: RunLines) -> None:
        nonlocal outermost
        outermost = outermost if opened else len(runs)
        runs.append(run)
        opened.append(run)

    for line in split_lines(text):
        # A verbose build has a million lines of the library in which nothing is about the run.
        chatter = line.level == "V" or (line.library and line.level == "I" and not line.text.startswith(ENGINE_SIZE))
        banner = read_banner(line.text) if line.level is None else None
        if banner is not None and banner.verdict == "RUNNING":
            early: list[Line] = []
            nested = inside and bool(opened)
            first = not nested and len(runs) == 1 and bool(opened) and runs[0].banner is None
            if first and all(one.level in ("W", "E", "F", None) for one in runs[0].lines):
                early = runs.pop().lines  # flushed before the first banner: they belong to the run that follows
            del opened[1 if nested else 0 :]
            parent = outermost if nested else None
            push(RunLines(line.number, parent=parent, opening=banner, lines=early))
        elif banner is not None:
            if not opened:
                push(RunLines(line.number))
            fits = [i for i, run in enumerate(opened) if (run.opening and run.opening.command) == banner.command]
            depth = (fits or [len(opened) - 1])[-1]
            last = opened[depth]
            last.closing = banner
            del opened[depth:]
        elif line.level is None and (task := _TASK.search(line.text)):
            inside = task[1] == "TASK_BEGIN"
            for run in opened[1:]:
                run.aborted = task[1] == "TASK_ABORT"
            del opened[1:]
        elif not (chatter and runs):
            once = line.level is not None and line.text in _ONCE
            if once and not inside and opened and any(one.text == line.text for one in opened[-1].lines):
                opened.clear()
                last = None
            if not opened and (last is None or (once and line.level == "I")):
                if line.level is None and not line.text.strip():
                    continue
                push(RunLines(line.number))
            (opened[-1] if opened else last or runs[-1]).lines.append(line)
    return runs
