"""A model of one's own, judged by a metric of one's own: through `accuracy`, `run` and `diff`."""

import json
from pathlib import Path

import numpy as np
import pytest

import enginebench
from in_process import children, cli
from own_model import QUICK, ask, make_worse, own
from processes import Cli

__all__ = ["children", "cli", "own"]


def test_a_run_recommends_by_the_metric(cli: Cli, own: Path) -> None:
    given = ("--inputs", "in.npz", "--targets", "t.npy", "--metric", "my_metrics:far", "--metric", "top1")
    run = ("run", "mine.onnx", "--engines", "ort", "--precisions", "fp32,int8", *given, *QUICK)
    document = ask(cli, *run, "--out", "r")
    rows = {row["precision"]: row for row in document["rows"]}
    assert [score["metric"] for score in rows["int8"]["scores"]] == ["my_metrics:far", "top1"]
    assert all(row["scores"][0]["value"]["n"] == 24 for row in rows.values())
    assert document["recommended_by"] == "metric"
    assert not any(caveat["code"] == "random_inputs" for caveat in rows["int8"]["caveats"])
    kept = np.load(next((own / "r" / "artefacts" / "outputs").glob("*int8*.labelled.npz")))
    assert "counts/top1" in kept.files, "of answers that are counted one by one, none is kept"
    cli("report", "r", "--format", "md", code=0)
    assert "| far |" in (own / "r" / "report.md").read_text()
    cli("diff", "r", "r", "--metric", "top1", "--max-metric-drop", "0", code=0)
    check_runs_that_are_asked_again(cli, own)


def check_runs_that_are_asked_again(cli: Cli, own: Path) -> None:
    """Whatever the two runs stored, `diff --targets` has both answer the same samples now."""
    ask(cli, "run", make_worse(own), "--engines", "ort", "--precisions", "fp32", *QUICK, "--out", "w")
    now = ("--targets", "t.npy", "--gate", "--allow-not-comparable", "--json")
    unknown = cli("diff", "r", "w", "--metric", "my_metrics:far", "--gate")
    assert unknown.returncode == 4 and "the candidate has none" in unknown.stdout + unknown.stderr
    worse = cli("diff", "r", "w", "--metric", "my_metrics:far", "--inputs", "in.npz", *now, code=4)
    (row,) = [row for row in json.loads(worse.stdout)["rows"] if row["metric"]]
    assert row["metric"] == "my_metrics:far" and row["metric_change"] > 0
    assert any("far went from" in failure for failure in row["failures"])
    better = cli("diff", "w", "r", "--metric", "f1", *now)  # the inputs are those of r
    (row,) = [row for row in json.loads(better.stdout)["rows"] if row["metric"]]
    assert row["metric"] == "f1" and row["metric_change"] > 0 and row["failures"] == [], better.stderr
    assert "F1 +0." in " ".join(cli("diff", "w", "r", "--metric", "f1", *now[:2]).stdout.split())
    document = enginebench.diff(own / "w", own / "r", metric="f1", targets=own / "t.npy")
    assert [r.metric_change for r in document.rows if r.metric] == [pytest.approx(row["metric_change"])]
    with pytest.raises(enginebench.UsageError, match="leave out --targets"):
        enginebench.diff(own / "w", between="old", targets=own / "t.npy")
    made_up = cli("diff", "r", "w", "--metric", "my_metrics:far", *now)
    assert made_up.returncode == 2 and "inputs that were made up" in made_up.stderr
    both = cli("diff", "r", "--between", "old", "--targets", "t.npy")
    assert both.returncode == 2 and "leave out --targets" in both.stderr
    other = cli("diff", "r", "r", "--metric", "map")
    assert other.returncode == 2 and "there are my_metrics:far, top1" in other.stderr
