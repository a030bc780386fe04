"""A warning is its figures, and one template makes the sentence; of several rows, one sentence with ranges."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from string import Formatter
from typing import get_args

import msgspec
import pytest
from msgspec.structs import replace

import enginebench
from enginebench.core.records import FORMER_CODES, ResultWarning, WarningCode
from enginebench.core.warnings import TEMPLATES, find_sentence, format_warning, make_warning
from pages import read_page
from processes import ROOT
from rooms import list_lifted

sys.path.insert(0, str(ROOT / "tools"))
import option_tables

SOURCE = Path(enginebench.__file__).parent
PLUGINS = ROOT / "plugins"  # packages of their own, which word their warnings here, too


@cache
def read_all_calls() -> list[tuple[str, ast.Call]]:
    """Every call of a plain name in the sources, with the file that it stands in; read once for all tests."""
    return [
        (path.relative_to(folder).as_posix(), node)
        for folder in (SOURCE, *PLUGINS.glob("*/src"))
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]


def read_calls(name: str) -> Iterator[tuple[str, ast.Call]]:
    """Every call of `name`."""
    return ((path, call) for path, call in read_all_calls() if getattr(call.func, "id", "") == name)


def find_strings(node: ast.AST) -> set[str]:
    return {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}


def find_figures(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def test_words_are_made_in_one_place() -> None:
    assert {path for path, _ in read_calls("ResultWarning")} == {"core/warnings.py"}
    own = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if "warning.message}" in (text := path.read_text(encoding="utf-8")) or "c.message}" in text
    ]
    assert own == []


def test_every_template_is_used_and_every_code_is_known() -> None:
    used = set().union(*(find_strings(call.args[0]) for _, call in read_calls("make_warning") if call.args))
    assert set(TEMPLATES) <= used or list_lifted()
    assert {name.partition(".")[0] for name in TEMPLATES} <= set(get_args(WarningCode))


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_call_gives_every_figure_of_its_template(name: str) -> None:
    template = TEMPLATES[name]
    wanted = (find_figures(template.message) | find_figures(template.advice)) - {"options"}
    for _, call in read_calls("make_warning"):
        if name in find_strings(call.args[0]) and all(keyword.arg for keyword in call.keywords):
            assert {keyword.arg for keyword in call.keywords} == wanted


def test_templates_of_one_code_are_not_merged() -> None:
    one, other = (
        make_warning("not_settled.warmup", unsettled=1, total=5),
        make_warning("not_settled.cold_start", share=0.1),
    )
    assert one.code == other.code and find_sentence(one) != find_sentence(other)


def test_an_older_warning_keeps_its_words() -> None:
    stored = b'{"code": "clock_drift", "message": "up to 1.25 times slower", "advice": "fix it"}'
    old = msgspec.json.decode(stored, type=ResultWarning)
    assert find_sentence(old) != find_sentence(replace(old, message="up to 1.37 times slower"))
    assert format_warning(old, old) == format_warning(old) == "up to 1.25 times slower; fix it"
    gone = replace(old, template="clock_drift.no_more", figures={"ratio": 1.25})
    assert format_warning(gone, gone) == format_warning(old)
    fewer = replace(old, template="clock_drift", figures={"ratio": 1.25})  # a name that is a code, other figures
    assert format_warning(fewer, fewer) == format_warning(old)


def test_the_page_of_warnings_is_written_from_the_templates() -> None:
    page = read_page("warnings.md")
    assert option_tables.write_warnings(page) == page, "make tables"
    assert all((ROOT / "docs" / template.page).exists() for template in TEMPLATES.values())


@pytest.mark.parametrize("former", FORMER_CODES)
def test_a_former_code_is_read_under_its_present_name(former: str) -> None:
    stored = msgspec.json.encode({"code": former, "message": "m"})
    assert msgspec.json.decode(stored, type=ResultWarning).code == FORMER_CODES[former]
    assert FORMER_CODES[former] in get_args(WarningCode)


def test_a_text_in_braces_stays_text() -> None:
    warning = make_warning("no_layer_times", failure="{0.__class__} {share:.0%}")
    assert "{0.__class__} {share:.0%}" in format_warning(warning, warning)


def test_a_figure_of_three_digits_has_no_exponent() -> None:
    """Read in a real head: "at least 3e+02 ms"."""
    warning = make_warning("implausible_time.repeated", first_ms=812.4, again_ms=324.0)
    assert "at least 810 ms, many repeated ones 320 ms" in warning.message
    other = make_warning("implausible_time.repeated", first_ms=2345.0, again_ms=12.0)
    assert "at least 810 to 2300 ms, many repeated ones 12 to 320 ms" in format_warning(warning, other)
