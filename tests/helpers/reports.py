"""A run in every form that a person reads."""

import io
from collections.abc import Sequence

from rich.console import Console

from enginebench.report.markdown import format_sections
from enginebench.report.page import format_page
from enginebench.report.run.rows import RunDocument
from enginebench.report.run.sections import list_report, list_sections
from enginebench.report.run.series import label_rows
from enginebench.report.table import Chart, Section
from enginebench.report.terminal import print_sections


def draw(sections: Sequence[Section], width: int = 80, encoding: str = "utf-8") -> str:
    """What a terminal of that width shows."""
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    print_sections(sections, Console(file=out, width=width, color_system=None))
    out.seek(0)
    return "\n".join(line.rstrip() for line in out.read().splitlines())


def show(document: RunDocument, width: int = 80, **more: object) -> str:
    """What `run` prints."""
    return draw(list_sections(document, **more), width)  # type: ignore[arg-type]


def write_markdown(document: RunDocument) -> str:
    """`report.md`."""
    return format_sections(list_report(document))


def write_page(document: RunDocument, charts: Sequence[Chart] = (), bundle: str | None = None, **more: object) -> str:
    """`report.html`."""
    sections = list_report(document, charts=charts, **more)  # type: ignore[arg-type]
    return format_page(document.model, sections, bundle=bundle, labels=label_rows(document))
