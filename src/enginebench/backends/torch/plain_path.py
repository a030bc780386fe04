"""Folders for tools that put paths into a command line without quoting them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory


def is_one_word(path: Path) -> bool:
    """Whether a path that nobody quotes stays one word of a command line."""
    try:
        return shlex.split(str(path)) == [str(path)]
    except ValueError:  # a quotation mark without its other
        return False


@contextmanager
def reach_by_plain_path(folder: Path) -> Iterator[Path]:
    """The folder, or a link to it that is one word, for as long as it is needed.

    The link lies among the temporary files; where their own folder has a space in its path, it does not help.
    """
    if is_one_word(folder):
        yield folder
        return
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="enginebench-") as place:
        link = Path(place, "folder")
        link.symlink_to(folder.absolute(), target_is_directory=True)
        yield link
