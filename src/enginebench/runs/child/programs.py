"""Programs that are not ours, run to their end: an interpreter of another environment, an installer of packages.

What they print is bounded, as their time is: a program that prints without end would fill the memory.
"""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from enginebench.runs.child.across import kill_without_writer

# Far more than any of them has to say: an installer that lists all that it does prints some hundred KB.
OUTPUT_LIMIT_BYTES = 16 << 20


class Unfinished(Exception):
    """A program was killed before its end; the message says why, as the end of a sentence about it."""


def run_group(command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; it is killed, with all that it started, if this process ends first.

    Raises:
        OSError: it cannot be started.
        Unfinished: it takes longer than `timeout_s`, or prints more than `OUTPUT_LIMIT_BYTES`.
    """
    read_fd, write_fd = os.pipe()
    with (
        os.fdopen(read_fd) as stdin,
        os.fdopen(write_fd, "w"),
        subprocess.Popen(
            command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        ) as child,
    ):
        try:
            if sys.platform == "linux":
                kill_without_writer(read_fd, child.pid)
            printed = _read_streams(child, timeout_s)
        except BaseException:
            end_group(child)
            raise
    texts = [contents.decode("utf-8", "replace") for contents in printed]
    return subprocess.CompletedProcess(command, child.returncode, *texts)


def _read_streams(child: subprocess.Popen[bytes], timeout_s: float) -> list[bytes]:
    """Return what the child prints to its output and to its errors, once both have ended, and it has."""
    end_s = time.monotonic() + timeout_s
    late = Unfinished(f"did not finish within {timeout_s:g} s")
    assert child.stdout is not None and child.stderr is not None
    printed = {stream.fileno(): bytearray() for stream in (child.stdout, child.stderr)}
    with selectors.DefaultSelector() as selector:
        for fd in printed:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select(max(0.0, end_s - time.monotonic())):
                chunk = os.read(key.fd, 1 << 16)
                printed[key.fd] += chunk
                if not chunk:
                    selector.unregister(key.fd)
            if sum(map(len, printed.values())) > OUTPUT_LIMIT_BYTES:
                raise Unfinished(f"was stopped: it printed more than {OUTPUT_LIMIT_BYTES >> 20} MB")
            if time.monotonic() > end_s:
                raise late
    try:
        child.wait(max(0.0, end_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise late from None
    return [bytes(contents) for contents in printed.values()]


def end_group(child: subprocess.Popen[Any]) -> None:
    """Kill the child's process group, the child included, and reap the child."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
