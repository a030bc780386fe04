"""A user's metric: what it may return, and what is said of one that fails."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from enginebench.core.errors import UsageError
from enginebench.models.objects import list_variables
from enginebench.runs.child.collecting import load_metric
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
