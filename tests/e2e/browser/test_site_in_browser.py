"""The site of 500 configurations in Chromium: it sorts and filters, and no width of a window hides what matters."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from enginebench.runs.site import write_site
from stored_run import make_results, write_run

RUNS = 100
# Of a stored run, whose texts are anybody's: no space to break it at, and markup that must stay text.
LONG = f"<img src=x onerror='window.ran=1'><script>window.ran=1</script>{'x' * 150}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("site")
    for number in range(RUNS):
        model = f"net-{number % 10}" if number % 10 else LONG
        results = [replace(row, model=model) for row in make_results(processes=2, n=5)]
        write_run(home / "results" / f"run {number}", results)
    assert write_site(home / "results", home / "site").configurations == 5 * RUNS
    return home / "site" / "index.html"


def read_cells(page: Any, number: int) -> list[str]:
    script = f"lines => lines.map(line => line.cells[{number}].textContent)"
    return page.eval_on_selector_all("table[data-file=index] tbody tr:not([hidden])", script)  # type: ignore[no-any-return]


def test_five_hundred_configurations_are_sorted_and_filtered(visit: Callable[..., Any], site: Path) -> None:
    seen = visit(site)
    page = seen.page
    assert len(read_cells(page, 0)) == 5 * RUNS and seen.said == []
    page.locator("table[data-file=index] thead button", has_text="p50").click()
    values = [float(text.removeprefix("~ ")) for text in read_cells(page, 5) if text != "failed"]
    assert values == sorted(values) and len(values) == 4 * RUNS
    page.locator("#filters input[name=model][value='net-3']").uncheck()
    page.locator("#filters input[name=engine][value=pytorch]").uncheck()
    assert {"net-3", "pytorch"}.isdisjoint({*read_cells(page, 0), *read_cells(page, 2)})
    assert len(read_cells(page, 0)) == 4 * RUNS * 9 // 10
    page.locator("table[data-file=index] tbody tr:not([hidden]) a").first.click()
    assert "/runs/" in page.url and page.locator("header a").get_attribute("href") == "../../index.html"


@pytest.mark.parametrize("width", [400, 1280])
def test_no_window_is_too_narrow_for_the_model_and_its_time(visit: Callable[..., Any], site: Path, width: int) -> None:
    page = visit(site, width=width).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("window.ran") is None and page.locator("img[src=x]").count() == 0
    head = page.locator("table[data-file=index] thead th", has_text="model")
    assert head.bounding_box()["x"] < width
