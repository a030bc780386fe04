"""Paths for commands that do not quote them."""

import tempfile
from pathlib import Path

import pytest

from enginebench.engines.backends.torch.pytorch_compile import is_one_word, reach_by_plain_path


@pytest.mark.parametrize("name", ["a b", "it's", 'a"b', "back\\slash", "tab\tbed"])
def test_a_folder_that_a_command_would_split_is_reached_by_a_link(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    folder = tmp_path / name / "cache"
    with reach_by_plain_path(folder) as plain:
        assert is_one_word(plain)
        (plain / "file").write_text("kept")
    assert (folder / "file").read_text() == "kept"
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("name", ["plain", "größe", "a-b_c.d"])
def test_other_folders_stay_as_they_are(name: str, tmp_path: Path) -> None:
    with reach_by_plain_path(tmp_path / name) as plain:
        assert plain == tmp_path / name
    assert not plain.exists()
