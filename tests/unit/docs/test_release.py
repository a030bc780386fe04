"""A release is made only where tag, version and changelog agree; and it is published without a secret."""

import re

import pytest
import yaml

from enginebench import __version__
from processes import ROOT
from scripts import load_script

TOOL = load_script("tools/release.py")
DATED = f"{__version__} - 2026-12-01"


def find(changelog: str, version: str = __version__, **how: object) -> str:
    notes: str = TOOL.find_notes(version, TOOL.read_sections(changelog), **how)
    return notes


def write(*sections: tuple[str, str]) -> str:
    return "# Changelog\n\nWhat changes.\n\n" + "\n".join(f"## {name}\n\n{text}\n" for name, text in sections)


def test_the_notes_are_the_section_of_the_version() -> None:
    changelog = write(("Unreleased", ""), (DATED, "### Added\n\n- `bench --limit`."), ("0.0.9 - 2026-01-01", "- old"))
    assert find(changelog) == find(changelog, tag=f"v{__version__}") == "### Added\n\n- `bench --limit`."
    assert find(changelog, rehearse=True) == find(changelog)


def test_a_rehearsal_takes_what_is_unreleased() -> None:
    assert find(write(("Unreleased", "- new"), ("0.0.9 - 2026-01-01", "- old")), rehearse=True) == "- new"


@pytest.mark.parametrize(
    ("changelog", "how", "message"),
    [
        (write(("Unreleased", "")), {}, "it has none yet"),
        (write(("Unreleased", ""), ("0.0.9 - 2026-01-01", "- old")), {}, "its newest is '## 0.0.9 - 2026-01-01'"),
        (write(("Unreleased", ""), (__version__, "- new")), {}, "YYYY-MM-DD"),
        (write(("Unreleased", "- forgotten"), (DATED, "- new")), {}, "entries below '## Unreleased'"),
        (write(("Unreleased", ""), (DATED, "")), {}, "says nothing below"),
        (write(("Unreleased", ""), (DATED, "- new")), {"tag": "v9.9.9"}, f"the tag is 'v9.9.9' and .*v{__version__}"),
        (write(("Unreleased", ""), (DATED, "- new")), {"tag": __version__}, "expected the tag v"),
        (write(("Unreleased", "- new")), {"rehearse": True, "tag": "v9.9.9"}, "the tag is 'v9.9.9'"),
        (write(("Unreleased", "")), {"version": "1.0"}, "expected X.Y.Z"),
    ],
)
def test_what_does_not_agree_is_named(changelog: str, how: dict[str, object], message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        find(changelog, **how)


def test_the_changelog_of_today_can_be_rehearsed() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert TOOL.read_version() == __version__
    assert len(find(changelog, rehearse=True)) > 100


def test_a_tag_publishes_without_a_secret() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")
    workflow = yaml.safe_load(text)
    build, publish = workflow["jobs"]["build"], workflow["jobs"]["publish"]
    assert "secrets." not in text and workflow["permissions"] == {}
    assert publish["permissions"] == {"id-token": "write"} and publish["needs"] == "build"
    assert [step["uses"].partition("@")[0] for step in publish["steps"]] == [
        *("actions/download-artifact", "pypa/gh-action-pypi-publish")
    ], "beside the token that publishes nothing of the sources runs"
    (made,) = [step for step in build["steps"] if step.get("run") == "make release"]
    assert made["env"] == {"TAG": "${{ github.ref_name }}"}
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert not [command for command in commands if "${{" in command]
    assert re.search(r"^release:.*\n\t.*tools/release.py", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)


def test_actions_of_others_are_pinned_by_commit() -> None:
    """A tag can be moved to other code, which would run beside the right to publish."""
    files = [*ROOT.glob(".github/workflows/*.yml"), ROOT / "action.yml", ROOT / "comment" / "action.yml"]
    used = [found for path in files for found in re.findall(r"uses: (\S+)(.*)", path.read_text(encoding="utf-8"))]
    assert len(used) > 8
    assert [action for action, _ in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)] == []
    assert [action for action, remark in used if not re.fullmatch(r" # v\d+\.\d+\.\d+", remark)] == []
    # One commit for each action: another is a slip of the pen.
    assert len(dict(action.split("@") for action, _ in used)) == len({action for action, _ in used})


def test_the_oldest_and_the_newest_python_are_tried() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/check.yml").read_text(encoding="utf-8"))["jobs"]
    oldest = re.search(r'requires-python = ">=(\S+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert oldest is not None and jobs["pythons"]["strategy"]["matrix"]["python"] == [oldest[1], "3.14"]
