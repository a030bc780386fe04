"""What the pages cite of the code exists: `room/file.py: name`, and the constants with their values."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from pages import PAGES, find_section, find_tables, read_page
from processes import ROOT
from rooms import is_lifted

CITATION = re.compile(r"`((?!ship/)(?:\w+/)+\w+\.py)(?:: (\w+))?`")


def find_citations() -> list[tuple[str, str, str]]:
    """(page, file, name in it or "") of everything cited, but of features that were lifted out."""
    found = [(page.name, file, name) for page in PAGES for file, name in CITATION.findall(page.read_text("utf-8"))]
    return [cited for cited in found if not is_lifted(cited[1])]


def locate(file: str) -> Path | None:
    return next((p for base in (ROOT / "src" / "enginebench", ROOT) if (p := base / file).is_file()), None)


def test_pages_cite_code() -> None:
    assert {page for page, _, _ in find_citations()} >= {"how-we-measure.md", "engines.md"}


@pytest.mark.parametrize(("page", "file", "name"), sorted(set(find_citations())))
def test_what_a_page_cites_is_there(page: str, file: str, name: str) -> None:
    path = locate(file)
    assert path is not None, f"{page} cites {file}, which is not there"
    pattern = rf"^(?:\s*def |class |){name}\b(?:\(|:| =)"
    assert not name or re.search(pattern, path.read_text("utf-8"), re.MULTILINE), f"{page} cites {name} of {file}"


def constants() -> list[dict[str, str]]:
    (table,) = find_tables(find_section(read_page("how-we-measure.md"), "## Every threshold"))
    return [row for row in table if not is_lifted(row["name"])]


@pytest.mark.parametrize("row", constants(), ids=lambda row: row["name"].strip("`"))
def test_thresholds_have_the_values_of_the_code(row: dict[str, str]) -> None:
    found = CITATION.fullmatch(row["name"])
    assert found, row["name"]
    module = import_module("enginebench." + found[1].removesuffix(".py").replace("/", "."))
    assert float(row["value"].replace(",", "")) == getattr(module, found[2])
