"""The documentation site: built strictly from the pages as they are, with every public name, and without a network."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

from processes import ROOT

pytestmark = pytest.mark.skipif(
    not (find_spec("mkdocs") and find_spec("material") and find_spec("mkdocstrings")),
    reason="the site's tools are not installed: make docs installs them",
)


def build_site(root: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """What `make docs` runs, in a checkout."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=variables, capture_output=True, text=True, check=False, timeout=240)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("docs") / "site"
    done = build_site(ROOT, out)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


class Tags(HTMLParser):
    """What the tags of a page hold: ids, and the addresses that a browser loads by itself."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.loaded: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids.add(found.get("id") or "")
        address = found.get("src") or (found.get("href") if tag == "link" else None)
        self.loaded += [address] if address else []


def test_every_page_is_in_the_menu_and_loads_nothing_from_elsewhere(site: Path) -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f": docs/{page.name}\n" not in menu] == []
    pages = sorted(site.rglob("*.html"))
    loaded = [(page.name, address) for page in pages for address in Tags(page).loaded]
    assert len(loaded) > len(pages)
    assert [(name, a) for name, a in loaded if "//" in a] == []
    assert 'data-md-component="source"' not in (site / "index.html").read_text(encoding="utf-8")  # would ask GitHub
    from enginebench.core.records import Result

    ids = Tags(site / "api.html").ids
    assert {f"enginebench.core.records.Result.{f.name}" for f in msgspec.structs.fields(Result)} <= ids
    # MkDocs counts those that it prints: `--quiet --strict` accepts every dead link.
    (command,) = re.findall(r"^docs:.*\n\t(.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert "mkdocs build --strict" in command
    assert not re.search(r" (?:-q|--quiet)\b", command)


def list_public_names(module: str) -> set[str]:
    """`__all__`, else the records, protocols and errors that a module defines."""
    found = import_module(module)
    own = {n for n, v in vars(found).items() if isinstance(v, type) and v.__module__ == module and n[0] != "_"}
    return set(getattr(found, "__all__", own))


@pytest.mark.parametrize(
    "module",
    [f"enginebench{part}" for part in ("", ".core.records", ".core.protocols", ".core.engine_api", ".core.errors")],
)
def test_the_reference_has_every_public_name(site: Path, module: str) -> None:
    ids = Tags(site / "api.html").ids
    # Errors and records of the package stand once, in sections of their own.
    places = (module, *(f"enginebench.core.{part}" for part in ("engine_api", "errors", "records")))
    homes = {
        n: (*places, getattr(getattr(import_module(module), n), "__module__", "")) for n in list_public_names(module)
    }
    assert {n for n, found in homes.items() if not any(f"{place}.{n}" in ids for place in found)} == set()
