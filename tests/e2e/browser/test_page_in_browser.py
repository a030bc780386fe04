"""report.html in Chromium: no errors, no requests, sorting, filtering, files, phone, dark, paper, accessibility."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trtexec_artifacts as made
from enginebench.features.trtexec.reporting import report_folder
from enginebench.report.run.columns import SPEED_UP

Visits = Callable[..., Any]
CHARTS = [
    "speedup",
    "latency_hist",
    "percentiles",
    "latency_over_time",
    "pareto",
    "stages",
    "per_layer_time",
    "precision",
]


def read_column(page: Any, number: int) -> list[str]:
    """Texts of the visible cells of a column of the comparison."""
    return page.eval_on_selector_all(  # type: ignore[no-any-return]
        "table[data-file=table] tbody tr:not([hidden])", f"lines => lines.map(line => line.cells[{number}].textContent)"
    )


def count_marks(page: Any, chart: str) -> int:
    return page.locator(f"[data-chart={chart}] svg path").count()  # type: ignore[no-any-return]


def test_it_renders_without_a_word_or_request_and_shows_values(visit: Visits, report: Path) -> None:
    seen = visit(report)
    assert [name for name in CHARTS if seen.page.locator(f"[data-chart={name}] svg").count() != 1] == []
    seen.page.wait_for_timeout(300)
    assert seen.said == []
    assert [url for url in seen.requests if not url.startswith(("data:", "blob:"))] == [seen.url]
    page = visit(report).page
    page.locator("[data-chart=speedup] svg .mark-symbol path").nth(1).hover()
    tip = page.locator("#vg-tooltip-element.visible")
    assert "ort fp32" in tip.inner_text() and "faster" in tip.inner_text()


def test_the_policy_holds(visit: Visits, report: Path) -> None:
    """What the page's policy forbids does not run in it: eval, inline scripts, foreign pictures."""
    page = visit(report).page
    result = page.evaluate(
        """() => new Promise(done => {
          const violated = [];
          document.addEventListener('securitypolicyviolation', e => violated.push(e.effectiveDirective));
          const script = document.createElement('script'); script.textContent = 'window.ran = 1';
          document.body.append(script);
          const image = document.createElement('img'); image.src = 'http://127.0.0.1:9/x.png';
          document.body.append(image);
          setTimeout(() => setTimeout('window.ran = 2'));
          setTimeout(() => done([window.ran ?? 0, violated.sort()]), 300);
        })"""
    )
    assert result == [0, ["img-src", "script-src", "script-src-elem"]]


def test_sorting_by_number_and_by_text(visit: Visits, report: Path) -> None:
    page = visit(report).page
    heads = page.eval_on_selector_all("table[data-file=table] thead th", "all => all.map(h => h.textContent)")
    p50 = heads.index("p50 ms")
    button = page.locator("table[data-file=table] thead button", has_text="p50")
    button.click()
    shown = read_column(page, p50)
    assert [float(text) for text in shown] == sorted(float(text) for text in shown)
    assert page.locator("table[data-file=table] th[aria-sort=ascending]").count() == 1
    button.press("Enter")
    assert float(read_column(page, p50)[0].split()[0]) > 60
    assert page.locator("table[data-file=table] th[aria-sort=descending]").inner_text().startswith("p50")
    page.locator("table[data-file=table] thead button", has_text="engine").click()
    assert read_column(page, 0) == sorted(read_column(page, 0))


def test_filters_hide_configurations_and_marks(visit: Visits, report: Path) -> None:
    page = visit(report).page
    before = {name: count_marks(page, name) for name in CHARTS}
    page.get_by_label("int8", exact=True).uncheck()
    assert "int8@cpu" not in " ".join(read_column(page, 1))
    assert page.locator("figure[data-row='ort int8 (cpu)']").is_hidden()
    assert page.locator("#count").inner_text() == "2 of 4 configurations"
    page.wait_for_timeout(300)
    after = {name: count_marks(page, name) for name in CHARTS}
    unchanged = [name for name in CHARTS if after[name] >= before[name] and name != "per_layer_time"]
    assert unchanged == []
    page.get_by_label("int8", exact=True).check()
    assert page.locator("figure[data-row='ort int8 (cpu)']").is_visible()
    page.wait_for_timeout(300)
    assert {name: count_marks(page, name) for name in CHARTS} == before
    assert page.locator("#count").inner_text() == "4 configurations"


