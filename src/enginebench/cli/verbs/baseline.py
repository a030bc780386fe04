"""`enginebench baseline`: runs saved under a name, to compare later runs with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from enginebench.core.text import clean_text, count_of

F = TypeVar("F", bound=Callable[..., Any])
FOLDER = click.Path(path_type=Path, file_okay=False)


def store_options(function: F) -> F:
    """Adds --store --json."""
    for option in reversed(
        (
            click.option(
                "--store", type=FOLDER, help="Folder of baselines. [$ENGINEBENCH_BASELINES, else results/baselines]"
            ),
            click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout and nothing else."),
        )
    ):
        function = option(function)
    return function


@click.group("baseline")
def command() -> None:
    """Save runs under a name, to compare later runs with.

    Example: enginebench baseline save main results/first

    `enginebench diff main DIR` then compares a later run with it. A baseline holds samples and settings but no
    artifacts: a few hundred kB, small enough for a repository.
    """


@command.command("save")
@click.argument("name")
@click.argument("run", metavar="DIR", type=FOLDER)
@click.option("--force", is_flag=True, help="Replace an existing baseline of this name.")
@store_options
def save_verb(name: str, run: Path, force: bool, store: Path | None, as_json: bool) -> None:
    """Save the measured rows of the run in DIR as NAME.

    Example: enginebench baseline save main results/first
    """
    from enginebench.core.store import encode
    from enginebench.workflow.baselines import BaselineList, find_store, save_baseline

    saved = save_baseline(name, run, store, force=force)
    document = BaselineList(store=str(find_store(store)), baselines=(saved,))
    click.echo(
        encode(document).decode()
        if as_json
        else f"saved {count_of(saved.rows, 'rows')} of {clean_text(saved.model)} in {saved.path}"
    )


@command.command("list")
@store_options
def list_verb(store: Path | None, as_json: bool) -> None:
    """List all baselines.

    Example: enginebench baseline list

    The list shows model, rows, and when and on which CPU they were measured.
    """
    from rich.console import Console

    from enginebench.core.store import encode
    from enginebench.report.table import Section, list_texts, make_table
    from enginebench.report.terminal import print_sections
    from enginebench.workflow.baselines import list_baselines

    found = list_baselines(store)
    if as_json:
        click.echo(encode(found).decode())
        return
    if not found.baselines:
        click.echo(f"no baselines in {found.store}; save one with: enginebench baseline save NAME DIR", err=True)
        return
    lines = [(b.name, b.model, str(b.rows), b.started_utc, b.reason or b.cpu_model) for b in found.baselines]
    table = make_table(list_texts(("name", "model", "rows", "measured", "CPU")), lines)
    print_sections([Section(parts=(table,))], Console(highlight=False))


@command.command("rm")
@click.argument("name")
@store_options
def remove_verb(name: str, store: Path | None, as_json: bool) -> None:
    """Remove the baseline NAME.

    Example: enginebench baseline rm main

    With --json, print the ones that remain.
    """
    from enginebench.core.store import encode
    from enginebench.workflow.baselines import list_baselines, remove_baseline

    path = remove_baseline(name, store)
    click.echo(encode(list_baselines(store)).decode() if as_json else f"removed {path}")
