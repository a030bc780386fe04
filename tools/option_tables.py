"""Generate parts of docs/cli.md, docs/fleet.md, docs/warnings.md and `features/__init__.py` from what is declared.

    python tools/option_tables.py

A verb without a section gets one; the section of a verb that is gone goes. Tables of docs/api.md as text:
`write_arguments`.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click
import msgspec

import enginebench
from enginebench import options
from enginebench.config import tomllib
from enginebench.core.commands import IN_FILE
from enginebench.core.features import HOME, find_each, list_features, list_offered
from enginebench.core.store import list_figures, list_groups
from enginebench.core.warnings import TEMPLATES
from enginebench.door import VERBS
from enginebench.options import Opt
from enginebench.verbs.read import DOCUMENTS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "cli.md"
WARNINGS = ROOT / "docs" / "warnings.md"
FLEET = ROOT / "docs" / "fleet.md"
IMPORTS = ROOT / "src" / "enginebench" / "features" / "__init__.py"
COMMON = [option.name for option in options.list_options(options.Shared).values() if not option.program]
COMMON += ["config", "as_json"]
TABLE = re.compile(r"^\| (?:option|document) \|.*\n(?:\|.*\|\n?|\n(?=\|))*", re.MULTILINE)
# Packages of ours that EngineBench does not carry; they need not be installed.
PLUGINS = [tomllib.loads(path.read_text("utf-8")) for path in sorted(ROOT.glob("plugins/*/pyproject.toml"))]
sys.path[:0] = [str(path) for path in sorted(ROOT.glob("plugins/*/src"))]
PLACES = 3  # in which a part is told to stand, before the rest is left out
USERS = re.compile(r"\A.*?have all of these\.$", re.MULTILINE | re.DOTALL)


def list_commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by its words: `run`, `parse log`, ..."""
    places = {verb: f"{known.module}:command" for verb, known in VERBS.items()} | list_points("verb")
    for verb, place in places.items():
        command: click.Command = import_place(place)
        inner = command.commands if isinstance(command, click.Group) else {"": command}
        yield from ((f"{verb} {name}".strip(), found) for name, found in inner.items())


def list_points(kind: str) -> dict[str, str]:
    """Return what our packages in plugins/ bring of a kind: name -> `module:name`."""
    points = [plugin["project"]["entry-points"]["enginebench.features"] for plugin in PLUGINS]
    parts = [(*name.split(".", 1), place) for own in points for name, place in own.items()]
    return {name: place for own, name, place in parts if own == kind}


