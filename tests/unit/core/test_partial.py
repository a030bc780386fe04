"""Folders of outputs in the making: whose process was killed goes, whose process lives stays."""

import subprocess
import sys

import pytest

from enginebench.core.store import open_partial, removing_partial

HOLD = """
import sys
from pathlib import Path
from enginebench.core.store import open_partial
with open_partial(Path(sys.argv[1])) as folder:
    (folder / "weights").write_bytes(b"half")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that is making tmp_path/out, and its folder."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "out")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process, tmp_path / process.stdout.readline().strip()
        process.kill()


def test_the_folder_of_a_living_process_stays(holder, tmp_path):
    _, folder = holder
    with open_partial(tmp_path / "out") as own:
        assert own != folder
    assert (folder / "weights").read_bytes() == b"half"


def test_the_folder_of_a_killed_process_is_removed_by_the_next(holder, tmp_path):
    process, folder = holder
    process.kill()
    process.wait()
    assert folder.exists()
    with open_partial(tmp_path / "other"):
        assert folder.exists()  # another output's
    with open_partial(tmp_path / "out") as own:
        assert list(tmp_path.iterdir()) == [own]
    assert not list(tmp_path.iterdir())


def test_the_folder_of_a_child_that_was_killed_is_removed_with_the_interrupt(holder, tmp_path):
    process, folder = holder
    with pytest.raises(KeyboardInterrupt), removing_partial(tmp_path / "out"):
        process.kill()
        process.wait()
        raise KeyboardInterrupt
    assert not folder.exists()
    with pytest.raises(KeyboardInterrupt), removing_partial(tmp_path / "gone" / "out"):
        raise KeyboardInterrupt


def test_a_link_is_not_followed(tmp_path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "file").write_text("kept")
    (tmp_path / ".out.partial-link").symlink_to(theirs)
    with open_partial(tmp_path / "out"):
        pass
    assert (theirs / "file").read_text() == "kept"
