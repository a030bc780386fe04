"""Verbs with engines that compute: what they compare, feed, calibrate and time."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import enginebench
from calls import FAST, ask, bench
from enginebench.core.records import ModelSource
from enginebench.models.torch.source import make_torch_artifact
from enginebench.runs.child.jobs import SourceJob
from graphs import draw_lines, write_lines
from in_process import children, cli
from own_model import QUICK, make_worse, own
from processes import Cli, environment, rows_of

__all__ = ["children", "cli", "own"]


def test_a_built_in_model_and_its_file_are_fed_alike(cli: Cli, tiny_onnx: Path) -> None:
    """By its name `digits-mlp` is fed digits, its file random arrays; that must not look like other answers."""
    for target, engine, other in (
        (tiny_onnx, "ort", "pytorch@digits-mlp"),
        ("digits-mlp", "pytorch", f"ort@{tiny_onnx}"),
    ):
        document = bench(cli, target, "--engine", engine, "--against", other)
        assert document["comparison"]["outputs_agree"] is True, document["comparison"]
        assert 0 < document["row"]["max_abs_diff"] < 1e-3


def test_the_users_entries_are_compared_and_timed_and_their_shapes_reported(cli: Cli, tmp_path: Path) -> None:
    """Three widths, five entries: all are compared, the first is timed; nothing is chosen, so no warning says so."""
    path = write_lines(tmp_path)
    folder = tmp_path / "mine"
    folder.mkdir()
    for i, (n, width) in enumerate(((2, 11), (1, 7), (2, 11))):
        np.savez(folder / f"{i}.npz", x=draw_lines(n, width, i))
    draws = environment(tmp_path, draws=True)
    done = cli("run", path, "--engines", "ort,openvino", "--inputs", folder, "--out", "r", *FAST, code=0, env=draws)
    assert "1x3x8x11" in done.stdout.replace("\n", "")
    rows = rows_of(tmp_path / "r")
    assert len(rows) == 2 and len(list((tmp_path / "r" / "artefacts" / "samples").glob("*.npz"))) == 5
    for row in rows.values():
        assert row["shapes"] == {"x": [1, 3, 8, 11]} and row["drift"]["n"] == 5
        assert not any(c["code"] == "chosen_shapes" for artifact in row["artifacts"] for c in artifact["caveats"])
    assert {row["engine"]["backend"]: row["axes"] for row in rows.values()} == {"ort": "open", "openvino": "fixed"}
    for name in ("report.html", "report.md", "table.csv"):
        assert "1x3x8x11" in (tmp_path / "r" / name).read_text(encoding="utf-8"), name


# A model of one's own, judged by a metric of one's own: through `accuracy`, `run` and `diff`.


def test_a_run_recommends_by_the_metric(cli: Cli, own: Path) -> None:
    given = ("--inputs", "in.npz", "--targets", "t.npy", "--metric", "my_metrics:far", "--metric", "top1")
    run = ("run", "mine.onnx", "--engines", "ort", "--precisions", "fp32,int8", *given, *QUICK)
    document = ask(cli, *run, "--out", "r")
    rows = {row["precision"]: row for row in document["rows"]}
    assert [score["metric"] for score in rows["int8"]["scores"]] == ["my_metrics:far", "top1"]
    assert all(row["scores"][0]["value"]["n"] == 24 for row in rows.values())
    assert document["recommended_by"] == "metric"
    assert not any(warning["code"] == "random_inputs" for warning in rows["int8"]["caveats"])
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


# PyTorch models that nobody here wrote, through `run` in this process: names, reasons, and answers that agree.

SHORT = ("--quick", "--warmup", "1", "--iters", "5", "--json", "--out", "r")


def run(cli: Cli, model: str, *more: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(cli("run", f"factories:{model}", *SHORT, *more, code=0).stdout)["rows"]
    return rows


def name_tensors(folder: Path, row: dict[str, Any]) -> tuple[list[str], list[str]]:
    last = json.loads((folder / "r" / row["result"]).read_text())["artifacts"][-1]
    return [s["name"] for s in last["inputs"]], [s["name"] for s in last["outputs"]]


def test_an_operator_that_no_graph_has_costs_the_configurations_of_graphs_alone(cli: Cli) -> None:
    rows = run(cli, "make_untranslated", "--engines", "pytorch,pytorch:channels_last=1,ort,openvino")
    assert [row["status"] for row in rows] == ["ok", "ok", "skipped", "skipped"]
    assert rows[1]["outputs_agree"] is True
    (reason,) = {row["reason"] for row in rows[2:]}
    assert "operator aten.linalg_inv_ex has no ONNX translation (" in reason
    assert "factories.py:" in reason and "inverse, _ = torch.linalg.inv_ex(" in reason
    done = cli("run", "factories:make_untranslated", *SHORT, "--engines", "ort,openvino", "--out", "s")
    assert done.returncode == 5 and done.stderr.count("has no ONNX translation") == 1
    done = cli("run", "factories:make_exiting", *SHORT, "--engines", "pytorch,ort", "--out", "t")
    said = "the factory failed: SystemExit: 2 (factories.py:"
    assert done.returncode == 5 and said in done.stderr and "Traceback" not in done.stderr


MODELS = {
    "make_nested": (["input.ids", "input.mask"], ["outputs.scores", *(f"outputs.parts.{i}" for i in range(3))]),
    "make_bert": (["input_ids", "attention_mask"], ["outputs.logits"]),
    "make_t5_encoder": (["input_ids", "attention_mask"], ["outputs.last_hidden_state"]),
    "make_whisper_encoder": (["input_features"], ["outputs.last_hidden_state"]),
    "make_gru": (["input", "hx"], ["outputs.0", "outputs.1"]),
    "make_points": (["input"], ["outputs.0", "outputs.1"]),
    "make_counter": (["input"], ["output"]),
}


# Those that run whole: nested answers, a recurrent net, state in buffers. A transformer does with open axes, below.
WHOLE = ("make_nested", "make_gru", "make_counter")


@pytest.mark.parametrize("factory", [name for name in MODELS if name not in WHOLE])
def test_the_graph_has_the_names_and_outputs_of_the_module(factory: str, tmp_path: Path) -> None:
    """The export compares both on seeded inputs."""
    pytest.importorskip("transformers")
    job = SourceJob(source=ModelSource(model=f"factories:{factory}"), out_dir=str(tmp_path), onnx=True)
    answer = job.perform(lambda text: None, lambda answer: None)
    module, graph = answer.artifacts
    for artifact in (module, graph):
        assert ([s.name for s in artifact.inputs], [s.name for s in artifact.outputs]) == MODELS[factory]
    assert graph.export_check is not None and graph.export_check.max_abs_diff < 1e-3


@pytest.mark.parametrize("factory", WHOLE)
def test_every_engine_runs_it_under_the_same_names(factory: str, cli: Cli, tmp_path: Path) -> None:
    rows = run(cli, factory, "--engines", "pytorch,ort,openvino")
    assert [(row["status"], row["outputs_agree"]) for row in rows] == [("ok", True)] * 3
    assert [name_tensors(tmp_path, row) for row in rows] == [MODELS[factory]] * 3


def test_axes_stay_open_and_lists_and_options_reach_the_module(cli: Cli, tmp_path: Path) -> None:
    axes = ("--dynamic-axes", "input_ids:1,attention_mask:1")
    rows = run(cli, "make_bert", "--engines", "pytorch,ort", *axes)
    assert [(row["status"], row["outputs_agree"]) for row in rows] == [("ok", True)] * 2
    last = json.loads((tmp_path / "r" / rows[1]["result"]).read_text())["artifacts"][-1]
    assert [s["shape"] for s in last["inputs"]] == [["batch", "input_ids_1"]] * 2
    assert [s["sizes"] for s in last["inputs"]] == [[0, 12]] * 2
    artifact = make_torch_artifact("factories:make_ssdlite", tmp_path)
    assert [s.name for s in artifact.inputs] == ["input.0", "input.1"]
    assert [s.name for s in artifact.outputs[:3]] == ["outputs.0.boxes", "outputs.0.scores", "outputs.0.labels"]
    (row,) = run(cli, "make_nested_with_option", "--engines", "pytorch", "--out", "s")
    trusted = ("--allow-code", "factories:make_nested_with_option")
    done = cli("deliver", "s", "--row", row["id"], *trusted, "--out", "bundle", "--json", code=0)
    assert json.loads(done.stdout)["checked"] is True
