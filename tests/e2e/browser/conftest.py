"""A real browser: Debian's Chromium, driven by Playwright, on pages made from stored results."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from enginebench.verbs.report import write_report
from stored_run import make_results, make_results_with_warnings, write_run

# CI sets it: what cannot be had there is a failure, not a reason to skip.
REQUIRED = os.environ.get("ENGINEBENCH_BROWSER") == "required"
CHROMIUM = os.environ.get("ENGINEBENCH_CHROMIUM") or shutil.which("chromium")
# Made by tools/install_browser.sh.
AXE = Path(os.environ.get("ENGINEBENCH_BROWSER_DIR", Path.home() / ".cache/enginebench/browser")) / "axe.min.js"
# Without a sandbox of its own (root), without a GPU, and without the connections that Chromium makes for itself.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]


def give_up(reason: str) -> NoReturn:
    """Skips the test with the reason, or fails it where a browser is required."""
    if REQUIRED:
        pytest.fail(reason)
    pytest.skip(reason)


class Visit:
    """A page in a browser, and all that it said or asked for."""

    def __init__(self, page: object, url: str) -> None:
        self.page = page
        self.url = url
        self.said: list[str] = []
        self.requests: list[str] = []


# Of a module, not of the session: other tests count the children of this process.
@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        give_up("playwright is not installed: pip install playwright")
    if CHROMIUM is None:
        give_up("there is no chromium; tools/install_browser.sh installs it")
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def visit(browser: object) -> Iterator[Callable[..., Visit]]:
    """Opens a file: `visit(path, width=1280, height=900, **context)`; waits until all charts are drawn."""
    contexts = []

    def open_page(path: Path, width: int = 1280, height: int = 900, **options: object) -> Visit:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)  # type: ignore[attr-defined]
        contexts.append(context)
        page = context.new_page()
        seen = Visit(page, path.as_uri())
        page.on("console", lambda message: seen.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: seen.said.append(f"error: {error}"))
        page.on("request", lambda request: seen.requests.append(request.url))
        page.goto(seen.url, wait_until="load")
        page.evaluate("engineBenchPage.drawAll()")
        return seen

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of six rows, two of which did not run."""
    run = write_run(tmp_path_factory.mktemp("runs") / "ein läuf", make_results(n=200))
    write_report(run, ("html",))
    return run / "report.html"


@pytest.fixture(scope="session")
def report_with_warnings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of six rows: one is valid, three were disturbed, two did not run."""
    run = write_run(tmp_path_factory.mktemp("runs") / "doubtful", make_results_with_warnings())
    write_report(run, ("html",))
    return run / "report.html"


@pytest.fixture(scope="session")
def evil_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run whose every name is an attack."""
    run = write_run(tmp_path_factory.mktemp("runs") / "evil", make_results(evil=True))
    write_report(run, ("html",))
    return run / "report.html"


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core."""
    if not AXE.is_file():
        give_up(f"there is no {AXE}; tools/install_browser.sh makes it")
    return AXE.read_text(encoding="utf-8")
