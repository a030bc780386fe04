"""Notes on a run: kept in its folder, shown in its report."""

from pathlib import Path

import click

from enginebench.core.errors import UsageError
from enginebench.report.table import Notes, Section
from enginebench.runs.folder import holds_run

FILE = "notes.txt"


@click.command("note")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("text")
def command(run, text):
    """Add a note to the run in RUN, for its report."""
    if not holds_run(run):
        raise UsageError(f"{run} holds no run of enginebench; expected the folder of one")
    write_note(run, text)
    click.echo(f"To show it: enginebench report {run}", err=True)


def write_note(run, text):
    with (run / FILE).open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")


def note_end(folder, record, results, reporter):
    """The hook RunFinished."""
    ok = sum(result.status == "ok" for result in results.values())
    write_note(folder.root, f"{record.started_utc}: {ok} of {len(results)} configurations are ok")


def list_notes(document, folder):
    """The hook ReportSections."""
    path = folder / FILE
    if path.is_symlink() or not path.is_file():
        return []
    lines = tuple(("note", line) for line in path.read_text("utf-8").splitlines())
    return [Section(title="Notes", name="notes", parts=(Notes(lines=lines, kind="list"),))]
