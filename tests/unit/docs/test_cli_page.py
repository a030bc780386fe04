"""`docs/cli.md` against the program: verbs, arguments, options, defaults, exit codes, JSON fields."""

import re
import sys

import click
import pytest

from enginebench.core import errors
from enginebench.door import INTERRUPTED
from pages import find_code, find_section, find_tables, read_page
from processes import ROOT

sys.path.insert(0, str(ROOT / "tools"))
import option_tables

PAGE = read_page("cli.md")

COMMANDS = dict(option_tables.list_commands())


def options_of(command: click.Command) -> dict[str, click.Option]:
    """The options of a command by the text that the page names them with."""
    options = (p for p in command.params if isinstance(p, click.Option))
    return {" ".join(f"`{name}`" for name in (*o.opts, *o.secondary_opts)): o for o in options}


def test_every_verb_has_a_section_and_every_section_a_verb() -> None:
    assert set(re.findall(r"^## `([\w ]+)`$", PAGE, re.MULTILINE)) == set(COMMANDS)


def test_the_tables_are_those_that_the_declarations_make() -> None:
    assert option_tables.write_tables(PAGE) == PAGE, "run tools/option_tables.py"


def test_common_options_are_those_of_the_verbs_that_are_named() -> None:
    named = find_code(find_section(PAGE, "## Common options").strip().partition(";")[0])
    has_common = [v for v, c in COMMANDS.items() if set(option_tables.COMMON) <= {p.name for p in c.params}]
    assert named == has_common
    without = [verb for verb, command in COMMANDS.items() if "`--json`" not in options_of(command)]
    assert without == ["fpga verilog", "fpga serve"]


@pytest.mark.parametrize("verb", COMMANDS)
def test_the_usage_line_names_the_arguments(verb: str) -> None:
    usage = find_code(find_section(PAGE, f"## `{verb}`"))[0].split()
    arguments = [
        p.make_metavar(click.Context(COMMANDS[verb])) for p in COMMANDS[verb].params if p.param_type_name == "argument"
    ]
    assert usage[: 1 + len(verb.split()) + len(arguments)] == ["enginebench", *verb.split(), *arguments]


def test_exit_codes_are_those_of_the_errors() -> None:
    (table,) = find_tables(find_section(PAGE, "## Exit codes"))
    kinds = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.EngineBenchError)]
    assert {int(row["code"]) for row in table} == {0, INTERRUPTED, *(kind.exit_code for kind in kinds)}
