"""The page as text: what it says, that names stay text, and that its policy names its own scripts alone."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from enginebench.core.records import Result
from enginebench.report.run.charts import draw_run
from enginebench.report.run.columns import SPEED_UP
from enginebench.report.run.deploy import Delivery, Deployment
from enginebench.report.run.rows import RunDocument, describe_run
from reports import write_page
from samples import make_machine
from stored_run import COMMAND, make_results

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
    refused = {row.id: None if row.status == "ok" else "it has no figures" for row in document.rows}
    deliveries = {configuration_id: Delivery(refusal=reason) for configuration_id, reason in refused.items()}
    deployment = Deployment(folder="a folder", deliveries=deliveries)
    charts, when = draw_run(document, results), "2026-11-01T10:00"
    return write_page(document, charts, BUNDLE, command=COMMAND, started_utc=when, deployment=deployment)


def read(page: str) -> Outline:
    outline = Outline()
    outline.feed(page)
    return outline


@pytest.fixture(scope="module")
def page() -> str:
    return make_page(make_results())


def test_it_opens_with_the_answer_and_a_command_that_can_be_pasted(page: str) -> None:
    body = page.partition("<body>")[2]
    answer = body.partition('class="answer">')[2].partition("<")[0]
    assert answer == "openvino int8 (nncf)   9.07 ms   6.74x pytorch fp32 (6.63 to 6.84)"
    assert [body.index(f"<dt>{label}</dt>") for label in ("USE", "OUTPUTS", "TRUST")]
    assert body.index('class="answer"') < body.index("<table")
    assert "enginebench run resnet18 --engines pytorch,ort,openvino --out &#39;a folder&#39;</code>" in page


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


def test_the_bundle_cannot_end_its_element(page: str) -> None:
    assert r"\x3c/script> in a string" in page


def test_a_page_without_charts_has_no_bundle() -> None:
    results = make_results()[-2:]
    document = make_document(results)
    page = write_page(document, draw_run(document, results), BUNDLE)
    assert "vegaEmbed = ()" not in page
    assert "none: nothing was measured" in page


def test_every_section_stands_in_order_and_in_the_contents(page: str) -> None:
    found = [a["id"] for a in read(page).all("section") if "id" in a]
    assert found[:2] == ["comparison", "warnings"] and found[-2:] == ["delivery", "machine"]
    assert [a["href"] for a in read(page).all("a")][1:] == [f"#{name}" for name in found]


def test_the_table_holds_every_row_and_the_numbers_to_sort_by(page: str) -> None:
    outline = read(page)
    rows = [a for a in outline.all("tr") if "data-label" in a]
    assert [a["data-engine"] for a in rows] == ["openvino", "ort", "ort", "pytorch"]
    assert {"engine", "p50 ms", SPEED_UP, "top-1", "ran in"} <= {text for text in outline.text("button") if text}
    line = page[page.index('data-label="ort int8 (cpu)"') :].partition("</tr>")[0]
    values = [float(v) for v in re.findall(r'data-value="([^"]+)"', line)]
    assert values[0] == pytest.approx(12.0, rel=0.02) and 0.985 in values
    assert "int8 83%, fp32 17%" in line
