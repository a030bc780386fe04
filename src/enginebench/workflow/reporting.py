"""A stored run to its documents and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from enginebench.core.errors import MissingDependency, UsageError
from enginebench.core.records import Result
from enginebench.core.store import encode, write_atomic
from enginebench.report.batches import batch_chart, list_batches
from enginebench.report.charts import render_png
from enginebench.report.csv_table import format_csv
from enginebench.report.markdown import format_markdown
from enginebench.report.rows import RunDocument, describe_run
from enginebench.workflow.folder import RunRecord, read_results

FORMATS = ("md", "csv", "json")
FILES = {"md": "report.md", "csv": "table.csv", "json": "report.json"}
BATCHES_PICTURE = "batches.png"


def describe_stored(record: RunRecord, results: Sequence[Result], margin: float = 0.02) -> RunDocument:
    """The document of a run from its stored rows."""
    request = record.request
    return describe_run(
        model=results[0].model if results else Path(request.model).name,
        machine=record.machine,
        spec=msgspec.to_builtins(request),
        results=results,
        baseline_engine=request.baseline or "pytorch",
        margin=margin,
        max_top1_drop=request.max_top1_drop,
        p99_limit_ms=request.p99_limit_ms,
    )


def write_reports(root: Path, document: RunDocument, formats: Sequence[str] = ("md", "csv")) -> list[Path]:
    """Writes the reports of a run into its folder; the paths written.

    Raises:
        UsageError: a format is unknown.
    """
    unknown = [name for name in formats if name not in FILES]
    if unknown:
        raise UsageError(f"unknown format {', '.join(unknown)}; known: {', '.join(FORMATS)}")
    written = []
    for name in formats:
        path = root / FILES[name]
        write_atomic(path, _render(document, name))
        written.append(path)
    return [*written, *(_draw_batches(root, document) if "md" in formats else [])]


def _draw_batches(root: Path, document: RunDocument) -> list[Path]:
    """The picture of latency against throughput, where there is more than one batch; its table is in the page.

    Pictures need an extra: without it the page has the numbers alone.
    """
    limit = document.spec.get("p99_limit_ms")
    series = list_batches(document.rows, limit)
    if not series:
        return []
    path = root / BATCHES_PICTURE
    try:
        write_atomic(path, render_png(batch_chart(series, limit)))
    except MissingDependency:
        return []
    return [path]


def _render(document: RunDocument, name: str) -> bytes:
    if name == "json":
        return encode(document, indent=2)
    return (format_markdown(document) if name == "md" else format_csv(document)).encode()


def report_folder(root: Path, formats: Sequence[str]) -> list[Path]:
    """Writes the reports of the run stored in `root`, from its files alone.

    Raises:
        ParseError: it holds no run, or a damaged one.
    """
    record, results = read_results(root)
    return write_reports(root, describe_stored(record, results), formats)
