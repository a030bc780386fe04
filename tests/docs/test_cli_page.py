"""`docs/cli.md` against the program: verbs, arguments, options, defaults, exit codes, JSON fields."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module

import click
import msgspec
import pytest
from pages import Table, find_code, find_section, find_tables, read_page

from enginebench.analyze.compare import Comparison
from enginebench.analyze.diff import DiffDocument, DiffRow
from enginebench.cli.door import INTERRUPTED, VERBS
from enginebench.cli.options import common_options
from enginebench.core import errors
from enginebench.core.records import Availability, Caveat, Estimate
from enginebench.models.zoo import ModelCard
from enginebench.report.bench import BenchDocument
from enginebench.report.rows import Ref, Row, RunDocument
from enginebench.workflow.doctor import DoctorDocument
from enginebench.workflow.exporting import ExportDocument
from enginebench.workflow.inference import InferDocument

PAGE = read_page("cli.md")

DOCUMENTS: dict[str, type[msgspec.Struct]] = {
    "run": RunDocument,
    "bench": BenchDocument,
    "export": ExportDocument,
    "infer": InferDocument,
    "doctor": DoctorDocument,
    "diff": DiffDocument,
}
PARTS: dict[str, type[msgspec.Struct]] = {
    "row": Row,
    "estimate": Estimate,
    "ref (`fastest`, `recommended`)": Ref,
    "comparison": Comparison,
    "row of `diff`": DiffRow,
    "engine of `doctor`": Availability,
    "model of `models`": ModelCard,
    "caveat": Caveat,
}


def load_verb(verb: str) -> click.Command:
    command: click.Command = import_module(VERBS[verb][0]).command
    return command


def options_of(command: click.Command) -> dict[str, click.Option]:
    """The options of a command by the text that the page names them with."""
    options = (p for p in command.params if isinstance(p, click.Option))
    return {" ".join(f"`{name}`" for name in (*o.opts, *o.secondary_opts)): o for o in options}


def documented_options(section: str) -> dict[str, str]:
    """{option: default} of the one table of a section."""
    (table,) = find_tables(section)
    return {row["option"]: row["default"] for row in table}


def common() -> dict[str, click.Option]:
    return options_of(common_options(click.command("any")(lambda **_: None)))


def has_common(command: click.Command) -> bool:
    return common().keys() <= options_of(command).keys()


def find_differences(documented: dict[str, str], options: dict[str, click.Option]) -> Iterator[str]:
    yield from (f"{name} is not documented" for name in options.keys() - documented.keys())
    yield from (f"{name} does not exist" for name in documented.keys() - options.keys())
    for name in options.keys() & documented.keys():
        default = options[name].default
        if isinstance(default, str | int | float) and not isinstance(default, bool) and documented[name]:
            expected = f"{default:g}" if isinstance(default, int | float) else default
            if documented[name] != expected:
                yield f"{name} has the default {expected}, not {documented[name]}"


def test_every_verb_has_a_section_and_every_section_a_verb() -> None:
    assert set(re.findall(r"^## `(\w+)`$", PAGE, re.MULTILINE)) == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_options_and_their_defaults_are_those_of_the_verb(verb: str) -> None:
    command = load_verb(verb)
    options = options_of(command)
    if has_common(command):
        options = {name: option for name, option in options.items() if name not in common()}
    assert list(find_differences(documented_options(find_section(PAGE, f"## `{verb}`")), options)) == []


def test_common_options_are_those_of_the_verbs_that_are_named() -> None:
    section = find_section(PAGE, "## Common options")
    assert list(find_differences(documented_options(section), common())) == []
    with_all, without = (find_code(part) for part in section.strip().split("\n\n")[0].split(";"))
    assert with_all == [name for name in find_code(section) if name in VERBS and has_common(load_verb(name))]
    assert {*with_all, *without} - {"--json"} == set(VERBS)
    assert all(set(options_of(load_verb(v))) >= {"`--json`"} for v in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_the_usage_line_names_the_arguments(verb: str) -> None:
    usage = find_code(find_section(PAGE, f"## `{verb}`"))[0].split()
    arguments = [
        p.make_metavar(click.Context(load_verb(verb)))
        for p in load_verb(verb).params
        if p.param_type_name == "argument"
    ]
    assert usage[: 2 + len(arguments)] == ["enginebench", verb, *arguments]


def test_the_page_finds_what_is_missing_wrong_or_too_much() -> None:
    options = options_of(load_verb("diff"))
    found = {name: "" for name in options if name != "`--gate`"} | {"`--margin`": "0.03", "`--speed`": ""}
    assert sorted(find_differences(found, options)) == [
        "`--gate` is not documented",
        "`--margin` has the default 0.02, not 0.03",
        "`--speed` does not exist",
    ]


def test_exit_codes_are_those_of_the_errors() -> None:
    (table,) = find_tables(find_section(PAGE, "## Exit codes"))
    kinds = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.EngineBenchError)]
    assert {int(row["code"]) for row in table} == {0, INTERRUPTED, *(kind.exit_code for kind in kinds)}


def json_tables() -> list[Table]:
    return find_tables(find_section(PAGE, "## JSON documents"))


def test_documents_have_these_schemas_and_fields() -> None:
    rows = {find_code(row["document"])[0]: row for row in json_tables()[0]}
    for name, kind in DOCUMENTS.items():
        row = rows.pop(name)
        assert find_code(row["fields"]) == list(kind.__struct_fields__), name
        fields = {field.name: field.default for field in msgspec.structs.fields(kind)}
        assert row["schema"] == fields["schema"], name
    assert list(rows) == ["models"]  # printed without a record; its fields are checked with the verb


def test_parts_have_these_fields() -> None:
    rows = {row["part"]: find_code(row["fields"]) for row in json_tables()[1]}
    assert rows == {name: list(kind.__struct_fields__) for name, kind in PARTS.items()}
