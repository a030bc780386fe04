"""The result of `bench`: one measured configuration, or two with a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from enginebench.core.errors import BackendUnavailable, GateFailed, MeasurementError
from enginebench.core.limits import MARGIN
from enginebench.core.records import Result
from enginebench.report.page import format_fragment
from enginebench.report.terminal import format_text
from enginebench.verbs.runs import make_frame

if TYPE_CHECKING:
    import pandas

    from enginebench.report.bench import BenchDocument
    from enginebench.report.run.rows import Row
    from enginebench.stats.compare import Comparison


@dataclass(frozen=True, repr=False, eq=False)
class Bench:
    """One measured configuration, or two with a verdict by `margin`; of two `results` the first is the base."""

    folder: Path
    results: tuple[Result, ...]
    margin: float = MARGIN

    @cached_property
    def document(self) -> BenchDocument:
        """Every figure, as `enginebench bench TARGET --json` prints it; computed from the samples."""
        from enginebench.report.bench import describe_bench

        return describe_bench(self.results, margin=self.margin)

    @property
    def row(self) -> Row:
        """The figures of the engine that was named."""
        return self.document.row

    @property
    def against(self) -> Row | None:
        """The figures of the other side."""
        return self.document.against

    @property
    def comparison(self) -> Comparison | None:
        """The verdict on the two sides, with its ratio; None if there is only one."""
        return self.document.comparison

    @property
    def answer(self) -> str:
        """The verdict in a sentence; empty if there is only one side."""
        from enginebench.report.bench import format_conclusion

        return format_conclusion(self.comparison) if self.comparison else ""

    def to_pandas(self) -> pandas.DataFrame:
        """The columns of `table.csv` as a pandas DataFrame, the rows' ids as its index.

        Raises:
            MissingDependency: pandas is not installed.
        """
        from enginebench.report.bench import list_rows

        return make_frame(list_rows(self.document))

    def check(self, *, gate: bool = False) -> Bench:
        """Return the bench itself, if every configuration of it was measured.

        Args:
            gate: also require that the candidate is not slower and has the same outputs.

        Raises:
            BackendUnavailable: an engine cannot run here.
            MeasurementError: a configuration is not ok.
            GateFailed: the candidate is slower, its outputs differ, or the sides cannot be compared.
        """
        for result in self.results:
            if result.status == "skipped":
                raise BackendUnavailable(f"{result.id}: {result.reason}")
            if result.status != "ok":
                raise MeasurementError(f"{result.id}: {result.reason or result.status}")
        if gate and self.comparison is not None and self.comparison.failures:
            raise GateFailed(f"the gate failed. {self.answer}")
        return self

    def __repr__(self) -> str:
        from enginebench.report.bench import list_bench

        return format_text(list_bench(self.document, self.results[-1].machine))

    def _repr_html_(self) -> str:
        from enginebench.report.bench import list_bench

        return format_fragment(list_bench(self.document, self.results[-1].machine))
