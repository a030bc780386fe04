"""`deliver`: a row of a run as a folder that runs without EngineBench."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from enginebench.api import checks as given
from enginebench.api.checks import PathLike
from enginebench.api.progress import open_progress
from enginebench.workflow.verbs.deliver import DeliverDocument, deliver_row


def deliver(
    run: PathLike,
    out: PathLike,
    *,
    row: str | None = None,
    forms: str | Iterable[str] = (),
    force: bool = False,
    progress: bool | None = None,
) -> DeliverDocument:
    """A row of a stored run as a bundle: model, program, requirements, check and figures; it answered like the row.

    Args:
        run: the folder of the run.
        out: the folder of the bundle; it must be empty or not there.
        row: the row, by its id; by default the recommended one.
        forms: what to write beside the bundle: triton, kserve, dockerfile; several in a list or separated by commas.
        force: hand it over though it does not pass its own check here.
        progress: None: a bar in a notebook, silence elsewhere. True: also on stderr. False: never.

    Raises:
        UsageError: there is no such row, none is recommended, it cannot be delivered, or `out` holds something.
        ArtifactError: the row's files are gone or were changed, or the bundle does not answer like the row.
    """
    asked = tuple(given.list_texts(forms)) if forms else ()
    with open_progress(progress) as reporter:
        return deliver_row(Path(run), Path(out), row=row, forms=asked, force=force, reporter=reporter)
