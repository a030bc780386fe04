"""The names that the package offers: which they are, that they cost nothing, and that they say what the verbs say."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

import enginebench
from enginebench.api.checks import CHOICES, OPEN_RANGES, RANGES
from enginebench.core import errors
from enginebench.door import VERBS
from processes import ROOT, environment

PUBLIC = [
    "ArtifactError",
    "BackendUnavailable",
    "Bench",
    "ChildFailed",
    "DependencyError",
    "DeviceBusy",
    "EngineBenchError",
    "FeedError",
    "GateFailed",
    "MeasurementError",
    "MissingDependency",
    "ModelError",
    "ParseError",
    "Result",
    "Run",
    "UnsupportedOperator",
    "UsageError",
    "accuracy",
    "allow_code",
    "bench",
    "bisect",
    "budget",
    "build",
    "calibrate",
    "deliver",
    "diff",
    "doctor",
    "drift",
    "export",
    "history",
    "infer",
    "list_baselines",
    "list_environments",
    "list_models",
    "load",
    "load_engine",
    "make_environment",
    "parse_layers",
    "parse_log",
    "parse_profile",
    "parse_times",
    "profile",
    "quantize",
    "read",
    "remove_baseline",
    "remove_environment",
    "roofline",
    "run",
    "save_baseline",
    "stages",
    "sweep",
    "tune",
    "write_report",
]

# `models`, `report` and `fpga` are rooms of the package: functions of these names would hide them, or be hidden.
FUNCTIONS = {
    "models": "list_models",
    "report": "write_report",
    "env make": "make_environment",
    "env list": "list_environments",
    "env remove": "remove_environment",
    "baseline save": "save_baseline",
    "baseline list": "list_baselines",
    "baseline rm": "remove_baseline",
    "parse log": "parse_log",
    "parse times": "parse_times",
    "parse profile": "parse_profile",
    "parse layers": "parse_layers",
}
# The gateware is driven from the command line, or through its own room.
WITHOUT_FUNCTION = ["fpga"]
# What only a command line has: texts to print and files of what a function returns.
OF_THE_COMMAND_LINE = {
    "bench": {"junit", "summary", "dry_run", "tensorrt_version", "log"},
    "build": {"dry_run", "tensorrt_version"},
    "calibrate": {"device"},
    "export": {"device"},
    "infer": {"out"},
    "profile": {"topk", "out"},
    "stages": {"out"},
    "diff": {"junit", "summary"},
    "sweep": {"dry_run"},
    "report": {"warnings"},
    "history": {"out", "last", "parquet", "mlflow", "experiment"},
    "budget": {"picture"},
    "parse log": {"out"},
    "parse times": {"out"},
    "parse profile": {"out", "topk"},
    "parse layers": {"out", "topk"},
}
# `from` and `as` are words of Python; `--format` holds several.
RENAMED = {("budget", "from"): "source", ("report", "format"): "formats", ("deliver", "as"): "forms"}


def test_all_is_what_it_was() -> None:
    assert sorted(enginebench.__all__) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_is_there_and_says_what_it_is(name: str) -> None:
    found = getattr(enginebench, name)
    assert inspect.getdoc(found)


def test_checkers_of_types_see_the_same_names() -> None:
    tree = ast.parse(Path(enginebench.__file__).read_text("utf-8"))
    imported = [alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted({*imported} - {"annotations", "TYPE_CHECKING", "import_module"}) == PUBLIC
    assert (Path(enginebench.__file__).parent / "py.typed").is_file()


def test_every_error_is_offered() -> None:
    kinds = [n for n, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert set(kinds) <= set(PUBLIC)


def test_the_import_brings_nothing_along() -> None:
    script = (
        "import sys; before = set(sys.modules); import enginebench; dir(enginebench); enginebench.__version__\n"
        "print(sorted(m for m in set(sys.modules) - before if m.split('.')[0] not in sys.stdlib_module_names))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(ROOT), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['enginebench']"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'enginebench' has no attribute 'runn'"):
        enginebench.runn  # noqa: B018


def list_verbs() -> list[tuple[str, click.Command]]:
    """(name, command) of every verb, those of groups with two words."""
    found = []
    for name, (module, _) in VERBS.items():
        command = import_module(module).command
        members = command.commands.items() if isinstance(command, click.Group) else ()
        found += [(f"{name} {member}", one) for member, one in members] or [(name, command)]
    # What is declared once cannot differ.
    found = [(name, command) for name, command in found if not hasattr(command, "declared")]
    return [(name, command) for name, command in found if name.split()[0] not in WITHOUT_FUNCTION]


def name_option(verb: str, parameter: click.Parameter) -> str:
    """The argument of an option: its long name with underscores."""
    name = max(parameter.opts, key=len).lstrip("-").replace("-", "_")
    return RENAMED.get((verb, name), name)


@pytest.mark.parametrize(("verb", "command"), list_verbs(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_verb_is_a_function_with_the_same_options(verb: str, command: click.Command) -> None:
    function = getattr(enginebench, FUNCTIONS.get(verb, verb))
    options = [p for p in command.params if isinstance(p, click.Option)]
    # `allow_code` is a function of its own.
    wanted = {name_option(verb, p) for p in options} - {"json", "allow_code"} - OF_THE_COMMAND_LINE.get(verb, set())
    assert wanted - set(inspect.signature(function).parameters) == set()
    left_out = OF_THE_COMMAND_LINE.get(verb, set()) - {name_option(verb, p) for p in options}
    assert left_out == set(), "no such option"


@pytest.mark.parametrize(("verb", "command"), list_verbs(), ids=lambda value: value if isinstance(value, str) else "")
def test_defaults_and_ranges_are_those_of_the_command_line(verb: str, command: click.Command) -> None:
    arguments = inspect.signature(getattr(enginebench, FUNCTIONS.get(verb, verb))).parameters
    for option in (p for p in command.params if isinstance(p, click.Option)):
        name = name_option(verb, option)
        argument = arguments.get(name)
        if argument is None:
            continue
        plain = isinstance(option.default, int | float | str) and not option.multiple
        if plain and name not in ("percentile", "formats", "batch") and argument.default is not inspect.Parameter.empty:
            assert argument.default == option.default, name
        kind = option.type
        if isinstance(kind, click.IntRange | click.FloatRange) and verb != "budget":
            known = RANGES.get(name) or OPEN_RANGES[name]
            assert known == (kind.min, kind.max), name
            assert (name in OPEN_RANGES) == bool(kind.min_open), name
        if isinstance(kind, click.Choice) and not option.multiple:  # of several, the verb itself checks each
            assert CHOICES[name] == tuple(kind.choices), name


def test_every_argument_is_explained() -> None:
    for name in (n for n in PUBLIC if n.islower() and n != "load_engine"):
        function = getattr(enginebench, name)
        text = inspect.getdoc(function) or ""
        missing = [p for p in inspect.signature(function).parameters if f"\n    {p}: " not in text]
        assert missing == [], name
