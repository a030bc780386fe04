"""The tables of options in docs/cli.md, written anew from the declarations of the verbs; those of docs/api.md as text.

python tools/option_tables.py
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

import click

import enginebench
from enginebench import options
from enginebench.door import VERBS
from enginebench.options import Opt

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"
COMMON = [option.name for option in options.list_options(options.Shared).values() if not option.program] + ["as_json"]
TABLE = re.compile(r"^\| option \| default \| meaning \|\n(?:\|.*\|\n?)+", re.MULTILINE)


def list_commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by its words: `run`, `parse log`, ..."""
    for verb, known in VERBS.items():
        command: click.Command = import_module(known.module).command
        inner = command.commands if isinstance(command, click.Group) else {"": command}
        yield from ((f"{verb} {name}".strip(), found) for name, found in inner.items())


def format_table(declared: Iterable[Opt]) -> str:
    """The table of these options: names, default, meaning."""
    rows = [
        f"| {name_option(option)} | {' | '.join(explain(option))} |\n".replace("|  |", "| |") for option in declared
    ]
    return "".join(["| option | default | meaning |\n", "|---|---|---|\n", *rows])


def write_arguments() -> str:
    """For each function of the package that has options a table of them, for the reference of the Python API."""
    parts = []
    for name in sorted(enginebench.__all__):
        declared: dict[str, Opt] = getattr(getattr(enginebench, name), "options", {})
        rows = [f"| `{option.name}` | {' | '.join(explain(option))} |\n" for option in declared.values()]
        if rows:
            parts.append(f"### Options of {name}\n\n| option | default | meaning |\n|---|---|---|\n{''.join(rows)}\n")
    return "".join(parts)


def name_option(option: Opt) -> str:
    names = option.names or f"--{option.name.replace('_', '-')}"
    return " ".join(f"`{name}`" for name in names.split("/"))


def explain(option: Opt) -> tuple[str, str]:
    """The default, and what the option means."""
    text, default = re.findall(r"(.*?)(?: \[(.*)\])?$", option.help)[0]
    if option.default not in (None, (), "") and not isinstance(option.default, bool):
        default = f"{option.default:g}" if isinstance(option.default, float) else str(option.default)
    meaning = ". ".join(filter(None, (text if text.endswith("...") else text.removesuffix("."), option.more)))
    return default or "", (f"`{option.metavar}`: {meaning}" if option.metavar else meaning).replace("|", "\\|")


def write_tables(page: str) -> str:
    """The page with the tables of its sections as the verbs are declared."""
    shared = {**options.list_options(options.Shared), **options.list_options(options.Printed)}
    tables = {"Common options": format_table(shared[name] for name in COMMON)}
    for words, command in list_commands():
        declared: dict[str, Opt] | None = getattr(command, "declared", None)
        if declared is not None:
            common = COMMON if COMMON[0] in declared and COMMON[1] in declared else []
            tables[f"`{words}`"] = format_table(o for o in declared.values() if o.name not in common)
    head, *sections = re.split(r"^## ", page, flags=re.MULTILINE)
    return "## ".join([head, *(replace_table(section, tables) for section in sections)])


def replace_table(section: str, tables: dict[str, str]) -> str:
    written = tables.get(section.partition("\n")[0])
    return section if written is None else TABLE.sub(lambda _: written, section, count=1)


if __name__ == "__main__":
    PAGE.write_text(write_tables(PAGE.read_text("utf-8")), "utf-8")
