"""A folder for files that a verb needs only while it runs."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from enginebench.core.errors import EngineBenchError


@contextmanager
def open_scratch() -> Iterator[Path]:
    """A folder that is deleted afterwards; if an error names one of its files, its logs are kept to be read."""
    folder = Path(tempfile.mkdtemp(prefix="enginebench-"))
    try:
        yield folder
    except EngineBenchError as error:
        if str(folder) in str(error):
            _keep_logs(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _keep_logs(folder: Path) -> None:
    """Deletes everything but the logs, and the folders that become empty."""
    for path in (*sorted(folder.rglob("*"), reverse=True), folder):
        with suppress(OSError):  # a folder that still holds a log stays
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            elif path.suffix != ".log":
                path.unlink()
