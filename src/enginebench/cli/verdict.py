"""How a comparison ends: printed, written for a CI server, and as an exit code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from enginebench.analyze.diff import DiffDocument


def finish_diff(document: DiffDocument, *, gate: bool, junit: Path | None, summary: Path | None, as_json: bool) -> None:
    """Prints the verdicts and writes the requested files.

    Raises:
        GateFailed: under `gate`, a row fails it.
        ArtifactError: a file cannot be written.
    """
    from rich.console import Console

    from enginebench.core.store import encode
    from enginebench.report.run.diff import list_diff
    from enginebench.report.terminal import print_sections

    if as_json:
        click.echo(encode(document).decode())
    else:
        print_sections(list_diff(document, gate=gate), Console(highlight=False))
    write_verdict(document, junit, summary, gate=gate)
    if gate:
        check_gate(document)


def write_verdict(document: DiffDocument, junit: Path | None, summary: Path | None, *, gate: bool) -> None:
    """Writes JUnit XML and appends the markdown to the summary, as CI servers expect."""
    from enginebench.core.errors import ArtifactError
    from enginebench.core.store import write_atomic
    from enginebench.report.markdown import format_sections
    from enginebench.report.run.diff import list_diff
    from enginebench.report.run.junit import format_junit

    if junit is not None:
        write_atomic(junit, format_junit(document).encode())
    if summary is not None:
        try:
            summary.parent.mkdir(parents=True, exist_ok=True)
            with summary.open("a", encoding="utf-8") as file:
                file.write(format_sections(list_diff(document, gate=gate), level=3))
        except OSError as error:
            raise ArtifactError(f"cannot write {summary}: {error.strerror}. Choose another --summary") from error


def check_gate(document: DiffDocument) -> None:
    """Checks that no row fails the gate.

    Raises:
        GateFailed: a row does; the message names each and what is wrong with it.
    """
    from enginebench.core.errors import GateFailed

    if not document.gate_failed:
        return
    failed = [f"{row.id}: {', '.join(row.failures)}" for row in document.rows if row.failures]
    raise GateFailed(f"the gate failed. {'; '.join(failed) or 'There are no rows to compare'}")