@pytest.mark.parametrize(("kind", "head"), [("png", b"\x89PNG"), ("svg", b"<svg"), ("csv", b"row,speedup")])
def test_a_picture_can_be_saved(visit: Visits, report: Path, tmp_path: Path, kind: str, head: bytes) -> None:
    seen = visit(report)
    with seen.page.expect_download() as found:
        seen.page.get_by_label(f"Save as {kind.upper()}: Speed-up").click()
    assert found.value.suggested_filename == f"speedup.{kind}"
    found.value.save_as(tmp_path / "saved")
    assert (tmp_path / "saved").read_bytes().startswith(head)
    assert seen.said == []


def test_a_table_is_saved_without_formulas_and_with_its_warnings(visit, report, tmp_path, report_with_warnings) -> None:
    page = visit(report).page
    with page.expect_download() as found:
        page.get_by_label("Save as CSV: Configurations, fastest first").click()
    found.value.save_as(tmp_path / "table.csv")
    lines = list(csv.DictReader((tmp_path / "table.csv").read_text(encoding="utf-8").splitlines()))
    assert len(lines) == 4 and float(lines[3]["p50 ms"]) > 60
    page = visit(report).page
    page.evaluate("document.querySelector('table[data-file=table] tbody th').textContent = '=1+1'")
    with page.expect_download() as found:
        page.get_by_label("Save as CSV: Configurations, fastest first").click()
    found.value.save_as(tmp_path / "table.csv")
    assert "\r\n'=1+1," in (tmp_path / "table.csv").read_bytes().decode()
    page = visit(report_with_warnings).page
    with page.expect_download() as found:
        page.get_by_label("Save as CSV: Configurations, fastest first").click()
    found.value.save_as(tmp_path / "table.csv")
    lines = list(csv.DictReader((tmp_path / "table.csv").read_text(encoding="utf-8").splitlines()))
    assert [line["times"] for line in lines] == ["suspect", "invalid", "suspect", "valid"]
    assert [line["engine"] for line in lines] == ["openvino", "ort", "ort", "pytorch"]
    assert float(lines[3]["p50 ms"]) > 30


@pytest.mark.parametrize("width", [1300, 800, 400])
def test_a_disturbed_time_is_marked_in_sight(visit: Visits, report_with_warnings: Path, width: int) -> None:
    page = visit(report_with_warnings, width=width, height=1000).page
    heads = page.eval_on_selector_all("table[data-file=table] thead th", "all => all.map(h => h.textContent)")
    number = heads.index("p50 ms")
    page.locator("table[data-file=table]").evaluate("table => table.scrollIntoView({block: 'center'})")
    cells = page.locator(f"table[data-file=table] tbody tr td:nth-child({number + 1})").all()
    assert [cell.inner_text().startswith("~ ") for cell in cells] == [True, True, True, False]
    for cell in cells:
        box = cell.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width, "not scrolled to: as it was opened"


@pytest.mark.parametrize(("width", "height"), [(1300, 900), (400, 800)])
def test_answer_command_and_ratios_are_on_the_first_screen(visit, report, width, height) -> None:
    page = visit(report, width=width, height=height).page
    for place in (".answer", "text=Deploy it", ".brief .span"):
        box = page.locator(place).first.bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= height, place
    warnings = page.locator("#warnings li").first
    warnings.scroll_into_view_if_needed()
    box = warnings.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= width


def test_names_of_strangers_run_nothing(visit: Visits, evil_report: Path) -> None:
    seen = visit(evil_report)
    page = seen.page
    page.locator("[data-chart=speedup] svg .mark-symbol path").nth(1).hover()
    assert page.locator("#vg-tooltip-element.visible").inner_text()
    assert page.locator("#vg-tooltip-element img").count() == 0
    assert page.evaluate("window.hacked ?? 0") == 0
    assert seen.said == []
    assert [url for url in seen.requests if not url.startswith(("data:", "blob:"))] == [seen.url]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "light"), (320, "dark")])
