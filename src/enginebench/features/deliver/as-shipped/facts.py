"""Read bundle.json, and check this folder and this machine against it. Python's own library only.

Importing it sets the variables of the measured process: NumPy and the runtimes read them only once.
"""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from measured.core import judging

HERE = Path(__file__).resolve().parent
GO_ON = "To continue anyway: --force, or load(force=True)"


class Refused(RuntimeError):
    """The bundle is not what was measured, or this machine is not like the one that measured it."""


def read_bundle(path: Path) -> dict[str, Any]:
    """The document; nothing outside of the bundle may be named in it, and nothing in the bundle may be a link."""
    if fault := judging.find_link(path.parent):
        raise Refused(fault)
    document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    for name in [document["artifact"]["path"], *(file["path"] for file in document["files"])]:
        if not judging.is_plain(name):
            raise Refused(f"bundle.json names the file {name!r}; expected a plain name inside of the bundle")
    missing = [name for name in document["requirements"] if judging.find_version(name) is None]
    if missing:
        raise ModuleNotFoundError(f"{' and '.join(missing)} not installed. pip install -r {HERE / 'requirements.txt'}")
    return document


def check(force: bool = False) -> None:
    """Check that files, versions and processor are those of the measurement; with `force`, print what is not."""
    problems = [
        *judging.find_changes(HERE, ((file["path"], file["sha256"]) for file in BUNDLE["files"])),
        *judging.find_other_versions(BUNDLE["runtime"]),
    ]
    if present := judging.read_flags():  # none where the system does not say
        problems += judging.find_missing(BUNDLE["instructions"], present, BUNDLE["engine"]["precision"])
    settle(problems, force)


def check_gpu(gpu_name: str, force: bool) -> None:
    """Check that this is the kind of GPU that the plan was built for."""
    settle(judging.find_other_gpu(BUNDLE["gpu"], [gpu_name]), force)


def settle(problems: Iterable[str], force: bool) -> None:
    """Raise `Refused` with these problems, if there are any; with `force` they are printed instead."""
    problems = list(problems)
    if problems and not force:
        raise Refused(". ".join([*problems, GO_ON]))
    for problem in problems:
        print(f"continuing anyway: {problem}", file=sys.stderr)


def pin() -> None:
    """Pin this process to the CPUs of the measurement."""
    wanted = BUNDLE["pinned_cpus"] or []
    if not wanted or not hasattr(os, "sched_setaffinity"):
        raise Refused("it was not measured on fixed CPUs, or this system cannot pin. Leave out --pin")
    if not set(wanted) <= os.sched_getaffinity(0):
        raise Refused(f"it was measured on CPUs {wanted}, which this process may not use. Leave out --pin")
    os.sched_setaffinity(0, wanted)


def name_tensors(side: str) -> tuple[SimpleNamespace, ...]:
    """The inputs or the outputs, as the engine's file reads them."""
    specs = BUNDLE["artifact"][side]
    return tuple(SimpleNamespace(**{"sizes": (), **spec, "shape": tuple(spec["shape"])}) for spec in specs)


BUNDLE = read_bundle(HERE / "bundle.json")
ENGINE = SimpleNamespace(**BUNDLE["engine"])
ARTIFACT = SimpleNamespace(
    **BUNDLE["artifact"] | {"inputs": name_tensors("inputs"), "outputs": name_tensors("outputs")}
)
ARTIFACT.path = str(HERE / ARTIFACT.path)
os.environ.update(BUNDLE["environment"])
