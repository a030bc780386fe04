"""The names that the package offers: which they are, that they cost nothing, and that they say what the verbs say."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import enginebench
from enginebench.core import errors
from enginebench.core.features import list_names
from processes import ROOT, environment

KERNEL = [
    "ArtifactError", "BackendUnavailable", "Bench", "ChildFailed", "DependencyError", "DeviceBusy",
    "EngineBenchError", "FeedError", "GateFailed", "MeasurementError", "MissingDependency", "ModelError",
    "ParseError", "Result", "Run", "TimedOut",
    "UnsupportedOperator", "UsageError", "accuracy", "allow_code", "bench", "build",
    "calibrate", "diff", "doctor", "drift", "export", "history", "infer", "list_baselines", "list_models",
    "load_engine", "profile", "quantize", "read", "remove_baseline", "run", "save_baseline", "stages", "write_report",
]  # fmt: skip
# Each feature says which it adds, and there they are tested.
PUBLIC = sorted([*KERNEL, *list_names("functions")])


def test_all_is_what_it_was() -> None:
    assert sorted(enginebench.__all__) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_name_is_there_and_says_what_it_is_and_what_each_argument_is(name: str) -> None:
    found = getattr(enginebench, name)
    text = inspect.getdoc(found)
    assert text
    if name.islower() and name != "load_engine":
        assert [p for p in inspect.signature(found).parameters if f"\n    {p}: " not in text] == []


def test_checkers_of_types_see_the_same_names() -> None:
    source = Path(enginebench.__file__).parent
    trees = [ast.parse((source / name).read_text("utf-8")) for name in ("__init__.py", "features/__init__.py")]
    imported = [n for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for n in node.names]
    assert sorted(alias.name for alias in imported if alias.asname == alias.name) == PUBLIC, "make tables"
    assert (Path(enginebench.__file__).parent / "py.typed").is_file()


def test_every_error_is_offered() -> None:
    kinds = [n for n, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert set(kinds) <= set(PUBLIC)


def test_the_import_brings_nothing_along() -> None:
    script = (
        "import sys; before = set(sys.modules); import enginebench; enginebench.__version__\n"
        "print(sorted(m for m in set(sys.modules) - before if m.split('.')[0] not in sys.stdlib_module_names))\n"
        "dir(enginebench)\n"  # reads what features bring, whose files import nothing
        "print({m.split('.')[0] for m in set(sys.modules) - before} - sys.stdlib_module_names)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(ROOT), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["['enginebench']", "{'enginebench'}"]


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'enginebench' has no attribute 'runn'"):
        enginebench.runn  # noqa: B018
