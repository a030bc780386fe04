"""One run at a time on a device: an advisory lock on a file shared by all users of the machine."""

import errno
import fcntl
import hashlib
import os
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from enginebench.core.cuda_devices import find_bus_id
from enginebench.core.errors import DeviceBusy, MeasurementError
from enginebench.core.store import explain_access
from enginebench.measure.nvml import read_index

POLL_S = 0.5


@contextmanager
def lock_devices(
    devices: Iterable[str], *, wait: bool = True, on_wait: Callable[[str], None] = lambda text: None
) -> Iterator[None]:
    """As `lock_device`, for all these devices, each once, in the order of their names: so two runs cannot deadlock."""
    with ExitStack() as held:
        for device in sorted({"cuda:0" if device == "cuda" else device for device in devices}):
            held.enter_context(lock_device(device, wait=wait, on_wait=on_wait))
        yield


@contextmanager
def lock_device(
    device: str, *, wait: bool = True, on_wait: Callable[[str], None] = lambda text: None
) -> Iterator[None]:
    """Holds the lock of `device` ("cpu", "cuda:0") inside the block; the kernel drops it if this process dies.

    A GPU is told by its place on the PCI bus, where the driver knows it: with CUDA_VISIBLE_DEVICES each of two runs
    calls its own card "cuda:0". The files lie in the system's folder for temporary files, so that the runs of different
    users and checkouts see each other.

    Args:
        on_wait: called once with a message if it has to wait.
    """
    place = find_bus_id(read_index(device)) if device.startswith("cuda") else None
    name = (place or device).replace(":", "").lower()
    path = Path(tempfile.gettempdir()) / f"enginebench-{name}.lock"
    told = False
    while (held := _take(path)) is None:
        if not wait:
            raise DeviceBusy(
                f"another run is measuring on {device} (lock {path}); wait for it, or run without --no-wait"
            )
        if not told:
            on_wait(f"another run is measuring on {device}; waiting for it to end")
            told = True
        time.sleep(POLL_S)
    with held:
        yield


def _take(path: Path) -> ExitStack | None:
    """The lock, held until it is closed; None if another run has it.

    Whoever removes the file does not remove the lock: its holder has a name in the kernel, too, where there are such.
    """
    with ExitStack() as stack:
        fd = _open_shared(path)
        stack.callback(os.close, fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(fd), path.stat()):  # it was replaced meanwhile
                return None
            if sys.platform == "linux":
                name = stack.enter_context(socket.socket(socket.AF_UNIX))
                name.bind(b"\0enginebench-" + hashlib.sha256(os.fsencode(path.absolute())).digest())
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.ENOENT, errno.EADDRINUSE):
                return None
            raise MeasurementError(
                f"cannot lock {path}: {error.strerror}. Set TMPDIR to a folder on a local disk"
            ) from error
        return stack.pop_all()


def _open_shared(path: Path) -> int:
    """A descriptor of the lock file, which everyone may open; never of something else that somebody put there."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # of a pipe it would wait for a writer
    with explain_access(f"cannot open the lock file {path}", "Remove it", MeasurementError):
        try:
            fd = os.open(path, flags)
        except FileNotFoundError:
            fd = os.open(path, flags | os.O_CREAT, 0o644)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise MeasurementError(f"the lock file {path} is not a plain file. Remove it")
    return fd
