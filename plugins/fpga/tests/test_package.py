"""What the package brings, as its metadata say and as the pages show it."""

from pathlib import Path

import click
import msgspec
import pytest

import enginebench
from enginebench.config import tomllib
from enginebench.core.features import find, find_plugins, load_plugin
from enginebench.engines.registry import find_entry, find_package
from enginebench_fpga import __version__
from enginebench_fpga.entry import FPGA_SIM
from pages import find_section, find_tables, read_page

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
POINTS = PROJECT["entry-points"]["enginebench.features"]
KINDS = {"verb": click.Command, "document": type(msgspec.Struct)}


@pytest.mark.parametrize("name", POINTS)
def test_each_entry_point_is_installed_and_is_what_its_name_says(name: str) -> None:
    (plugin,) = find_plugins(name)  # after a change of pyproject.toml: pip install -e plugins/fpga
    assert (plugin.place, plugin.package) == (POINTS[name], f"enginebench-fpga {__version__}")
    kind, _, own = name.partition(".")
    brought = load_plugin(plugin)
    assert isinstance(brought, KINDS.get(kind, object))
    if kind == "document":
        assert brought.__struct_defaults__[0] == own and find("documents", own) is brought
    if kind == "function":
        assert getattr(enginebench, own) is brought


def test_the_engine_is_that_of_the_package_and_its_options_stand_on_the_page() -> None:
    assert find_entry("fpga-sim") == FPGA_SIM and find_package("fpga-sim") == f"enginebench-fpga {__version__}"
    (table,) = find_tables(find_section(read_page("fpga.md"), "## `fpga-sim`"))
    assert table == [
        {"option": f"`{key}`", "default": o.default, "choices": ", ".join(o.choices), "meaning": o.meaning}
        for key, o in FPGA_SIM.options.items()
    ]
