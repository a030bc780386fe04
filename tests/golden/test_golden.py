"""The command line from outside: what each command of a session printed on the day it was written down.

Those of the kernel are `expected/*.txt`; those of a feature lie beside its tests, `tests/unit/features/NAME/*.txt`.

A session is a folder of its own, in which the commands of one file run one after another, as a user types them:

    $ COMMAND      compared word for word (golden_masks.py: folders and digests are masked)
    ~ COMMAND      measures something: only the form of what it prints is compared
    | a line of standard output; ! of standard error; = exit code
    # a remark

`enginebench ARGS` is forked from a process that is warm, and what it prints may go through a filter (`| sed ...`);
anything else goes to `sh`. Nothing of EngineBench is imported here: the suite knows the command line, the documented
files and the fields of the documents.

`python -m pytest tests/golden --rewrite` writes the files anew. The commit says why a line changes.
"""

import difflib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import golden_graphs
import golden_masks

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SESSIONS = sorted([*HERE.glob("expected/*.txt"), *ROOT.glob("tests/unit/features/*/*.txt")], key=lambda path: path.name)
FORKED = re.compile(r"enginebench( [^|&;<>$`()*?~]+?)(?: \| (.+))?")
COMMAND = re.compile(r"([$~]) (.*)")

# What `sh` finds beside the programs of the system.
PROGRAMS = {
    "enginebench": '"$PYTHON" -m enginebench',
    "trtexec-fake": '"$PYTHON" "$FAKES/fake_trtexec.py" 10.16',
    "pick": '"$PYTHON" "$GOLDEN/pick.py"',
}


@dataclass
class Step:
    """A command of a session, the remarks above it, and the lines that are expected of it."""

    remarks: list[str]
    measured: bool
    command: str
    expected: list[str]


def read_session(path: Path) -> list[Step]:
    """The commands of a file, in order."""
    steps: list[Step] = []
    remarks: list[str] = []
    for line in path.read_text("utf-8").splitlines():
        if match := COMMAND.fullmatch(line):
            steps.append(Step(remarks, match[1] == "~", match[2], []))
            remarks = []
        elif line.startswith(("|", "!", "=")):
            steps[-1].expected.append(line)
        else:
            remarks.append(line)
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

    def environment(self, folder: Path, width: int = 80) -> dict[str, str]:
        """Nothing of the caller's settings but where its programs and packages are."""
        kept = ("LD_LIBRARY_PATH", "OMP_NUM_THREADS", "VIRTUAL_ENV")
        return {
            **{name: os.environ[name] for name in kept if name in os.environ},
            "PATH": f"{self.graphs_at / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{self.graphs_at / 'absent'}{os.pathsep}{ROOT / 'src'}",
            "PICTURES": str(ROOT / "src"),
            "HOME": str(folder),
            "TMPDIR": str(folder / "tmp"),
            "XDG_CACHE_HOME": str(self.graphs_at / "cache"),
            "ENGINEBENCH_CEILINGS": str(folder / "ceilings"),
            "COLUMNS": str(width),
            "LANG": "C.UTF-8",
            "OMP_WAIT_POLICY": "PASSIVE",
            "OPENBLAS_NUM_THREADS": "1",
            "GRAPHS": str(self.graphs_at),
            "RESULTS": str(ROOT / "results"),
            "FAKES": str(ROOT / "tests" / "fakes"),
            "GOLDEN": str(HERE),
            "PYTHON": sys.executable,
        }

    def run(self, step: Step, folder: Path, scratch: Path) -> list[str]:
        """What the command prints and ends with, as lines of a session."""
        streams = scratch / "stdout", scratch / "stderr"
        environment = self.environment(folder, 200 if step.measured else 80)
        match = FORKED.fullmatch(step.command)
        if match:
            asked = {"argv": shlex.split(match[1]), "cwd": str(folder), "environment": environment}
            code = self.ask({**asked, "stdout": str(streams[0]), "stderr": str(streams[1])})
        if not match or match[2]:
            shell = ["sh", "-c", match[2] if match else step.command]
            source = scratch / "stdin"
            source.write_bytes(streams[0].read_bytes() if match else b"")
            more = "ab" if match else "wb"
            with source.open("rb") as given, streams[0].open("wb") as out, streams[1].open(more) as err:
                ends = {"stdin": given, "stdout": out, "stderr": err, "cwd": folder, "env": environment}
                done = subprocess.run(shell, start_new_session=True, check=False, timeout=120, **ends)
            code = code if match else done.returncode
        places = {str(folder): "HERE", str(self.graphs_at): "SHARED", sys.executable: "PYTHON"}
        out_text, err_text = (
            golden_masks.mask(path.read_text("utf-8", "replace"), places, measured=step.measured) for path in streams
        )
        if step.measured:
            err_text = golden_masks.mask_progress(err_text)
            if golden_masks.read_json(streams[0].read_text("utf-8", "replace")) is None:
                out_text = golden_masks.mask_tables(out_text)
        return [
            *(f"| {line}".rstrip() for line in out_text.splitlines()),
            *(f"! {line}".rstrip() for line in err_text.splitlines()),
            f"= {code}",
        ]

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
    # Pictures take longer than all else: but for where a command asks for PYTHONPATH="$PICTURES" they cannot be drawn.
    (folder / "absent").mkdir()
    for name in ("altair", "vl_convert"):
        (folder / "absent" / f"{name}.py").write_text("raise ImportError('absent in these sessions')\n")
    for name, line in PROGRAMS.items():
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec {line} "$@"\n', encoding="utf-8")
        (folder / "bin" / name).chmod(0o755)
    started = Worker(folder)
    with started.process:  # leaving it closes the pipes, at whose end the process ends
        yield started


