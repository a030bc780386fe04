"""The main job as a process of its own, with the public fake engine: results, faults, interrupts, continuation."""

import json
from pathlib import Path
from typing import Any

import pytest

from enginebench.engines.fake import FakeEngine
from enginebench.runs.child import environments
from processes import Cli, environment

FAST = ("--warmup", "2", "--iters", "30")


def test_an_onnx_model_skips_pytorch_with_the_reason(cli: Cli, tiny_onnx: Path) -> None:
    pytest.importorskip("torch")
    few = ("--processes", "1", "--json", "--out", "r")
    done = cli("run", tiny_onnx, "--engines", "pytorch,fake,fake:seed=2", *FAST, *few, code=0)
    rows = json.loads(done.stdout)["rows"]
    assert rows[0]["status"] == "skipped"
    assert rows[0]["reason"] == "pytorch needs a PyTorch model; MODEL is a graph, for engines such as ort"
    assert rows[1]["speedup"]["value"] == 1


def test_a_run_whose_baseline_alone_is_ok_says_so(cli: Cli, tiny_onnx: Path) -> None:
    done = cli("run", tiny_onnx, "--engines", "fake,fake:fault=raise", *FAST, "--processes", "1", "--out", "r", code=6)
    assert "the baseline is ok, but no other configuration is. Not ok: fake:fault=raise" in done.stderr


def test_the_table_is_shown_also_where_the_page_cannot_be_written(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    (tmp_path / "r" / "report.html").mkdir(parents=True)
    done = cli(
        "run", tiny_onnx, "--engines", "fake", *FAST, "--out", "r", code=5, env=environment(tmp_path, draws=True)
    )
    assert (
        "the only configuration that was measured" in done.stdout and "error: cannot write r/report.html" in done.stderr
    )


def test_a_stored_run_shows_nobodys_home(finished_run: Path) -> None:
    """Its HOME was the folder in which the model lies."""
    paths = list(finished_run.rglob("*.json"))
    assert len(paths) >= 3 and (finished_run.parent / "tiny.onnx").is_file()
    for path in paths:
        assert str(finished_run.parent) not in path.read_text(), path


def test_engines_of_a_gpu_are_asked_for_on_a_gpu_that_is_there(cli, tiny_onnx, tmp_path, monkeypatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(environments, "find_gpu_name", {0: "one", 1: "other"}.get)
    done = cli("run", tiny_onnx, "--quick", "--device", "cuda:0")
    assert "ort-cuda" in done.stdout and "openvino" not in done.stdout
    done = cli("bench", tiny_onnx, "--engine", "ort-cuda", "--out", "b", "--device", "cuda:7", code=3)
    assert done.stderr == "error: no configuration can run here: no cuda:7 here: the driver shows cuda:0, cuda:1\n"
    assert not (tmp_path / "b").exists(), "refused before anything is exported"


def test_builds_are_made_measured_and_reported(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    fast = ("--warmup", "2", "--iters", "10", "--out", "r", "--json")
    engines = "fake:latency_us=50,fake:latency_us=50,build_sd=0.3"
    done = cli("run", tiny_onnx, "--engines", engines, "--builds", "2", "--processes", "3", *fast, code=0)
    plain, drawn = json.loads(done.stdout)["rows"]
    assert [row["processes"] for row in (plain, drawn)] == [4, 4], "two of each build at least"
    assert drawn["builds"]["distinct"] == 2 and drawn["builds"]["between"]["n"] == 2
    assert plain["builds"]["distinct"] is None
    assert (drawn["unit"], drawn["verdict"], drawn["speedup"]["n"]) == ("build", "not_shown", 2)
    page = (tmp_path / "r" / "report.md").read_text()
    assert "## Builds" in page


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--builds", "2", "--quick"), "--quick times one process"), (("--builds", "1"), "--builds")],
)
def test_builds_that_nobody_could_tell_apart_are_refused(cli, tiny_onnx, arguments, said) -> None:
    assert said in cli("run", tiny_onnx, "--engines", "fake", *arguments, code=2).stderr


@pytest.mark.parametrize("scope", ["compute", "io"])
def test_an_engine_that_works_in_fetch_is_not_believed(cli, tiny_onnx, tmp_path, monkeypatch, scope) -> None:
    """Its run takes no time at all; scope io times the fetch as well, and has nothing to hide."""
    fetch = FakeEngine.fetch
    fetched: dict[int, int] = {}

    def work_first(self: FakeEngine) -> dict[str, Any]:
        if self.latency_ns == 0 and fetched.get(id(self)) != self.runs:
            fetched[id(self)] = self.runs
            sum(range(100_000))
        return fetch(self)

    monkeypatch.setattr(FakeEngine, "fetch", work_first)
    few = ("--warmup", "1", "--iters", "20", "--processes", "2")
    done = cli(
        "run", tiny_onnx, "--engines", "fake:latency_us=50,fake", "--scope", scope, *few, "--json", "--out", "r", code=0
    )
    honest, lazy = json.loads(done.stdout)["rows"]
    found = [any(warning["code"] == "work_outside_run" for warning in row["caveats"]) for row in (honest, lazy)]
    assert found == [False, scope == "compute"]
    assert scope == "io" or lazy["validity"] == "invalid"
