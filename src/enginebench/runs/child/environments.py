"""Find the environment of a child: this interpreter, or that of another environment, which need not have EngineBench.

An environment has a name, which the option `env=NAME` of an engine refers to. The name stands for a python: the user's
(`--env NAME=PATH`), or one that `env make` made in the user's cache folder.
"""

import atexit
import os
import re
import shutil
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from functools import cache
from itertools import count, takewhile
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

import enginebench
from enginebench.core.commands import format_command
from enginebench.core.cuda_devices import find_gpu_name
from enginebench.core.errors import BackendUnavailable, EngineBenchError, MissingDependency, UsageError
from enginebench.core.records import Availability, EngineSpec
from enginebench.core.store import find_cache, open_temporary
from enginebench.engines.registry import find_entry, find_installed, probe
from enginebench.measure.nvml import read_gpu_index
from enginebench.runs.child.programs import Unfinished, run_group

OPTION = "env"
# What a child imports, whatever the engine. Each is a wheel of its own, small, and for every interpreter.
NEEDED = ("numpy", "msgspec", "psutil")
OLDEST = (3, 10)
# Importing nothing but the standard library takes a tenth of a second.
ASK_TIMEOUT_S = 60.0
# Importing the slowest runtimes one after the other took 10 s; ten times that is a hang.
PROBE_TIMEOUT_S = 100.0
# Run under a python of which nothing is known yet, perhaps an old one.
QUESTION = """
import json, platform, sys
try:
    from importlib import metadata
    found = {d.metadata["Name"]: d.version for d in metadata.distributions() if d.metadata["Name"]}
except ImportError:
    found = {}
print(json.dumps({"python": list(sys.version_info[:3]), "arch": platform.machine(), "packages": found}))
"""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_named: dict[str, Path] = {}
Spec = TypeVar("Spec", bound=Struct)


class PythonEnvironment(Struct, frozen=True, kw_only=True):
    name: str
    python: str  # path of the interpreter
    version: tuple[int, ...]
    arch: str
    packages: dict[str, str]  # distribution, in lower case -> version

    def variables(self) -> dict[str, str]:
        """Variables that let it find EngineBench's own source, and nothing else of this environment."""
        inherited = os.environ.get("PYTHONPATH", "")
        return {"PYTHONPATH": os.pathsep.join(filter(None, [str(share_source()), inherited])), "VIRTUAL_ENV": ""}


def name_environments(texts: Iterable[str]) -> None:
    """Remember each NAME=PATH of `--env`; PATH is a virtual environment or a Python executable."""
    for text in texts:
        name, sep, path = text.partition("=")
        if not sep or not path:
            raise UsageError(f"--env {text!r}: expected NAME=PATH, a virtual environment or a Python executable")
        python = find_python(check_environment_name(name), Path(path).expanduser())
        if _named.setdefault(name, python) != python:
            raise UsageError(f"--env {name} stands for {_named[name]} and for {python}; choose two names")


def check_environment_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not an environment name: letters, digits, dots, hyphens and underscores")
    return name


def find_python(name: str, path: Path) -> Path:
    """The interpreter of an environment, or the interpreter itself. The path stays: a link is an environment."""
    if path.is_dir():
        inside = path / "bin" / "python"
        if not inside.exists():
            raise UsageError(f"environment {name}: {path} is not a virtual environment: it has no bin/python")
        return inside.absolute()
    program = shutil.which(path)
    if program is None:
        state = "is no program" if path.exists() else "does not exist"
        raise UsageError(f"environment {name}: {path} {state}; expected a virtual environment or a Python executable")
    return Path(program).absolute()


def environments_folder() -> Path:
    return find_cache() / "environments"


def list_named_environments() -> dict[str, Path]:
    folder = environments_folder()
    entries = sorted(folder.iterdir()) if folder.is_dir() else []
    return {path.name: path for path in entries if _NAME.fullmatch(path.name) and (path / "bin" / "python").exists()}


def find_environment(engine: EngineSpec | None) -> PythonEnvironment | None:
    name = engine.options.get(OPTION) if engine is not None else None
    return None if name is None else describe_environment(name)


def describe_environment(name: str) -> PythonEnvironment:
    """The environment of this name, asked for its version and its packages."""
    python = _named.get(name)
    if python is None:
        made = list_named_environments()
        if name not in made:
            names = ", ".join(sorted({*_named, *made})) or "none"
            raise UsageError(
                f"unknown environment {name!r}; known: {names}. Name it with --env {name}=PATH, or make it with "
                f"`{format_command('env make', name, 'PACKAGE==VERSION')}`"
            )
        python = made[name] / "bin" / "python"
    return _query_python(name, str(python))


