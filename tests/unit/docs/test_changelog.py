"""CHANGELOG.md by the rules of Keep a Changelog 1.1.0."""

import re

import enginebench
from processes import ROOT

HEADINGS = re.findall(r"^##+ .*$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def test_headings_are_versions_and_kinds_of_change() -> None:
    assert HEADINGS[0] == "## Unreleased"
    known = re.compile(rf"## Unreleased|## \d+\.\d+\.\d+ - \d{{4}}-\d\d-\d\d|### (?:{'|'.join(KINDS)})")
    assert [heading for heading in HEADINGS if not known.fullmatch(heading)] == []


def test_a_version_names_each_kind_once() -> None:
    for version in re.split(r"^## .*$", "\n".join(HEADINGS), flags=re.MULTILINE):
        kinds = version.split("\n### ")[1:]
        assert [kind for kind in KINDS if kind in kinds] == sorted(kinds, key=KINDS.index)
        assert len(set(kinds)) == len(kinds)


def test_the_last_release_is_the_version_of_the_package() -> None:
    released = [heading.split()[1] for heading in HEADINGS if re.match(r"## \d", heading)]
    assert released[:1] in ([], [enginebench.__version__])
