"""The command line from outside: exit code, stream, and the facts that each command of a session prints.

Sessions of the kernel are `sessions/*.txt`; that of a feature lies beside its tests, `tests/unit/features/NAME/*.txt`,
or `plugins/NAME/tests/*.txt` of a package.

A session is a folder of its own, in which the commands of one file run one after another, as a user types them:

    # a remark
    + COMMAND      prepares a file: it must succeed, and nothing else of it is looked at
    $ COMMAND      is checked by the lines below it
    | FACT         a line of standard output contains it, below the line of the fact before
    ! FACT         likewise of standard error
    = CODE         the exit code

`...` in a fact stands for any text within a line; a lone `...` is any output. Without a `|` line, standard output has
to be empty; without a `!` line, standard error. A JSON document is read as lines `rows[0].id = "ort-fp32-b1"`.
The folder of the session is HERE. Facts are ids, figures of stored runs, options, paths and the words of a verdict, not
whole sentences: those stand beside what makes them, and their unit tests hold them.

`enginebench ARGS` is forked from a process that is warm; anything else goes to `sh`.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import golden_graphs
from enginebench.core.features import find_plugins
from printed_commands import find_faults
from printed_facts import find_fault, list_lines
from processes import ROOT, UNDRAWN

HERE = Path(__file__).resolve().parent
# Those of a package in plugins/ where it is installed.
BROUGHT = [path for path in ROOT.glob("plugins/*/tests/*.txt") if find_plugins(f"verb.{path.stem}")]
SESSIONS = sorted(
    [*HERE.glob("sessions/*.txt"), *ROOT.glob("tests/unit/features/*/*.txt"), *BROUGHT], key=lambda path: path.name
)
FORKED = re.compile(r"enginebench( [^|&;<>$`()*?~]+?)")
STREAMS = {"|": "standard output", "!": "standard error"}

# What `sh` finds beside the programs of the system.
PROGRAMS = {"enginebench": '"$PYTHON" -m enginebench', "trtexec-fake": '"$PYTHON" "$FAKES/fake_trtexec.py" 10.16'}


@dataclass
class Step:
    """A command of a session, and what is expected of it."""

    command: str
    checked: bool
    facts: dict[str, list[str]] = field(default_factory=lambda: {mark: [] for mark in STREAMS})
    code: str = "0"


@dataclass
class Printed:
    """What a command printed, by the mark of the stream, and its exit code."""

    text: dict[str, str]
    code: int


def read_session(path: Path) -> list[Step]:
    """The commands of a file, in order."""
    steps: list[Step] = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        mark, _, rest = line.partition(" ")
        if mark in ("$", "+"):
            steps.append(Step(rest, mark == "$"))
        elif mark in STREAMS:
            steps[-1].facts[mark].append(rest)
        elif mark == "=":
            steps[-1].code = rest
        else:
            assert mark in ("#", ""), f"{path.name}:{number}: expected a line that begins with one of # + $ | ! ="
    return steps


class Worker:
    """The warm process, and the environment that all commands have."""

    def __init__(self, graphs_at: Path) -> None:
        self.graphs_at = graphs_at
        command = [sys.executable, str(HERE / "worker.py")]
        environment = self.environment(graphs_at)
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )

    def environment(self, folder: Path) -> dict[str, str]:
        """Nothing of the caller's settings but where its programs and packages are."""
        kept = ("LD_LIBRARY_PATH", "OMP_NUM_THREADS", "VIRTUAL_ENV")
        return {
            **{name: os.environ[name] for name in kept if name in os.environ},
            "PATH": f"{self.graphs_at / 'bin'}{os.pathsep}{os.environ['PATH']}",
            # But for where a command asks for PYTHONPATH="$PICTURES" none can be drawn.
            "PYTHONPATH": f"{UNDRAWN}{os.pathsep}{ROOT / 'src'}",
            "PICTURES": str(ROOT / "src"),
            "HOME": str(folder),
            "TMPDIR": str(folder / "tmp"),
            "XDG_CACHE_HOME": str(self.graphs_at / "cache"),
            "ENGINEBENCH_CEILINGS": str(folder / "ceilings"),
            "COLUMNS": "400",
            "LANG": "C.UTF-8",
            "OMP_WAIT_POLICY": "PASSIVE",
            "OPENBLAS_NUM_THREADS": "1",
            "GRAPHS": str(self.graphs_at),
            "RESULTS": str(ROOT / "results"),
            "FAKES": str(ROOT / "tests" / "fakes"),
            "PYTHON": sys.executable,
        }

    def run(self, command: str, folder: Path, scratch: Path) -> Printed:
        """Run a command in the session's folder."""
        out, err = scratch / "stdout", scratch / "stderr"
        environment = self.environment(folder)
        if match := FORKED.fullmatch(command):
            argv = shlex.split(match[1])
            streams = {"stdout": str(out), "stderr": str(err)}
            code = self.ask({"argv": argv, "cwd": str(folder), "environment": environment, **streams})
        else:
            with out.open("wb") as out_file, err.open("wb") as err_file:
                code = subprocess.run(
                    ["sh", "-c", command],
                    stdin=subprocess.DEVNULL,
                    stdout=out_file,
                    stderr=err_file,
                    cwd=folder,
                    env=environment,
                    start_new_session=True,
                    check=False,
                    timeout=120,
                ).returncode
        text = {mark: path.read_text("utf-8", "replace") for mark, path in zip(STREAMS, (out, err), strict=True)}
        return Printed({mark: printed.replace(str(folder), "HERE") for mark, printed in text.items()}, code)

    def ask(self, command: dict[str, object]) -> int:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture(scope="session")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    folder = tmp_path_factory.mktemp("graphs")
    golden_graphs.make_all(folder)
    (folder / "bin").mkdir()
    (folder / "tmp").mkdir()
    for name, line in PROGRAMS.items():
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {line} "$@"\n', encoding="utf-8")
        (folder / "bin" / name).chmod(0o755)
    started = Worker(folder)
    with started.process:  # leaving it closes the pipes, at whose end the process ends
        yield started


