"""Files: copies that share nothing with what they are of, and notes beside plans."""

import fcntl
import os
import resource
import stat
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError
from enginebench.core.plan_notes import PlanNote, read_note, write_note
from enginebench.core.records import Artifact, ShapeRange
from enginebench.core.shapes import find_plan_batch
from enginebench.core.store import FICLONE, copy_file
from enginebench.verbs.common import name_plan


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file of more than one chunk, whose name is neither short nor ASCII."""
    path = tmp_path / "gewichte ü 重み.bin"
    path.write_bytes(os.urandom((1 << 20) + 7))
    return path


def test_what_stood_there_is_replaced_and_not_written_into(source: Path, tmp_path: Path) -> None:
    target, other = tmp_path / "target", tmp_path / "other"
    other.write_bytes(b"of somebody else")
    target.hardlink_to(other)
    copy_file(source, target)
    assert other.read_bytes() == b"of somebody else" and target.read_bytes() == source.read_bytes()
    linked = tmp_path / "linked"
    linked.symlink_to(other)
    copy_file(source, linked)
    assert other.read_bytes() == b"of somebody else" and not linked.is_symlink()


def test_a_file_can_be_copied_onto_itself_and_onto_a_link_to_itself(source: Path, tmp_path: Path) -> None:
    content = source.read_bytes()
    copy_file(source, source)
    (tmp_path / "second").hardlink_to(source)
    copy_file(source, tmp_path / "second")
    assert source.read_bytes() == (tmp_path / "second").read_bytes() == content and source.stat().st_nlink == 1


def test_the_content_behind_a_link_is_copied_and_a_read_only_file_gives_one_that_can_be_deleted(source, tmp_path):
    source.chmod(0o444)
    (tmp_path / "link").symlink_to(source)
    copy_file(tmp_path / "link", tmp_path / "copy")
    assert not (tmp_path / "copy").is_symlink() and (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert stat.S_IMODE((tmp_path / "copy").stat().st_mode) & stat.S_IWUSR


def test_blocks_are_shared_where_the_file_system_can(source, tmp_path, monkeypatch) -> None:
    """Few file systems can; one that says yes is not asked to copy as well."""

    def clone(target: int, request: int, given: int) -> int:
        assert request == FICLONE
        os.write(target, b"shared")
        return 0

    monkeypatch.setattr(fcntl, "ioctl", clone)
    copy_file(source, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"shared"


def test_a_source_that_is_missing_or_no_file_is_named_and_the_target_stays(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"cannot read .*gone\.bin: No such file") as caught:
        copy_file(tmp_path / "gone.bin", source)
    assert caught.value.exit_code == 5
    with pytest.raises(ArtifactError, match=r"cannot read .*: Is a directory"):
        copy_file(tmp_path, source)
    assert source.stat().st_size == (1 << 20) + 7
    assert list(tmp_path.iterdir()) == [source]


def test_a_disk_that_fills_up_is_named_and_leaves_the_old_file_and_nothing_half(source: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: both end a write in its middle."""
    target = tmp_path / "target"
    target.write_bytes(b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 19, before[1]))
    try:
        with pytest.raises(ArtifactError, match=r"cannot write .*target: File too large\. Free space"):
            copy_file(source, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert target.read_bytes() == b"old" and sorted(tmp_path.iterdir()) == sorted([source, target])


def test_a_source_that_cannot_be_read_to_its_end_is_distinguished_from_a_full_disk(tmp_path: Path) -> None:
    # The memory of this process, read from address 0, is a file of the kernel that opens and does not read.
    with pytest.raises(ArtifactError, match=r"cannot read /proc/self/mem: Input/output error"):
        copy_file(Path("/proc/self/mem"), tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing_behind(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "ioctl", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        copy_file(source, tmp_path / "copy")
    assert list(tmp_path.iterdir()) == [source]


RANGE = ShapeRange(smallest=(1, 3), largest=(8, 3), best=(4, 3))


@pytest.fixture
def plan(tmp_path: Path) -> Artifact:
    path = tmp_path / "net.plan"
    path.write_bytes(b"a plan")
    return replace(name_plan(path), recipe="tensorrt", allowed={"input": RANGE})


def test_a_note_says_how_its_plan_was_asked_for(plan: Artifact) -> None:
    assert read_note(Path(plan.path)) is None
    write_note(Path(plan.path), plan, "int8")
    note = read_note(Path(plan.path))
    assert isinstance(note, PlanNote)
    assert (note.requested_precision, note.recipe, note.allowed) == ("int8", "tensorrt", {"input": RANGE})
    Path(plan.path).write_bytes(b"another plan")
    assert read_note(Path(plan.path)) is None, "of other bytes"


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"schema": "enginebench.build/1"}', "\x00"])
def test_another_file_of_that_name_is_no_note(plan: Artifact, text: str) -> None:
    Path(f"{plan.path}.json").write_text(text)
    assert read_note(Path(plan.path)) is None


def test_the_batch_of_a_plan_is_that_which_it_is_tuned_for(plan: Artifact) -> None:
    assert find_plan_batch(plan) == 4
