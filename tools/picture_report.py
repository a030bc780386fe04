"""Take the picture of the report page for the documentation.

    python tools/picture_report.py [docs/pictures/report-desktop.png]

The page is that of the stored run of resnet18, as the code renders it now. The picture holds the page's digest in its
metadata, so that a test notices when the page has changed since. Needs playwright and Chromium
(tools/install_browser.sh), and Pillow.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from enginebench.verbs.report import write_report

ROOT = Path(__file__).resolve().parent.parent
RUN = ROOT / "results" / "cpu" / "resnet18.tar.xz"
PICTURE = ROOT / "docs" / "pictures" / "report-desktop.png"
KEY = "page-sha256"
SIZE = {"width": 1280, "height": 1500}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--disable-sync"]


def render_page(folder: Path) -> Path:
    """Write the page of the stored run into `folder`."""
    with tarfile.open(RUN) as archive:
        archive.extractall(folder, filter="data")
    (root,) = folder.iterdir()
    write_report(root, ("html",))
    return root / "report.html"


def hash_page(page: Path) -> str:
    """SHA-256 of what a reader sees before scripts run: text, tables and style, without the library that draws."""
    text = re.sub(r"<script\b.*?</script>", "", page.read_text("utf-8"), flags=re.DOTALL)
    text = re.sub(r"<meta http-equiv.*?>", "", text)  # it names the hashes of the scripts
    return hashlib.sha256(text.encode()).hexdigest()


def read_digest(picture: Path) -> str:
    with Image.open(picture) as image:
        return str(image.info.get(KEY, ""))


def take_picture(page: Path, out: Path) -> None:
    from playwright.sync_api import sync_playwright

    out.parent.mkdir(parents=True, exist_ok=True)
    note = PngInfo()
    note.add_text(KEY, hash_page(page))
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), headless=True, args=FLAGS)
        tab = browser.new_context(viewport=SIZE, color_scheme="light").new_page()
        tab.goto(page.absolute().as_uri(), wait_until="load")
        tab.evaluate("engineBenchPage.drawAll()")
        tab.screenshot(path=out)
        with Image.open(out) as image:
            image.load()
            image.save(out, pnginfo=note, optimize=True)
        browser.close()


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        take_picture(render_page(Path(place)), Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
