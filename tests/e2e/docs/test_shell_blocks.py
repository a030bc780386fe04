"""The shell blocks of the pages run: every ```sh block, in order, a scratch folder for each page.

Blocks fenced ```console and ```text show output and are not run. What a test must not do (install, build a virtual
environment, measure for minutes) stands in `LEFT_TO_CI`, and what stands there is run by `.ci/run` on a clean clone.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.trtexec_shim import install_trtexec
from pages import PAGES, find_shell_blocks
from processes import ROOT, environment
from shared import make_once

# Each with the line of `.ci/run` that runs the same thing.
LEFT_TO_CI = {
    r"make run\b.*": "make run",
    r"make test\b.*": "make test",
    r"make check\b.*": "make check",
    r"make docs\b.*": "make docs",
    r"(?:python3? -m )?pip install\b.*": "pip install",
    r"enginebench doctor": "enginebench doctor",
}
# Pages whose commands run trtexec: here over the fake.
WITH_TRTEXEC = ("a-day-with-trtexec.md", "layer-fusion.md")
# Pages that speak of pictures: the others' are nobody's to look at.
DRAWN = ("reports.md",)
TIMEOUT_S = 540  # the page with the most trials takes 131 s alone on two slow cores, and others run beside it
# Half of the pages begin with the first, and some go on with the second: they are run once, and every page gets a copy
# of the graph and of the run by the names that it chose.
EXPORT = re.compile(r"enginebench export digits-mlp --dynamic-batch --out ([\w.-]+\.onnx)(?:\s+#.*)?")
RUN = re.compile(r"enginebench run [\w.-]+\.onnx --engines ort,openvino --quick --out ([\w./-]+)")
# The figures are for readers who believe them, and take their time; of these here nobody looks at one.
SHORTER = (
    (re.compile(r"--processes 6\b"), "--processes 2"),
    (
        re.compile(r"^enginebench (run|bench) (?!.*(?:--time-limit|--iters|--dry-run))"),
        r"enginebench \1 --time-limit 0.1 ",
    ),
    (
        re.compile(r"^enginebench run (?!.*(?:--quick|--processes|--config|--dry-run))"),
        "enginebench run --processes 2 ",
    ),
)


def split_block(block: str) -> tuple[list[str], list[str]]:
    """(lines to run here, lines that CI runs)."""
    lines = block.splitlines()
    left = [line for line in lines if is_left_to_ci(line)]
    return [line for line in lines if line not in left], left


def is_left_to_ci(line: str) -> bool:
    return any(re.fullmatch(pattern, line.partition("#")[0].strip()) for pattern in LEFT_TO_CI)


def make_script(page: Path, made: Path | None = None) -> str:
    """All blocks of a page as one script that ends at the first command that fails.

    Args:
        page: with the blocks.
        made: the folder with what `EXPORT` and `RUN` make; None: these lines are run.
    """
    lines = [line for block in find_shell_blocks(page) for line in split_block(block)[0]]
    if made is not None:
        lines = [EXPORT.sub(rf"cp '{made}/net.onnx' \1", line) if EXPORT.fullmatch(line) else line for line in lines]
        copy = rf"mkdir -p $(dirname \1) && cp -r '{made}/run' \1"
        lines = [RUN.sub(copy, line) if RUN.fullmatch(line) else line for line in lines]
    for long, short in SHORTER:
        lines = [long.sub(short, line) for line in lines]
    return "\n".join(["set -euo pipefail", *lines, ""])


def install_commands(folder: Path) -> None:
    """`enginebench`, `python` and `python3` as an installation would put them on PATH, run from the sources."""
    folder.mkdir()
    commands = {"enginebench": " -m enginebench", "python": "", "python3": ""}
    for name, arguments in commands.items():
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
        path.chmod(0o755)


def run_script(script: str, folder: Path, *, draws: bool = False) -> subprocess.CompletedProcess[str]:
    install_commands(folder / "bin")
    scratch = folder / "scratch"
    scratch.mkdir()
    variables = environment(folder, draws=draws) | {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        [shutil.which("bash") or "sh", "-c", script],
        cwd=scratch,
        env=variables,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the graph of `EXPORT` and the run of `RUN`."""
    page = tmp_path_factory.mktemp("page") / "page.md"
    page.write_text(
        "```sh\nenginebench export digits-mlp --dynamic-batch --out net.onnx\n"
        "enginebench run net.onnx --engines ort,openvino --quick --out run\n```\n"
    )

    def make(folder: Path) -> None:
        done = run_script(make_script(page), folder)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

    return make_once(tmp_path_factory, "exported", make) / "scratch"


@pytest.mark.timeout(TIMEOUT_S + 60)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_shell_blocks_of_a_page_run(page, tmp_path, request, monkeypatch) -> None:
    begins = any(EXPORT.fullmatch(line) for block in find_shell_blocks(page) for line in block.splitlines())
    made = request.getfixturevalue("made") if begins else None
    if page.name in WITH_TRTEXEC:
        tools = install_trtexec(tmp_path / "tools", "10.16").parent
        monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    done = run_script(make_script(page, made), tmp_path, draws=page.name in DRAWN)
    assert done.returncode == 0, f"{page.name} ends with {done.returncode}:\n{done.stdout}\n{done.stderr}"


def test_only_what_is_listed_is_left_to_ci_which_runs_it() -> None:
    assert {page.name for page in PAGES if find_shell_blocks(page)} >= {"cli.md", *WITH_TRTEXEC}
    block = "make run MODEL=resnet18  # minutes\nmake bench\npip install enginebench\nenginebench doctor --json\n"
    assert split_block(block) == (
        ["make bench", "enginebench doctor --json"],
        ["make run MODEL=resnet18  # minutes", "pip install enginebench"],
    )
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").replace("bin/pip", "pip").replace('"', "")
    for command in LEFT_TO_CI.values():
        assert re.search(rf"(?:^|/){command}\b", script, re.MULTILINE), command


def test_no_block_of_commands_hides_behind_another_name() -> None:
    """A block fenced ```shell would not run; an indented one neither, but for those of the steps in CONTRIBUTING."""
    fences = {
        (page.name, indent, name)
        for page in PAGES
        for indent, name in re.findall(r"^( *)```(\w+)", page.read_text("utf-8"), re.MULTILINE)
    }
    assert [fence for fence in fences if fence[2] in ("bash", "shell", "zsh")] == []
    assert {page for page, indent, name in fences if indent and name == "sh"} <= {"CONTRIBUTING.md"}


def test_a_command_that_fails_fails_its_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\ntrue\n```\n```sh\nenginebench nonsense\ntrue\n```\n```console\nfalse\n```\n")
    (tmp_path / "run").mkdir()
    done = run_script(make_script(page), tmp_path / "run")
    assert done.returncode == 2
    assert "nonsense" in done.stderr
