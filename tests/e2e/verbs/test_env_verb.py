"""`env`, `--env`, `doctor --env` and `bisect` as a user types them."""

import json
import os
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from environments import FAST, other
from processes import Cli, rows_of, start_cli
from stored_history import runs

__all__ = ["other", "runs"]


def test_a_run_goes_on_where_the_environment_is_named_again(cli, tiny_onnx, other, tmp_path) -> None:
    run = ("run", tiny_onnx, "--engines", "fake,fake:env=two", *FAST, "--out", "r")
    assert cli(*run, "--env", f"two={other}").returncode == 0
    row = next((tmp_path / "r" / "rows").glob("fake-env*.json"))
    row.unlink()
    assert cli(*run, "--resume").returncode == 6  # the one row that is left has nothing beside it
    row.unlink(missing_ok=True)
    done = cli(*run, "--resume", "--env", f"two={other}", "--json", code=0)
    assert [r["status"] for r in json.loads(done.stdout)["rows"]] == ["ok", "ok"]


def test_an_environment_is_asked_and_removed(cli: Cli, tmp_path: Path, other: Path) -> None:
    """It is made from the package index in docs/versions.md; here only a version is asked for that it does not have."""
    home = tmp_path / ".cache" / "enginebench" / "environments"
    home.mkdir(parents=True)
    other.rename(home / "old")
    assert cli("env", "make", "old", "numpy").returncode == 2
    (line,) = json.loads(cli("env", "list", "--json", code=0).stdout)["environments"]
    assert {"msgspec", "numpy", "psutil"} <= set(line["packages"])
    doctor = json.loads(cli("doctor", "--env", "old", "--json").stdout)
    assert doctor["machine"]["versions"]["msgspec"] == line["packages"]["msgspec"]
    assert [engine["engine"] for engine in doctor["engines"] if engine["available"]] == ["fake"]
    assert cli("env", "remove", "old").returncode == 0
    assert json.loads(cli("env", "list", "--json").stdout)["environments"] == []
    done = cli("env", "make", "never", "msgspec==0.0.7")
    assert done.returncode == 3
    assert "no version on the package index satisfies msgspec==0.0.7; the newest there are" in done.stderr
    assert list(home.iterdir()) == []


INSTALLER = """#!/bin/sh
# Makes a folder, as `uv venv` does, and starts itself once more, as pip does, to fill it for ever.
for last in "$@"; do :; done
case "$1" in
  venv) mkdir -p "$last/bin"; touch "$last/bin/python" ;;
  again)
    echo $$ > "$HOME/pid.new"
    mv "$HOME/pid.new" "$HOME/pid"
    while :; do mkdir -p "$2"; touch "$2/package"; done ;;
  *) "$0" again "$(dirname "$(dirname "$5")")" & wait ;;
esac
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_installation_ends_with_whoever_asked_for_it(tmp_path, monkeypatch, how) -> None:
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(INSTALLER)
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    made = tmp_path / ".cache" / "enginebench" / "environments"
    with start_cli(tmp_path, "env", "make", "x", "numpy") as process:
        wait_for(lambda: (tmp_path / "pid").exists())
        filler = psutil.Process(int((tmp_path / "pid").read_text()))
        process.send_signal(how)
        assert process.wait(timeout=60) != 0
    try:
        filler.wait(timeout=10)
    finally:
        with suppress(psutil.NoSuchProcess):
            filler.kill()
    if how != signal.SIGKILL:
        assert list(made.iterdir()) == []


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline, "it did not happen within a minute"
        time.sleep(0.05)


# The main job as a process of its own, with the public fake engine: results, faults, interrupts, continuation.


def test_a_full_disk_loses_nothing_that_was_stored(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    """A limit on the size of files stops a row's file from growing, as a full disk does."""
    limit = 30_000
    done = cli(
        *("run", tiny_onnx, "--engines", "fake,fake:seed=2", "--out", "r"),
        *("--warmup", "2", "--iters", "2400", "--processes", "6"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.returncode == 5, done.stderr
    assert "cannot write" in done.stderr and "File too large" in done.stderr
    rows = rows_of(tmp_path / "r")
    assert sum(len(row["measurements"]) for row in rows.values()) >= 2
    assert not list((tmp_path / "r").rglob("*.tmp"))
    assert "seed=2" in done.stdout, "the table of what was measured is printed from memory"
    assert cli("run", tiny_onnx, "--resume", "--out", "r").returncode == 0


# History: rows found, read once, shown, exported; nothing outside of the folder is touched.


def test_mlflow_gets_each_configuration_once_and_a_store_that_refuses_is_our_error(
    cli: Cli, runs: Path, tmp_path: Path
) -> None:
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
    done = cli("history", runs, "--mlflow", "nonsense://x")
    assert done.returncode == 5 and "Traceback" not in done.stderr
