"""Reports from stored results alone: files, older schemas, folders of strangers, machines without the extra."""

import os
from pathlib import Path

import pytest

from processes import Cli, environment
from stored_run import make_results, write_run


@pytest.fixture(autouse=True)
def cached_bundle(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small stand-in for the chart bundle, which takes seconds to make; the browser tests use the real one."""
    monkeypatch.setattr("enginebench.runs.reporting.load_bundle", lambda: "window.vegaEmbed = null;")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "ein läuf", make_results())


def test_without_the_extra_there_are_tables_and_a_word_about_the_page(cli: Cli, run: Path, tmp_path: Path) -> None:
    blocker = tmp_path / "site" / "sitecustomize.py"
    blocker.parent.mkdir()
    blocker.write_text("import sys\nfor name in ('altair', 'vl_convert'):\n    sys.modules[name] = None\n")
    variables = environment(tmp_path)
    variables["PYTHONPATH"] = f"{blocker.parent}{os.pathsep}{variables['PYTHONPATH']}"
    done = cli("report", run, env=variables)
    assert done.returncode == 0, done.stderr
    assert "no report.html and no pictures" in done.stderr and 'pip install "enginebench[report]"' in done.stderr
    assert (run / "report.md").exists() and (run / "table.csv").exists() and not (run / "report.html").exists()


def test_reports_need_no_engine(cli: Cli, run: Path, tmp_path: Path) -> None:
    """Importing any engine fails in this process, as on a machine that has none."""
    blocker = tmp_path / "site" / "sitecustomize.py"
    blocker.parent.mkdir()
    names = ("torch", "torchvision", "onnx", "onnxruntime", "openvino", "pynvml", "tensorrt", "vl_convert")
    blocker.write_text(f"import sys\nfor name in {names}:\n    sys.modules[name] = None\n")
    variables = environment(tmp_path)
    variables["PYTHONPATH"] = f"{blocker.parent}{os.pathsep}{variables['PYTHONPATH']}"
    done = cli("report", run, "--format", "md,csv,json", env=variables)
    assert done.returncode == 0, done.stderr
