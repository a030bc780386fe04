"""`baseline`: runs saved under a name, to compare later runs with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import click

from enginebench import door
from enginebench.core.commands import format_command
from enginebench.core.text import clean_text, count_of
from enginebench.options import Opt, PathLike, Printed, Store, Unpack, verb
from enginebench.report.numbers import format_time
from enginebench.verbs.common import to_path
from enginebench.verbs.runs import Run

if TYPE_CHECKING:
    from rich.console import Console

    from enginebench.runs.baselines import Baseline, BaselineList


class StoreOptions(TypedDict, total=False):
    store: Store


class SaveOptions(StoreOptions, total=False):
    force: Annotated[bool, Opt("Replace an existing baseline of this name.", False)]


@verb(SaveOptions)
def save_baseline(name: str, run: Run | PathLike, **options: Unpack[SaveOptions]) -> Baseline:
    """Save the measured configurations of the run in DIR as NAME.

    Example: enginebench baseline save main results/first

    Configurations with implausible times are left out.

    Args:
        name: lower-case letters, digits, dots and hyphens.
        run: the folder of a run; also a `Run`.

    Raises:
        UsageError: the name is not plain, or it is taken.
        ArtifactError: the run has no measured configuration, only implausible times, or cannot be read.
    """
    from enginebench.runs import baselines

    folder = run.folder if isinstance(run, Run) else Path(run)
    return baselines.store_baseline(name, folder, to_path(options["store"]), force=options["force"])


class NoOptions(TypedDict):
    pass


@verb(NoOptions)
def list_baselines(store: Store = None, **options: Unpack[NoOptions]) -> BaselineList:
    """List all baselines.

    Example: enginebench baseline list

    The list shows model, configurations, and when and on which CPU they were measured.
    """
    from enginebench.runs import baselines

    return baselines.read_baselines(to_path(store))


@verb(StoreOptions)
def remove_baseline(name: str, **options: Unpack[StoreOptions]) -> Path:
    """Remove the baseline NAME.

    Example: enginebench baseline rm main

    With --json, print the ones that remain.

    Args:
        name: of the baseline.

    Raises:
        UsageError: there is no baseline of this name.
    """
    from enginebench.runs import baselines

    return baselines.delete_baseline(name, to_path(options["store"]))


@door.command(save_baseline, "NAME", "DIR", name="save")
def _save(name: str, run: str, shown: Printed, **options: Unpack[SaveOptions]) -> None:
    from enginebench.runs.baselines import BaselineList, find_store

    saved = save_baseline(name, run, **options)
    document = BaselineList(store=str(find_store(to_path(options["store"]))), baselines=(saved,))
    line = f"saved {count_of(saved.rows, 'configurations')} of {clean_text(saved.model)} in {saved.path}"
    if saved.left_out:
        line += f"; not {', '.join(saved.left_out)}, whose times are implausible"
    door.show(document, shown, lambda *_: click.echo(line))


@door.command(list_baselines, name="list")
def _list(store: str | None, shown: Printed) -> None:
    door.show(list_baselines(store), shown, print_baselines)


@door.command(remove_baseline, "NAME", name="rm")
def _remove(name: str, shown: Printed, **options: Unpack[StoreOptions]) -> None:
    path = remove_baseline(name, **options)
    if shown["as_json"]:
        door.print_json(list_baselines(options["store"]))
    else:
        click.echo(f"removed {path}")


def print_baselines(document: BaselineList, console: Console) -> None:
    from enginebench.report.table import Section, list_texts, make_table
    from enginebench.report.terminal import print_sections

    if not document.baselines:
        make = format_command("baseline save", "NAME", "DIR")
        click.echo(f"no baselines in {document.store}; save one with: {make}", err=True)
        return
    lines = [
        (b.name, b.model, str(b.rows), format_time(b.started_utc), b.reason or b.cpu_model) for b in document.baselines
    ]
    table = make_table(list_texts(("name", "model", "rows", "measured", "CPU")), lines)
    print_sections([Section(parts=(table,))], console)


command = door.group(
    "baseline",
    _save,
    _list,
    _remove,
    help="""Save runs under a name, to compare later runs with.

    Example: enginebench baseline save main results/first

    `enginebench diff main DIR` then compares a later run with it. A baseline holds samples and settings but no
    artifacts: a few hundred kB, small enough for a repository.
    """,
)
