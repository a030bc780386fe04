"""The names that the package offers, which cost nothing; and `read`: stored things come back as what they are."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import enginebench
from enginebench import GateFailed, ParseError, Run, UsageError
from enginebench.core import errors
from enginebench.core.features import list_offered
from enginebench.core.store import encode
from enginebench.report.history import HistoryDocument
from enginebench.verbs.read import DOCUMENTS
from processes import ROOT, environment
from samples import make_result
from stored_run import make_results, write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path / "r", make_results())


def test_the_folder_of_a_run_and_its_record_are_the_run(folder: Path) -> None:
    for path in (folder, str(folder), folder / "run.json"):
        run = enginebench.read(path)
        assert isinstance(run, Run)
        assert (run.folder, len(run.rows)) == (folder, 6)


def test_a_document_is_read_as_what_its_schema_says(tmp_path: Path, folder: Path) -> None:
    run = enginebench.read(folder)
    diff, history = enginebench.diff(run, run), enginebench.history(folder)
    for document in (run.document, diff, history, enginebench.list_baselines(tmp_path / "none")):
        path = tmp_path / "document.json"
        path.write_bytes(encode(document, indent=2))
        again = enginebench.read(path)
        assert type(again) is type(document)
        assert encode(again) == encode(document)  # type: ignore[arg-type]


def test_every_schema_that_is_written_is_known() -> None:
    """A kind of document that a later version adds is found here; what is no document of a verb is listed."""
    text = "".join(path.read_text("utf-8") for path in (ROOT / "src" / "enginebench").rglob("*.py"))
    written = set(re.findall(r'"(enginebench\.[\w.-]+/\d+)"', text))
    others = (
        *("run-record/1", "result/1", "result/2", "calibration/1", "plan/1", "plan-note/1", "dry-run/1", "search/1"),
        *("laps/1", "sweep-record/1", "sweep-record/2", "aoti/1"),
    )
    assert written - {f"enginebench.{name}" for name in others} == {*DOCUMENTS, *list_offered("documents")}


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"schema": "enginebench.result/99"}', b'{"schema": "x"}', b"\x80\x04."]
)
def test_anything_else_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "thing.json"
    path.write_bytes(content)
    with pytest.raises(ParseError, match=r"thing\.json"):
        enginebench.read(path)


def test_a_folder_with_nothing_and_a_path_that_is_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match=r"a run, a stored result, a document of enginebench, or a file of trtexec"):
        enginebench.read(tmp_path)
    with pytest.raises(ParseError, match=r"absent: found no readable file"):
        enginebench.read(tmp_path / "absent")
    with pytest.raises(UsageError, match="path: the text is empty"):
        enginebench.read("")
    for engine in (None, "ort"):
        with pytest.raises(UsageError, match="path: the text is empty; expected a bundle, a plan or an ONNX file"):
            enginebench.load_engine("", engine)  # type: ignore[call-overload]


def test_two_runs_are_compared_with_and_without_a_gate(folder: Path, tmp_path: Path) -> None:
    run = enginebench.read(folder)
    assert encode(enginebench.diff(run, folder)) == encode(enginebench.diff(folder, run))
    slow = write_run(tmp_path / "slow", [make_result("ort", status="ok")])
    with pytest.raises(GateFailed, match="the gate failed"):
        enginebench.diff(folder, slow, gate=True)
    with pytest.raises(UsageError, match="margin=2: expected a finite number, more than 0 and at most 1"):
        enginebench.diff(run, run, margin=2)


def test_history_takes_one_engine_or_several(folder: Path) -> None:
    whole, one = enginebench.history(folder), enginebench.history(folder, engine="ort")
    assert isinstance(whole, HistoryDocument)
    assert {row.engine for row in one.rows} == {"ort"}
    assert len(enginebench.history(folder, engine=["ort", "openvino"]).rows) > len(one.rows)
    assert enginebench.history(folder, model="another").rows == ()


KERNEL = [
    "ArtifactError", "BackendUnavailable", "Bench", "ChildFailed", "DependencyError", "DeviceBusy",
    "EngineBenchError", "FeedError", "GateFailed", "MeasurementError", "MissingDependency", "ModelError",
    "ParseError", "Result", "Run", "TimedOut",
    "UnsupportedOperator", "UsageError", "accuracy", "allow_code", "bench", "build",
    "calibrate", "diff", "doctor", "drift", "export", "history", "infer", "list_baselines", "list_models",
    "load_engine", "profile", "quantize", "read", "remove_baseline", "run", "save_baseline", "stages", "write_report",
]  # fmt: skip
# Each feature says which it adds, and there they are tested.
PUBLIC = sorted([*KERNEL, *list_offered("functions")])


def test_all_is_what_it_was_with_every_error_and_another_name_is_an_attribute_error() -> None:
    assert sorted(enginebench.__all__) == PUBLIC
    kinds = [n for n, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert set(kinds) <= set(PUBLIC)
    with pytest.raises(AttributeError, match="'enginebench' has no attribute 'runn'"):
        enginebench.runn  # noqa: B018


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