@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: path.stem)
def test_commands_print_their_facts_and_end_with_their_codes(path: Path, worker: Worker, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    (folder / "tmp").mkdir(parents=True)
    faults: list[str] = []
    for step in read_session(path):
        printed = worker.run(step.command, folder, tmp_path)
        expected = step.facts if step.checked else {}
        found = [f"exit code {printed.code}, expected {step.code}"] if str(printed.code) != step.code else []
        for mark, facts in expected.items():
            fault = find_fault(facts, printed.text[mark])
            found += [f"{STREAMS[mark]}: {fault}"] if fault else []
        found += (
            find_faults(step.command, [line for text in printed.text.values() for line in list_lines(text)])
            if step.checked
            else []
        )
        if found:
            whole = "\n".join(f"{mark} {line}" for mark, text in printed.text.items() for line in text.splitlines())
            faults += [f"$ {step.command}", *found, *([] if expected and len(whole) < 20 else [whole[:3000]])]
    if faults:
        pytest.fail("\n".join([f"{path.relative_to(ROOT)}:", *faults]), pytrace=False)


def list_verbs(*group: str) -> list[str]:
    """The verbs of the program, or of a verb that has verbs of its own, from its help."""
    command = [sys.executable, "-m", "enginebench", *group, "--help"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    if group and "COMMAND [ARGS]" not in done.stdout.partition("\n")[0]:
        return [*group]
    _, _, listed = done.stdout.partition("Show this message and exit.\n")
    verbs = re.findall(r"^  ([a-z][a-z-]*)", listed, re.MULTILINE)
    return [name for verb in verbs for name in (list_verbs(verb) if not group else [f"{group[0]} {verb}"])]


def test_every_verb_and_every_exit_code_is_among_the_commands() -> None:
    steps = [step for path in SESSIONS for step in read_session(path) if step.checked]
    for verb in list_verbs():
        called = any(f"enginebench {verb} " in f"{step.command} " for step in steps if "--help" not in step.command)
        assert called, f"no session (tests/golden) calls `enginebench {verb}`: add a line `$ COMMAND` with its facts"
    table = (ROOT / "docs" / "cli.md").read_text("utf-8").partition("## Exit codes")[2]
    documented = set(re.findall(r"^\| (\d+) \|", table, re.MULTILINE))
    assert {step.code for step in steps if "enginebench" in step.command} == documented