@cache
def _query_python(name: str, python: str) -> PythonEnvironment:
    try:
        done = run_group([python, "-I", "-c", QUESTION], ASK_TIMEOUT_S)
    except OSError as error:
        hint = "; is it of another architecture?" if error.errno == 8 else ""
        raise BackendUnavailable(f"environment {name}: {python} cannot be started ({error.strerror}){hint}") from error
    except Unfinished as error:
        raise BackendUnavailable(f"environment {name}: {python} {error}") from error
    try:
        report = msgspec.json.decode(done.stdout)
        packages = {key.lower(): value for key, value in report["packages"].items()}
        environment = PythonEnvironment(
            name=name, python=python, version=tuple(report["python"]), arch=report["arch"], packages=packages
        )
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError, RecursionError) as error:
        last_line = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1][
            :200
        ]
        raise BackendUnavailable(f"environment {name}: {python} is not a working Python: {last_line}") from error
    if environment.version[:2] < OLDEST:
        actual, oldest = (".".join(map(str, version)) for version in (environment.version, OLDEST))
        raise BackendUnavailable(f"environment {name} has Python {actual}; children need {oldest} or newer")
    if missing := [package for package in NEEDED if package not in packages]:
        missing_packages = f"environment {name}: {' and '.join(missing)}, which every child needs,"
        raise MissingDependency(
            missing_packages, f"{sys.executable} -m pip --python {python} install {' '.join(missing)}"
        )
    return environment


def find_available(engine: EngineSpec) -> Availability:
    """Whether an engine can run where it is to run, and on its device: here judged without its runtime, or elsewhere.

    Packages use the GPUs that the driver shows here; a program has its own, as in a container.
    """
    name, device, entry = engine.backend, engine.device, find_entry(engine.backend)
    on_gpu = device != "cpu" and (entry.distributions or entry.modules)
    if on_gpu and not find_gpu_name(read_gpu_index(device)):
        there = ", ".join(f"cuda:{i}" for i in takewhile(find_gpu_name, count()))
        shown = there or "no GPU. Check with nvidia-smi, or use engines for CPUs"
        return Availability(engine=name, available=False, reason=f"no {device} here: the driver shows {shown}")
    availability = probe_elsewhere(engine) if OPTION in engine.options else find_installed(name)
    if (
        availability.available and on_gpu and not entry.device and not entry.describe_on(device).options
    ):  # for CPUs, or of another package
        there = ", ".join(devices := availability.devices or probe(name).devices)
        why = None if device in devices else f"engine {name} runs on {there}, not on {device}"
        return replace(availability, available=why is None, reason=why)
    return availability


def require_available(engine: EngineSpec) -> None:
    """Check, before a model is loaded for it, that an engine can run where it is to run, and on its device."""
    if why := explain_absence(find_available(engine)):
        raise BackendUnavailable(why)


def explain_absence(availability: Availability) -> str | None:
    if availability.available:
        return None
    return f"{availability.reason}. To add: {availability.fix}" if availability.fix else availability.reason


def probe_elsewhere(engine: EngineSpec) -> Availability:
    return _probe(engine.backend, engine.options[OPTION])


@cache
def _probe(name: str, environment: str) -> Availability:
    from enginebench.runs.child.isolate import run_child
    from enginebench.runs.child.jobs import ProbeJob

    try:
        described = describe_environment(environment)
        response = run_child(ProbeJob(engine=name), timeout_s=PROBE_TIMEOUT_S, environment=described)
    except EngineBenchError as error:
        return Availability(engine=name, available=False, reason=str(error))
    if response.available:
        return response
    packages = find_entry(name).distributions[:1]
    fix = f"python -m pip --python {described.python} install {packages[0]}" if packages else None
    return Availability(engine=name, available=False, reason=f"environment {environment}: {response.reason}", fix=fix)


def list_versions(environment: PythonEnvironment) -> dict[str, str]:
    """Version of every package of an environment that can change a time or an output, and of its python."""
    from enginebench.measure.machine import PACKAGES

    versions = {name: environment.packages[name.lower()] for name in PACKAGES if name.lower() in environment.packages}
    return {"python": ".".join(map(str, environment.version)), **versions}


def strip_environment(spec: Spec) -> Spec:
    """Return a job or an engine without its environment: a child does not know in which one it runs."""
    engine = spec if isinstance(spec, EngineSpec) else get_engine(spec)
    if engine is None or OPTION not in engine.options:
        return spec
    inside = replace(engine, options={key: value for key, value in engine.options.items() if key != OPTION})
    return inside if engine is spec else replace(spec, engine=inside)  # type: ignore[return-value]


def get_engine(job: object) -> EngineSpec | None:
    engine = getattr(job, "engine", None)
    return engine if isinstance(engine, EngineSpec) else None


@cache
def share_source() -> Path:
    """A folder that holds the package `enginebench` and nothing else, for the path of another interpreter."""
    opened = ExitStack()
    atexit.register(opened.close)
    folder = opened.enter_context(open_temporary())
    (folder / "enginebench").symlink_to(Path(enginebench.__file__).parent, target_is_directory=True)
    return folder
