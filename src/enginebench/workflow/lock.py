"""One run at a time on a device: an advisory lock on a file shared by all users of the machine."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from enginebench.core.errors import DeviceBusy, MeasurementError

POLL_S = 0.5


@contextmanager
def lock_devices(
    devices: Iterable[str],
    *,
    wait: bool = True,
    folder: Path | None = None,
    on_wait: Callable[[str], None] = lambda text: None,
) -> Iterator[None]:
    """Holds the locks of all these devices inside the block; each is taken once.

    They are taken in the order of their names, so that two runs that want the same devices cannot deadlock. The
    arguments are those of `lock_device`.

    Raises:
        DeviceBusy: another run holds one of them and `wait` is false; the others are released.
    """
    with ExitStack() as held:
        for device in sorted(set(map(spell_device, devices))):
            held.enter_context(lock_device(device, wait=wait, folder=folder, on_wait=on_wait))
        yield


def spell_device(device: str) -> str:
    """The one spelling of a device: `cuda` is the first GPU."""
    return "cuda:0" if device == "cuda" else device


@contextmanager
def lock_device(
    device: str,
    *,
    wait: bool = True,
    folder: Path | None = None,
    on_wait: Callable[[str], None] = lambda text: None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[None]:
    """Holds the lock of `device` ("cpu", "cuda:0") inside the block; the kernel drops it if this process dies.

    Args:
        wait: wait for another run to end, or refuse at once.
        folder: of the lock files; by default the system's folder for temporary files, so that the runs of
            different users and checkouts see each other.
        on_wait: called once with a message if it has to wait.

    Raises:
        DeviceBusy: another run holds it and `wait` is false.
    """
    path = (folder or Path(tempfile.gettempdir())) / f"enginebench-{device.replace(':', '')}.lock"
    fd = _open_shared(path)
    try:
        _acquire(fd, device, path, wait, on_wait, sleep)
        yield
    finally:
        os.close(fd)  # drops the lock


def _acquire(
    fd: int,
    device: str,
    path: Path,
    wait: bool,
    on_wait: Callable[[str], None],
    sleep: Callable[[float], None],
) -> None:
    told = False
    while not _try_lock(fd):
        if not wait:
            raise DeviceBusy(
                f"another run is measuring on {device} (lock {path}); wait for it, or run without --no-wait"
            )
        if not told:
            on_wait(f"another run is measuring on {device}; waiting for it to end")
            told = True
        sleep(POLL_S)


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open_shared(path: Path) -> int:
    """A descriptor of the lock file, which everyone may open; never through a link that somebody put there."""
    try:
        try:
            return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise MeasurementError(f"cannot open the lock file {path}: {error.strerror}. Remove it") from error
