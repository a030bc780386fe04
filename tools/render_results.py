"""Write the figures of docs/results.md, and all of docs/results-tables.md, anew from the stored rows that they name.

    python tools/render_results.py [--check]

In results.md a block between a line that names its files and `<!-- end -->` is the answer of a run in a sentence, or a
link to a table on the other page:

    <!-- rows: FILE -->       the archive of a run: its answer; all its tables are on the site of stored runs
    <!-- batches: FILE -->    the same, of several batches
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

from enginebench.core.text import clean_text
from enginebench.report.markdown import escape
from enginebench.report.run.head import format_head
from enginebench.report.run.rows import Row, RunDocument
from enginebench.runs import site
from enginebench.runs.folder import RunFolder, read_results
from enginebench.runs.reporting import describe_stored

# Blocks whose tables are on the page of tables; those of a run are on the site (`enginebench history --site`).
TABLED = ("repeats", "stages")
ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "results.md"
TABLES = ROOT / "docs" / "results-tables.md"
BLOCK = re.compile(r"(<!-- (rows|batches|repeats|stages): (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def read_archive(path: Path) -> RunDocument:
    """The document of the run in a .tar.xz archive."""
    with TemporaryDirectory() as folder, tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
        (root,) = Path(folder).iterdir()
        return describe_stored(RunFolder(root).read_record(), read_results(root)[1])


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


def name_block(kind: str, names: str) -> str:
    """The heading of a block on the page of tables: the stem of its only file, else what the files are."""
    paths = names.split()
    stem = Path(paths[0]).name.partition(".")[0]
    place = "H200" if "/h200/" in paths[0] else "CPU"
    return f"{place}: {stem}" if len(paths) == 1 else f"{place}: {kind} of {len(paths)} files"


def make_anchor(heading: str) -> str:
    """The anchor that the site gives a heading."""
    return re.sub(r"[^a-z0-9_]+", "-", heading.lower()).strip("-")


def render_block(kind: str, names: str) -> str:
    paths = [ROOT / name for name in names.split()]
    return render_repeats(paths) if kind == "repeats" else render_stages(paths)


def render_page(text: str) -> str:
    """results.md with the answer of each run as its stored rows give it now, and links to the tables."""

    def fill(match: re.Match[str]) -> str:
        begin, kind, names, end = match.groups()
        if kind in TABLED:
            heading = name_block(kind, names)
            return f"{begin}[Table of {heading}](results-tables.md#{make_anchor(heading)})\n{end}"
        use = format_head(read_archive(ROOT / names))[0]
        answers = [line for line in use.lines if "   " in line]  # without what is said of the configurations
        if kind == "batches":  # the largest one; above it stands that each had one trial
            answers = [line.replace(" (1 trial each, no interval)", "") for line in answers[-1:]]
        lines = "<br>\n".join(escape(line).replace("   ", "&emsp;") for line in answers)
        return f"{begin}{lines}\n{end}"

    return BLOCK.sub(fill, text)


def render_tables(text: str) -> str:
    """The page of tables: one section for each block that is no run of its own, in its order."""
    parts = ["# Tables of the results", INTRODUCTION]
    for _, kind, names, _ in BLOCK.findall(text):
        if kind in TABLED:
            parts += [f"## {name_block(kind, names)}", render_block(kind, names)]
    return "\n\n".join(parts) + "\n"


def write_site(out: Path) -> None:
    """Write the site of all stored runs into `out`, each run under the name of its archive."""
    with TemporaryDirectory() as scratch:
        for path in sorted((ROOT / "results").glob("*/*.tar.xz")):
            with TemporaryDirectory(dir=scratch, prefix=".") as folder, tarfile.open(path) as archive:
                archive.extractall(folder, filter="data")
                (root,) = Path(folder).iterdir()
                root.rename(Path(scratch) / name_run(path))
        site.write_site(Path(scratch), out)


def name_run(path: Path) -> str:
    """The name of an archive's run on the site: `cpu-resnet18`."""
    return f"{path.parent.name}-{path.name.partition('.')[0]}"


INTRODUCTION = (
    "Generated by `python tools/render_results.py` from the raw samples stored under "
    "[results/](../results/h200/README.md). [Results](results.md) says what was run, when and where, and what the "
    "tables show; [reports](reports.md) explains `~` and `?`."
)


def main() -> int:
    text = PAGE.read_text("utf-8")
    pages = {PAGE: render_page(text), TABLES: render_tables(text)}
    if "--check" in sys.argv[1:]:
        return int(any(not path.is_file() or path.read_text("utf-8") != page for path, page in pages.items()))
    for path, page in pages.items():
        path.write_text(page, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
