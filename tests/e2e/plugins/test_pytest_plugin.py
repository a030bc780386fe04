"""The pytest plug-in as users have it: its options, its failures, its page, and what workers do."""

import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from enginebench.config import tomllib
from enginebench.models.task import load_digits
from enginebench.models.zoo import DATA_DIR
from enginebench.runs.lock import list_marks, lock_device
from processes import ROOT, environment

# The plug-in once, however EngineBench was installed, and nothing of what else is installed.
LOADED = ("-p", "enginebench.pytest_plugin", "-p", "no:cacheprovider")
TIMED = "processes=2, iters=20, warmup=1, threads=1"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a model, real inputs, and a branch's model that is the same."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("model.onnx", "main.onnx"):
        (folder / name).write_bytes((DATA_DIR / "digits-mlp.onnx").read_bytes())
    images = load_digits().select(held_out=True).images[:40]
    np.savez(folder / "inputs.npz", input=np.asarray(images, np.float32).reshape(len(images), -1))
    return folder


def start_pytest(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    variables = environment(folder.parent) | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "120"}
    variables.pop("PYTEST_ADDOPTS", None)
    variables = {name: value for name, value in variables.items() if not name.startswith("PYTEST_XDIST")}
    command = [sys.executable, "-m", "pytest", *LOADED, *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=folder, env=variables, **pipes)


def run_pytest(folder: Path, *arguments: str) -> tuple[int, str]:
    process = start_pytest(folder, *arguments)
    printed, _ = process.communicate(timeout=280)
    return process.returncode, printed


def write_test(folder: Path, *calls: str) -> None:
    tests = [f"def test_{number}(enginebench):\n    enginebench.{call}\n" for number, call in enumerate(calls)]
    (folder / "test_model.py").write_text("\n\n".join(tests))


def test_the_example_of_the_page_passes_once_its_baseline_is_stored(project: Path) -> None:
    page = (ROOT / "docs" / "pytest.md").read_text("utf-8")
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    # The figures are for readers who wait for them.
    example = re.sub(r'(, margin=0.05|"baselines/release")\)', r"\1, processes=2, iters=20)", example)
    (project / "test_model.py").write_text(example)
    code, printed = run_pytest(project, "-k", "release")
    assert code == 1 and "there is no baseline in" in printed and "pytest --enginebench-update" in printed
    code, printed = run_pytest(project, "--enginebench-update", "-k", "release")
    assert code == 0, printed
    assert (project / "baselines" / "release" / "run.json").is_file()
    code, printed = run_pytest(project)
    assert code == 0 and "4 passed" in printed, printed
    assert "Inconclusive: inconclusive: " in printed and "trials that a verdict needs" in printed


def test_a_failure_points_at_the_test_and_prints_the_table(project: Path) -> None:
    write_test(project, f'assert_not_slower("model.onnx", engine="fake:bias=3", than="fake", {TIMED})')
    code, printed = run_pytest(project)
    assert code == 1
    assert ">       enginebench.assert_not_slower(" in printed and "pytest_plugin.py" not in printed, printed
    assert re.search(r"^E +AssertionError: fake-.*: the outputs are not within the limits", printed, re.MULTILINE)
    assert re.search(r"^E +engine +precision +p50", printed, re.MULTILINE)


def test_strict_makes_a_failure_of_what_is_inconclusive(project: Path) -> None:
    write_test(project, 'assert_same_outputs("model.onnx", engine="fake")')
    code, printed = run_pytest(project)
    assert code == 0 and "Inconclusive: inconclusive: the outputs of fake fp32 were not judged" in printed
    code, printed = run_pytest(project, "--enginebench-strict")
    assert code == 1 and "AssertionError: inconclusive: the outputs of fake fp32 were not judged" in printed


def test_a_wrong_model_is_an_error_that_names_it(project: Path) -> None:
    write_test(project, 'assert_same_outputs("nosuch.onnx")', 'assert_precision("model.onnx", "int9")')
    code, printed = run_pytest(project)
    assert code == 1 and "'nosuch.onnx'" in printed and "'int9'" in printed and "2 failed" in printed


def test_assertions_of_two_workers_wait_for_the_device(project: Path) -> None:
    """While this process has it, both wait; then both measure."""
    call = 'assert_same_outputs("model.onnx", inputs="inputs.npz")'
    write_test(project, call, call)
    folder = Path(environment(project.parent)["TMPDIR"])
    lock = folder / "enginebench-cpu.lock"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(folder))
        with lock_device("cpu"):
            process = start_pytest(project, "-p", "xdist", "-n", "2")
            deadline = time.monotonic() + 120
            while len([*list_marks("waits", lock)]) < 2 and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            assert len([*list_marks("waits", lock)]) == 2 and process.poll() is None
    printed, _ = process.communicate(timeout=200)
    assert process.returncode == 0 and "2 passed" in printed, printed


HEAVY = ("numpy", "scipy", "msgspec", "click", "rich", "psutil", "jinja2", "enginebench.verbs", "enginebench.options")


def test_without_the_fixture_nothing_heavy_is_imported(project: Path) -> None:
    lines = ("import sys", "def test_modules():", f"    assert not [n for n in {HEAVY!r} if n in sys.modules]")
    (project / "test_model.py").write_text("\n".join(lines))
    code, printed = run_pytest(project)
    assert code == 0, printed


def test_the_plug_in_is_declared_and_explained(project: Path) -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]["pytest11"]
    assert points == {"enginebench": "enginebench.pytest_plugin"}
    code, printed = run_pytest(project, "--help")
    assert code == 0 and "--enginebench-update" in printed and "--enginebench-strict" in printed
    code, printed = run_pytest(project, "--fixtures")
    assert "enginebench [session scope]" in printed
