"""One child process for one job: started clean, watched, ended with everything it started.

The job goes in through the child's standard input, which then stays open: its end-of-file tells the child that the
parent is gone. Responses come back through a pipe of their own, so that the output of a library cannot corrupt them.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any, Generic

import msgspec
from msgspec.structs import replace

from enginebench.core.errors import ChildFailed, EngineBenchError, TimedOut
from enginebench.models.objects import list_variables
from enginebench.runs.child.across import PARENT_FD, RESULT_FD, TURN_FD, rebuild_error
from enginebench.runs.child.environments import PythonEnvironment, find_environment, get_engine, strip_environment
from enginebench.runs.child.jobs import (
    ErrorResponse,
    FinalResponse,
    Job,
    Kept,
    Note,
    PreloadJob,
    Proof,
    Provable,
    Ready,
    Response,
    find_response_type,
    read_message,
)
from enginebench.runs.child.programs import end_group

# OpenMP's threads wait by spinning. In a child that times nothing they sleep: such children work side by side, and two
# that spin on the same cores take twice as long.
PATIENCE = {"OMP_WAIT_POLICY": "PASSIVE"}
# Enough for the last traceback and the messages of a native library before it.
STDERR_TAIL_BYTES = 8192
# A million samples with device times are about 20 MB; a response beyond this is a fault.
RESPONSE_LIMIT_BYTES = 512 << 20
# How long a child may take to end by itself after its response: runtimes tear down threads at exit.
EXIT_GRACE_S = 20.0


def run_child(
    job: Job[Response],
    *,
    timeout_s: float,
    variables: Mapping[str, str] | None = None,
    on_note: Callable[[str], None] = lambda text: None,
    environment: PythonEnvironment | None = None,
) -> Response:
    """Perform `job` in a fresh child process and return its response.

    Args:
        timeout_s: after this long the child and all that it started are killed.
        variables: added to those of this process; None: those for the threads that the job names.
        on_note: called with each line of progress.
        environment: the environment of the child; None: that of the job's engine, else this one.

    Raises:
        ChildFailed: it died, hung or returned an invalid response; carries the tail of its stderr.
        EngineBenchError: the error that the child raised on purpose, with its own class and attributes.
    """
    own = find_variables(job) if variables is None else variables
    with Child({**({} if job.timed else PATIENCE), **own}, environment or find_environment(get_engine(job))) as child:
        return child.perform(job, timeout_s=timeout_s, on_note=on_note)


def find_variables(job: Job[Any]) -> dict[str, str]:
    """Variables for the threads that a job, or its engine, names; none if it names none."""
    threads = getattr(get_engine(job) or job, "threads", None)
    return child_environment(threads) if threads else {}


class Child:
    """A fresh process that waits for one job. At the end of the `with` block it is gone, and all that it started.

    Its pipes are read until there is a response, a death, or no time left.

    Args:
        environment: its Python packages; None: this one.
        pass_fds: descriptors that the child inherits, under the same numbers.
    """

    def __init__(
        self,
        variables: Mapping[str, str] | None = None,
        environment: PythonEnvironment | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self._result_fd, write_fd = os.pipe()
        turn_fd, self._give_turn_fd = os.pipe()
        parent_fd, self._alive_fd = os.pipe()
        try:
            self._child = subprocess.Popen(
                [environment.python if environment else sys.executable, "-m", "enginebench.runs.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(write_fd, turn_fd, parent_fd, *pass_fds),
                start_new_session=True,
                env={
                    **os.environ,
                    **list_variables(),
                    **(environment.variables() if environment else {}),
                    **(variables or {}),
                    RESULT_FD: str(write_fd),
                    TURN_FD: str(turn_fd),
                    PARENT_FD: str(parent_fd),
                },
            )
        except BaseException as error:
            os.close(self._result_fd)
            os.close(self._give_turn_fd)
            os.close(self._alive_fd)
            if environment is not None and isinstance(error, OSError):
                raise ChildFailed(
                    f"environment {environment.name}: {environment.python} cannot be started any more: {error}"
                ) from error
            raise
        finally:
            os.close(write_fd)
            os.close(turn_fd)
            os.close(parent_fd)
        assert self._child.stdin is not None and self._child.stdout is not None
        self._stdin, self._noise = self._child.stdin, self._child.stdout
        self._on_note: Callable[[str], None] = lambda text: None
        self._expected: Any = Any  # no response before a job is sent
        self._response: FinalResponse[Any] | ErrorResponse | None = None
        self._failure: EngineBenchError | None = None
        self._last_note = ""
        self._ready = self._closed = False
        self.kept: Any = None
        self._pending = self._tail = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._result_fd, selectors.EVENT_READ, self._read_result)
        self._selector.register(self._noise, selectors.EVENT_READ, self._read_noise)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kills what is left of the child; may be called twice."""
        if self._closed:
            return
        self._closed = True
        end_group(self._child)
        self._selector.close()
        os.close(self._result_fd)
        os.close(self._give_turn_fd)
        os.close(self._alive_fd)
        self._noise.close()
        with suppress(BrokenPipeError):
            self._stdin.close()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    @property
    def settled(self) -> bool:
        """Whether the child has its response, except the record, or has failed."""
        return self.lost or self._response is not None or self.kept is not None

    @property
    def lost(self) -> bool:
        """Whether the child has failed: with an error, or without any response."""
        if self._failure is not None:
            return True
        gone = isinstance(self._response, ErrorResponse) or (self._response is None and not self._selector.get_map())
        return self.kept is None and gone

    @property
    def file_numbers(self) -> list[int]:
        return [key.fd for key in self._selector.get_map().values()]

    def ask_to_preload(self, job: PreloadJob) -> None:
        """Let the child import, and return at once."""
        self._send(job)

    def wait_until_ready(self, deadline: float) -> None:
        """Wait until the child has imported, or for the deadline (monotonic); `perform` raises what failed."""
        try:
            self._listen(deadline, lambda: self._ready)
        except ChildFailed as error:
            self._failure = error

    def perform(
        self, job: Job[Response], *, timeout_s: float, on_note: Callable[[str], None] = lambda text: None
    ) -> Response:
        return self.start(job, timeout_s=timeout_s, on_note=on_note).finish()

    def start(
        self, job: Job[Response], *, timeout_s: float, on_note: Callable[[str], None] = lambda text: None
    ) -> Work[Response]:
        """Send the job, and return at once."""
        work: Work[Response] = Work(self, timeout_s)
        if self._failure is None:
            self._on_note, self._expected = on_note, find_response_type(type(job))
            self._send(job)
        return work

    def take_in(self, deadline: float, timeout_s: float) -> None:
        """Read what the child has sent; a child without time left is killed."""
        try:
            if time.monotonic() > deadline:
                raise self._give_up(timeout_s)
            self._read()
        except EngineBenchError as error:
            self._failure = error
            end_group(self._child)

    def prove(self, deadline: float, timeout_s: float) -> Any:
        """Let the child make its record, and return its response."""
        if self._failure is not None:
            raise self._failure
        with suppress(BrokenPipeError):
            os.write(self._give_turn_fd, b".")
        if not self._listen(deadline, lambda: self._response is not None):
            raise self._give_up(timeout_s)
        if self._response is None:
            ending = format_exit(self._child.wait())
            raise self._fail(f"{_quote(self._pending)}; {ending}" if self._pending else ending)
        deadline = min(deadline, time.monotonic() + EXIT_GRACE_S)
        while self.alive and time.monotonic() < deadline:  # its output is drained so that it can end by itself
            for key, _ in self._selector.select(0.02):
                key.data()
        if isinstance(self._response, ErrorResponse):
            raise rebuild_error(self._response, self._stderr())
        return self._response.response

    def _send(self, message: Job[Any] | PreloadJob) -> None:
        with suppress(BrokenPipeError):  # it died at once; its exit status has the reason
            self._stdin.write(msgspec.json.encode(strip_environment(message)) + b"\n")
            self._stdin.flush()

    def _listen(self, deadline: float, is_enough: Callable[[], bool]) -> bool:
        """Read until `is_enough` or the child has ended; return False if the deadline comes first."""
        while not is_enough() and self._selector.get_map():
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return False
            self._read(min(remaining_s, 1.0))
        return True

    def _read(self, timeout_s: float = 0.0) -> None:
        """Read what is there. After a child has ended nothing more comes, though processes that it started may live on
        and hold its pipes open."""
        ended = not self.alive
        readable = self._selector.select(0 if ended else timeout_s)
        for key, _ in readable:
            key.data()
        if ended and not readable:
            for key in [*self._selector.get_map().values()]:
                self._selector.unregister(key.fileobj)

    def _read_result(self) -> None:
        chunk = os.read(self._result_fd, 1 << 20)
        if not chunk:
            self._selector.unregister(self._result_fd)
            return
        self._pending += chunk
        if len(self._pending) > RESPONSE_LIMIT_BYTES:
            raise self._fail(f"its response is larger than {RESPONSE_LIMIT_BYTES >> 20} MiB")
        *lines, self._pending = self._pending.split(b"\n")
        for line in lines:
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            message = read_message(line, self._expected)
        except msgspec.DecodeError as error:
            raise self._fail(_quote(line)) from error
        match message:
            case Note(text=text):
                self._last_note = text
                self._on_note(text)
            case Ready():
                self._ready = True
            case Kept(response=kept):
                self.kept = kept
            case _:
                self._response = message

    def _read_noise(self) -> None:
        chunk = os.read(self._noise.fileno(), 1 << 16)
        if not chunk:
            self._selector.unregister(self._noise)
        self._tail = (self._tail + chunk)[-STDERR_TAIL_BYTES:]

    def _stderr(self) -> str:
        return self._tail.decode("utf-8", "replace").strip()

    def _fail(self, reason: str) -> ChildFailed:
        return ChildFailed(reason, self._stderr())

    def _give_up(self, timeout_s: float) -> TimedOut:
        last = f" (last heard: {self._last_note})" if self._last_note else ""
        return TimedOut(f"no response within the time-out of {timeout_s:g} s; killed{last}", self._stderr())


