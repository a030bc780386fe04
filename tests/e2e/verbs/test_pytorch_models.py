"""PyTorch models that nobody here wrote, through `run` in this process: names, reasons, and answers that agree."""

import json
from pathlib import Path
from typing import Any

import pytest

from enginebench.core.records import ModelSource
from enginebench.models.torch.source import make_torch_artifact
from enginebench.runs.child.jobs import SourceJob
from in_process import children, cli
from processes import Cli

__all__ = ["children", "cli"]

FAST = ("--quick", "--warmup", "1", "--iters", "5", "--json", "--out", "r")


def run(cli: Cli, model: str, *more: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(cli("run", f"factories:{model}", *FAST, *more, code=0).stdout)["rows"]
    return rows


def name_tensors(folder: Path, row: dict[str, Any]) -> tuple[list[str], list[str]]:
    last = json.loads((folder / "r" / row["result"]).read_text())["artifacts"][-1]
    return [s["name"] for s in last["inputs"]], [s["name"] for s in last["outputs"]]


def test_an_operator_that_no_graph_has_costs_the_rows_of_graphs_alone(cli: Cli) -> None:
    rows = run(cli, "make_untranslated", "--engines", "pytorch,pytorch:channels_last=1,ort,openvino")
    assert [row["status"] for row in rows] == ["ok", "ok", "skipped", "skipped"]
    assert rows[1]["outputs_agree"] is True
    (reason,) = {row["reason"] for row in rows[2:]}
    assert "operator aten.linalg_inv_ex has no ONNX translation (" in reason
    assert "factories.py:" in reason and "inverse, _ = torch.linalg.inv_ex(" in reason


def test_where_only_graphs_were_asked_for_a_failed_export_ends_the_run(cli: Cli) -> None:
    done = cli("run", "factories:make_untranslated", *FAST, "--engines", "ort,openvino")
    assert done.returncode == 5 and done.stderr.count("has no ONNX translation") == 1


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
def test_the_graph_has_the_names_and_answers_of_the_module(factory: str, tmp_path: Path) -> None:
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


def test_lists_of_pictures_and_of_dictionaries_are_named(tmp_path: Path) -> None:
    artifact = make_torch_artifact("factories:make_ssdlite", tmp_path)
    assert [s.name for s in artifact.inputs] == ["input.0", "input.1"]
    assert [s.name for s in artifact.outputs[:3]] == ["outputs.0.boxes", "outputs.0.scores", "outputs.0.labels"]


def test_axes_that_stay_open_are_open_in_the_graph_and_as_long_as_the_example(cli: Cli, tmp_path: Path) -> None:
    axes = ("--dynamic-axes", "input_ids:1,attention_mask:1")
    rows = run(cli, "make_bert", "--engines", "pytorch,ort", *axes)
    assert [(row["status"], row["outputs_agree"]) for row in rows] == [("ok", True)] * 2
    last = json.loads((tmp_path / "r" / rows[1]["result"]).read_text())["artifacts"][-1]
    assert [s["shape"] for s in last["inputs"]] == [["batch", "input_ids_1"]] * 2
    assert [s["sizes"] for s in last["inputs"]] == [[0, 12]] * 2


def test_a_bundle_calls_the_module_as_its_factory_says(cli: Cli) -> None:
    (row,) = run(cli, "make_nested_with_option", "--engines", "pytorch")
    trusted = ("--allow-code", "factories:make_nested_with_option")
    done = cli("deliver", "r", "--row", row["id"], *trusted, "--out", "bundle", "--json", code=0)
    assert json.loads(done.stdout)["checked"] is True


def test_a_factory_that_ends_its_process_is_one_sentence(cli: Cli) -> None:
    done = cli("run", "factories:make_exiting", *FAST, "--engines", "pytorch,ort")
    said = "the factory failed: SystemExit: 2 (factories.py:"
    assert done.returncode == 5 and said in done.stderr and "Traceback" not in done.stderr
