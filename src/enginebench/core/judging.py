"""Check that a bundle and a machine are still as measured. Bundles hold a copy: Python's own library only."""

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

PROCESSOR = Path("/proc/cpuinfo")
# Names that need no quoting anywhere, and lead nowhere else.
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


def is_plain(path: str) -> bool:
    """Whether a path inside a bundle has only plain parts."""
    return all(PLAIN_NAME.fullmatch(part) for part in path.split("/"))


def read_flags() -> list[str]:
    """The processor's instruction sets as Linux spells them; none where it is another system."""
    description = PROCESSOR.read_text() if PROCESSOR.is_file() else ""
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", description, re.MULTILINE)
    return line[1].split() if line else []


def find_link(root: Path) -> str | None:
    """Return the fault of the first symbolic link in a bundle; None if it holds none."""
    link = next((entry for entry in root.rglob("*") if entry.is_symlink()), None)
    return None if link is None else f"{link} is a symbolic link; a bundle holds plain files only. Copy the file"


def find_changes(root: Path, files: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield a sentence for each file, of (path, SHA-256), that is missing or changed."""
    for name, sha256 in files:
        path = root / name
        if not path.is_file():
            yield f"{name} is missing from the bundle"
        elif hash_file(path) != sha256:
            yield f"{name} was changed since the bundle was made (its SHA-256 differs)"


def hash_file(path: Path) -> str:
    """The SHA-256 of a file, as 64 hex digits; read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def find_version(name: str) -> str | None:
    from importlib import metadata  # every command would pay for its import

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def find_other_versions(runtime: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each runtime of another version than measured; builds of one version are the same."""
    for name, wanted in runtime.items():
        installed = find_version(name) or "none"
        if installed.partition("+")[0] != wanted.partition("+")[0]:
            yield f"{name} {wanted} was measured; here is {installed}"


def find_missing(instructions: Iterable[str], present: Collection[str], precision: str | None) -> Iterator[str]:
    """Yield a sentence if the CPU lacks instructions that the configuration was measured with."""
    missing = [flag for flag in instructions if flag not in present]
    if missing:
        yield f"it was measured in {precision} with {', '.join(missing)}; this CPU lacks it: times and outputs differ"


def find_other_gpu(wanted: str | None, gpus: Collection[str]) -> Iterator[str]:
    """Yield a sentence if this machine lacks the GPU that a plan was built for."""
    if wanted is not None and wanted not in gpus:
        yield f"the plan was built for {wanted}; here is {', '.join(gpus) or 'no GPU'}"