class Work(Generic[Response]):
    """A job that a child is at. It makes the record of an engine only once `finish` is called."""

    def __init__(self, child: Child, timeout_s: float) -> None:
        self.child, self._timeout_s = child, timeout_s
        self.restart_clock()

    def restart_clock(self) -> None:
        """Let the time-out begin now: nobody has listened to the child so far."""
        self._left_s = self._timeout_s
        self._deadline = time.monotonic() + self._timeout_s

    @property
    def sure(self) -> bool:
        return self.child.settled

    @property
    def lost(self) -> bool:
        return self.child.lost

    def listen(self) -> None:
        self.child.take_in(self._deadline, self._timeout_s)
        self._left_s = self._deadline - time.monotonic()

    def finish(self) -> Response:
        """Return the response, with the record if the job has one; the time of other children does not count.

        If a child is lost while it makes its record, the response that it sent before is returned, with the reason.
        """
        try:
            response: Response = self.child.prove(time.monotonic() + self._left_s, self._timeout_s)
            return response
        except EngineBenchError as error:
            kept_response: Response | None = self.child.kept
            if not isinstance(kept_response, Provable):
                raise
            return replace(kept_response, proof=Proof(failure=str(error)))


def wait_until_sure(works: Sequence[Work[Any]], helpers: Sequence[Work[Any]] = (), *, left: int = 0) -> None:
    """Wait until every child but `left` has its response, except the record, or has failed; `finish` raises that.

    A lost helper ends the wait, too: without it the others would wait in vain. One may be a work itself.
    """
    while sum(not work.sure for work in works) > left and not any(helper.lost for helper in helpers):
        waiting = [work for work in dict.fromkeys((*works, *helpers)) if not work.sure]
        wait([number for work in waiting for number in work.child.file_numbers], timeout=1.0)
        for work in waiting:
            work.listen()


def _quote(line: bytes) -> str:
    return f"worker returned an invalid response: {line[:80]!r}"


def format_exit(status: int) -> str:
    """A child's exit status in words: the signal that killed it, or the code that it ended with."""
    if status >= 0:
        return f"the process ended with exit code {status} and without a response"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    hint = ", as the kernel does when memory runs out" if -status == signal.SIGKILL else ""
    return f"the process was killed by {name}{hint}"


def child_environment(threads: int, trial: int = 0) -> dict[str, str]:
    """Variables for a child: every numeric library at the same number of threads from its first import on."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "OPENBLAS_NUM_THREADS": "1",
        "ENGINEBENCH_REPETITION": str(trial),
    }
