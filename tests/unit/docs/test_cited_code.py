"""What pages, the change log and scripts say of the project and import of it is there."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import enginebench
from pages import PAGES, find_section, find_tables, read_page
from processes import ROOT
from rooms import is_lifted
from scripts import load_script

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
    if found[1].startswith("models/torch/"):
        pytest.importorskip("torch")
    module = import_module("enginebench." + found[1].removesuffix(".py").replace("/", "."))
    assert float(row["value"].replace(",", "")) == getattr(module, found[2])


def test_tables_are_those_of_the_stored_configurations() -> None:
    tool = load_script("tools/render_results.py")
    text = tool.PAGE.read_text("utf-8")
    assert len(tool.BLOCK.findall(text)) >= 8
    assert tool.render_page(text) == text, "run python tools/render_results.py"
    assert tool.render_tables(text) == tool.TABLES.read_text("utf-8"), "run python tools/render_results.py"
    assert len(text.split()) <= 5000, "wide tables belong on the page of tables"


def test_every_stored_file_is_shown() -> None:
    text = (ROOT / "docs" / "results.md").read_text("utf-8") + (ROOT / "docs" / "fpga.md").read_text("utf-8")
    folders = [ROOT / "results" / name for name in ("cpu", "h200")]
    stored = [path.name for folder in folders for path in folder.glob("*") if path.suffix in (".xz", ".json")]
    assert len(stored) >= 12
    assert [name for name in stored if not re.search(re.escape(name), text)] == []


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


PLACES = [ROOT / place for place in ("src", "tests/helpers", "tests", "benchmarks", "tools", ".")]  # in this order
SCRIPTS = sorted([*ROOT.glob("benchmarks/*.py"), *ROOT.glob("tools/*.py")])


def find_module(name: str) -> Path | None:
    bases = [place / Path(*name.split(".")) for place in PLACES]
    return next((p for base in bases for p in (base.with_suffix(".py"), base / "__init__.py") if p.is_file()), None)


def list_names(path: Path) -> Iterator[str]:
    """The names that a module has, also those that only type checkers see."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def list_lost(path: Path) -> Iterator[str]:
    """The imports of ours in a file that find nothing."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or is_lifted(node.module or ""):
            continue
        module = find_module(node.module or "")
        if module is None and not (node.module or "").startswith("enginebench."):
            continue  # of a package from elsewhere
        names = set(list_names(module)) if module else set()
        for alias in node.names:
            if alias.name not in names and find_module(f"{node.module}.{alias.name}") is None:
                yield f"{node.module}.{alias.name}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_what_a_script_imports_is_there(script: Path) -> None:
    assert list(list_lost(script)) == []
