"""A hook of MkDocs: pages keep their place in the repository, so that a link that GitHub can follow works in the site.

MkDocs reads one folder, docs/. Here README.md and its like are added, and each file is known by its path from the
root: `[engines](docs/engines.md)` in README.md is then right in both places, and checked.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE_OF_DOCS = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SKILL.md",
    "benchmarks/README.md",
    "results/h200/README.md",
    "src/enginebench/models/data/README.md",
)


OPTIONS = "<!-- the options of every function, from their declarations -->"
FUNCTIONS = "<!-- the functions of every feature -->"
BLOCK = """\
::: {home}
    options:
      heading_level: 3
      show_root_heading: false
      show_root_toc_entry: false
      members: [{names}]
"""


RESULTS = "results-site"


def on_post_build(*, config: MkDocsConfig) -> None:
    """Write the site of the project's own stored runs beside the pages."""
    open_tools().write_site(Path(config.site_dir) / RESULTS)


def open_tools() -> ModuleType:
    """Open the module that renders stored runs."""
    sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "src")]
    import render_results

    return render_results


def link_runs(markdown: str) -> str:
    """Add to the answer of each stored run a link to its page on the site, which GitHub does not show."""
    tools = open_tools()

    def add(match: re.Match[str]) -> str:
        name = tools.name_run(Path(match[3])) if match[2] in ("rows", "batches") else ""
        link = f'<a href="{RESULTS}/runs/{slug(name)}/index.html">All figures and raw samples</a>' if name else ""
        return f"{match[0].removesuffix(match[4])}\n{link}\n{match[4]}" if link else match[0]

    from enginebench.core.names import slug

    linked: str = tools.BLOCK.sub(add, markdown)
    return linked


def on_page_markdown(markdown: str, **_: object) -> str:
    """The page, with the functions of features and the tables of options where it asks for them."""
    if "<!-- rows: " in markdown:
        markdown = link_runs(markdown)
    if FUNCTIONS in markdown:
        markdown = markdown.replace(FUNCTIONS, "\n".join(list_functions()))
    if OPTIONS not in markdown:
        return markdown
    sys.path.insert(0, str(ROOT / "tools"))
    from option_tables import write_arguments

    return markdown.replace(OPTIONS, write_arguments())


def list_functions() -> Iterator[str]:
    """For each module of a feature a block of the functions that it brings: read as text, their names are not seen."""
    sys.path.insert(0, str(ROOT / "src"))
    from enginebench.core.features import HOME, list_features

    for feature, brought in list_features().items():
        homes: dict[str, list[str]] = {}
        for target in brought.functions.values():
            module, _, name = target.partition(":")
            homes.setdefault(f"{HOME}.{feature}.{module}", []).append(name)
        yield from (BLOCK.format(home=home, names=", ".join(names)) for home, names in homes.items())
    sys.path.insert(0, str(ROOT / "tools"))
    from option_tables import list_points

    for place in list_points("function").values():  # of our packages in plugins/
        home, _, name = place.partition(":")
        yield BLOCK.format(home=home, names=name)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """All files of the site by their paths in the repository; addresses of the pages in docs/ stay without `docs/`."""

    def make(path: str, address: str | None = None) -> File:
        return File(path, str(ROOT), config.site_dir, config.use_directory_urls, dest_uri=address)

    docs = Path(config.docs_dir)
    inside = {file.src_uri: file for file in files if file.src_dir == config.docs_dir}
    moved = [make(f"{docs.name}/{path}", file.dest_uri) for path, file in inside.items()]
    others = [file for file in files if file.src_uri not in inside]
    return Files([*others, *moved, *map(make, OUTSIDE_OF_DOCS)])
