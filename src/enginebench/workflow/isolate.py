"""One child process for one job: started clean, watched, ended with everything it started.

The job goes in through the child's standard input, which then stays open: its end-of-file tells the child that the
parent is gone. Answers come back through a pipe of their own, so that whatever a library prints can corrupt nothing.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType

import msgspec

from enginebench.core import errors
from enginebench.core.errors import ChildFailed, EngineBenchError
from enginebench.workflow.jobs import Answer, ErrorAnswer, Job, Kept, MeasureAnswer, Note, PreloadJob, Ready

RESULT_FD = "ENGINEBENCH_RESULT_FD"
# Enough for the last traceback and the messages of a native library before it.
STDERR_TAIL_BYTES = 8192
# A million samples with device times are about 20 MB; an answer beyond this is a fault.
ANSWER_LIMIT_BYTES = 512 << 20
# How long a child may take to end by itself once it has answered: runtimes tear down threads at exit.
EXIT_GRACE_S = 20.0


def run_child(
    job: Job,
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    on_note: Callable[[str], None] = lambda text: None,
) -> Answer:
    """The answer of a fresh child process to `job`.

    Args:
        job: what to do.
        timeout_s: after this long the child and all that it started are killed.
        environment: variables added to the child's environment.
        on_note: called with each line of progress.

    Raises:
        ChildFailed: it died, hung or answered nonsense; carries the tail of its stderr.
        EngineBenchError: the error that the child raised on purpose, with its own class.
    """
    with Child(environment) as child:
        return child.perform(job, timeout_s=timeout_s, on_note=on_note)


def end_group(child: subprocess.Popen[bytes]) -> None:
    """Kills the child's process group, the child included, and reaps the child."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


class Child:
    """A fresh process that waits for one job. At the end of the `with` block it is gone, and all that it started.

    Args:
        environment: variables added to the child's environment.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        read_fd, write_fd = os.pipe()
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "enginebench.workflow.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(write_fd,),
                start_new_session=True,
                env={**os.environ, **(environment or {}), RESULT_FD: str(write_fd)},
            )
        except BaseException:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        self._conversation = _Conversation(self._child, read_fd)
        self._failure: ChildFailed | None = None
        self._closed = False

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kills what is left of the child; may be called twice."""
        if not self._closed:
            self._closed = True
            end_group(self._child)
            self._conversation.close()

    @property
    def pid(self) -> int:
        """The number of the process, and of its group."""
        return self._child.pid

    def ask_to_preload(self, job: PreloadJob) -> None:
        """Sends the child to import; returns at once."""
        self._conversation.send(job)

    def wait_until_ready(self, deadline: float) -> None:
        """Returns once the child has imported, or at the deadline (of `time.monotonic`): it may still get its job then.

        What goes wrong meanwhile is for `perform` to tell.
        """
        try:
            self._conversation.wait_until_ready(deadline)
        except ChildFailed as error:
            self._failure = error

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self._child.poll() is None

    @property
    def kept(self) -> MeasureAnswer | None:
        """What the child was sure of before it went on, whatever became of it then."""
        return self._conversation.kept

    def perform(self, job: Job, *, timeout_s: float, on_note: Callable[[str], None] = lambda text: None) -> Answer:
        """The child's answer; it does one job only. Raises as `run_child` does."""
        if self._failure is not None:
            raise self._failure
        return self._conversation.hold(job, time.monotonic() + timeout_s, timeout_s, on_note)


