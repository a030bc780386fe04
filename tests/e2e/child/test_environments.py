"""Environments that children run in: good ones, and every way in which one can be broken."""

import ast
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import enginebench
from enginebench.core.errors import BackendUnavailable, ChildFailed, MissingDependency, UsageError
from enginebench.core.records import Artifact, EngineSpec, TensorSpec
from enginebench.runs.child import environments
from enginebench.runs.child.environments import describe_environment, find_available, name_environments
from enginebench.runs.child.isolate import run_child
from enginebench.runs.child.jobs import ProbeJob
from enginebench.runs.child.other_jobs import InferJob
from environments import NEEDED, make_environment

TOO_OLD = '{"python": [3, 8, 1], "arch": "x", "packages": {}}'


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environments, "_named", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    environments._query_python.cache_clear()


@pytest.fixture(scope="module")
def lean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment in which a child can live, in a folder with a space, and no engine but `fake`."""
    return make_environment(tmp_path_factory.mktemp("ümgebung mit") / "lean", *NEEDED)


def script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def in_environment(**options: str) -> EngineSpec:
    return EngineSpec(backend="fake", options={"env": "lean", **options})


def test_a_child_runs_there_on_this_source_with_its_versions(lean: Path) -> None:
    name_environments([f"lean={lean}"])
    environment = describe_environment("lean")
    assert environment.python == str(lean / "bin" / "python")
    assert run_child(ProbeJob(engine="fake"), timeout_s=60, environment=environment).available
    assert environments.probe_elsewhere(in_environment()).version == enginebench.__version__
    name_environments([f"lean={lean}"])
    assert environments.list_versions(describe_environment("lean")).keys() == {"python", "numpy", "msgspec", "psutil"}


def test_nothing_of_this_environment_is_on_its_path(lean: Path) -> None:
    """ONNX Runtime is installed here: a child there must not find it."""
    pytest.importorskip("onnxruntime")
    name_environments([f"lean={lean}"])
    answer = find_available(EngineSpec(backend="ort", options={"env": "lean"}))
    assert not answer.available
    assert "environment lean" in str(answer.reason)
    assert str(lean / "bin" / "python") in str(answer.fix) and "onnxruntime" in str(answer.fix)
    assert find_available(EngineSpec(backend="ort")).available
    assert [path.name for path in environments.share_source().iterdir()] == ["enginebench"]


def test_the_job_chooses_the_place_and_does_not_know_it(lean: Path, tmp_path: Path) -> None:
    """The fake engine would refuse an option `env`."""
    name_environments([f"lean={lean}"])
    (tmp_path / "toy.onnx").write_bytes(b"the fake engine never opens it")
    artifact = Artifact(
        kind="onnx",
        model="toy",
        path=str(tmp_path / "toy.onnx"),
        sha256="0" * 64,
        files=(),
        inputs=(TensorSpec(name="x", dtype="float32", shape=(1, 4)),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=(1, 2)),),
    )
    np.savez(tmp_path / "in.npz", x=np.zeros((1, 4), np.float32))
    job = InferJob(
        artifact=artifact,
        engine=in_environment(),
        out_dir=str(tmp_path),
        inputs_path=str(tmp_path / "in.npz"),
        outputs_path=str(tmp_path / "out.npz"),
    )
    assert environments.strip_environment(job).engine.options == {}
    assert job.engine.options == {"env": "lean"}
    run_child(job, timeout_s=60)
    assert np.load(tmp_path / "out.npz")["y"].shape == (1, 2)


def test_what_every_child_needs_and_an_interpreter_that_is_gone_are_named(tmp_path: Path) -> None:
    name_environments([f"bare={make_environment(tmp_path / 'bare', 'numpy')}"])
    with pytest.raises(MissingDependency, match="environment bare: msgspec and psutil, which every child") as found:
        describe_environment("bare")
    assert found.value.fix.endswith("install msgspec psutil")
    answer = find_available(EngineSpec(backend="fake", options={"env": "bare"}))
    assert not answer.available and "msgspec" in str(answer.reason)
    folder = make_environment(tmp_path / "gone", *NEEDED)
    name_environments([f"gone={folder}"])
    environment = describe_environment("gone")
    shutil.rmtree(folder)
    with pytest.raises(ChildFailed, match=r"environment gone: .*cannot be started any more"):
        run_child(ProbeJob(engine="fake"), timeout_s=60, environment=environment)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/sh\necho no python at all >&2\nexit 3\n", "not a working Python: no python at all"),
        ("#!/bin/sh\necho '[1, 2]'\n", "not a working Python"),
        (f"#!/bin/sh\necho '{TOO_OLD}'\n", "Python 3.8.1; children need 3.10"),
        ("#!/nowhere/python\n", "cannot be started"),
        ("\x7fELF\x02\x01\x01 of another machine", "Exec format error.*another architecture"),
    ],
)
def test_a_broken_interpreter_is_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    name_environments([f"broken={script(tmp_path / 'python', text)}"])
    with pytest.raises(BackendUnavailable, match=said):
        describe_environment("broken")


def test_names_stand_for_one_environment_and_say_what_is_known(lean: Path) -> None:
    with pytest.raises(UsageError, match="choose two names"):
        name_environments([f"one={lean}", f"one={sys.executable}"])
    name_environments([f"lean={lean}"])
    with pytest.raises(UsageError, match=r"unknown environment 'older'; known: lean.*--env older=PATH"):
        environments.find_environment(EngineSpec(backend="ort", options={"env": "older"}))
    assert environments.find_environment(EngineSpec(backend="ort")) is None
    folder = environments.environments_folder()
    folder.mkdir(parents=True)
    (folder / "made").symlink_to(lean)
    (folder / ".unfinished-x").mkdir()
    assert list(environments.list_named_environments()) == ["made"]
    assert environments.find_environment(EngineSpec(backend="fake", options={"env": "made"})) is not None


# What a child or a bundle imports may be run by an older Python than ours; none of these names exists in 3.10.
FEATURES = ("deliver", "load", "roofline", "trtexec", "tune")
CHILDREN = ("core", "engines", "measure", "models", "runs/child", *(f"features/{name}" for name in FEATURES))
PARENTS = ("verb.py", "session.py")  # of features: no child imports these
TYPING = ("Self", "Unpack", "assert_never", "override")
NEWER = {("datetime", "UTC"), ("enum", "StrEnum"), *(("typing", name) for name in TYPING)}
SOURCE = Path(enginebench.__file__).parent


@pytest.mark.parametrize(
    "path", sorted(p for room in CHILDREN for p in (SOURCE / room).rglob("*.py") if p.name not in PARENTS), ids=str
)
def test_children_speak_the_oldest_python(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"), feature_version=environments.OLDEST)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not {(node.module, alias.name) for alias in node.names} & NEWER, path
        if isinstance(node, ast.Import):
            assert "tomllib" not in {alias.name for alias in node.names}, path
