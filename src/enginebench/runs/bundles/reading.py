"""A bundle opened by EngineBench itself: nothing in it is run, and it is held to the rules that its programs keep."""

from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from enginebench.core import judging
from enginebench.core.errors import ArtifactError, ParseError
from enginebench.core.records import Artifact
from enginebench.core.store import BUNDLE, read_record
from enginebench.runs.bundles.record import BUNDLE_SCHEMA, Bundle


def read_bundle(root: Path) -> Bundle:
    """What the bundle says of itself.

    Raises:
        ParseError: there is none, it is damaged, or a newer version wrote it.
        ArtifactError: something in it is a link, or names a file outside of it.
    """
    if fault := judging.find_link(root):
        raise ArtifactError(fault)
    bundle = read_record(root / BUNDLE, Bundle)
    if bundle.schema != BUNDLE_SCHEMA:
        raise ParseError(root / BUNDLE, "$.schema", repr(bundle.schema), repr(BUNDLE_SCHEMA), "Upgrade enginebench")
    home = Path(bundle.artifact.path).parent
    for name in (
        bundle.artifact.path,
        *(f.path for f in bundle.files),
        *((home / f.path).as_posix() for f in bundle.artifact.files),
    ):
        check_name(name)
    return bundle


def check_name(name: str) -> None:
    """Checks that a path inside a bundle has only plain parts.

    Raises:
        ArtifactError: it has another one.
    """
    if not judging.is_plain(name):
        raise ArtifactError(
            f"{name!r} cannot be the name of a file in a bundle; expected parts of letters, digits, dots, hyphens and "
            "underscores. Rename the file, and what the model calls it"
        )


def open_artifact(root: Path, bundle: Bundle) -> Artifact:
    """The artifact that the bundle's engine opens, with a path that can be opened."""
    return replace(bundle.artifact, path=str(root.absolute() / bundle.artifact.path))


def find_problems(root: Path, bundle: Bundle, cpu_flags: tuple[str, ...], gpus: tuple[str, ...]) -> Iterator[str]:
    """A sentence for each way in which the bundle, or this machine, is not what was measured."""
    yield from judging.find_changes(root, ((file.path, file.sha256) for file in bundle.files))
    yield from judging.find_other_versions(bundle.runtime)
    yield from judging.find_missing(bundle.instructions, cpu_flags, bundle.precision)
    if bundle.artifact.kind == "plan":
        yield from judging.find_other_gpu(bundle.gpu, gpus)
