"""History: rows found, read once, shown, exported; nothing outside of the folder is touched."""

import json
from pathlib import Path

import pytest

from processes import Cli
from stored_history import runs

__all__ = ["runs"]


def test_mlflow_gets_each_row_once(cli: Cli, runs: Path, tmp_path: Path) -> None:
    """A real file store, in a process of its own: MLflow changes logging and warnings of the process it is in."""
    from processes import environment

    # MLflow 3 asks for this before it opens a file store; a database needs the full MLflow.
    allowed = environment(tmp_path) | {"MLFLOW_ALLOW_FILE_STORE": "true"}
    store = (tmp_path / "ml").as_uri()
    done = cli("history", runs, "--mlflow", store, "--json", env=allowed, code=0)
    assert "12 runs written, 0 were there already" in done.stderr
    assert len(json.loads(done.stdout)["rows"]) == 12
    metrics = sorted((tmp_path / "ml").glob("*/*/metrics/p50_ms"))
    assert len(metrics) == 8
    assert min(float(path.read_text().split()[1]) for path in metrics) == pytest.approx(9, rel=0.02)
    engines = {path.read_text() for path in (tmp_path / "ml").glob("*/*/params/engine")}
    assert engines == {"pytorch", "ort", "openvino", "ort-cuda"}
    again = cli("history", runs, "--mlflow", store, env=allowed)
    assert "0 runs written, 12 were there already" in again.stderr


def test_a_store_that_refuses_is_an_error_of_ours(cli: Cli, runs: Path) -> None:
    done = cli("history", runs, "--mlflow", "nonsense://x")
    assert done.returncode == 5 and "Traceback" not in done.stderr
