"""A folder for files that a verb needs only while it runs."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from enginebench.core.errors import EngineBenchError


def scratch_for(name: str) -> Path:
    """The target for `open_partial` of temporary files with this name: those of a killed process go with the next."""
    return Path(tempfile.gettempdir()) / f"enginebench-{name}"


@contextmanager
def open_scratch() -> Iterator[Path]:
    """A folder that is deleted afterwards; if an error names one of its files, its logs are kept to be read."""
    folder, kept_suffix = Path(tempfile.mkdtemp(prefix="enginebench-")), ""
    try:
        yield folder
    except EngineBenchError as error:
        kept_suffix = ".log" if str(folder) in str(error) else ""
        raise
    finally:
        for path in (*sorted(folder.rglob("*"), reverse=True), folder):
            with suppress(OSError):  # a folder that still holds a log stays
                if path.is_dir() and not path.is_symlink():
                    path.rmdir()
                elif not kept_suffix or path.suffix != kept_suffix:
                    path.unlink()