class _Conversation:
    """Both pipes of one child, read until there is an answer, a death, or no time left."""

    def __init__(self, child: subprocess.Popen[bytes], result_fd: int) -> None:
        assert child.stdin is not None and child.stdout is not None
        self._child = child
        self._stdin, self._noise = child.stdin, child.stdout
        self._result_fd = result_fd
        self._on_note: Callable[[str], None] = lambda text: None
        self._answer: Answer | None = None
        self._ready = False
        self.kept: MeasureAnswer | None = None
        self._pending = b""
        self._tail = b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(result_fd, selectors.EVENT_READ, self._read_result)
        self._selector.register(self._noise, selectors.EVENT_READ, self._read_noise)

    def send(self, message: Job | PreloadJob) -> None:
        with suppress(BrokenPipeError):  # it died at once; its exit status says why
            self._stdin.write(msgspec.json.encode(message) + b"\n")
            self._stdin.flush()

    def wait_until_ready(self, deadline: float) -> None:
        self._listen(deadline, lambda: self._ready)

    def _listen(self, deadline: float, is_enough: Callable[[], bool]) -> bool:
        """Reads until it is enough or the child has ended; False if the deadline comes before either."""
        while not is_enough() and self._selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for key, _ in self._selector.select(min(left, 1.0)):
                key.data()
        return True

    def hold(self, job: Job, deadline: float, timeout_s: float, on_note: Callable[[str], None]) -> Answer:
        self._on_note = on_note
        self.send(job)
        if not self._listen(deadline, lambda: self._answer is not None):
            raise self._failure(f"no answer within the time-out of {timeout_s:g} s; killed")
        if self._answer is not None:
            self._wait_exit(min(deadline, time.monotonic() + EXIT_GRACE_S))
        return self._judge()

    def _wait_exit(self, deadline: float) -> None:
        """The child has answered; its output is drained so that it can end by itself."""
        while self._child.poll() is None and time.monotonic() < deadline:
            for key, _ in self._selector.select(0.02):
                key.data()

    def _judge(self) -> Answer:
        answer = self._answer
        if isinstance(answer, ErrorAnswer):
            raise _rebuild_error(answer, self._stderr())
        if answer is not None:
            return answer
        ending = describe_exit(self._child.wait())
        raise self._failure(f"{_quote(self._pending)}; {ending}" if self._pending else ending)

    def _read_result(self) -> None:
        chunk = os.read(self._result_fd, 1 << 20)
        if not chunk:
            self._selector.unregister(self._result_fd)
            return
        self._pending += chunk
        if len(self._pending) > ANSWER_LIMIT_BYTES:
            raise self._failure(f"its answer is larger than {ANSWER_LIMIT_BYTES >> 20} MiB")
        *lines, self._pending = self._pending.split(b"\n")
        for line in lines:
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            message = msgspec.json.decode(line, type=Answer)
        except msgspec.DecodeError as error:
            raise self._failure(_quote(line)) from error
        if isinstance(message, Note):
            self._on_note(message.text)
        elif isinstance(message, Ready):
            self._ready = True
        elif isinstance(message, Kept):
            self.kept = message.answer
        else:
            self._answer = message

    def _read_noise(self) -> None:
        chunk = os.read(self._noise.fileno(), 1 << 16)
        if not chunk:
            self._selector.unregister(self._noise)
        self._tail = (self._tail + chunk)[-STDERR_TAIL_BYTES:]

    def _stderr(self) -> str:
        return self._tail.decode("utf-8", "replace").strip()

    def _failure(self, reason: str) -> ChildFailed:
        return ChildFailed(reason, self._stderr())

    def close(self) -> None:
        self._selector.close()
        os.close(self._result_fd)
        self._noise.close()
        with suppress(BrokenPipeError):
            self._stdin.close()


def _quote(line: bytes) -> str:
    return f"it answered with something that is no answer: {line[:80]!r}"


def describe_exit(status: int) -> str:
    """A child's exit status in words: the signal that killed it, or the code that it ended with."""
    if status >= 0:
        return f"the process ended with exit code {status} and without an answer"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    hint = ", as the kernel does when memory runs out" if -status == signal.SIGKILL else ""
    return f"the process was killed by {name}{hint}"


def _rebuild_error(answer: ErrorAnswer, stderr_tail: str) -> EngineBenchError:
    """The child's error as an instance of its own class, so that the exit code survives the process border."""
    if answer.kind == "ChildFailed":
        return ChildFailed(answer.message, stderr_tail)
    kind = getattr(errors, answer.kind, EngineBenchError)
    error: EngineBenchError = kind.__new__(kind)
    error.args = (answer.message,)
    error.__dict__["exit_code"] = answer.exit_code
    return error
