"""The file of right answers: every form, and what is said of one that does not fit."""

import json
from pathlib import Path

import numpy as np
import pytest

from enginebench.core.errors import ParseError, UsageError
from enginebench.runs.child.targets_file import match_targets, read_targets


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_text_stays_text(tmp_path: Path) -> None:
    assert read_targets(write(tmp_path / "t.txt", "Straße 5\n12\n\n")).values == ["Straße 5", "12", ""]
    found = read_targets(
        write(tmp_path / "t.json", json.dumps({"targets": ["ab", "c"], "vocabulary": ["-", "a"], "blank": None}))
    )
    assert (found.values, found.vocabulary, found.blank) == (["ab", "c"], ("-", "a"), None)


def test_boxes_of_each_sample(tmp_path: Path) -> None:
    rows = [{"boxes": [[0, 0, 1, 1]], "labels": [1]}, {"boxes": [], "labels": []}]
    assert read_targets(write(tmp_path / "t.json", json.dumps(rows))).values == rows


def test_samples_are_found_by_name(tmp_path: Path) -> None:
    by_name = write(tmp_path / "t.csv", "file,label\nb.png,2\na.png,1\nc.png,3\n")
    found = match_targets(read_targets(by_name), 2, ("a.png", "b.png"), cut=False)
    assert found.values.tolist() == [1, 2]
    with pytest.raises(UsageError, match=r"no entry for 'x.png' \(1 of 2 samples\)"):
        match_targets(read_targets(by_name), 2, ("a.png", "x.png"), cut=False)
    with pytest.raises(UsageError, match="these have no names"):
        match_targets(read_targets(by_name), 3, None, cut=False)
    by_place = read_targets(write(tmp_path / "t.txt", "1\n2\n"))
    with pytest.raises(UsageError, match="matched with their targets by name"):
        match_targets(by_place, 2, ("a.png", "b.png"), cut=False)


def test_fewer_samples_than_targets_only_where_fewer_were_asked_for(tmp_path: Path) -> None:
    found = read_targets(write(tmp_path / "t.txt", "1\n2\n3\n"))
    assert match_targets(found, 2, None, cut=True).values.tolist() == [1, 2]
    with pytest.raises(UsageError, match="has 3 entries, and there are 2 samples; expected as many"):
        match_targets(found, 2, None, cut=False)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.xml", "<a/>", "ending '.xml'"),
        ("t.json", "{", "Expecting property name"),
        ("t.json", "3", "a int, not a list"),
        ("t.csv", "a,b,c\n", "rows of 3 columns"),
        ("t.npy", "no array", "npy"),
        ("t.npz", "no archive", "npz"),
    ],
)
def test_a_file_of_another_form_is_explained(tmp_path: Path, name: str, content: str, said: str) -> None:
    with pytest.raises(ParseError, match=said):
        read_targets(write(tmp_path / name, content))


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ParseError):
        read_targets(tmp_path / "t.npy")
