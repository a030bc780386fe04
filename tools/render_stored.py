"""Writes anew what the stored runs of results/ look like, as tests/unit/report/test_stored_results.py compares it.

    python tools/render_stored.py [FOLDER]

A file of tests/data/stored (or FOLDER) for each archive: the answer, the tables of the terminal and of markdown without
its warnings, and a line for each row with a hash of its figures in the JSON document. Run it only where
stored runs are meant to be shown otherwise, and read the difference before it is committed.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tarfile
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
from rich.console import Console

from enginebench.report.markdown import format_sections
from enginebench.report.run.deploy import Deployment
from enginebench.report.run.rows import Row, RunDocument
from enginebench.report.run.sections import list_report, list_sections
from enginebench.report.terminal import print_sections
from enginebench.runs.folder import read_results
from enginebench.runs.reporting import describe_stored, plan_deployment

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "data" / "stored"
# The last digits of a mean depend on the order in which a library adds.
DIGITS = 6


def list_archives() -> list[Path]:
    """The archives of stored runs."""
    return sorted((ROOT / "results").glob("*/*.tar.xz"))


def name_golden(archive: Path) -> str:
    """The file that tells what a stored run looked like."""
    return f"{archive.parent.name}-{archive.name.removesuffix('.tar.xz')}.txt"


def render_archive(archive: Path) -> str:
    """All that is compared of one stored run."""
    with TemporaryDirectory() as folder, tarfile.open(archive) as stored:
        stored.extractall(folder, filter="data")
        (root,) = Path(folder).iterdir()
        record, results = read_results(root)
        document = describe_stored(record, results)
        planned = plan_deployment(root, record, results)
    deployment = msgspec.structs.replace(planned, folder="DIR", out="ship") if planned else None
    parts = {
        "terminal": render_terminal(document, deployment),
        "markdown": render_markdown(document, deployment),
        "json": [f"{row.id} {hash_row(row)}" for row in document.rows],
    }
    return "\n".join(line.rstrip() for title, lines in parts.items() for line in (f"== {title}", *lines, ""))


def render_terminal(document: RunDocument, deployment: Deployment | None) -> list[str]:
    """What `report` prints at 80 columns below the answer."""
    text = StringIO()
    print_sections(list_sections(document, deployment=deployment)[1:], Console(width=80, color_system=None, file=text))
    return text.getvalue().splitlines()


def render_markdown(document: RunDocument, deployment: Deployment | None) -> list[str]:
    """The page without its warnings."""
    sections = [section for section in list_report(document, deployment=deployment) if section.name != "warnings"]
    return format_sections(sections).splitlines()


def hash_row(row: Row) -> str:
    """A hash of a row's fields, and of code, message and advice of its warnings."""
    fields = msgspec.to_builtins(row)
    for warning in fields["caveats"]:
        for name in set(warning) - {"code", "message", "advice"}:
            del warning[name]
    return hashlib.sha256(json.dumps(round_all(fields), sort_keys=True).encode()).hexdigest()[:16]


def round_all(value: Any) -> Any:
    """`value` with every number in it rounded."""
    if isinstance(value, float):
        return f"{value:.{DIGITS}g}"
    if isinstance(value, dict):
        return {key: round_all(item) for key, item in value.items()}
    return [round_all(item) for item in value] if isinstance(value, list | tuple) else value


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN
    folder.mkdir(parents=True, exist_ok=True)
    for archive in list_archives():
        (folder / name_golden(archive)).write_text(render_archive(archive), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
