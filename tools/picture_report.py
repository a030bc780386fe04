"""Takes the pictures of a page for the documentation: a desktop and a phone.

    python tools/picture_report.py REPORT.html docs/pictures

Needs playwright and Chromium (tools/install_browser.sh).
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

SIZES = {"desktop": (1200, 1500), "phone": (390, 844)}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--disable-sync"]


def main(page: Path, out: Path) -> None:
    from playwright.sync_api import sync_playwright

    out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), headless=True, args=FLAGS)
        for name, (width, height) in SIZES.items():
            tab = browser.new_context(viewport={"width": width, "height": height}, color_scheme="light").new_page()
            tab.goto(page.absolute().as_uri(), wait_until="load")
            tab.evaluate("engineBenchPage.drawAll()")
            tab.screenshot(path=out / f"report-{name}.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
