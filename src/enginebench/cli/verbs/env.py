"""`enginebench env`: environments with other versions of a runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from enginebench.workflow.verbs.environments import EnvironmentLine

F = TypeVar("F", bound=Callable[..., Any])


def json_option(function: F) -> F:
    """Adds --json."""
    option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout and nothing else.")
    return option(function)


@click.group("env")
def command() -> None:
    """Make environments with other versions of a runtime, to compare them.

    Example: enginebench env make old onnxruntime==1.24.4

    `enginebench run MODEL --engines ort,ort:env=old` then measures both versions in turns. An environment needs no
    EngineBench: only the runtime, and a few small packages that `env make` adds.
    """


@command.command("make")
@click.argument("name")
@click.argument("requirements", metavar="PACKAGE==VERSION...", nargs=-1, required=True)
@json_option
def make_verb(name: str, requirements: tuple[str, ...], as_json: bool) -> None:
    """Make the environment NAME with these packages, in the user's cache folder.

    Example: enginebench env make old onnxruntime==1.24.4

    It is made with uv if that is installed, else with venv and pip.
    """
    from enginebench.cli.progress import open_reporter
    from enginebench.workflow.verbs.environments import make_environment

    with open_reporter() as reporter:
        made = make_environment(name, requirements, reporter=reporter)
    _show((made,), as_json)


@command.command("list")
@json_option
def list_verb(as_json: bool) -> None:
    """List the environments that were made, with what is installed in each.

    Example: enginebench env list
    """
    from enginebench.workflow.verbs.environments import list_all

    _show(list_all().environments, as_json)


@command.command("remove")
@click.argument("name")
@json_option
def remove_verb(name: str, as_json: bool) -> None:
    """Delete the environment NAME that `env make` made.

    Example: enginebench env remove old
    """
    from enginebench.workflow.verbs.environments import list_all, remove_environment

    place = remove_environment(name)
    if as_json:
        _show(list_all().environments, as_json)
    else:
        click.echo(f"removed {place}")


def _show(lines: tuple[EnvironmentLine, ...], as_json: bool) -> None:
    from rich.console import Console

    from enginebench.core.store import encode
    from enginebench.report.table import Section, list_texts, make_table
    from enginebench.report.terminal import print_sections
    from enginebench.workflow.child.places import environments_folder
    from enginebench.workflow.verbs.environments import EnvironmentsDocument, list_engines_of

    if as_json:
        document = EnvironmentsDocument(folder=str(environments_folder()), environments=lines)
        click.echo(encode(document).decode())
        return
    if not lines:
        click.echo("no environment was made yet: enginebench env make NAME PACKAGE==VERSION")
        return
    found = [
        (
            line.name,
            line.python or "-",
            line.fault or ", ".join(f"{name} {version}" for name, version in list_engines_of(line).items()),
        )
        for line in lines
    ]
    table = make_table(list_texts(("name", "python", "holds")), found)
    print_sections([Section(parts=(table,))], Console(highlight=False))
