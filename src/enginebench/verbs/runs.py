"""The result of `run`: its configurations, its headline, and the folder with all files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enginebench.core.errors import EngineBenchError, add_note, importing
from enginebench.core.features import require_hook
from enginebench.core.hooks import BundleWriter
from enginebench.core.records import Result
from enginebench.options import PathLike
from enginebench.report.page import format_fragment
from enginebench.report.terminal import format_text
from enginebench.runs.folder import FORMATS, RunRecord
from enginebench.verbs import common

if TYPE_CHECKING:
    import pandas

    from enginebench.report.run.deploy import Deployment
    from enginebench.report.run.rows import Row, RunDocument
    from enginebench.runs.reporting import Written
    from enginebench.stats.ranking import Ref


@dataclass(frozen=True, repr=False, eq=False)
class Run:
    """A run: its record, its results, and the folder in which everything is stored.

    Attributes:
        folder: with `run.json`, a file for each configuration, and the artifacts.
        record: the request, and the machine.
        results: one for each configuration, with its raw samples.
    """

    folder: Path
    record: RunRecord
    results: tuple[Result, ...]

    @cached_property
    def document(self) -> RunDocument:
        """Every figure of the run, as `enginebench run MODEL --json` prints it; computed from the samples."""
        from enginebench.runs.reporting import describe_stored

        return describe_stored(self.record, self.results)

    @property
    def rows(self) -> tuple[Row, ...]:
        """A row for each engine, precision and batch, in the order of the table; times in ms with their intervals."""
        return self.document.rows

    @property
    def answer(self) -> str:
        """The three lines USE, OUTPUTS and TRUST, as every report begins."""
        from enginebench.report.run.head import format_head

        return "\n".join(f"{line.label:<10}" + f"\n{'':10}".join(line.lines) for line in format_head(self.document))

    @property
    def fastest(self) -> Ref | None:
        """The configuration with the lowest median and unchanged outputs; None if there is none."""
        return self.document.fastest

    @property
    def recommended(self) -> Ref | None:
        """The headline's recommendation, within the limits of accuracy and p99; None if there is none."""
        return self.document.recommended

    def to_pandas(self) -> pandas.DataFrame:
        """The columns of `table.csv` as a pandas DataFrame, the rows' ids as its index.

        Raises:
            MissingDependency: pandas is not installed.
        """
        return make_frame(self.document)

    def write_report(self, formats: str | Iterable[str] = FORMATS) -> Written:
        """Write page, tables and pictures into the folder; return which, and why some are missing.

        Args:
            formats: of html, md, csv, json, png.

        Raises:
            UsageError: a format is unknown.
            ArtifactError: the folder cannot be written.
        """
        from enginebench.runs.reporting import check_formats, write_reports

        requested = check_formats(common.split_texts(formats))
        return write_reports(self.folder, self.document, requested, record=self.record, results=self.results)

    def deliver(self, out: PathLike, **options: Any) -> Any:
        """Write a configuration as a bundle that runs without EngineBench; see `deliver`."""
        return require_hook(BundleWriter)(self.folder, out, **options)

    def check(self, *, strict_precision: bool = False) -> Run:
        """Return the run itself, if the baseline and at least one other configuration are ok.

        Args:
            strict_precision: also require that every configuration ran in its requested precision.

        Raises:
            BackendUnavailable: no configuration could run here.
            MeasurementError: the baseline, or every other configuration, is not ok.
            GateFailed: a configuration ran in another precision.
        """
        from enginebench.runs.results import check_outcome, check_precisions

        check_outcome(self.results, self.record.request)
        if strict_precision:
            check_precisions(self.results)
        return self

    def __repr__(self) -> str:
        from enginebench.report.run.sections import list_sections

        return format_text(list_sections(self.document, folder=self.folder, deployment=self._deployment))

    def _repr_html_(self) -> str:
        from enginebench.report.run.sections import list_sections

        deployment = self._deployment
        return format_fragment(list_sections(self.document, folder=self.folder, warnings=True, deployment=deployment))

    @cached_property
    def _deployment(self) -> Deployment | None:
        from enginebench.runs.reporting import plan_deployment

        return plan_deployment(self.folder, self.record, self.results)


def make_frame(document: RunDocument) -> pandas.DataFrame:
    from enginebench.report.run.columns import list_fields

    with importing("pandas, which to_pandas() needs,", "pip install pandas"):
        import pandas
    takes = {column.title: column.value or column.text for column in list_fields()}
    columns = {name: [take(row) for row in document.rows] for name, take in takes.items()}
    return pandas.DataFrame(columns).set_index("id")


@contextmanager
def note_folder(folder: Path, *, resume: bool = True) -> Iterator[None]:
    """Add a note to an error or an interrupt that names the folder of the results measured before it."""
    try:
        yield
    except (EngineBenchError, KeyboardInterrupt) as error:
        if any((folder / "rows").glob("*.json")):
            again = f"; to go on: the same call with out={str(folder)!r}, resume=True" if resume else ""
            add_note(error, f"what was measured is kept: enginebench.read({str(folder)!r}){again}")
        raise
