"""Writes the tables of docs/results.md anew from the stored rows that they name.

    python tools/render_results.py [--check]

A table stands between a line that names its files and `<!-- end -->`:

    <!-- rows: FILE -->       the archive of a run: its answer and all its tables
    <!-- batches: FILE -->    the same: latency against throughput alone
    <!-- repeats: A B ... --> pairs of archives of the same rows: medians of either, and their ratio
    <!-- stages: FILE... -->  documents of `enginebench stages`

With --check nothing is written; the exit code is 1 if something would be.
"""

from __future__ import annotations

import re
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec.structs import replace

from enginebench.core.text import clean_text
from enginebench.report.markdown import escape, format_sections
from enginebench.report.run.remarks import list_warnings
from enginebench.report.run.rows import Row, RunDocument
from enginebench.report.run.sections import format_answer, list_facts, list_others, list_tables, make_batches
from enginebench.report.table import Section, make_notes
from enginebench.runs.folder import RunFolder, read_results
from enginebench.runs.reporting import describe_stored

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "results.md"
BLOCK = re.compile(r"(<!-- (rows|batches|repeats|stages): (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def read_archive(path: Path) -> RunDocument:
    """The document of the run in a .tar.xz archive."""
    with TemporaryDirectory() as folder, tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
        (root,) = Path(folder).iterdir()
        return describe_stored(RunFolder(root).read_record(), read_results(root)[1])


def render_rows(path: Path) -> str:
    """The answer and the tables of a stored run."""
    document = read_archive(path)
    tables = [replace(section, title=section.title.capitalize()) for section in list_tables(document)]
    facts = " · ".join([document.model, *list_facts(document)])
    head = Section(parts=(*make_notes([facts]), format_answer(document)))
    sections = [head, *tables, *list_others(document), Section(parts=(list_warnings(document),))]
    return format_sections(sections, level=3).rstrip("\n")


def render_batches(path: Path) -> str:
    """Latency against throughput of a stored run of several batches."""
    return format_sections([Section(parts=tuple(make_batches(read_archive(path).rows)))]).rstrip("\n")


def render_repeats(paths: list[Path]) -> str:
    """Medians of every row in the first and the second archive of each pair, and their ratio.

    Raises:
        KeyError: the second archive lacks a row of the first.
    """
    lines = ["| row | first (ms) | again (ms) | again / first |", "| --- | ---: | ---: | ---: |"]
    for first, again in zip(paths[::2], paths[1::2], strict=True):
        documents = [read_archive(path) for path in (first, again)]
        known = {row.id: row for row in documents[1].rows}
        for row in documents[0].rows:
            copies = ", with copies" if row.scope == "io" else ""
            name = escape(f"{documents[0].model}, batch {row.batch}{copies}: {row.engine} {row.precision}")
            other = known[row.id]
            ratio = f"{other.p50_ms.value / row.p50_ms.value:.3f}" if row.p50_ms and other.p50_ms else ""
            lines.append(f"| {name} | {format_median(row)} | {format_median(other)} | {ratio} |")
    return "\n".join(lines)


def format_median(row: Row) -> str:
    """In ms, `~` where it was disturbed; the status of a row that has none."""
    if row.p50_ms is None:
        return row.status
    return f"{row.p50_ms.value:.4g}{'' if row.validity == 'valid' else ' ~'}"


def render_stages(paths: list[Path]) -> str:
    """One line for each document: median milliseconds and share of each stage, pictures a second."""
    documents = [msgspec.json.decode(path.read_bytes()) for path in paths]
    names = [stage["name"] for stage in documents[0]["stages"]]
    headings = ["model, engine", "batch", *(f"{name.replace('_', ' ')} (ms)" for name in names)]
    headings += ["serial (1/s)", "overlapped (1/s)"]
    lines = [f"| {' | '.join(headings)} |", f"| --- |{' ---: |' * (len(headings) - 1)}"]
    for document in documents:
        engine = clean_text(f"{document['model']}, {document['engine']} {document['precision']}")
        cells = [escape(engine), str(document["batch"])]
        cells += [f"{stage['p50_ms']:.3g} ({stage['share']:.0%})" for stage in document["stages"]]
        cells += [f"{document[key]:.0f}" for key in ("serial_per_s", "overlapped_per_s")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def render_page(text: str) -> str:
    """The page with every table as its stored rows give it now."""

    def fill(match: re.Match[str]) -> str:
        begin, kind, names, end = match.groups()
        paths = [ROOT / name for name in names.split()]
        tables = {"repeats": render_repeats, "stages": render_stages}
        one = {"rows": render_rows, "batches": render_batches}
        return f"{begin}{one[kind](*paths) if kind in one else tables[kind](paths)}\n{end}"

    return BLOCK.sub(fill, text)


def main() -> int:
    text = PAGE.read_text("utf-8")
    rendered = render_page(text)
    if "--check" in sys.argv[1:]:
        return int(rendered != text)
    PAGE.write_text(rendered, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
