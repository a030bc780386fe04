"""Measures what a report costs: page, pictures, history, and the page in Chromium.

    python benchmarks/report.py [--rows 12] [--processes 10] [--samples 1000] [--history 10000] [--chromium PATH]

Each figure is that of a whole process; CPU seconds (user + system) are those that the kernel counts, the least of three
runs, since what others do can only add. The results are synthetic, in the layout of real ones. Without playwright the
lines about Chromium are left out.

The claims of docs/reports.md rest on this.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT / "tests"), str(ROOT / "src")]

import numpy as np  # noqa: E402
from msgspec.structs import replace  # noqa: E402

from enginebench.core.records import LayerTime, Result  # noqa: E402
from enginebench.core.store import encode  # noqa: E402
from samples import make_drift, make_machine, make_measurements, make_result  # noqa: E402
from stored_run import write_run  # noqa: E402

LIMITS = {"page, bundle cached": 2.0, "page, first time": 5.0, "pictures": 5.0, "history, warm": 3.0}
ENGINES = ("pytorch", "pytorch-compile", "ort", "openvino")
PRECISIONS = ("fp32", "bf16", "int8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=12)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--history", type=int, default=10_000)
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        figures = measure(Path(scratch), options)
    print(json.dumps(figures, indent=2))
    return int(any(figures[name] > limit for name, limit in LIMITS.items()))


def measure(scratch: Path, options: argparse.Namespace) -> dict[str, float]:
    run = write_run(scratch / "run", list(make_rows(options.rows, options.processes, options.samples)))
    cold = time_verb(scratch, "report", run, "--format", "html", repeat=1)
    warm = time_verb(scratch, "report", run, "--format", "html")
    pictures = time_verb(scratch, "report", run, "--format", "png")
    write_history(scratch / "runs", options.history)
    first = time_verb(scratch, "history", scratch / "runs", "--out", scratch / "out", repeat=1)
    again = time_verb(scratch, "history", scratch / "runs", "--out", scratch / "out")
    figures = {
        "page, first time": cold,
        "page, bundle cached": warm,
        "page, MB": (run / "report.html").stat().st_size / 1e6,
        "pictures": pictures,
        "history, first time": first,
        "history, warm": again,
    }
    return figures | open_in_chromium(run / "report.html", options.chromium)


def make_rows(rows: int, processes: int, samples: int) -> list[Result]:
    """Rows of different speed, each with as many processes of as many samples."""
    made = []
    for i in range(rows):
        engine, precision = ENGINES[i % len(ENGINES)], PRECISIONS[i // len(ENGINES) % len(PRECISIONS)]
        row = make_result(engine, precision, identity=f"{engine}-{precision}-{i}", drift=make_drift(1e-6))
        measured = make_measurements(10.0 + 4 * i, processes=processes, n=samples, seed=i)
        made.append(
            replace(row, measurements=measured, effective_precision={precision: 1.0}, layers=make_layers(precision))
        )
    return made


def make_layers(precision: str) -> tuple[LayerTime, ...]:
    """A profile of a deep network: as many layers as resnet50 has modules."""
    return tuple(
        LayerTime(
            name=f"layer{i // 40}.{i // 10}.conv{i % 10}/WithoutBiases",
            mean_ns=1e5 + 1e3 * i,
            median_ns=1e5 + 1e3 * i,
            precision=precision,
            kind="Convolution",
        )
        for i in range(150)
    )


def write_history(root: Path, rows: int) -> None:
    """So many rows of a thousand samples, ten a run."""
    random = np.random.default_rng(0)
    machine = make_machine()
    for i in range(rows):
        engine, precision = ENGINES[i % len(ENGINES)], PRECISIONS[i // len(ENGINES) % len(PRECISIONS)]
        row = make_result(engine, precision, 10.0, processes=1, identity=f"{engine}-{precision}-{i % 10}")
        values = np.rint(1e7 * np.exp(random.normal(0, 0.03, 1000))).astype(int).tolist()
        started = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(1.75e9 + 3600 * (i // 10)))
        measured = replace(row.measurements[0], latency_ns=values, started_utc=started)
        path = root / f"run-{i // 10:05d}" / "rows" / f"{row.id}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(replace(row, measurements=(measured,), machine=machine)))


def time_verb(scratch: Path, *arguments: object, repeat: int = 3) -> float:
    """CPU seconds of `enginebench ARGUMENTS`, the least of `repeat` runs."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_CACHE_HOME": str(scratch / "cache")}
    command = [sys.executable, "-m", "enginebench", *map(str, arguments)]
    seconds = []
    for _ in range(repeat):
        before = os.times()
        subprocess.run(command, env=variables, check=True, capture_output=True)
        after = os.times()
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return round(min(seconds), 2)


def open_in_chromium(page: Path, chromium: str | None) -> dict[str, float]:
    """Seconds until the page answers (load event), and until every chart is drawn; the least of five visits."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return {}
    if chromium is None:
        return {}
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run", "--disable-sync"]
    loaded, drawn = [], []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, headless=True, args=flags)
        for _ in range(5):
            tab = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
            start = time.perf_counter()
            tab.goto(page.as_uri(), wait_until="load")
            loaded.append(time.perf_counter() - start)
            tab.evaluate("engineBenchPage.drawAll()")
            drawn.append(time.perf_counter() - start)
        browser.close()
    return {
        "Chromium, page answers (wall s)": round(min(loaded), 2),
        "Chromium, every chart drawn (wall s)": round(min(drawn), 2),
    }


if __name__ == "__main__":
    sys.exit(main())
