"""`docs/cli.md` against the program: verbs, arguments, options, defaults, exit codes, JSON fields."""

import re
import shlex
import shutil
import sys
from fnmatch import fnmatch
from pathlib import Path

import click
import numpy as np
import pytest

from enginebench.core import errors
from enginebench.core.features import list_features
from enginebench.door import INTERRUPTED
from enginebench.models.zoo import DATA_DIR
from fakes.trtexec_shim import install_trtexec
from in_process import run_here
from pages import find_code, find_section, find_tables, read_page
from processes import ROOT, environment

sys.path.insert(0, str(ROOT / "tools"))
import option_tables

PAGE = read_page("cli.md")

COMMANDS = dict(option_tables.list_commands())


def options_of(command: click.Command) -> dict[str, click.Option]:
    """The options of a command by the text that the page names them with."""
    options = (p for p in command.params if isinstance(p, click.Option))
    return {" ".join(f"`{name}`" for name in (*o.opts, *o.secondary_opts)): o for o in options}


def test_the_tables_are_those_that_the_declarations_make() -> None:
    assert option_tables.write_tables(PAGE) == PAGE, "make tables"


def test_a_new_verb_gets_its_section_and_one_that_is_gone_loses_it() -> None:
    other = option_tables.write_tables(PAGE.replace("## `drift`", "## `gone`"))
    assert set(re.findall(r"^## `([\w -]+)`$", other, re.MULTILINE)) == set(COMMANDS)
    made, kept = (find_section(page, "## `drift`") for page in (other, PAGE))
    assert find_code(made)[0] == "enginebench drift REF CAND"
    assert find_tables(made) == find_tables(kept)


def test_what_has_no_document_is_named() -> None:
    without = [verb for verb, command in COMMANDS.items() if "`--json`" not in options_of(command)]
    assert set(without) <= {"fpga verilog"}


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


(LISTED,) = find_tables(find_section(PAGE, "## Files that commands write"))
WRITES = [row for row in LISTED if find_code(row["command"])[0].split()[0] in {words.split()[0] for words in COMMANDS}]
# Options of paths that are read, and those whose commands take a minute, need programs or a network.
READ = {"calib", "exclude", "plugins", "images", "store", "prices", "log", "against", "profile", "against_profile"}
READ |= {"source", "baseline_from", "cache", "config"}
ELSEWHERE = {("tune", "out"), ("tune", "deliver"), ("load", "out"), ("bisect", "out"), ("roofline", "out")}
ELSEWHERE |= {("fpga synth", "out"), ("fpga verilog", "out"), ("history", "parquet"), ("build", "timing_cache")}
ELSEWHERE |= {("report", "out")}  # of a sweep


def test_the_page_has_each_option_that_writes() -> None:
    declared = {(words, o.name) for words, c in COMMANDS.items() for o in getattr(c, "declared", {}).values() if o.path}
    listed = set()
    for row in WRITES:
        command = find_code(row["command"])[0]
        words = next(words for words in COMMANDS if command.startswith(f"{words} "))
        listed |= {(words, name.replace("-", "_")) for name in re.findall(r"--([a-z-]+)", command)}
    assert {pair for pair in declared if pair[1] not in READ} - listed == ELSEWHERE & declared


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph, inputs, a plan, a run, and what trtexec left, as the page names them."""
    folder = tmp_path_factory.mktemp("inputs")
    shutil.copy(DATA_DIR / "digits-mlp.onnx", folder / "net.onnx")
    np.savez(folder / "in.npz", input=np.random.default_rng(0).random((8, 64), np.float32))
    short = ("--processes", 1, "--iters", 20, "--out")
    commands: list[tuple[str | int, ...]] = [("run", "net.onnx", "--engines", "ort", *short, "run")]
    if "trtexec" in list_features():
        commands.append(("build", "net.onnx", "--out", "net.plan"))
        commands.append(("bench", "net.plan", "--engine", "trtexec", *short, "b"))
    for args in commands:
        done = run_here(folder, *args, env={"TRTEXEC": str(install_trtexec(folder / "tools", "8.6.0"))})
        assert done.returncode == 0, done.stderr
    if "trtexec" in list_features():
        (folder / "b" / "trtexec").rename(folder / "t")
        shutil.rmtree(folder / "b")
    return folder


def list_files(folder: Path) -> dict[str, int]:
    """Every file that is no cache, lock or link, and when it was written."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path): (folder / path).stat().st_mtime_ns for path in found if path.parts[0][0] not in ".e"}


@pytest.mark.feature("trtexec", "trtexec", "net.plan")
@pytest.mark.feature("deliver", "--deliver")
@pytest.mark.parametrize("row", WRITES, ids=lambda row: row["command"].strip("`").partition(" --")[0])
def test_a_command_writes_the_files_that_the_page_names(inputs: Path, tmp_path: Path, row: dict[str, str]) -> None:
    if row["command"].startswith("`export "):
        pytest.importorskip("torch")
    shutil.copytree(inputs, tmp_path, dirs_exist_ok=True)
    before = list_files(tmp_path)
    variables = environment(tmp_path, draws=True) | {"TRTEXEC": f"{tmp_path}/tools/trtexec"}
    done = run_here(tmp_path, *shlex.split(find_code(row["command"])[0]), env=variables)
    assert done.returncode == 0, done.stderr
    written = {name for name, when in list_files(tmp_path).items() if when != before.get(name)}
    named = [f"{name}*" if name.endswith("/") else name for name in find_code(row["writes"])]
    assert {name for name in written if not any(fnmatch(name, pattern) for pattern in named)} == set()
    assert [pattern for pattern in named if not any(fnmatch(name, pattern) for name in written)] == []
