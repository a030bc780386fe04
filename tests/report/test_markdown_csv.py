"""The same rows as markdown and CSV: complete, and with no cell that becomes markup or a formula."""

from __future__ import annotations

import csv
import io

import pytest
from samples import make_result, make_run

from enginebench.report.csv_table import format_cell, format_csv
from enginebench.report.markdown import escape, format_markdown
from enginebench.report.rows import describe_run


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


def test_markdown_page() -> None:
    page = format_markdown(make_run(accuracy=True))
    lines = [line for line in page.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 10 and len({line.count("|") for line in lines}) == 1
    assert page.startswith("# resnet18\n\n**Fastest engine whose outputs agree: openvino int8@nncf")
    for part in ("## Batch 1, compute, cpu, 1 thread", "99.11%", "- note 1: skipped", "- all rows:", "## Machine"):
        assert part in page


def test_markdown_of_nothing() -> None:
    page = format_markdown(describe_run(model="a|b", machine=None, spec={}, results=[]))
    assert "Nothing was measured" in page and "a&#124;b" in page
