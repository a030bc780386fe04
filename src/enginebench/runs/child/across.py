"""Pipes between a process and its child, and errors with their attributes as data."""

import fcntl
import os
import signal
from collections.abc import Iterator
from typing import Any

import msgspec

from enginebench.core import errors
from enginebench.core.errors import EngineBenchError
from enginebench.runs.child.jobs import ErrorResponse

RESULT_FD = "ENGINEBENCH_RESULT_FD"
# On it the parent lets a child with its results make the record: before that, others may still be measuring.
TURN_FD = "ENGINEBENCH_TURN_FD"
# Nothing is ever written to it, and its other end is open as long as the parent lives.
PARENT_FD = "ENGINEBENCH_PARENT_FD"
# Linux's number; Python's fcntl module names it only on some builds (fcntl.h, F_SETSIG).
F_SETSIG = 10


def kill_without_writer(fd: int, group: int) -> None:
    """Have Linux kill a process group when the pipe that is read here loses its writer (fcntl(2)).

    No thread of ours is needed, so a library that holds the interpreter's lock cannot delay it. It must be a pipe that
    nothing is written to: data kills, too, even data that was read before this call, since Linux sends the signal of a
    write after the reader is awake. 9 of 3,000 readers that called this at once were killed by what they had read.
    """
    fcntl.fcntl(fd, fcntl.F_SETOWN, -group)
    fcntl.fcntl(fd, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)


class CauseInChild(Exception):
    """The cause of a child's error, as text: the object itself stayed in the child."""


def describe_error(error: EngineBenchError) -> ErrorResponse:
    """Describe an error as data; an attribute that JSON cannot hold becomes its text."""
    kind = next(kind for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind)
    return ErrorResponse(
        kind=kind.__name__,
        message=_to_text(error),
        exit_code=error.exit_code,
        attributes={name: _to_data(value) for name, value in vars(error).items()},
        causes=tuple(f"{type(cause).__name__}: {_to_text(cause)}" for cause in _list_causes(error)),
    )


def _to_data(value: object) -> Any:
    try:
        return msgspec.json.decode(msgspec.json.encode(value, enc_hook=_to_text))
    except (UnicodeError, TypeError):  # a file name that is no text, keys of a mapping that are objects
        return _to_text(value)


def _to_text(value: object) -> str:
    """The text of a value; bytes that are no text, as a file's name may hold, as escapes."""
    return str(value).encode("utf-8", "backslashreplace").decode()


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    """List the chain of causes of an error, as a traceback shows it."""
    seen = {id(error)}
    while (cause := error.__cause__ or (None if error.__suppress_context__ else error.__context__)) is not None:
        if id(cause) in seen:  # a chain may be tied to itself by hand
            return
        seen.add(id(cause))
        yield cause
        error = cause


def rebuild_error(response: ErrorResponse, stderr_tail: str) -> EngineBenchError:
    """Rebuild the error of `describe_error`, with the end of the child's stderr if it has none."""
    kind: type[EngineBenchError] = getattr(errors, response.kind)
    error = kind.__new__(kind)
    error.args = (response.message,)
    vars(error).update(response.attributes)
    if error.exit_code != response.exit_code:
        error.exit_code = response.exit_code
    if stderr_tail and not error.stderr_tail:
        error.stderr_tail = stderr_tail
    last: BaseException = error
    for text in response.causes:
        last.__cause__ = last = CauseInChild(text)
    return error
