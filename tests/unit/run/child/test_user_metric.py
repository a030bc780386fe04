"""What users bring to judge by: functions, and files of right answers."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from enginebench.core.errors import ParseError, UsageError
from enginebench.models.objects import list_variables
from enginebench.runs.child.collecting import load_metric
from enginebench.runs.child.targets_file import match_targets, read_targets
from enginebench.stats.metrics.metric import Targets

CODE = """
import numpy as np
def each(outputs, targets):
    return np.abs(outputs[:, 0] - targets)
each.higher_is_better = False
def whole(outputs, targets):
    return np.float32(np.corrcoef(outputs[:, 0], targets)[0, 1])
def boom(outputs, targets):
    return helper(outputs)
def helper(outputs):
    return {}["nothing"]
def library(outputs, targets):
    return np.reshape(outputs, (7, 7, 7))
def text(outputs, targets):
    return "good"
def nothing(outputs, targets):
    pass
def pair(outputs, targets):
    return [1.0, 2.0]
def hole(outputs, targets):
    return [float("nan")] + [1.0] * (len(outputs) - 1)
def names(outputs, targets):
    return sorted(outputs) == ["a", "b"] and len(targets["a"]) or 0
class Held:
    higher_is_better = "yes"
    def __call__(self, outputs, targets):
        return 1.0
held = Held()
number = 3
"""
OUTPUTS = {"out": np.arange(8.0).reshape(4, 2)}
TARGETS = Targets(values=np.array([0.0, 2, 4, 7]))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "own_metrics.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("own_metrics", None)


def test_code_beside_a_script_is_found_from_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script has its own folder in `sys.path`; its children do not, unless told."""
    with monkeypatch.context() as patch:
        patch.syspath_prepend(folder)
        for passed_over in (Path("no text"), os.fsdecode(b"/\xff")):
            patch.syspath_prepend(passed_over)
        patch.setattr(sys, "prefix", str(folder))  # `python -m venv .` in the project
        (told,) = list_variables().items()
    assert "site-packages" not in told[1]
    monkeypatch.chdir(folder.parent)
    with pytest.raises(UsageError, match="cannot import own_metrics"):
        load_metric("own_metrics:each")
    monkeypatch.setenv(*told)
    load_metric("own_metrics:each")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("boom", r"raised KeyError: 'nothing' \(own_metrics.py:11: return {}\[\"nothing\"\]\)"),
        ("library", r"raised ValueError: .* \(own_metrics.py:13: return np.reshape"),
        ("text", "returned 'good'; expected a number, or one number for each sample"),
        ("nothing", "returned a NoneType"),
        ("pair", r"returned shape \[2\] for 4 samples"),
    ],
)
def test_a_metric_that_fails_says_where(name: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"--metric own_metrics:{name} {said}"):
        load_metric(f"own_metrics:{name}").call(OUTPUTS, TARGETS)


@pytest.mark.usefixtures("folder")
def test_a_sample_without_a_number_is_counted() -> None:
    counted = load_metric("own_metrics:hole").as_counted()
    assert counted.count is not None
    with pytest.raises(UsageError, match="returned nan for 1 of 4 samples; expected finite numbers"):
        counted.count(OUTPUTS, TARGETS)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("not_there:f", "cannot import not_there: ModuleNotFoundError"),
        ("own_metrics:number", r"number is an int; expected f\(outputs, targets\)"),
        ("own_metrics:held", "higher_is_better is 'yes'; expected True or False"),
    ],
)
def test_what_is_no_metric_is_explained(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_metric(text)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_text_stays_text_and_boxes_are_those_of_each_sample(tmp_path: Path) -> None:
    assert read_targets(write(tmp_path / "t.txt", "Straße 5\n12\n\n")).values == ["Straße 5", "12", ""]
    found = read_targets(
        write(tmp_path / "t.json", json.dumps({"targets": ["ab", "c"], "vocabulary": ["-", "a"], "blank": None}))
    )
    assert (found.values, found.vocabulary, found.blank) == (["ab", "c"], ("-", "a"), None)
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
        ("t.json", "{", "expecting property name"),
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
