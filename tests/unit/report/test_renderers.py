"""The four renderers of one model, in any width with any text, and numbers as printed."""

import json
import re
from operator import itemgetter

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from enginebench.core.records import Result
from enginebench.core.text import clean_text
from enginebench.door import program as group
from enginebench.models.zoo import BUILTIN
from enginebench.report.csv_table import format_cell, format_csv
from enginebench.report.history import HistoryDocument, HistoryRow, list_history
from enginebench.report.markdown import escape
from enginebench.report.numbers import format_significant
from enginebench.report.page import embed_json, format_fragment, format_page
from enginebench.report.run.columns import list_fields
from enginebench.report.run.rows import describe_run
from enginebench.report.table import Chart, Column, Notes, Section, list_texts, make_notes, make_table
from reports import draw, show
from samples import make_result, make_run
from stored_run import EVIL

ROWS = [("ort", 2.5, (1.9, 2.0, 2.1)), ("pytorch-compile:mode=reduce-overhead", 12.25, (None, 0.5, None))]


COLUMNS = (
    Column("engine", itemgetter(0)),
    Column("p50", lambda row: str(row[1]), itemgetter(1), align="decimal", bar=True),
    Column("nothing", lambda row: "x", when=lambda rows: False),
    Column("spare", lambda row: "0123456789", align="right", spare=1),
    Column("ratio", lambda row: f"{row[2][1]}x", align="right", span=itemgetter(2)),
    Column("more", lambda row: "abcdefghij", align="right", wide=True, spare=2),
)


TABLE = make_table(COLUMNS, ROWS, wide=False)
SECTIONS = [
    Section(title="First", parts=(Notes(lines=(("USE", "a"), ("USE", "b"), ("TRUST", "c")), kind="head"),)),
    Section(title="Second", name="second", parts=(TABLE, *make_notes(["said"], "list"))),
    Section(title="Third", parts=(Notes(lines=(("Do", "x --y 'a b'"),), kind="command"),)),
]


def test_a_terminal_has_bars_where_there_is_room_and_gives_up_spare_columns_where_there_is_none() -> None:
    wide, usual, narrow = (draw(SECTIONS, width) for width in (120, 60, 30))
    assert "█" in wide and "more" in wide and "nothing" not in wide
    assert "more" not in usual and "0123456789" in usual
    assert "not shown in 30 columns: spare" in " ".join(narrow.split()) and "12.25" in narrow
    for text, width in ((wide, 120), (usual, 60), (narrow, 30)):
        assert max(map(len, text.splitlines())) <= width
    assert "█" not in draw(SECTIONS, 120, "ascii") and "mode=reduce" in narrow
    titled = draw([Section(title="resnet18 · 20 s", parts=SECTIONS[1].parts)], 13)
    assert titled.splitlines()[:2] == ["resnet18 ·", "20 s"], "a number stands beside its unit"
    parts = Notes(lines=(("A", "numbers 20 s"),), kind="head"), make_table(list_texts("ab"), [("x", "is slower: 0.5x")])
    assert all(text in draw([Section(parts=parts)], 16) for text in ("     20 s", "is slower:"))
    bars = {max(line.count("█") for line in draw(SECTIONS, width).splitlines()) for width in range(30, 121)}
    assert sorted(bars - {0})[:2] == [4, 5], "a short bar is better than none"


@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("processes", [1, 10])
def test_a_run_fits_its_terminal(width: int, processes: int) -> None:
    text = show(make_run(processes=processes, accuracy=True), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text and "not reported" not in text and "top-1" in text


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
        ("# x", "\\# x"),
    ],
)
def test_names_are_no_markup(text: str, expected: str) -> None:
    assert escape(text) == expected


