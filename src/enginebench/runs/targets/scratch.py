"""A folder for files that a verb needs only while it runs."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enginebench.core.errors import EngineBenchError
from enginebench.core.store import open_temporary


def scratch_for(name: str) -> Path:
    """The target for `open_partial` of temporary files with this name: those of a killed process go with the next."""
    return Path(tempfile.gettempdir()) / f"enginebench-{name}"


@contextmanager
def open_scratch() -> Iterator[Path]:
    """A folder that is deleted afterwards; if an error names one of its files, its logs are kept to be read."""
    logs = dict[Path, bytes]()
    try:
        with open_temporary() as folder:
            try:
                yield folder
            except EngineBenchError as error:
                if str(folder) in str(error):
                    logs = {path: path.read_bytes() for path in folder.rglob("*.log") if path.is_file()}
                raise
    finally:
        if logs:
            folder.mkdir(mode=0o700)  # as a temporary folder is made
        for path, text in logs.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text)
