"""`env`: make, list and remove environments with other versions, in the user's cache folder."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from enginebench import door
from enginebench.core.commands import format_command
from enginebench.core.errors import ArtifactError, BackendUnavailable, EngineBenchError, MissingDependency, UsageError
from enginebench.core.store import explain_writing
from enginebench.engines.registry import list_installed
from enginebench.measure.machine import PACKAGES
from enginebench.options import Printed, Progress, Texts, Unpack, verb
from enginebench.runs.child import environments
from enginebench.runs.child.environments import (
    NEEDED,
    check_environment_name,
    describe_environment,
    environments_folder,
)
from enginebench.runs.child.programs import Unfinished, run_group
from enginebench.runs.progress import Reporter
from enginebench.verbs.common import open_progress, split_texts

if TYPE_CHECKING:
    from rich.console import Console

# PyTorch with its dependencies takes minutes over a slow line.
INSTALL_TIMEOUT_S = 3600.0

_REQUIREMENT = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(\[[A-Za-z0-9,._-]+\])?((==|>=|<=|~=|!=|<|>)[A-Za-z0-9.*+!_-]+,?)*"
)


class EnvironmentLine(Struct, frozen=True, kw_only=True):
    name: str
    path: str
    python: str | None = None
    packages: dict[str, str] = {}
    fault: str | None = None


class EnvironmentsDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `env list`, and of `env make` with the new environment alone."""

    schema: str = "enginebench.env/1"
    folder: str
    environments: tuple[EnvironmentLine, ...]


@verb(Progress)
def make_environment(name: str, requirements: Texts, **options: Unpack[Progress]) -> EnvironmentLine:
    """Make the environment NAME with these packages.

    Example: enginebench env make old onnxruntime==1.24.4

    It is made in the user's cache folder, with uv if that is installed, else with venv and pip.

    Args:
        name: letters, digits, dots, hyphens and underscores.
        requirements: PACKAGE or PACKAGE==VERSION, one or several.

    Raises:
        UsageError: the name is taken, or a requirement is malformed.
        MissingDependency: neither uv nor pip is here.
        BackendUnavailable: a package cannot be had; says why in the installer's words.
        ArtifactError: the folder cannot be written.
    """
    with open_progress(options["progress"]) as reporter:
        return install_environment(name, split_texts(requirements), reporter=reporter)


def list_environments() -> tuple[EnvironmentLine, ...]:
    """List the environments and what is installed in each.

    Example: enginebench env list
    """
    return tuple(describe(name, path) for name, path in environments.list_named_environments().items())


@door.command(make_environment, "NAME", "PACKAGE==VERSION...", name="make")
def _make(name: str, requirements: tuple[str, ...], shown: Printed, **options: Unpack[Progress]) -> None:
    _show((make_environment(name, requirements, **options),), shown)


@door.command(list_environments, name="list")
def _list(shown: Printed) -> None:
    _show(list_environments(), shown)


def _show(lines: tuple[EnvironmentLine, ...], shown: Printed) -> None:
    door.show(EnvironmentsDocument(folder=str(environments_folder()), environments=lines), shown, print_environments)


def print_environments(document: EnvironmentsDocument, console: Console) -> None:
    from enginebench.report.table import Section, list_texts, make_table
    from enginebench.report.terminal import print_sections

    if not document.environments:
        click.echo(f"no environment was made yet: {format_command('env make', 'NAME', 'PACKAGE==VERSION')}")
        return
    lines = []
    for line in document.environments:
        # Only packages that can change a number or an output.
        shown = [name for name in PACKAGES if name.lower() in line.packages]
        contents = ", ".join(f"{name} {line.packages[name.lower()]}" for name in shown)
        lines.append((line.name, line.python or "-", line.fault or contents))
    print_sections([Section(parts=(make_table(list_texts(("name", "python", "holds")), lines),))], console)


def install_environment(name: str, requirements: Sequence[str], *, reporter: Reporter) -> EnvironmentLine:
    """Make an environment with these packages, and those that every child needs. It appears once it is complete."""
    final = environments_folder() / check_environment_name(name)
    if name in environments.list_named_environments():
        raise UsageError(f"environment {name} exists: {final}. Remove it first, or choose another name")
    for text in requirements:
        if not _REQUIREMENT.fullmatch(text):
            raise UsageError(f"{text!r} is not a requirement; expected PACKAGE or PACKAGE==VERSION")
    with explain_writing(final), _open_stage(final) as folder:
        reporter.step(f"installing {', '.join(requirements)}")
        _fill(folder, [*requirements, *NEEDED])
        folder.rename(final)
    return describe(name, final)


