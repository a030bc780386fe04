"""Three made-up runs in every form that people read, as text: what tests/unit/report/snapshots.txt holds.

They are a plain run; one in which things went wrong, with text that somebody hostile wrote; one without a verdict.
Below them stand two stored documents of `stages`, whose figures no session can know.
`make tables` writes the file anew.
"""

import re
from collections.abc import Iterator
from html.parser import HTMLParser

from msgspec.structs import replace

from enginebench.core.records import Drift, Result, ResultWarning
from enginebench.core.store import read_record
from enginebench.report.csv_table import format_csv
from enginebench.report.markdown import format_sections
from enginebench.report.page import format_fragment
from enginebench.report.run.columns import list_fields
from enginebench.report.run.deploy import Delivery, Deployment
from enginebench.report.run.rows import RunDocument, describe_run
from enginebench.report.run.sections import list_report, list_sections
from enginebench.report.stages import list_stages
from enginebench.stats.stages import StagesDocument
from processes import ROOT
from reports import draw, write_page
from samples import make_drift, make_implausible, make_machine, make_result

HOSTILE = 'a\x1b[31m\u202e[red]|`<img src=x onerror="hack()">'
WIDTHS = (80, 140)


def make_documents() -> dict[str, RunDocument]:
    """The runs by what they are."""
    return {
        "plain": _describe(_list_plain()),
        "troubled": _describe(_list_troubled()),
        "without a verdict": _describe(_list_undecided()),
    }


def _describe(results: list[Result]) -> RunDocument:
    return describe_run(model=results[0].model, machine=make_machine(), spec={}, results=results)


def _list_plain() -> list[Result]:
    """Three engines, INT8 within its limits, top-1 on labelled samples, one that cannot run here."""
    close = make_drift(1.8e-6)
    return [
        make_result("pytorch", "fp32", 61.0, accuracy=0.9911, seed=1),
        make_result("ort", "fp32", 33.0, drift=close, accuracy=0.9911, seed=2),
        make_result("openvino", "fp32", 33.1, drift=close, accuracy=0.9911, seed=3),
        make_result("ort", "int8@cpu", 12.0, drift=make_drift(0.02), accuracy=0.9889, seed=4),
        make_result("ort-cuda", status="skipped", reason="no CUDA device"),
    ]


def _list_troubled() -> list[Result]:
    """Outputs that changed, a child that died, times without work, an interrupted configuration, hostile names."""
    hostile = ResultWarning(code="fallback", message=f"nodes ran on {HOSTILE}", advice=HOSTILE)
    rows = [
        make_result("pytorch", "fp32", 61.0, processes=6, seed=1),
        make_result("ort", "fp32", 33.0, drift=_change(), processes=6, seed=2),
        make_implausible(make_result("openvino", "fp32", 0.2, drift=make_drift(1e-6), processes=6, seed=3)),
        make_result("ort", "int8@cpu", 12.0, drift=make_drift(0.02), processes=4, status="partial", seed=4),
        make_result("openvino", "bf16", status="failed", reason=f"the child died: {HOSTILE}"),
        make_result("pytorch-compile", "fp32", 55.0, drift=make_drift(1e-6), processes=6, warnings=(hostile,), seed=5),
    ]
    return [replace(row, model=HOSTILE) for row in rows]


def _change() -> Drift:
    return make_drift(3.0, passed=False, centred=0.41)


def _list_undecided() -> list[Result]:
    """One trial each, and the baseline failed."""
    return [
        make_result("pytorch", "fp32", status="failed", reason="out of memory"),
        make_result("ort", "fp32", 33.0, processes=1, seed=2),
        make_result("openvino", "fp32", 30.0, processes=1, seed=3),
    ]


def render_all() -> str:
    """Every document in every form; the CSV of the plain run alone, whose heading is that of all."""
    parts: list[str] = []
    for title, document in make_documents().items():
        for form, text in _render(document, with_csv=title == "plain"):
            parts += [f"######## {title}: {form}", *(line.rstrip() for line in text.splitlines()), ""]
    parts += ["######## stages: terminal, 80 columns", *draw(list_stages(*_read_stages())).splitlines(), ""]
    return "\n".join(parts)


def _read_stages() -> list[StagesDocument]:
    folder = ROOT / "results" / "h200"
    names = ("stages-resnet50-b32-pytorch-fp32.json", "stages-resnet50-b32-tensorrt-fp16.json")
    return [read_record(folder / name, StagesDocument) for name in names]


def _render(document: RunDocument, *, with_csv: bool) -> Iterator[tuple[str, str]]:
    deployment = _plan(document)
    for width in WIDTHS:
        sections = list_sections(document, deployment=deployment, warnings=width == WIDTHS[-1])
        yield f"terminal, {width} columns", draw(sections, width)
    yield "markdown", format_sections(list_report(document, deployment=deployment))
    yield "page", read_text(write_page(document, deployment=deployment))
    yield "notebook", read_text(format_fragment(list_sections(document, warnings=True, deployment=deployment)))
    if with_csv:
        table = format_csv(list_fields(), document.rows)
        # The last digits of a mean depend on the order in which a library adds.
        yield "csv", re.sub(r"\d+\.\d{6,}", lambda match: f"{float(match[0]):.6g}", table)


def _plan(document: RunDocument) -> Deployment:
    refused = {row.id: None if row.status == "ok" else "it has no figures" for row in document.rows}
    return Deployment(folder="a run", deliveries={row: Delivery(refusal=reason) for row, reason in refused.items()})


class _Reader(HTMLParser):
    """The text of a page, with the element that it stands in; styles and scripts left out."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in ("br", "meta", "link", "input", "img", "col"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            del self.open[len(self.open) - 1 - self.open[::-1].index(tag) :]

    def handle_data(self, data: str) -> None:
        tag = self.open[-1] if self.open else ""
        if data.strip() and not {"style", "script"} & set(self.open):
            text = " ".join(data.split())
            joined = tag in ("td", "th", "button") and self.lines and self.lines[-1].startswith(f"{tag}: ")
            if joined:
                self.lines[-1] += f" | {text}"
            else:
                self.lines.append(f"{tag}: {text}")


def read_text(page: str) -> str:
    """The text of a page, a line for each element; cells beside each other are on one. Versions are left out."""
    reader = _Reader()
    reader.feed(page)
    return re.sub(r"EngineBench \d[\w.]*", "EngineBench VERSION", "\n".join(reader.lines))
