"""`docs/python.md` is one script, and runs as a user would run it; what it says of functions and errors is so."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import enginebench
from pages import find_code, find_section, find_tables, read_page
from processes import environment

PAGE = read_page("python.md")
# The pages whose blocks are one script each; other blocks of Python need a GPU.
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.long
def test_the_page_runs_as_a_script(tmp_path: Path) -> None:
    """A plain script: no guard around it, and its class is one of `__main__`."""
    pytest.importorskip("torch")
    script = tmp_path / "page.py"
    script.write_text("\n".join(BLOCKS), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path, env=environment(tmp_path), capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == "", "silent"
    assert "Net@" in done.stdout
    assert "did you mean digits-cnn or digits-mlp?" in done.stdout
    assert any(folder.name.startswith("net-") for folder in (tmp_path / "results").iterdir())


def test_every_function_stands_in_the_table() -> None:
    (table,) = find_tables(find_section(PAGE, "## The functions"))
    named = set()
    for row in table:
        same = row["function"] == "the same"
        # A method stands beside the function that it is short for.
        named |= {name for name in find_code(row["command line" if same else "function"]) if "." not in name}
    assert named == {name for name in enginebench.__all__ if name.islower()}


def test_every_error_stands_in_the_table_with_its_exit_code() -> None:
    (table,) = find_tables(find_section(PAGE, "## Errors"))
    listed = {name: int(row["exit code of the command line"]) for row in table for name in find_code(row["error"])}
    kinds = {n: getattr(enginebench, n) for n in enginebench.__all__ if isinstance(getattr(enginebench, n), type)}
    errors = {name: kind.exit_code for name, kind in kinds.items() if issubclass(kind, enginebench.EngineBenchError)}
    del errors["EngineBenchError"]
    assert listed == errors


def test_what_the_page_says_of_a_run_is_there() -> None:
    (table,) = find_tables(find_section(PAGE, "## The functions"))
    for row in table:
        kind, *members = find_code(row["returns"]) or [""]
        if kind in ("Run", "Bench"):
            known = {*dir(getattr(enginebench, kind)), "results", "folder", "record"}
            assert {member.removesuffix("()") for member in members} <= known