@contextmanager
def _open_stage(final: Path) -> Iterator[Path]:
    """Open a hidden folder beside `final`, removed at the end, with those of processes killed hours ago."""
    final.parent.mkdir(parents=True, exist_ok=True)
    for left in final.parent.glob(".*-????????"):
        with suppress(OSError):
            if time.time() - left.lstat().st_mtime > 2 * INSTALL_TIMEOUT_S:  # no installation takes so long
                shutil.rmtree(left)
    with tempfile.TemporaryDirectory(prefix=f".{final.name}-", dir=final.parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _fill(folder: Path, requirements: Sequence[str]) -> None:
    inside = str(folder / "bin" / "python")
    if uv := shutil.which("uv"):
        _run([uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder)])
        _run([uv, "pip", "install", "--quiet", "--python", inside, *requirements])
        return
    if not has_pip():
        raise MissingDependency("pip (or uv), which makes environments,", f"{sys.executable} -m ensurepip")
    _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    pip = [sys.executable, "-m", "pip", "--python", inside, "--disable-pip-version-check"]
    _run([*pip, "install", "--quiet", *requirements])


def has_pip() -> bool:
    """Return whether pip is installed here, without looking for its module: setuptools would intercept that."""
    return bool(list_installed(("pip",)))


def _run(command: Sequence[str]) -> str:
    try:
        done = run_group(command, INSTALL_TIMEOUT_S)
    except Unfinished as error:
        raise BackendUnavailable(f"{Path(command[0]).name} {error}") from error
    if done.returncode:
        raise BackendUnavailable(find_install_error(done.stderr or done.stdout))
    return done.stdout


def find_install_error(output: str) -> str:
    """Return why packages could not be installed, in one sentence, from the output of pip or uv."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if any(sign in output for sign in ("NewConnectionError", "Temporary failure", "Could not fetch", "dns error")):
        return f"the package index cannot be reached: {_find_line(lines, 'rror')}"
    if match := re.search(r"satisfies the requirement (\S+).*?from versions: ([^)]*)\)", output, re.DOTALL):
        available = [version.strip() for version in match[2].split(",") if version.strip() not in ("", "none")]
        newest = (
            f"; the newest there are {', '.join(available[-5:])}" if available else "; there is none for this system"
        )
        return f"no version on the package index satisfies {match[1]}{newest}"
    return f"the packages cannot be installed: {_find_line(lines, 'ERROR', 'error', '×', '╰')}"


def _find_line(lines: Sequence[str], *signs: str) -> str:
    chosen = [line for line in lines if any(sign in line for sign in signs)] or list(lines) or ["no reason was given"]
    return chosen[-1][:300]


def describe(name: str, path: Path) -> EnvironmentLine:
    try:
        environment = describe_environment(name)
    except EngineBenchError as error:
        return EnvironmentLine(name=name, path=str(path), fault=str(error))
    version = ".".join(map(str, environment.version))
    return EnvironmentLine(
        name=name, path=str(path), python=version, packages=dict(sorted(environment.packages.items()))
    )


def remove_environment(name: str) -> Path:
    """Delete the environment NAME.

    Example: enginebench env remove old

    Args:
        name: of the environment.

    Raises:
        UsageError: there is none of this name.
        ArtifactError: it cannot be deleted.
    """
    made = environments.list_named_environments()
    if name not in made:
        existing = ", ".join(made) or "none"
        raise UsageError(f"no environment {name!r} was made here; there is {existing}")
    try:
        hidden = tempfile.mkdtemp(prefix=f".{name}-", dir=made[name].parent)
        shutil.rmtree(made[name].rename(hidden))  # renamed first, so that no half of it is taken for an environment
    except OSError as error:
        raise ArtifactError(f"{made[name]}: cannot be deleted ({error.strerror})") from error
    return made[name]


def list_index_versions(package: str) -> list[str]:
    """List the versions of a package on the index that install here, oldest first."""
    if not has_pip():
        raise MissingDependency("pip, which asks the package index,", f"{sys.executable} -m ensurepip")
    output = _run([sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", package])
    match = re.search(r"^Available versions: (.*)$", output, re.MULTILINE)
    if match is None:
        raise BackendUnavailable(f"the package index lists no version of {package}")
    return [version.strip() for version in match[1].split(",")][::-1]


def cut_range(versions: Sequence[str], package: str, good: str, bad: str) -> list[str]:
    """Return the versions from the good one to the bad one; `1.24` stands for the newest 1.24."""
    ends = []
    for text in (good, bad):
        series = [v for v in versions if v == text or v.startswith(f"{text}.")]
        if not series:
            rest = f" and {len(versions) - 8} earlier ones" if len(versions) > 8 else ""
            raise UsageError(
                f"{package} {text} is not on the package index; there are {', '.join(versions[-8:])}{rest}"
            )
        ends.append(versions.index(text if text in series else series[-1]))
    if ends[0] >= ends[1]:
        raise UsageError(f"--bad {bad} is not a later version of {package} than --good {good}")
    return list(versions[ends[0] : ends[1] + 1])


@door.command(remove_environment, "NAME", name="remove")
def _remove(name: str, shown: Printed) -> None:
    environment = remove_environment(name)
    if shown["as_json"]:
        _show(list_environments(), shown)
    else:
        click.echo(f"removed {environment}")


command = door.group(
    "env",
    _make,
    _list,
    _remove,
    help="""Make environments with other versions of a runtime, to compare them.

    Example: enginebench env make old onnxruntime==1.24.4

    `enginebench run MODEL --engines ort,ort:env=old` then measures both versions, interleaved. An environment needs no
    EngineBench: only the runtime, and a few small packages that `env make` adds.
    """,
)
