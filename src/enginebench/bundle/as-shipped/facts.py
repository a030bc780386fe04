"""What bundle.json says, and whether this folder and this machine still are what it says. Python's own library only.

While it is imported it sets the variables that the row's process had: NumPy and the runtimes read them only once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PROCESSOR = Path("/proc/cpuinfo")
HERE = Path(__file__).resolve().parent
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
GO_ON = "To go on all the same: --force, or load(force=True)"


class Refused(RuntimeError):
    """The bundle is not what was measured, or this machine is not like the one that measured it."""


def read_bundle(path: Path) -> dict[str, Any]:
    """The document; nothing outside of the bundle may be named in it, and nothing in the bundle may be a link."""
    for entry in path.parent.rglob("*"):
        if entry.is_symlink():
            raise Refused(f"{entry} is a symbolic link; a bundle holds plain files only. Copy the file")
    document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    for name in [document["artifact"]["path"], *(file["path"] for file in document["files"])]:
        if not all(PLAIN_NAME.fullmatch(part) for part in name.split("/")):
            raise Refused(f"bundle.json names the file {name!r}; expected a plain name inside of the bundle")
    return document


def require_packages(versions: dict[str, str]) -> None:
    """Checks that all packages are installed, in any version."""
    missing = [name for name in versions if find_version(name) is None]
    if missing:
        raise ModuleNotFoundError(f"{' and '.join(missing)} not installed. pip install -r {HERE / 'requirements.txt'}")


def check(force: bool = False) -> None:
    """Checks that files, versions and processor are those of the row; with `force` it says what is not, and returns."""
    problems = [*find_changes(), *find_other_versions(), *find_missing_instructions()]
    settle(problems, force)


def settle(problems: list[str], force: bool) -> None:
    """Raises `Refused` with these problems, if there are any; with `force` they are printed instead."""
    if problems and not force:
        raise Refused(". ".join([*problems, GO_ON]))
    for problem in problems:
        print(f"going on all the same: {problem}", file=sys.stderr)


def find_changes() -> Iterator[str]:
    """A sentence for each file that is gone or was changed."""
    for file in BUNDLE["files"]:
        path = HERE / file["path"]
        if not path.is_file():
            yield f"{file['path']} is missing from the bundle"
        elif hash_file(path) != file["sha256"]:
            yield f"{file['path']} was changed since the bundle was made (its SHA-256 differs)"


def hash_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def find_other_versions() -> Iterator[str]:
    """A sentence for each runtime of another version. Builds of one version (+cpu, +cu130) count as the same."""
    for name, wanted in BUNDLE["runtime"].items():
        found = find_version(name)
        if found is None or found.partition("+")[0] != wanted.partition("+")[0]:
            yield f"{name} {wanted} was measured; here is {found}"


def find_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def read_instructions() -> list[str]:
    """The processor's instruction sets as Linux spells them; none where it is another system."""
    told = PROCESSOR.read_text() if PROCESSOR.is_file() else ""
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", told, re.MULTILINE)
    return line[1].split() if line else []


def find_missing_instructions() -> Iterator[str]:
    """A sentence if the processor lacks instructions with which the row computed; nothing where Linux does not say."""
    present = read_instructions()
    if not BUNDLE["instructions"] or not present:
        return
    missing = [flag for flag in BUNDLE["instructions"] if flag not in present]
    if missing:
        precision = BUNDLE["engine"]["precision"]
        yield f"the row computed in {precision} with {', '.join(missing)}; this CPU lacks it: times and answers differ"


def pin() -> None:
    """Binds this process to the CPUs on which the row was measured."""
    wanted = BUNDLE["pinned_cpus"] or []
    if not wanted or not hasattr(os, "sched_setaffinity"):
        raise Refused("the row was not bound to CPUs, or this system cannot do that. Leave out --pin")
    if not set(wanted) <= os.sched_getaffinity(0):
        raise Refused(f"the row was measured on CPUs {wanted}, which this process may not use. Leave out --pin")
    os.sched_setaffinity(0, wanted)


def check_gpu(found: str, force: bool) -> None:
    """Checks that this is the kind of GPU that the plan was built for."""
    wanted = BUNDLE["gpu"]
    settle([f"the plan was built for {wanted}; here is {found}"] if wanted not in (None, found) else [], force)


def name_tensors(side: str) -> tuple[SimpleNamespace, ...]:
    """The inputs or the outputs, as the engine's file reads them."""
    specs = BUNDLE["artifact"][side]
    return tuple(SimpleNamespace(**{"sizes": (), **spec, "shape": tuple(spec["shape"])}) for spec in specs)


BUNDLE = read_bundle(HERE / "bundle.json")
ENGINE = SimpleNamespace(**BUNDLE["engine"])
ARTIFACT = SimpleNamespace(
    **{
        **BUNDLE["artifact"],
        "path": str(HERE / BUNDLE["artifact"]["path"]),
        "inputs": name_tensors("inputs"),
        "outputs": name_tensors("outputs"),
    }
)
require_packages(BUNDLE["requirements"])
os.environ.update(BUNDLE["environment"])
