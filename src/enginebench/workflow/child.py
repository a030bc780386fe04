"""The child process: reads one job from standard input, does it, answers on the result pipe, ends."""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import sys
import threading
import traceback
from typing import TYPE_CHECKING, NoReturn

import msgspec

from enginebench.core.errors import EngineBenchError
from enginebench.workflow.isolate import RESULT_FD
from enginebench.workflow.jobs import ErrorAnswer, Job, Kept, Note, PreloadJob, Ready

if TYPE_CHECKING:
    from enginebench.workflow.jobs import Answer, KeepCall, NoteCall

# Linux's number; Python's fcntl module names it only on some builds (fcntl.h, F_SETSIG).
F_SETSIG = 10
# New objects between two looks for garbage; the interpreter's own is 700.
GC_THRESHOLD = 100_000


def main() -> NoReturn:
    """Ends with 0 once an answer was given, also if the answer is an error that was raised on purpose."""
    # Importing a large runtime makes hundreds of thousands of objects that stay: collecting among them again and again
    # took a third of the import of torch.compile. The timed loop switches the collector off altogether.
    gc.set_threshold(GC_THRESHOLD, 50, 50)
    fd = int(os.environ[RESULT_FD])
    job = read_job(fd)
    follow_parent(sys.stdin.fileno())
    try:
        answer: Answer = _perform(job, lambda text: send(fd, Note(text=text)), lambda sure: send(fd, Kept(answer=sure)))
        msgspec.json.encode(answer)  # what cannot be sent is a fault like any other
    except EngineBenchError as error:
        answer = ErrorAnswer(kind=type(error).__name__, message=str(error), exit_code=error.exit_code)
    except MemoryError:
        traceback.print_exc()
        answer = ErrorAnswer(kind="ChildFailed", message="out of memory (MemoryError)", exit_code=6)
    except Exception as error:
        traceback.print_exc()
        message = f"{type(error).__name__}: {_first_line(error)}"
        answer = ErrorAnswer(kind="ChildFailed", message=message, exit_code=6)
    send(fd, answer)
    leave()


def read_job(fd: int) -> Job:
    """The job, once everything is imported that the parent wanted imported before it."""
    job: Job | PreloadJob = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job | PreloadJob)
    if not isinstance(job, PreloadJob):
        return job
    from enginebench.workflow.preload import preload

    preload(job)
    send(fd, Ready())
    line = sys.stdin.buffer.readline()
    if not line:  # the parent is gone, or the row is measured no more
        leave()
    done: Job = msgspec.json.decode(line, type=Job)
    return done


def leave() -> NoReturn:
    """Ends the process now: all was said, and taking a large runtime apart costs seconds in a run of many processes."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _perform(job: Job, note: NoteCall, keep: KeepCall) -> Answer:
    # Imported late: whatever fails in there is answered like any other fault.
    from enginebench.workflow.perform import perform

    return perform(job, note, keep)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300]


def send(fd: int, message: Answer) -> None:
    """Writes one answer, whole, to the result pipe."""
    data = memoryview(msgspec.json.encode(message) + b"\n")
    while data:
        data = data[os.write(fd, data) :]


def follow_parent(stdin_fd: int) -> None:
    """Sees to it that this process and all that it starts die with the parent, however the parent dies.

    On Linux the kernel itself kills the process group when the pipe loses its writer (`F_SETSIG` with `O_ASYNC`,
    fcntl(2)): no thread of ours is needed, so a library that holds the interpreter's lock cannot delay it. Elsewhere
    a thread waits for the end of the pipe. To be called once the job has been read: new data would kill, too.
    """
    if os.getpgrp() != os.getpid():
        return  # started by hand, not by `run_child`: there is no group of our own to end
    if sys.platform == "linux":
        fcntl.fcntl(stdin_fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(stdin_fd, F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(stdin_fd, fcntl.F_SETFL, fcntl.fcntl(stdin_fd, fcntl.F_GETFL) | os.O_ASYNC)
        if select.select([stdin_fd], [], [], 0)[0]:  # the parent died before the kernel was told
            os.killpg(0, signal.SIGKILL)
    else:
        threading.Thread(target=_wait_for_end, args=(stdin_fd,), daemon=True).start()


def _wait_for_end(fd: int) -> None:
    while os.read(fd, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
