"""`env`, `--env`, `doctor --env` and `bisect` as a user types them."""

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from other_environment import FAST, other
from processes import Cli, start_cli

__all__ = ["other"]


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
