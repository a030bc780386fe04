"""`report` and `read` of what trtexec left: a file, or a folder with one run or several."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from enginebench.core.errors import MissingDependency
from enginebench.core.store import encode, write_atomic
from enginebench.features.trtexec import verb
from enginebench.features.trtexec.folder import is_trtexec_folder, name_place, read_folder, sniff_kind
from enginebench.features.trtexec.report import TrtexecReport, describe_cases
from enginebench.features.trtexec.sections import FIELDS, FOOTER, draw_cases, list_trtexec
from enginebench.report.bundle import load_bundle
from enginebench.report.csv_table import format_csv
from enginebench.report.markdown import format_sections
from enginebench.report.page import format_page
from enginebench.report.table import Chart
from enginebench.runs.reporting import DRAWN, FILES, Written, write_pictures

READERS: dict[str, Callable[[Path], Struct]] = {
    "log": verb.parse_log,
    "times": verb.parse_times,
    "profile": verb.parse_profile,
    "layers": verb.parse_layers,
}


def read_any(place: Path) -> Struct | None:
    """The document of a file or folder; None if trtexec left none of it."""
    if place.is_dir():
        return describe_cases(read_folder(place)) if is_trtexec_folder(place) else None
    read = READERS.get(sniff_kind(place) or "")
    return read(place) if read else None


def report_any(path: str, formats: Sequence[str], options: Mapping[str, Any]) -> tuple[Written, Struct, None]:
    """As `report_folder`; a terminal shows no table of it."""
    said = {name: options[name] for name in ("model", "precision", "batch") if options[name] is not None}
    return (*report_folder(Path(path), formats, said), None)


def report_folder(
    folder: Path, formats: Sequence[str], said: Mapping[str, Any] | None = None
) -> tuple[Written, TrtexecReport]:
    """Writes the reports of a folder with files of trtexec; `said` stands in place of what its files say.

    Raises:
        UsageError: it holds no file of trtexec.
        ParseError: nothing in it can be read.
    """
    cases = read_folder(folder)
    charts: dict[str, list[Chart]] = {}
    notes: tuple[str, ...] = ()
    try:
        bundle = load_bundle() if "html" in formats else None
        charts = draw_cases(cases) if set(formats) & set(DRAWN) else {}
    except MissingDependency as error:
        notes = (f"no {'report.html and no ' if 'html' in formats else ''}pictures: {error}",)
    paths = write_pictures(folder, [chart for drawn in charts.values() for chart in drawn]) if "png" in formats else []
    written = {name: tuple(f"{chart.name}.png" for chart in drawn) for name, drawn in charts.items() if paths}
    report = describe_cases(cases, written, notes, said)
    title = f"trtexec: {name_place(folder)}"
    sections = list_trtexec(report, title, charts)
    texts = {
        "html": lambda: format_page(title, sections, bundle=bundle, footer=FOOTER).encode(),
        "md": lambda: format_sections(sections, pictures=[path.name for path in paths]).encode(),
        "csv": lambda: format_csv(FIELDS, report.cases).encode(),
        "json": lambda: encode(report, indent=2) + b"\n",
    }
    made = [name for name in formats if name in texts and not (name == "html" and notes)]
    for name in made:
        write_atomic(folder / FILES[name], texts[name]())
    notes = notes if "html" in formats else ()
    return Written(paths=(*(folder / FILES[name] for name in made), *paths), notes=notes), describe_cases(
        cases, said=said
    )
