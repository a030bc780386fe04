"""Write anew what is compared of how runs look: `make tables`.

    python tools/render_stored.py

- tests/data/stored: a picture of each of six stored runs, among them one of each older schema: the head, and figures,
  states and warnings of each configuration, by their names in JSON.
- tests/data/stored/verdicts.txt: a line for each archive of results/.
- tests/unit/report/snapshots.txt: three made-up runs in every form (tests/helpers/snapshots.py).

Run it only where runs are meant to be shown otherwise, and read the difference before it is committed.
"""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory

from enginebench.core.records import Estimate
from enginebench.core.store import list_figures
from enginebench.report.run.head import format_head
from enginebench.report.run.rows import Row, RunDocument
from enginebench.runs.folder import read_results
from enginebench.runs.reporting import describe_stored

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "tests" / "data" / "stored"
VERDICTS = "verdicts.txt"
SNAPSHOTS = ROOT / "tests" / "unit" / "report" / "snapshots.txt"
# Folders of the older schemas, and archives with ties and 8 bits, batches, settings of a GPU, and drift.
PICTURED = (
    "tests/data/result-1",
    "tests/data/result-2",
    "results/cpu/resnet18.tar.xz",
    "results/cpu/mobilenet_v3_small-batches.tar.xz",
    "results/h200/resnet50-settings.tar.xz",
    "results/h200/bert-int8-tensorrt.tar.xz",
)
FIGURES = ("p50_ms", "p99_ms", "mean_ms", "speedup")
STATES = ("status", "validity", "outputs", "verdict", "verdict_to_next", "n", "processes", "max_abs_diff")


def list_archives() -> list[Path]:
    """The archives of stored runs."""
    return sorted((ROOT / "results").glob("*/*.tar.xz"))


def name_run(path: Path) -> str:
    return f"{path.parent.name}-{path.name.removesuffix('.tar.xz')}"


@contextmanager
def open_run(path: Path) -> Iterator[RunDocument]:
    """The document of a run's folder, or of an archive of it."""
    with TemporaryDirectory() as scratch:
        folder = path
        if path.is_file():
            with tarfile.open(path) as stored:
                stored.extractall(scratch, filter="data")
            (folder,) = Path(scratch).iterdir()
        yield describe_stored(*read_results(folder))


def render_picture(document: RunDocument) -> str:
    """The head, then two lines for each configuration: figures, and what is known of them."""
    lines = [f"{line.label} {text}" for line in format_head(document) for text in line.lines]
    for row in document.rows:
        lines += ["", row.id, *(f"  {line}" for line in _list_facts(row))]
    return "\n".join(lines) + "\n"


def _list_facts(row: Row) -> Iterator[str]:
    values = {field.name: attrgetter(place)(row) for place, field in list_figures(Row)}
    figures = {name: values[name] for name in FIGURES if values[name] is not None}
    if figures:
        yield "; ".join(f"{name} {format_estimate(value)}" for name, value in figures.items())
    states = {name: values[name] for name in STATES}
    yield "; ".join(f"{name} {_round(value)}" for name, value in states.items() if value is not None)
    codes = dict.fromkeys(warning.code for warning in row.warnings)
    yield f"warnings {', '.join(codes) or 'none'}"


def format_estimate(estimate: Estimate) -> str:
    ends = "" if estimate.low is None else f" ({_round(estimate.low)} to {_round(estimate.high)})"
    return _round(estimate.value) + ends


def _round(value: object) -> str:
    """The last digits of a mean depend on the order in which a library adds."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def render_verdict(document: RunDocument) -> str:
    """What each head of a run takes, with its ratio and what is known of its outputs."""
    parts = [
        f"{head.id} {'no ratio' if head.ratio is None else format_estimate(head.ratio) + 'x'} {head.outputs}"
        for head in document.headlines
    ]
    return "; ".join(parts) or "none"


def render_verdicts() -> str:
    lines = []
    for path in list_archives():
        with open_run(path) as document:
            lines.append(f"{name_run(path)}: {len(document.rows)} configurations; {render_verdict(document)}\n")
    return "".join(lines)


def main() -> int:
    sys.path[:0] = [str(ROOT / "tests" / "helpers")]
    import snapshots

    PICTURES.mkdir(parents=True, exist_ok=True)
    for path in map(ROOT.joinpath, PICTURED):
        with open_run(path) as document:
            (PICTURES / f"{name_run(path)}.txt").write_text(render_picture(document), "utf-8")
    (PICTURES / VERDICTS).write_text(render_verdicts(), "utf-8")
    SNAPSHOTS.write_text(snapshots.render_all(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
