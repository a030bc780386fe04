"""The page as text: what it says, that names stay text, and that its policy names its own scripts alone."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from enginebench.core.records import Result
from enginebench.report.html import Html, element, embed_json, join
from enginebench.report.run.charts import draw_run
from enginebench.report.run.page import SECTIONS, format_page
from enginebench.report.run.rows import RunDocument, describe_run
from samples import make_machine, make_result, make_run
from stored_run import COMMAND, EVIL, make_doubtful_results, make_results

BUNDLE = "window.vegaEmbed = () => { throw Error('</script> in a string'); };"


class Outline(HTMLParser):
    """Tags with attributes, and the text of each element with an id or of a kind."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        self.texts.append((self._open[-1] if self._open else "", data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def text(self, tag: str) -> list[str]:
        return [text for name, text in self.texts if name == tag]


def make_document(results: list[Result]) -> RunDocument:
    return describe_run(model=results[0].model, machine=make_machine(), spec={}, results=results)


def make_page(results: list[Result]) -> str:
    document = make_document(results)
    refusals = {row.id: None if row.status == "ok" else "it has no figures" for row in document.rows}
    charts, when = draw_run(document, results), "2026-11-01T10:00"
    return format_page(document, charts, BUNDLE, command=COMMAND, started_utc=when, refusals=refusals)


def read(page: str) -> Outline:
    outline = Outline()
    outline.feed(page)
    return outline


@pytest.fixture(scope="module")
def page() -> str:
    return make_page(make_results())


def test_it_opens_with_the_answer(page: str) -> None:
    body = page.partition("<body>")[2]
    answer = body.partition('class="answer">')[2].partition("<")[0]
    assert answer == "ort int8 (cpu)   12.1 ms   5.05x pytorch fp32   (4.99 to 5.11)"
    assert [body.index(f"<dt>{label}</dt>") for label in ("FASTEST", "OUTPUTS", "TRUST")]
    assert body.index('class="answer"') < body.index("<table")


def test_it_names_the_largest_batch_within_the_limit() -> None:
    rows = [make_result(median_ms=m, batch=b, identity=f"b{b}", seed=b) for b, m in ((1, 2), (8, 9), (32, 30))]
    document = describe_run(model="m", machine=make_machine(), spec={"p99_limit_ms": 15.0}, results=rows)
    page = format_page(document, [], None)
    assert "pytorch fp32: batch 8 is the largest within p99 15 ms" in page


def test_batches_stand_in_a_table_of_their_own() -> None:
    rows = [make_result(median_ms=m, batch=b, identity=f"b{b}", seed=b) for b, m in ((1, 2), (8, 8))]
    documents = [describe_run(model="m", machine=make_machine(), spec={}, results=found) for found in (rows, rows[:1])]
    page, alone = (format_page(document, [], None) for document in documents)
    table = page.partition('data-file="batches"')[2].partition("</table>")[0]
    assert table.count("<tr>") == 3 and ">times smallest<" in table
    assert re.search(r'<td class="number">8</td>.*<td class="number">2\.\d+</td></tr>', table)
    assert 'data-file="batches"' not in alone


def test_every_section_stands_in_order(page: str) -> None:
    found = [a["id"] for a in read(page).all("section")]
    assert found == ["comparison", *(name for name in SECTIONS if name != "builds")], "nothing was built twice here"


def test_the_table_holds_every_row_and_the_numbers_to_sort_by(page: str) -> None:
    outline = read(page)
    rows = [a for a in outline.all("tr") if "data-label" in a]
    assert [a["data-engine"] for a in rows] == ["openvino", "ort", "ort", "pytorch", "ort-cuda", "openvino"]
    assert [a["data-precision"] for a in rows][:4] == ["int8", "int8", "fp32", "fp32"]
    headings = [text for text in outline.text("button") if text]
    assert {"engine", "p50 (ms)", "speed-up", "top-1", "ran in"} <= set(headings)
    line = page[page.index('data-label="ort int8@cpu"') :].partition("</tr>")[0]
    values = [float(v) for v in re.findall(r'data-value="([^"]+)"', line)]
    assert values[0] == pytest.approx(12.0, rel=0.02) and 0.985 in values
    assert "int8 83%, fp32 17%" in line


def test_a_row_that_did_not_run_says_so(page: str) -> None:
    line = page[page.index('data-label="ort-cuda fp32"') :].partition("</tr>")[0]
    times = line.partition("skipped</td>")[2].split("</td>")[:4]
    assert times == ['<td class="number">'] * 3 + ["<td>"]
    assert "skipped: no CUDA device" in page and "signal 11" in page


def test_caveats_stand_where_they_apply(page: str) -> None:
    def section(name: str) -> str:
        return page[page.index(f'<section id="{name}"') :].partition("</section>")[0]

    assert "ort fp32: </b>other processes used the CPU. Stop them" in section("drift")
    assert "all rows: </b>the weights are random" in section("quality")
    assert 'class="caveats"' not in section("proof")


def test_the_command_can_be_pasted(page: str) -> None:
    assert "enginebench run resnet18 --engines pytorch,ort,openvino --out &#x27;a folder&#x27;</code>" in page


