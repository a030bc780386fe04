"""`sweep`, `report` and `history` of its store, on the command line, with children in this process."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from enginebench.core.errors import MeasurementError, UsageError
from enginebench.features.sweep.verb import command as sweep
from enginebench.models.zoo import DATA_DIR
from enginebench.verbs.history import command as history
from enginebench.verbs.report import command as report
from in_process import Children

SPEC = """
engines = [{engines}]
processes = 2
iters = 3
warmup = 1
[[model]]
name = "one.onnx"
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.onnx").write_bytes((DATA_DIR / "digits-mlp.onnx").read_bytes())
    path = tmp_path / "sweep.toml"
    path.write_text(SPEC.format(engines='"fake:latency_us=20", "fake:latency_us=10"'))
    return path


def test_a_sweep_is_measured_read_and_followed(children: Children, spec: Path) -> None:
    done = CliRunner().invoke(sweep, [str(spec), "--out", "store", "--json"])
    assert done.exception is None, done.stderr
    document = json.loads(done.stdout)
    assert document.keys() >= {"cells", "failed"} and not document["failed"]
    assert [cell["row"]["status"] for cell in document["cells"]] == ["ok", "ok"]
    assert document["cells"][0].keys() >= {"model", "machine_kind", "engine", "precision", "row"}
    page = CliRunner().invoke(report, ["store", "--out", "page"])
    assert page.exception is None, page.stderr
    assert "one.onnx" in Path("page/report.html").read_text()
    trend = CliRunner().invoke(history, ["store", "--json"])
    assert trend.exception is None, trend.stderr
    assert len(json.loads(trend.stdout)["rows"]) == 2


def test_what_a_sweep_refuses(children: Children, spec: Path) -> None:
    assert isinstance(CliRunner().invoke(sweep, [str(spec)]).exception, UsageError)
    spec.write_text(SPEC.format(engines='"fake:fault=raise"'))
    done = CliRunner().invoke(sweep, [str(spec), "--out", "failing"])
    assert isinstance(done.exception, MeasurementError) and "no cell" in str(done.exception)
    assert "raised an error" in done.stdout
