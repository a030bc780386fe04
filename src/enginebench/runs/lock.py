"""Lock a device, and a folder, for one run at a time: advisory file locks, visible to all that share them.

Each process that holds the lock of a device, or waits for it, is also visible to every process of the machine: it binds
a name in the kernel (an abstract socket of Linux), which ends with the process and which every user may list. On other
systems nothing is listed, and the locks work all the same.
"""

import errno
import fcntl
import hashlib
import itertools
import os
import re
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple

from enginebench.core.commands import join_words, name_flag
from enginebench.core.cuda_devices import find_bus_id
from enginebench.core.errors import DeviceBusy, MeasurementError, UsageError
from enginebench.core.store import explain_access, explain_writing
from enginebench.core.text import clean_text, count_of
from enginebench.measure.nvml import read_gpu_index

POLL_S = 0.5
# A run that waits reports it again after so many attempts (every 10 s), so that it does not seem to hang.
LOOKS_A_MESSAGE = 20
# In a run's folder, while a run is at work there.
FOLDER_LOCK = ".enginebench.lock"
# Characters of the other run's command that are shown.
COMMAND_LENGTH = 120
Role = Literal["holds", "waits"]


@contextmanager
def lock_devices(
    devices: Iterable[str], *, wait: bool = True, on_wait: Callable[[str], None] = lambda text: None
) -> Iterator[None]:
    """Lock all these devices, each once, in the order of their names, so that two runs cannot deadlock."""
    with ExitStack() as held:
        for device in sorted({"cuda:0" if device == "cuda" else device for device in devices}):
            held.enter_context(lock_device(device, wait=wait, on_wait=on_wait))
        yield


@contextmanager
def lock_device(
    device: str, *, wait: bool = True, on_wait: Callable[[str], None] = lambda text: None
) -> Iterator[None]:
    """Hold the lock of `device` ("cpu", "cuda:0") inside the block; the kernel drops it if this process dies.

    A GPU is identified by its place on the PCI bus, if the driver reports it: with CUDA_VISIBLE_DEVICES each of two
    runs calls its own card "cuda:0". The files lie in the system's folder for temporary files, so that the runs of
    different users and checkouts see each other.

    Args:
        on_wait: called with a message if it has to wait, and again every 10 s.

    Raises:
        DeviceBusy: another run holds it, and `wait` is False.
    """
    bus_id = find_bus_id(read_gpu_index(device)) if device.startswith("cuda") else None
    name = (bus_id or device).replace(":", "").lower()
    path = Path(tempfile.gettempdir()) / f"enginebench-{name}.lock"
    held = _wait(path, device, on_wait) if wait else _take(path)
    if held is None:
        flag = name_flag("--no-wait", "wait=False")
        raise DeviceBusy(f"another run is measuring on {device}{describe_holder(path)}. Wait for it: leave out {flag}")
    with held, show_mark("holds", path, time.time_ns()):
        yield


def is_any_held() -> bool:
    """Return whether a run holds a device of this machine; False where the kernel lists no holders."""
    return any(list_marks("holds", path) for path in Path(tempfile.gettempdir()).glob("enginebench-*.lock"))


def _wait(path: Path, device: str, on_wait: Callable[[str], None]) -> ExitStack:
    """The lock, once the runs that hold it, and those that waited earlier, have ended."""
    own = mark_self(time.time_ns())
    with show_mark("waits", path, own.since_ns):
        for look in itertools.count():
            earlier = sum(mark < own and not is_stopped(mark) for mark in list_marks("waits", path))
            held = None if earlier else _take(path)
            if held is not None:
                return held
            if look % LOOKS_A_MESSAGE == 0:
                waited = f"waiting for {look * POLL_S:.0f} s: " if look else ""
                verb = "waits" if earlier == 1 else "wait"
                before = f"; {count_of(earlier, 'runs')} {verb} before this one" if earlier else ""
                flag = name_flag("--no-wait", "wait=False")
                end = "" if look else f". Waiting for it to end; {flag} would not wait"
                on_wait(f"{waited}another run is measuring on {device}{describe_holder(path)}{before}{end}")
            time.sleep(POLL_S)
    raise AssertionError("unreachable")


@contextmanager
def lock_folder(root: Path, on_warning: Callable[[str], None]) -> Iterator[tuple[str, ...]]:
    """Hold the lock of a run's folder inside the block: two runs in one folder would replace each other's files.

    The lock is a file in the folder: it holds whatever TMPDIR is, and between machines where the file system has such
    locks. The kernel drops it if this process dies; the file is removed at the end. Yields the warnings that
    `on_warning` gets.

    Raises:
        UsageError: another run is at work in the folder.
        ArtifactError: the folder cannot be written.
    """
    with ExitStack() as stack:
        if not root.exists():
            stack.callback(_remove_empty, root)
        with explain_writing(root):
            root.mkdir(parents=True, exist_ok=True)
        path, warnings = root.resolve() / FOLDER_LOCK, list[str]()
        fd = _open_shared(path, os.O_RDWR)  # NFS locks no file that is open for reading alone
        stack.callback(os.close, fd)
        try:
            held = _lock_file(path, fd)
        except OSError as error:
            held = True
            warnings.append(
                f"the file system of {root} has no locks ({error.strerror}): a run on another machine in the same "
                "folder would go unnoticed, and spoil both"
            )
        if not (held and _hold_name(path, stack)):
            raise UsageError(
                f"another run is at work in {root} (lock {path}); wait for it to end, or choose another --out"
            )
        stack.callback(path.unlink, missing_ok=True)
        for warning in warnings:
            on_warning(f"warning: {warning}")
        yield tuple(warnings)


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # it holds something, or is gone
        folder.rmdir()


def _take(path: Path) -> ExitStack | None:
    """The lock, held until it is closed; None if another run has it."""
    with ExitStack() as stack:
        fd = _open_shared(path, os.O_RDONLY)
        stack.callback(os.close, fd)
        try:
            if not (_lock_file(path, fd) and _hold_name(path, stack)):
                return None
        except OSError as error:
            raise MeasurementError(
                f"cannot lock {path}: {error.strerror}. Set TMPDIR to a folder on a local disk"
            ) from error
        return stack.pop_all()


def _lock_file(path: Path, fd: int) -> bool:
    """Whether the lock of the file was free, and is held now; OSError where the file system has no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(fd), path.stat())  # else it was replaced meanwhile
    except (BlockingIOError, FileNotFoundError):
        return False


def _hold_name(path: Path, stack: ExitStack) -> bool:
    """Whether the file's name in the kernel, where it has such, was free; it is held until the stack closes.

    Removing the file does not free the name.
    """
    if sys.platform != "linux":
        return True
    name = stack.enter_context(socket.socket(socket.AF_UNIX))
    try:
        name.bind(b"\0enginebench-" + hashlib.sha256(os.fsencode(path.absolute())).digest())
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise
    return True


def _open_shared(path: Path, access: int) -> int:
    """A descriptor of the lock file, which every user may open; raises MeasurementError if it is no plain file."""
    flags = access | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # of a pipe it would wait for a writer
    with explain_access(f"cannot open the lock file {path}", "Remove it", MeasurementError):
        try:
            fd = os.open(path, flags)
        except FileNotFoundError:
            fd = os.open(path, flags | os.O_CREAT, 0o644)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise MeasurementError(f"the lock file {path} is not a plain file. Remove it")
    return fd


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