def test_html_escapes_every_text_and_runs_nothing_of_it() -> None:
    chart = Chart(name="c", title=EVIL, description=EVIL, spec={"title": {"subtitle": EVIL}})
    table = make_table(list_texts((EVIL, "b")), [(EVIL, EVIL)], title=EVIL, file=EVIL, keys=lambda row: {"label": EVIL})
    notes = [Notes(lines=((EVIL, EVIL),), kind=kind) for kind in ("head", "list", "facts", "command", "text")]
    section = Section(title=EVIL, name="n", parts=(table, chart, *notes))
    for text in (format_page(EVIL, [section, section], bundle="0"), format_fragment([section])):
        body = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
        assert "<img" not in body and "window.hacked=1</script><script>" not in body


def test_a_page_draws_ratios_on_a_logarithmic_axis_without_scripts() -> None:
    page = format_page("t", [Section(title="t", parts=(make_table(COLUMNS, ROWS),))])
    svg = re.findall(r'<svg class="span".*?</svg>', page)
    assert len(svg) == 2 and svg[1].count("<line") == 1, "one trial has no interval"
    ends = [float(x) for x in re.findall(r'x[12]="([\d.]+)%"', svg[0])]
    centre = float(re.search(r'cx="([\d.]+)%"', svg[0])[1])  # type: ignore[index]
    assert ends[2] < centre < ends[3] and ends[0] == ends[1]
    half = float(re.search(r'cx="([\d.]+)%"', svg[1])[1])  # type: ignore[index]
    assert ends[0] - half == pytest.approx(centre - ends[0], abs=0.2), "twice and half are as far from 1"


def test_data_cannot_end_its_element() -> None:
    made = embed_json({"a": "</script><!--", "b": "\u2028"})
    assert "</script>" not in made and "<!--" not in made
    assert json.loads(made) == {"a": "</script><!--", "b": "\u2028"}


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
    assert '"a,""b"" c"' in format_csv(list_fields(), describe(evil).rows)


def describe(*results: Result):  # type: ignore[no-untyped-def]
    return describe_run(model="m", machine=None, spec={}, results=results)


def make_history() -> HistoryDocument:
    row = HistoryRow(**dict.fromkeys(HistoryRow.__struct_fields__) | {"mix": "", "status": "ok", "validity": "suspect"})
    row = replace(row, started_utc="2026-11-23T06:01:00Z", model="digits-mlp", batch=1, n=419432, shapes="1x64")
    row = replace(row, p50_ms=0.003011, p99_ms=0.00773)
    pairs = (("ort", "fp32"), ("pytorch", "int8"))
    return HistoryDocument(rows=tuple(replace(row, engine=engine, precision=name) for engine, name in pairs))


@pytest.mark.parametrize("width", [60, 40])
def test_a_configuration_keeps_its_name_and_its_median(width: int) -> None:
    lines = draw(list_history(make_history(), 20), width).splitlines()
    names = {"model", "engine", "precision", "p50", "ort", "pytorch", "fp32", "int8", "3.01"}
    names |= {"2026-11-23T06:01"} if width > 40 else set()  # what tells runs apart goes last
    assert names <= set(" ".join(lines).split())
    assert "…" not in "".join(lines) and max(map(len, lines)) <= width
    assert any(line.startswith(f"  not shown in {width} columns: ") for line in lines)
    assert "not shown" not in draw(list_history(make_history(), 20), 90)


@pytest.mark.parametrize("width", [60, 40])
def test_models_keep_their_names(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    found = CliRunner().invoke(group, ["models"])
    assert all(name in found.output.split() for name in BUILTIN)
    assert f"not shown in {width} columns: " in found.output


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (33.456, "33.5"),
        (3.0949, "3.09"),
        (121.4, "121"),
        (4821.7, "4822"),
        (0.01234, "0.0123"),
        (99.96, "100"),
        (0.0, "0"),
        (9.996, "10.0"),
        (1e-7, "1.00e-07"),
        (123456.7, "123,457"),
        (float("inf"), "inf"),
    ],
)
def test_significant_digits(value: float, text: str) -> None:
    assert format_significant(value) == text


def test_clean_text_keeps_letters_of_every_language() -> None:
    assert clean_text("Modell-Größe 模型\x1b[31m\x9b\x00\u200b\u2028x") == "Modell-Größe 模型[31m x"
