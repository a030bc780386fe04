"""What pip and uv say, in one sentence. Their words were copied from pip 23.2 and 25.3, and from uv 0.9."""

import os
from pathlib import Path

import pytest

from enginebench.core.errors import BackendUnavailable, UsageError
from enginebench.features.versions import env as environments
from enginebench.features.versions.env import explain_failure, list_versions

NO_VERSION = """\
ERROR: Could not find a version that satisfies the requirement onnxruntime==9.9 (from versions: 1.15.0, 1.15.1, 1.31.1)
ERROR: No matching distribution found for onnxruntime==9.9
"""
NONE_AT_ALL = """\
ERROR: Could not find a version that satisfies the requirement nosuch (from versions: none)
ERROR: No matching distribution found for nosuch
"""
NO_LINE = """\
WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<pip._vendor.urllib3>: Failed to
establish a new connection: [Errno -2] Name or service not known')': /simple/x/
ERROR: Could not find a version that satisfies the requirement x (from versions: none)
"""


@pytest.fixture(autouse=True)
def made_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def fill(place: Path, requirements: object) -> None:
    (place / "bin").mkdir()
    (place / "bin" / "python").touch()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (NO_VERSION, "no version on the package index satisfies onnxruntime==9.9; the newest there are 1.15.0, 1.15.1"),
        (NONE_AT_ALL, "no version on the package index satisfies nosuch; there is none for this system"),
        (NO_LINE, "the package index cannot be reached"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n", "No space left"),
        ("", "no reason was given"),
    ],
)
def test_a_failure_is_one_sentence(said: str, expected: str) -> None:
    told = explain_failure(said)
    assert expected in told and "\n" not in told


def test_versions_are_listed_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "p (1.3)\nAvailable versions: 1.3, 1.2.1, 1.2\n  INSTALLED: 1.2\n"
    monkeypatch.setattr(environments, "_run", lambda command: said)
    assert list_versions("p") == ["1.2", "1.2.1", "1.3"]
    monkeypatch.setattr(environments, "_run", lambda command: "nothing of the kind")
    with pytest.raises(BackendUnavailable, match="lists no version of p"):
        list_versions("p")


def test_a_half_made_environment_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(place: Path, requirements: object) -> None:
        fill(place, requirements)
        raise BackendUnavailable("the line broke")

    monkeypatch.setattr(environments, "_fill", fail)
    with pytest.raises(BackendUnavailable, match="the line broke"):
        environments.make_environment("half", ["numpy"])
    assert list(environments.environments_folder().iterdir()) == []
    assert environments.list_environments() == ()


def test_what_a_kill_left_hours_ago_is_cleared_away_and_what_another_fills_is_not(monkeypatch) -> None:
    folder, of_the_user = environments.environments_folder(), ".settings"
    for name in (".old-a1b2c3d4", ".new-a1b2c3d4", of_the_user):
        (folder / name / "lib").mkdir(parents=True)
    for name in (".old-a1b2c3d4", of_the_user):
        os.utime(folder / name, (0, 0))
    monkeypatch.setattr(environments, "_fill", lambda place, requirements: (place / "bin").mkdir())
    environments.make_environment("one", ["numpy"])
    assert sorted(path.name for path in folder.iterdir()) == [".new-a1b2c3d4", of_the_user, "one"]


def test_an_environment_that_was_half_removed_is_in_nobodys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(path: Path, **_: object) -> None:
        (path / "bin" / "python").unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(environments, "_fill", fill)
    environments.make_environment("one", ["numpy"])
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(environments.shutil, "rmtree", stop)
        environments.remove_environment("one")
    assert environments.list_environments() == ()
    environments.make_environment("one", ["numpy"])
    assert [line.name for line in environments.list_environments()] == ["one"]


@pytest.mark.parametrize("text", ["numpy; rm", "--hash=1;rm"])
def test_what_is_no_requirement_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a requirement"):
        environments.make_environment("x", [text])