def test_the_policy_allows_its_own_scripts_and_nothing_else(page: str) -> None:
    policy = next(a["content"] for a in read(page).all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "unsafe" not in policy and "http" not in policy and "default-src 'none'" in policy
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert len(scripts) == 2
    for text in [*scripts, *re.findall(r"<style>(.*?)</style>", page, re.DOTALL)]:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_nothing_is_loaded_and_nothing_is_inline(page: str) -> None:
    outline = read(page)
    for tag, attributes in outline.tags:
        assert tag not in ("link", "img", "iframe", "object", "base"), tag
        assert "src" not in attributes and "style" not in attributes
        assert not any(name.startswith("on") for name in attributes), attributes
        assert (attributes.get("href") or "#").startswith("#")


def test_names_are_text_wherever_they_stand() -> None:
    page = make_page(make_results(evil=True))
    outline = read(page)
    assert not outline.all("img")
    assert len(outline.all("script")) == 4  # two of data, the bundle, our own
    assert EVIL in outline.text("h1")
    charts = json.loads(page.partition('id="charts">')[2].partition("</script>")[0])
    assert any(EVIL[:8] in point["row"] for point in charts["speedup"]["datasets"]["speedups"])


def test_the_bundle_cannot_end_its_element(page: str) -> None:
    assert r"\x3c/script> in a string" in page


def test_a_page_without_charts_has_no_bundle() -> None:
    results = make_results()[-2:]
    document = make_document(results)
    page = format_page(document, draw_run(document, results), BUNDLE)
    assert "vegaEmbed = ()" not in page
    assert "none: nothing was measured" in page


def test_a_run_of_one_engine_and_precision_has_no_filters() -> None:
    assert "<fieldset" not in make_page(make_results()[:1])
    assert make_page(make_results()).count("<fieldset") == 2


def test_twelve_rows_stay_under_two_megabytes() -> None:
    """Without the bundle, which has 0.9 MB."""
    document = make_run()
    results = make_results(n=1000, processes=10)
    document = make_document(results)
    page = format_page(document, draw_run(document, results), None)
    assert len(page) * 12 / 4 < 1_100_000


def test_elements_escape_text_and_attributes() -> None:
    made = element("p", "<b>", Html("<i></i>"), None, class_='a"b', data_x=1, hidden=True, title=None)
    assert made == '<p class="a&quot;b" data-x="1" hidden>&lt;b&gt;<i></i></p>'
    assert join("a\x1b[31m\u202e", "&") == "a[31m&amp;"
    assert element("br") == "<br>"


def test_data_cannot_end_its_element() -> None:
    made = embed_json("x", {"a": "</script><!--", "b": "\u2028"})
    assert made.count("</script>") == 1 and "<!--" not in made
    assert json.loads(made.partition(">")[2].removesuffix("</script>")) == {"a": "</script><!--", "b": "\u2028"}


def test_a_row_that_is_not_to_be_relied_on_says_so_at_its_figure(page: str) -> None:
    assert 'class="doubt"' not in page and ">validity<" not in page
    document = describe_run(model="m", machine=make_machine(), spec={}, results=make_doubtful_results())
    doubtful = format_page(document, [], None)
    lines = re.findall(r"<tr[^>]* data-label=.*?</tr>", doubtful)
    marks = [re.findall(r'(?<= )±?[^<]*<span class="doubt"[^>]*>(\w+)</span></td>', line) for line in lines]
    assert marks == [["suspect"], ["invalid"], ["suspect"], [], [], []]
    kinds = [re.findall(r'^<tr(?: class="(\w*)")?', line)[0] for line in lines]
    assert kinds == ["suspect", "invalid", "suspect", "", "skipped", "failed"]
    # A file of the table has numbers alone in the columns of numbers; the word has a column of its own.
    assert [re.findall(r"<td>(valid|suspect|invalid)?</td><td>[\d, ]*</td></tr>", line) for line in lines] == [
        ["suspect"], ["invalid"], ["suspect"], ["valid"], [""], [""],
    ]  # fmt: skip


def test_a_row_that_was_cut_short_and_is_doubtful_says_both() -> None:
    rows = make_doubtful_results()
    rows[1] = replace(rows[1], status="partial", reason="interrupted")
    page = format_page(describe_run(model="m", machine=make_machine(), spec={}, results=rows), [], None)
    assert '<tr class="partial suspect"' in page


def test_each_row_says_how_it_is_taken_away_or_why_not() -> None:
    results = make_results(processes=2, n=20)
    document = describe_run(model="m", machine=make_machine(), spec={}, results=results)
    refusals = {row.id: None if row.status == "ok" else "it has no <figures>" for row in document.rows}
    page = format_page(document, [], None, refusals=refusals)
    for row in document.rows:
        shown = f"enginebench deliver . --row {row.id} --out ../{row.id}" in page
        assert shown is (row.status == "ok"), row.id
    assert "it has no &lt;figures&gt;" in page and "it has no <figures>" not in page
    assert "Take a row away" not in format_page(document, [], None)
