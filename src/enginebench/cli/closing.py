"""How `run` and `bench` end: files written, the table printed, the exit code decided."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from enginebench.core.errors import EngineBenchError
from enginebench.core.text import clean_text, count_of

if TYPE_CHECKING:
    from enginebench.core.records import Result
    from enginebench.workflow.folder import RunRecord
    from enginebench.workflow.verbs.deliver import DeliverDocument


@contextmanager
def keep_partial(root: Path) -> Iterator[Callable[[RunRecord, list[Result]], None]]:
    """Yields a holder for results, and shows what it holds if the block ends in an error or an interrupt."""
    seen: list[tuple[RunRecord, list[Result]]] = []
    try:
        yield lambda record, results: seen.append((record, results))
    except (KeyboardInterrupt, EngineBenchError):
        if seen and any(result.measurements for result in seen[-1][1]):
            _show_partial(root, *seen[-1])
        raise


def _show_partial(root: Path, record: RunRecord, results: Sequence[Result]) -> None:
    from rich.console import Console

    from enginebench.report.run.sections import list_sections
    from enginebench.report.terminal import print_sections
    from enginebench.workflow.folder import format_resume
    from enginebench.workflow.reporting import describe_stored

    print_sections(list_sections(describe_stored(record, results), folder=root), Console(highlight=False))
    command = format_resume("run", record.request, root)
    click.echo(f"\nThis run is not finished. To continue: {command}", err=True)


def finish_run(
    root: Path,
    record: RunRecord,
    results: Sequence[Result],
    *,
    as_json: bool,
    strict_precision: bool,
    wide: bool = False,
    warnings: bool = False,
) -> None:
    """Prints the table (or the JSON document) of a run and writes its reports.

    Raises:
        MeasurementError: the baseline or every other row is not ok.
        GateFailed: under `strict_precision`, a row ran in another precision than asked.
    """
    from rich.console import Console

    from enginebench.core.store import encode
    from enginebench.report.run.sections import list_sections
    from enginebench.report.terminal import print_sections
    from enginebench.workflow.campaign import judge_outcome, judge_precisions
    from enginebench.workflow.classes import format_top_classes
    from enginebench.workflow.folder import RunFolder
    from enginebench.workflow.reporting import describe_stored, write_reports

    document = describe_stored(record, results)
    written = write_reports(root, document, ("html", "md", "csv", "png"), record=record, results=results)
    if as_json:
        click.echo(encode(document).decode())
    else:
        print_sections(list_sections(document, folder=root, wide=wide, warnings=warnings), Console(highlight=False))
        if lines := list(format_top_classes(RunFolder(root), record, document)):
            click.echo("\n".join(["", *lines]))
        names = ", ".join(path.name for path in written.paths if path.suffix != ".png")
        click.echo(f"\nStored in {root}: rows/*.json (raw samples), {names}", err=True)
        for note in written.notes:
            click.echo(note, err=True)
    judge_outcome(results, record.request)
    if strict_precision:
        judge_precisions(results)


def finish_bench(
    root: Path,
    results: Sequence[Result],
    *,
    margin: float,
    gate: bool,
    out: Path | None,
    as_json: bool,
    verdict_files: tuple[Path | None, Path | None] = (None, None),
) -> None:
    """Prints the row, and the verdict if there are two.

    Args:
        root: where the rows are stored.
        results: one row, or the base and the candidate.
        out: where the JSON document goes, too.
        as_json: print the document alone.
        gate: fail on a candidate that is slower, answers differently, or cannot be compared.
        verdict_files: JUnit XML and markdown of the verdict.

    Raises:
        BackendUnavailable: a side cannot run here.
        MeasurementError: a side is not ok.
        GateFailed: under `gate`, the candidate is slower, its answers differ, it ran in another precision, or the sides
            cannot be compared.
    """
    from rich.console import Console

    from enginebench.core.errors import BackendUnavailable, GateFailed, MeasurementError
    from enginebench.core.store import encode, write_atomic
    from enginebench.report.bench import describe_bench, list_bench, state_verdict
    from enginebench.report.terminal import print_sections

    document = describe_bench(results, margin=margin)
    if out is not None:
        write_atomic(out, encode(document))
    if as_json:
        click.echo(encode(document).decode())
    else:
        print_sections(list_bench(document), Console(highlight=False))
        click.echo(f"\nStored in {root}", err=True)
    for result in results:
        if result.status == "skipped":
            raise BackendUnavailable(f"{result.id}: {result.reason}")
        if result.status != "ok":
            raise MeasurementError(f"{result.id}: {result.reason or result.status}")
    if any(verdict_files):
        _write_verdict(results, margin, verdict_files, gate)
    if gate and document.comparison is not None and document.comparison.failures:
        raise GateFailed(f"the gate failed. {state_verdict(document.comparison)}")


def _write_verdict(
    results: Sequence[Result], margin: float, files: tuple[Path | None, Path | None], gate: bool
) -> None:
    from enginebench.analyze.diff import diff_results
    from enginebench.verbs.diff import write_verdict

    document = diff_results(results[:1], results[1:], margin, neighbours=True, fed_alike=True)
    write_verdict(document, {"junit": files[0], "summary": files[1]}, gate=gate)


def deliver_recommended(root: Path, out: Path) -> None:
    """Writes the recommended row of a run as a bundle, and says so on standard error.

    Raises:
        UsageError: no row is recommended, or it cannot be delivered.
        ArtifactError: the bundle does not answer like its row.
    """
    from enginebench.cli.progress import open_reporter
    from enginebench.workflow.verbs.deliver import deliver_row

    with open_reporter() as reporter:
        document = deliver_row(root, out, reporter=reporter)
    for line in describe_delivery(document):
        click.echo(line, err=True)


def describe_delivery(document: DeliverDocument) -> Iterator[str]:
    """What was delivered, what is doubtful about it, and how to try it."""
    checked = "it answers like the row" if document.checked else "NOT checked"
    yield f"{document.bundle}: {document.row}, {count_of(len(document.files), 'files')}; {checked}"
    yield from (f"  {clean_text(note)}" for note in document.notes)
    yield f"Try it: {shlex.join(['python', str(Path(document.bundle) / 'predict.py'), '--check'])}"
