"""The child process: reads one job from standard input, performs it, writes the response to the result pipe, ends."""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import threading
import traceback
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

import msgspec

from enginebench.core.errors import ChildFailed, EngineBenchError
from enginebench.runs.child.across import PARENT_FD, RESULT_FD, TURN_FD, describe_error, kill_without_writer
from enginebench.runs.child.jobs import (
    ErrorResponse,
    FinalResponse,
    Job,
    Kept,
    Message,
    Note,
    PreloadJob,
    Ready,
    read_job,
)

# New objects between two looks for garbage; the interpreter's own is 700.
GC_THRESHOLD = 100_000
# What a measurement imports on its way, whatever the engine.
_MEASURE = ("loop", "machine", "nvml", "pin", "reference", "caches", "watch")
MODULES = (
    *("enginebench.runs.child.perform.build", *(f"enginebench.measure.{name}" for name in _MEASURE)),
    *("enginebench.models.task", "enginebench.runs.child.perform.measure", "enginebench.runs.child.watching"),
)


def main() -> NoReturn:
    """Perform the job and exit with 0 once a response was sent, also an error that was raised on purpose."""
    # Importing a large runtime makes hundreds of thousands of objects that stay: collecting among them again and again
    # took a third of the import of torch.compile. The timed loop switches the collector off altogether.
    gc.set_threshold(GC_THRESHOLD, 50, 50)
    fd = int(os.environ[RESULT_FD])
    job = wait_for_job(fd)
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())  # the user's code that asks gets no reply, at once
    follow_parent(int(os.environ[PARENT_FD]))
    try:
        response = job.perform(lambda text: send(fd, Note(text=text)), partial(keep, fd))
        message: FinalResponse[Any] | ErrorResponse = FinalResponse(response=response)
        msgspec.json.encode(message)  # what cannot be sent is a fault like any other
    except EngineBenchError as error:
        message = describe_error(error)
    except MemoryError:
        traceback.print_exc()
        message = describe_error(ChildFailed("out of memory (MemoryError)"))
    except Exception as error:
        traceback.print_exc()
        first = (str(error).strip().splitlines() or [""])[0][:300]
        message = describe_error(ChildFailed(f"{type(error).__name__}: {first}"))
    send(fd, message)
    leave()


def wait_for_job(fd: int) -> Job[Any]:
    """Read the job; a preload job before it is performed first."""
    job = read_job(sys.stdin.buffer.readline())
    if not isinstance(job, PreloadJob):
        return job
    preload(job)
    send(fd, Ready())
    line = sys.stdin.buffer.readline()
    if not line:  # the parent is gone, or needs no further trial
        leave()
    job = read_job(line)
    assert isinstance(job, Job)
    return job


def preload(job: PreloadJob) -> None:
    """Import what the job will need. An import that fails here fails again in the job, which reports it.

    Importing PyTorch takes seconds, several times as long as a configuration is timed. A child that has imported waits
    for its job without using a CPU, a GPU or more than its own memory, so it does not disturb what is timed meanwhile.
    """
    from enginebench.engines.abilities import ImportsLate
    from enginebench.measure.pin import pin_process
    from enginebench.runs.child.opening import open_for

    if job.pin:
        pin_process(job.engine.threads)
    for module in (*MODULES, *(["enginebench.models.torch.source"] if job.kind == "torch" else [])):
        with suppress(Exception):
            import_module(module)
    with suppress(Exception):
        backend = open_for(job.engine, job.out_dir)
        if isinstance(backend, ImportsLate):
            backend.import_ahead()


def keep(fd: int, sure: Any) -> None:
    """Send the results so far, and return once the record may be made."""
    send(fd, Kept(response=sure))
    os.read(int(os.environ[TURN_FD]), 1)


def leave() -> NoReturn:
    """End the process at once: tearing down a large runtime costs seconds in each of many processes."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def send(fd: int, message: Message[Any]) -> None:
    data = memoryview(msgspec.json.encode(message) + b"\n")
    while data:
        data = data[os.write(fd, data) :]


def follow_parent(parent_fd: int) -> None:
    """End this process and all that it starts when the parent ends, and with it the writer of this pipe."""
    if os.getpgrp() != os.getpid():
        return  # started by hand, not by `run_child`: there is no group of our own to end
    if sys.platform == "linux":
        kill_without_writer(parent_fd, os.getpgrp())
        if select.select([parent_fd], [], [], 0)[0]:  # the parent died before this was set up
            os.killpg(0, signal.SIGKILL)
    else:

        def wait_for_end() -> None:
            while os.read(parent_fd, 1):
                pass
            os.killpg(0, signal.SIGKILL)

        threading.Thread(target=wait_for_end, daemon=True).start()


if __name__ == "__main__":
    main()
