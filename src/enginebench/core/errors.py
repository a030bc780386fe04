"""Every error that EngineBench raises on purpose, and the exit code that the command line gives it.

EngineBenchError                 1
├── UsageError                   2   a wrong option, name or combination of them
├── DependencyError              3
│   ├── MissingDependency            a package or tool is not installed; names the command that adds it
│   └── BackendUnavailable           it is installed but cannot be used here; the cause is chained
├── GateFailed                   4   a limit was not met: of the user, or the usual one of `drift`
├── ArtifactError                5   a model, graph, engine or stored file that cannot be used
│   ├── UnsupportedOperator          an engine cannot run an operator of a graph; the message begins with its name
│   ├── ModelError                   the model cannot be found, built or exported
│   ├── FeedError                    arrays that do not fit the inputs of an engine
│   └── ParseError                   a file of a tool or of ours that cannot be read; names path and position
└── MeasurementError             6   timing did not end in a result that can be trusted
    ├── ChildFailed                  the child process of a trial died, hung or sent an invalid response
    └── DeviceBusy                   another run holds the device

A warning about a number is not an error: it is a `ResultWarning` in the record.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .engine_api import ArtifactError as ArtifactError
from .engine_api import BackendUnavailable as BackendUnavailable
from .engine_api import DependencyError as DependencyError
from .engine_api import EngineBenchError as EngineBenchError
from .engine_api import FeedError as FeedError
from .engine_api import MeasurementError as MeasurementError
from .engine_api import ModelError as ModelError
from .engine_api import UsageError as UsageError


class MissingDependency(DependencyError):
    """Something is not installed; the message ends with the command that installs it."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what} is not installed. To add it: {fix}")
        self.what, self.fix = what, fix


@contextmanager
def importing(what: str, fix: str, caught: type[ImportError] = ModuleNotFoundError) -> Iterator[None]:
    """Raise a failed import in the block as `MissingDependency`; `{}` in `what` is the module."""
    try:
        yield
    except caught as error:
        raise MissingDependency(what.replace("{}", str(error.name)), fix) from error


@contextmanager
def explaining(
    kind: type[EngineBenchError],
    failed: str,
    *caught: type[BaseException],
    describe: Callable[[Any], object] = str,
    cure: str = "",
) -> Iterator[None]:
    """Raise what a library, a user's code or the system raises as `kind`: `failed`, its words, `cure`. Ours stays.

    Without `caught` that is every `Exception`: ONNX, ONNX Runtime, NNCF, protobuf and zip files each have classes of
    their own for every kind of failure, with no base in common, and quantizers fail with KeyErrors and asserts.
    """
    caught = caught or (Exception,)
    try:
        yield
    except EngineBenchError:
        raise
    except caught as error:
        reason = str(describe(error))
        raise kind(f"{failed}: {reason.rstrip('.')}. {cure}" if cure else f"{failed}: {reason}") from error


def refuse_all(reasons: Iterable[str]) -> BackendUnavailable:
    """Make the error that no configuration can run: each reason once, several on lines of their own."""
    first, *others = dict.fromkeys(reasons)
    reasons_text = "\n- ".join(("", first, *others)) if others else f" {first}"
    return BackendUnavailable(f"no configuration can run here:{reasons_text}")


class GateFailed(EngineBenchError):
    """A limit was not met: one that the user set, or in `drift` the usual one."""

    exit_code = 4


class UnsupportedOperator(ArtifactError):
    """An engine cannot run an operator of a graph."""


class ParseError(ArtifactError):
    """A file is not what it should be; `where`: position or field (`line 12`, `$.spec.batch`), "" for the whole."""

    def __init__(self, path: str | Path, where: str, found: str, expected: str, advice: str = "") -> None:
        location = f"{path}, {where}" if where else str(path)
        text = f"{location}: found {found}; expected {expected}"
        super().__init__(f"{text}. {advice}" if advice else text)
        self.path, self.where, self.found, self.expected, self.advice = str(path), where, found, expected, advice


class ChildFailed(MeasurementError):
    """The process of one trial died, hung or sent an invalid response; `stderr_tail` is its last output."""

    def __init__(self, reason: str, stderr_tail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.stderr_tail = reason, stderr_tail


class TimedOut(ChildFailed):
    """The process took longer than it may."""


class DeviceBusy(MeasurementError):
    """Another run holds the lock of the device."""


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an error, as `BaseException.add_note`, which Python 3.10 lacks; later ones print it, too."""
    error.__dict__.setdefault("__notes__", []).append(note)


def list_causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, then each that it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