def import_place(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def format_table(declared: Iterable[Opt], file_only: Collection[str] = ()) -> str:
    """The table of these options: names, default, meaning; those that stand in a file alone without dashes."""
    rows = [
        f"| {f'`{o.name}` (in a file)' if o.name in file_only else name_option(o)} | {' | '.join(explain(o))} |\n"
        for o in declared
    ]
    rows = [row.replace("|  |", "| |") for row in rows]
    return "".join(["| option | default | meaning |\n", "|---|---|---|\n", *rows])


def write_arguments() -> str:
    """For each function of the package that has options a table of them, for the reference of the Python API."""
    parts = []
    functions = {name: getattr(enginebench, name) for name in enginebench.__all__}
    functions |= {name: import_place(place) for name, place in list_points("function").items()}
    for name, function in sorted(functions.items()):
        declared: dict[str, Opt] = getattr(function, "options", {})
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
    text = text if text.endswith("...") else text.removesuffix(".")
    meaning = ". ".join(filter(None, (text, option.more, format_bounds(option))))
    return default or "", (f"`{option.metavar}`: {meaning}" if option.metavar else meaning).replace("|", "\\|")


def format_bounds(option: Opt) -> str:
    """`1 to 4096`, `At least 1`, `More than 0, at most 1`: what the option takes; a change of it shows on the page."""
    if option.ge is not None and option.le is not None:
        return f"{option.ge:.15g} to {option.le:.15g}"
    ends = {"at least": option.ge, "more than": option.gt, "at most": option.le, "less than": option.lt}
    text = ", ".join(f"{words} {end:.15g}" for words, end in ends.items() if end is not None)
    return text[:1].upper() + text[1:]


def write_tables(page: str) -> str:
    """The page with sections of the verbs that are there, and their tables as they are declared."""
    kinds = (options.Shared, options.Configured, options.Printed)
    shared = {name: option for kind in kinds for name, option in options.list_options(kind).items()}
    tables = {"Common options": format_table(shared[name] for name in COMMON), "JSON documents": list_fields()}
    starts, users = {}, []
    for words, command in list_commands():
        declared: dict[str, Opt] = vars(command)["declared"]
        common = COMMON if declared.keys() >= {*COMMON} else []
        users += [f"`{words}`"] if common else []
        file_only = IN_FILE.get(words, frozenset[str]())
        own = [o for o in declared.values() if o.name not in common or o.name in file_only]
        tables[f"`{words}`"] = format_table(own, file_only)
        starts[f"`{words}`"] = f"\n{introduce(words, command)}\n\n{tables[f'`{words}`']}\n"
    head, *parts = re.split(r"^## (.*)\n", page, flags=re.MULTILINE)
    texts = starts | dict(zip(parts[::2], parts[1::2], strict=True))
    have = f"{', '.join(users[:-1])} and {users[-1]} have all of these."
    texts["Common options"] = USERS.sub(f"\n{textwrap.fill(have, 120)}", texts["Common options"])
    titles = [title for title in parts[::2] if title in starts or not title.startswith("`")]
    end = titles.index("Exit codes")
    titles[end:end] = [title for title in starts if title not in titles]
    filled = {title: TABLE.sub(lambda _, title=title: tables[title], texts[title], 1) for title in tables}
    return head + "".join(f"## {title}\n{(texts | filled)[title]}" for title in titles)


def introduce(words: str, command: click.Command) -> str:
    """How a verb is called, and the sentence of its help: as a section begins."""
    arguments = [p.make_metavar(click.Context(command)) for p in command.params if isinstance(p, click.Argument)]
    sentence = " ".join((command.help or "").partition("\n\n")[0].split())
    return textwrap.fill(f"`{' '.join(['enginebench', words, *arguments])}`: {sentence}", 120, break_on_hyphens=False)


def list_fields() -> str:
    """The fields of each document, then those of the records in them, with the fields that hold these."""
    known = DOCUMENTS | dict(zip(list_offered("documents"), find_each("documents"), strict=True))
    known |= {schema: import_place(place) for schema, place in list_points("document").items()}
    parts: dict[type[msgspec.Struct], list[str]] = {}
    for schema, record in known.items():
        collect_parts(schema.removeprefix("enginebench.").partition("/")[0], record, parts)
    documents = [f"| {schema} | {_name_fields(record)} |\n" for schema, record in sorted(known.items())]
    inner = [
        f"| {part.__name__} | {', '.join(places[:PLACES])}{', ...' * (len(places) > PLACES)} | {_name_fields(part)} |\n"
        for part, places in sorted(parts.items(), key=lambda item: item[0].__name__)
        if part not in known.values()
    ]
    heads = "| document | fields |\n|---|---|\n", "\n| part | stands in | fields |\n|---|---|---|\n"
    return "".join([heads[0], *documents, heads[1], *inner])


def collect_parts(owner: str, record: type[msgspec.Struct], found: dict[type[msgspec.Struct], list[str]]) -> None:
    """Adds the records that the fields of a record name, each with `owner.field`, and those that their fields name."""
    hints = get_type_hints(record)
    for field in msgspec.structs.fields(record):
        if field.name in list_groups(record):  # whose fields stand among the record's own
            collect_parts(owner, list_groups(record)[field.name], found)
            continue
        for part in list_records(hints[field.name]):
            new = part not in found
            found.setdefault(part, []).append(f"`{owner}.{field.encode_name}`")
            if new:
                collect_parts(part.__name__, part, found)


def list_records(hint: Any) -> list[type[msgspec.Struct]]:
    """The records that a type names."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return [hint]
    return [record for inner in get_args(hint) for record in list_records(inner)]


def _name_fields(kind: type[msgspec.Struct]) -> str:
    return " ".join(f"`{field.encode_name}`" for _, field in list_figures(kind))


def write_fields(page: str) -> str:
    """Return the page on sweeps with the options of `run` that no TOML file takes, and those that a machine takes."""
    from enginebench.features.sweep.spec import LEFT_OUT, OF_MACHINE

    for lead, listed in (("except", LEFT_OUT), ("these", OF_MACHINE)):
        names = textwrap.fill(f"{lead}: {', '.join(f'`{name}`' for name in sorted(listed))}.", 120)
        page = re.sub(rf"^{lead}: .*?\.$", names, page, flags=re.MULTILINE | re.DOTALL)
    return page


def write_warnings(page: str) -> str:
    """Return the page with a row for each warning: its code, what is seen, what to do, which page explains it."""
    rows = []
    for name, template in sorted(TEMPLATES.items()):
        advice = template.advice.replace("{options}", ", ".join(f"`{option}`" for option in template.options))
        advice = advice.replace("{cure}", "as the warning says: it depends on the command or the setting")
        seen, cure = (re.sub(r"\{(\w+)[^}]*\}", r"*\1*", text) for text in (template.message, advice))
        rows.append(f"| `{name.partition('.')[0]}` | {seen} | {cure} | [{template.page}]({template.page}) |\n")
    head = "| code | what is seen | what to do | explained in |\n|---|---|---|---|\n"
    return page.partition("| code |")[0] + head + "".join(rows)


def write_imports(module: str) -> str:
    """Return the module with what features bring: their public functions, and which function is for which hook."""
    imports, hooks = ["    from enginebench.core import hooks as _hooks\n"], []
    for feature, brought in list_features().items():
        public = [(public, target) for public, target in brought.functions.items()]
        own = {f"_{feature}_{hook.__name__}": (hook, target) for hook, target in brought.hooks.items()}
        for alias, target in [*public, *((alias, target) for alias, (_, target) in own.items())]:
            home, _, name = target.partition(":")
            imports.append(f"    from {HOME}.{feature}.{home} import {name} as {alias}\n")
        hooks += [f"    {alias}_: _hooks.{hook.__name__} = {alias}\n" for alias, (hook, _) in own.items()]
    lines = [*sorted(imports), *([] if not hooks else ["\n", *sorted(hooks)])]
    return re.sub(r"(?<=option_tables\.py\n).*", "".join(lines), module, flags=re.DOTALL)


if __name__ == "__main__":
    IMPORTS.write_text(write_imports(IMPORTS.read_text("utf-8")), "utf-8")
    if "sweep" in list_features():
        FLEET.write_text(write_fields(FLEET.read_text("utf-8")), "utf-8")
    PAGE.write_text(write_tables(PAGE.read_text("utf-8")), "utf-8")
    WARNINGS.write_text(write_warnings(WARNINGS.read_text("utf-8")), "utf-8")
