"""The processes that hold the lock of a device or wait for it, visible to every process of the machine.

Each binds a name in the kernel (an abstract socket of Linux), which ends with the process and which every user may
list. On other systems nothing is listed, and the locks work all the same.
"""

import hashlib
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple

from enginebench.core.commands import join_words
from enginebench.core.text import clean_text

# Characters of the other run's command that are shown.
COMMAND_LENGTH = 120
Role = Literal["holds", "waits"]


class Mark(NamedTuple):
    """A process that holds a device or waits for it."""

    since_ns: int  # of the system's clock
    pid: int
    start: int  # of the process, in ticks after the machine's: a pid is used again


def mark_self(since_ns: int) -> Mark:
    """The mark of this process."""
    return Mark(since_ns=since_ns, pid=os.getpid(), start=_read_start(os.getpid()) or 0)


@contextmanager
def show_mark(role: Role, path: Path, since_ns: int) -> Iterator[None]:
    """Show other processes, inside the block, that this one holds the lock or waits for it."""
    if sys.platform != "linux":
        yield
        return
    name = "-".join(map(str, mark_self(since_ns)))
    with socket.socket(socket.AF_UNIX) as mark:
        with suppress(OSError):  # nothing but a message depends on it
            mark.bind(f"\0enginebench-{role}-{_hash_path(path)}-{name}".encode())
        yield


def _hash_path(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]


def list_marks(role: Role, path: Path) -> list[Mark]:
    """List the processes that hold the lock, or wait for it, the first one first; [] where the kernel has no list."""
    try:
        names = Path("/proc/net/unix").read_bytes()
    except OSError:
        return []
    matches = re.findall(
        rb"@enginebench-%b-%b-(\d+)-(\d+)-(\d+)$" % (role.encode(), _hash_path(path).encode()), names, re.M
    )
    return sorted(Mark(*map(int, numbers)) for numbers in matches)


def describe_holder(path: Path) -> str:
    """`: pid 4711, enginebench run resnet18, since 21:14:05 (90 s)`; "" if it cannot be seen."""
    holders = list_marks("holds", path)
    if not holders:
        return ""
    mark = holders[0]
    since = time.strftime("%H:%M:%S", time.localtime(mark.since_ns / 1e9))
    seconds = max(0, (time.time_ns() - mark.since_ns) // 10**9)
    parts = [f"pid {mark.pid}", _read_command(mark), f"since {since} ({seconds} s)"]
    return f": {', '.join(filter(None, parts))}"


def _read_command(mark: Mark) -> str:
    """The command line of a process, as its user typed it; "" if it is not of this namespace, or has ended."""
    if _read_start(mark.pid) != mark.start:
        return ""
    try:
        words = Path(f"/proc/{mark.pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
    except OSError:
        return ""
    for index, word in enumerate(words[:3]):  # python, its switch -m, and the program
        if Path(word).name == "enginebench" or word.endswith("enginebench/__main__.py"):
            words = ["enginebench", *words[index + 1 :]]
    text = clean_text(join_words(words))
    return text if len(text) <= COMMAND_LENGTH else f"{text[: COMMAND_LENGTH - 3]}..."


def _read_stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name, which may hold spaces; [] if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []


def _read_start(pid: int) -> int | None:
    """Return when a process began, in ticks. Source: proc_pid_stat(5), field 22, `starttime`."""
    fields = _read_stat(pid)
    return int(fields[19]) if len(fields) > 19 else None


def is_stopped(mark: Mark) -> bool:
    """Whether a process is suspended: others do not wait for it. Source: proc_pid_stat(5), field 3, `state`."""
    return _read_start(mark.pid) == mark.start and _read_stat(mark.pid)[:1] in (["T"], ["t"])