@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: path.stem)
def test_commands_answer_as_they_were_written_down(path, worker, tmp_path, pytestconfig) -> None:
    folder = tmp_path / "here"
    (folder / "tmp").mkdir(parents=True)
    written: list[str] = []
    changed: list[str] = []
    for step in read_session(path):
        lines = worker.run(step, folder, tmp_path)
        written += [*step.remarks, f"{'~' if step.measured else '$'} {step.command}", *lines]
        if lines != step.expected:
            changed += [f"$ {step.command}", *difflib.unified_diff(step.expected, lines, "expected", "now", "", "", 2)]
    if pytestconfig.getoption("--rewrite", default=False):
        path.write_text("\n".join(written) + "\n", encoding="utf-8")
    elif changed:
        meant = f"if that is meant: python -m pytest tests/golden --rewrite -k {path.stem}"
        first = f"{path.name}: other answers than those written down; {meant}"
        pytest.fail("\n".join([first, *changed]), pytrace=False)


def list_verbs(*group: str) -> list[str]:
    """The verbs of the program, or of a verb that has verbs of its own, from its help."""
    command = [sys.executable, "-m", "enginebench", *group, "--help"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    _, _, listed = done.stdout.partition("Show this message and exit.\n")
    verbs = re.findall(r"^  ([a-z][a-z-]*)", listed, re.MULTILINE)
    return [name for verb in verbs for name in (list_verbs(verb) if not group else [f"{group[0]} {verb}"])] or [*group]


def test_every_verb_and_every_exit_code_is_among_the_commands() -> None:
    steps = [step for path in SESSIONS for step in read_session(path)]
    for verb in list_verbs():
        called = any(f"enginebench {verb} " in f"{step.command} " for step in steps if "--help" not in step.command)
        assert called, f"no session (tests/golden) calls `enginebench {verb}`: add a line `$ COMMAND`, and --rewrite"
    table = (ROOT / "docs" / "cli.md").read_text("utf-8").partition("## Exit codes")[2]
    documented = set(re.findall(r"^\| (\d+) \|", table, re.MULTILINE))
    ours = [step for step in steps if "enginebench" in step.command and step.expected]
    assert {step.expected[-1].removeprefix("= ") for step in ours} == documented
