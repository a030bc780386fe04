"""A bundle opened by EngineBench itself: nothing in it is run, and it is held to the rules that its programs keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from msgspec.structs import replace

from enginebench.bundle.record import BUNDLE_SCHEMA, Bundle
from enginebench.bundle.writing import DOCUMENT, check_name
from enginebench.core.errors import ArtifactError, ParseError
from enginebench.core.records import Artifact
from enginebench.core.store import hash_file, read_record


def is_bundle(path: Path) -> bool:
    """Whether a folder holds a bundle, be it damaged."""
    return (path / DOCUMENT).exists()


def read_bundle(root: Path) -> Bundle:
    """What the bundle says of itself.

    Raises:
        ParseError: there is none, it is damaged, or a newer version wrote it.
        ArtifactError: something in it is a link, or names a file outside of it.
    """
    for entry in root.rglob("*"):
        if entry.is_symlink():
            raise ArtifactError(f"{entry} is a symbolic link; a bundle holds plain files only. Copy the file")
    bundle = read_record(root / DOCUMENT, Bundle)
    if bundle.schema != BUNDLE_SCHEMA:
        raise ParseError(root / DOCUMENT, "$.schema", repr(bundle.schema), repr(BUNDLE_SCHEMA), "Upgrade enginebench")
    home = Path(bundle.artifact.path).parent
    for name in (
        bundle.artifact.path,
        *(f.path for f in bundle.files),
        *((home / f.path).as_posix() for f in bundle.artifact.files),
    ):
        check_name(name)
    return bundle


def open_artifact(root: Path, bundle: Bundle) -> Artifact:
    """The artifact that the bundle's engine opens, with a path that can be opened."""
    return replace(bundle.artifact, path=str(root.absolute() / bundle.artifact.path))


def find_problems(root: Path, bundle: Bundle, cpu_flags: tuple[str, ...], gpus: tuple[str, ...]) -> Iterator[str]:
    """A sentence for each way in which the bundle, or this machine, is not what was measured.

    Args:
        cpu_flags: instructions that this machine's CPU has.
        gpus: names of this machine's GPUs.
    """
    yield from find_changes(root, bundle)
    yield from find_other_versions(bundle.runtime)
    missing = [flag for flag in bundle.instructions if flag not in cpu_flags]
    if missing:
        yield f"the row computed in {bundle.precision} with {', '.join(missing)}; this CPU lacks it"
    if bundle.artifact.kind == "plan" and bundle.gpu is not None and bundle.gpu not in gpus:
        yield f"the plan was built for {bundle.gpu}; here is {', '.join(gpus) or 'no GPU'}"


def find_changes(root: Path, bundle: Bundle) -> Iterator[str]:
    """A sentence for each file that is gone or was changed."""
    for file in bundle.files:
        path = root / file.path
        if not path.is_file():
            yield f"{file.path} is missing from the bundle"
        elif hash_file(path) != file.sha256:
            yield f"{file.path} was changed since the bundle was made (its SHA-256 differs)"


def find_other_versions(runtime: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each runtime of another version than was measured; builds of one version count as the same."""
    for name, wanted in runtime.items():
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = "none"
        if found.partition("+")[0] != wanted.partition("+")[0]:
            yield f"{name} {wanted} was measured; here is {found}"