def test_the_page_never_scrolls_sideways(visit: Visits, report: Path, width: int, scheme: str) -> None:
    page = visit(report, width=width, color_scheme=scheme).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    most = page.eval_on_selector_all(".chart svg", "all => Math.max(...all.map(s => s.getBoundingClientRect().right))")
    assert most <= width
    # A list to choose from is as wide as its longest name, and engines with options have long ones.
    name = "engine:option=value,another=value,third=value fp32"
    choose = f'<label class="choose">Configuration <select><option>{name}</option></select></label>'
    page.evaluate("text => document.querySelector('main').insertAdjacentHTML('beforeend', text)", choose)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(
    ("kind", "width", "scheme"),
    [("report", 1280, "light"), ("report", 390, "dark"), ("report_with_warnings", 390, "light")],
)
def test_axe_finds_nothing(visit, request, axe, kind, width, scheme) -> None:
    page = visit(request.getfixturevalue(kind), width=width, color_scheme=scheme).page
    page.evaluate(axe)
    found = page.evaluate("axe.run().then(result => result.violations.map(v => [v.impact, v.id, v.nodes.length]))")
    assert found == []


def test_a_keyboard_reaches_everything(visit: Visits, report: Path) -> None:
    page = visit(report).page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    reached = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.tagName + (document.activeElement.dataset.save ?? '')"))
    assert {"INPUT", "BUTTON", "BUTTONpng", "BUTTONsvg", "BUTTONcsv", "DIV", "PRE"} <= reached


def test_paper_has_every_chart_and_no_buttons(visit: Visits, report: Path) -> None:
    page = visit(report, color_scheme="dark").page
    page.emulate_media(media="print")
    assert page.locator("button:visible").count() == page.locator("thead button:visible").count()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    fills = page.eval_on_selector_all(".chart svg text", "all => [...new Set(all.map(t => getComputedStyle(t).fill))]")
    assert fills == ["rgb(17, 17, 17)"]
    sizes = page.eval_on_selector_all("thead button", "all => [...new Set(all.map(b => getComputedStyle(b).fontSize))]")
    assert sizes == ["10px"], "7.5pt as the cells, so that more columns fit"
    assert page.pdf().startswith(b"%PDF")


def test_without_scripts_the_figures_are_there(browser: Any, report: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    text = page.locator("main").inner_text()
    context.close()
    assert "openvino" in text and "int8 90%, fp32 10%" in text and "Charts need JavaScript" in text
    assert "Speed-up of 4 configurations; the highest is openvino int8 (nncf)" in text


def test_the_page_of_a_trtexec_folder(visit: Visits, tmp_path: Path, axe: str) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "times.json").write_bytes(made.make_times(400))
    (tmp_path / "t" / "profile.json").write_bytes(made.make_profile())
    (tmp_path / "t" / "layers.json").write_bytes(made.make_layers())
    (tmp_path / "t" / "run.log").write_text(made.make_log(110100, 106, n=400))
    report_folder(tmp_path / "t", ("html",))
    seen = visit(tmp_path / "t" / "report.html")
    assert seen.page.locator(".chart svg").count() == 4
    assert seen.said == []
    seen.page.evaluate(axe)
    assert seen.page.evaluate("axe.run().then(result => result.violations.map(v => [v.impact, v.id]))") == []


def test_a_phone_shows_engine_precision_time_and_speed_up_without_scrolling(visit: Visits, report: Path) -> None:
    page = visit(report, width=400).page
    place = "e => [e.innerText.trim(), e.getBoundingClientRect().right]"
    heads = f"Object.fromEntries([...document.querySelectorAll('#comparison thead th')].map({place}))"
    right = page.evaluate(heads)
    speed_up = next(value for name, value in right.items() if name.startswith(SPEED_UP))
    assert 0 < speed_up <= 400
    first = page.locator("#comparison tbody th").first
    below = first.evaluate("e => getComputedStyle(e, '::after').content")
    assert below.strip('"') == first.get_attribute("data-below")


def test_a_table_that_is_cut_has_a_shadow_at_its_edge(visit: Visits, report: Path) -> None:
    page = visit(report, width=800).page
    scroll = page.locator("#comparison .scroll").first
    assert scroll.evaluate("e => e.scrollWidth > e.clientWidth")
    background = scroll.evaluate("e => getComputedStyle(e).backgroundAttachment")
    assert background == "local, local, scroll, scroll"
