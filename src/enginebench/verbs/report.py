"""`report`: page, tables and pictures of a stored run, a load, a sweep, or of what trtexec wrote."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypedDict

import click

from enginebench import door
from enginebench.core.errors import UsageError
from enginebench.core.features import find_hooks
from enginebench.core.hooks import FolderMatch, FolderReport, Report
from enginebench.options import Opt, PathLike, Texts, Unpack, Wide, list_options, verb
from enginebench.runs.folder import holds_run, read_results
from enginebench.verbs.common import split_texts

if TYPE_CHECKING:
    from enginebench.runs.reporting import Written


class ReportOptions(TypedDict, total=False):
    out: Annotated[PathLike | None, Opt("Folder of the report on a sweep. [DIR]", path="new folder", feature="sweep")]
    prices: Annotated[PathLike | None, Opt("TOML file: hourly price of each machine.", path="file", feature="sweep")]

    model: Annotated[str | None, Opt("Model name to record for trtexec's files.", metavar="M", feature="trtexec")]
    precision: Annotated[
        str | None, Opt("Precision to record for them. [the build's or the layers']", metavar="P", feature="trtexec")
    ]
    batch: Annotated[int | None, Opt("Images per query in them; adds images/s.", ge=1, feature="trtexec")]


Formats: TypeAlias = Annotated[
    Texts, Opt("Formats to write, separated by commas.", "html,md,csv,json,png", names="--format")
]


@verb(ReportOptions)
def write_report(
    path: PathLike, formats: Formats = "html,md,csv,json,png", **options: Unpack[ReportOptions]
) -> "Written":
    """Write a report on the results in DIR, and print the table.

    Example: enginebench report results/first --format md,csv

    DIR is the folder of a run, of a load, one with files that trtexec wrote, or the store of a sweep (also s3://...).
    The report is report.html, report.md, table.csv, report.json and pictures; of a load, report.html and pictures.
    Stored results are enough: it needs no engine, no model and no GPU.

    Args:
        path: the folder, or the store of a sweep.

    Raises:
        UsageError: a format is unknown, or the folder holds none of these.
        ParseError: a file in it is damaged.
    """
    return report_any(str(path), formats, options)[0]


@door.command(write_report, "DIR", shown=Wide, name="report")
def command(path: str, formats: str, shown: Wide, **options: Unpack[ReportOptions]) -> None:
    from enginebench.report.run.rows import RunDocument
    from enginebench.report.run.sections import list_sections

    written, document, list_parts = report_any(path, formats, options)
    if isinstance(document, RunDocument):
        list_parts = partial(
            list_sections,
            folder=Path(path),
            wide=shown["wide"],
            warnings=shown["warnings"],
            deployment=written.deployment,
        )
    if shown["as_json"]:
        door.print_json(document)
    elif list_parts is not None:
        door.show(document, shown, door.tables(list_parts))
        click.echo("", err=True)
    click.echo("\n".join([*map(str, written.paths), *written.notes]), err=True)


def report_any(path: str, formats: Texts, options: ReportOptions) -> Report:
    """The files of a report, the document that they show, and what lists its sections for a terminal."""
    from enginebench.report.bench import describe_bench, list_bench
    from enginebench.report.run.sections import list_sections
    from enginebench.runs.reporting import Written, check_formats, describe_stored, write_reports

    requested, folder = check_formats(split_texts(formats)), Path(path)
    for name, option in list_options(ReportOptions).items():
        if options.get(name) is not None and not any(holds(path) for holds in find_hooks(FolderMatch, option.feature)):
            raise UsageError(f"--{name} belongs to reports on what {option.feature} wrote; {path} holds nothing of it")
    if holds_run(folder):
        record, results = read_results(folder, condensed=True)
        if any(result.beside for result in results):  # of two models, or disturbed on purpose: nothing is the fastest
            note = "Two engines beside each other have no ranking, and so no page: no file was written"
            return Written(paths=(), notes=(note,)), describe_bench(read_results(folder)[1]), list_bench
        run = describe_stored(record, results)
        return write_reports(folder, run, requested, record=record, results=results), run, list_sections
    for report in find_hooks(FolderReport):
        written = report(path, requested, options)
        if written is not None:
            return written
    raise UsageError(f"{folder} holds no run of enginebench")
