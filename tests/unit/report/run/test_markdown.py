"""The same rows as markdown and CSV: complete, and with no cell that becomes markup or a formula."""

from __future__ import annotations

import csv
import io

import pytest
from msgspec.structs import replace

from enginebench.report.csv_table import format_cell, format_csv
from enginebench.report.run.markdown import escape, format_markdown
from enginebench.report.run.rows import describe_run
from samples import make_result, make_run
from stored_run import make_doubtful_results


def test_csv_has_a_row_each_and_full_precision() -> None:
    document = make_run()
    text = format_csv(document)
    assert text.count("\r\n") == len(document.rows) + 1
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    p50 = document.rows[3].p50_ms
    assert p50 is not None and float(rows[3]["p50_ms"]) == p50.value and float(rows[3]["p50_ms_low"]) == p50.low
    assert (rows[0]["modelled"], rows[0]["p99_supported"], rows[8]["p50_ms"]) == ("false", "true", "")
    assert rows[8]["reason"] == "no CUDA device; onnxruntime-gpu is not installed"


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+cmd", "'+cmd"),
        ("-x", "'-x"),
        ("@sum", "'@sum"),
        (" =1", "' =1"),
        ("\t=1", "' =1"),
        ("-1.5", "-1.5"),
        ("+3e2", "+3e2"),
        (-1.5, "-1.5"),
        (None, ""),
        (True, "true"),
        ("a\r\nb\x00", "a  b"),
        ("plain", "plain"),
    ],
)
def test_cells_are_no_formulas(value: str | float | bool | None, cell: str) -> None:
    assert format_cell(value) == cell


def test_csv_quotes_what_rfc_4180_wants_quoted() -> None:
    evil = make_result(status="failed", reason='a,"b"\nc')
    text = format_csv(describe_run(model="m", machine=None, spec={}, results=[evil]))
    assert '"a,""b"" c"' in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a|b", "a&#124;b"),
        ("`x`", "&#96;x&#96;"),
        ("<script>", "&lt;script&gt;"),
        ("a_b*c", "a\\_b\\*c"),
        ("![x](y)", "!\\[x\\](y)"),
        ("int8@cpu", "int8@cpu"),
        ("ask @someone", "ask &#64;someone"),
        ("two\nlines", "two lines"),
        ("12.8 ±0.2", "12.8 ±0.2"),
        ("# x", "\\# x"),
    ],
)
def test_names_are_no_markup(text: str, expected: str) -> None:
    assert escape(text) == expected


def test_a_build_beside_others_is_shown_as_a_bound() -> None:
    shown = {}
    for beside in (0, 3):
        row = replace(make_result(), build_s=1.234, built_beside=beside)
        document = describe_run(model="m", machine=None, spec={}, results=[row])
        (cells,) = [line.split("|") for line in format_markdown(document).splitlines() if "| fp32" in line]
        shown[beside] = [cell.strip() for cell in cells]
        (stored,) = csv.DictReader(io.StringIO(format_csv(document), newline=""))
        assert (stored["build_s"], stored["built_beside"]) == ("1.234", str(beside))
    assert "1.2" in shown[0] and "≤ 1.2" in shown[3]


def test_markdown_page() -> None:
    page = format_markdown(make_run(accuracy=True))
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 10 and len({line.count("|") for line in lines}) == 1
    assert page.startswith("# resnet18\n\n- **FASTEST** openvino int8 (nncf)   9.12 ms   6.72x pytorch fp32")
    for part in ("## Batch 1, compute, cpu, 1 thread", "99.11%", "- note 1: skipped", "- all rows:", "## Machine"):
        assert part in page


def test_markdown_of_nothing() -> None:
    page = format_markdown(describe_run(model="a|b", machine=None, spec={}, results=[]))
    assert "nothing was measured" in page and "a&#124;b" in page


def test_a_row_that_is_not_to_be_relied_on_says_so_at_its_figure() -> None:
    text = format_markdown(describe_run(model="m", machine=None, spec={}, results=make_doubtful_results()))
    cells = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("| ")]
    doubts = {f"{line[1]} {line[2]}": line[3].partition("(")[2].rstrip(")") for line in cells[2:]}
    assert doubts == {
        "pytorch fp32": "",
        "ort fp32 ◆": "suspect",
        "ort int8@cpu": "invalid",
        "openvino int8@nncf ◆": "suspect",
        "ort-cuda fp32": "",
        "openvino bf16": "",
    }
