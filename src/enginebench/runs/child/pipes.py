"""The pipes between a process and what it starts; apart, since a child needs nothing else of what starts it."""

import fcntl
import os
import signal

RESULT_FD = "ENGINEBENCH_RESULT_FD"
# On it a child that is sure of its answer is told when it may make the record: others may still be at work.
TURN_FD = "ENGINEBENCH_TURN_FD"
# Linux's number; Python's fcntl module names it only on some builds (fcntl.h, F_SETSIG).
F_SETSIG = 10


def kill_without_writer(fd: int, group: int) -> None:
    """Has Linux kill a process group when the pipe that is read here loses its writer, or gets data (fcntl(2)).

    No thread of ours is needed, so a library that holds the interpreter's lock cannot delay it.
    """
    fcntl.fcntl(fd, fcntl.F_SETOWN, -group)
    fcntl.fcntl(fd, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
