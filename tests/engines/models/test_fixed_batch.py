"""Modules that take one batch only, and what a run, an export and a comparison make of them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from enginebench.core.errors import FeedError, ModelError
from enginebench.core.records import Artifact, Availability, ModelSource
from enginebench.core.shapes import concrete_shape
from enginebench.models.precision.quantize import quantize
from enginebench.models.torch.source import make_torch_artifact
from enginebench.runs.child.jobs import SourceAnswer, SourceJob
from enginebench.runs.folder import RunRequest
from enginebench.runs.plan import PlannedRow, plan_rows

FACTORIES = """
import torch
from torch import nn

class Three(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 4)
        self.register_buffer("calls", torch.zeros(1))
    def forward(self, x):
        self.calls += 1
        return self.inner(x.view(3, 8)) + self.calls

class Joined(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 4)
    def forward(self, parts):
        return self.inner(torch.cat(parts))

class Alone(nn.Module):
    def forward(self, x):
        return x * 2 if x.shape[0] == 1 else x

def alone(): return Alone(), torch.randn(1, 8)
def listed(): return Joined(), ([torch.randn(3, 8), torch.randn(3, 8)],)
def three(): return Three(), torch.randn(3, 8)
def free(): return nn.Linear(8, 4), torch.randn(3, 8)
def steps(): return nn.LSTM(8, 6), torch.randn(5, 3, 8)
def picture(): return nn.Conv2d(3, 5, 3), torch.randn(3, 9, 9)
def state(): return nn.GRU(8, 6, num_layers=2, batch_first=True), (torch.randn(1, 5, 8), torch.zeros(2, 1, 6))
"""


@pytest.fixture(autouse=True)
def factories(write_user_module: Callable[[str, str], None]) -> None:
    write_user_module("user_batches", FACTORIES)


def make(factory: str, folder: Path, **wishes: object) -> SourceAnswer:
    job = SourceJob(source=ModelSource(model=f"user_batches:{factory}"), out_dir=str(folder), **wishes)  # type: ignore[arg-type]
    return job.perform(lambda text: None, lambda answer: None)


def plan(artifacts: tuple[Artifact, ...], *batches: int) -> list[PlannedRow]:
    request = RunRequest(
        model="m", engines=(("pytorch", {}), ("ort", {})), batches=batches or (1,), any_batch=not batches
    )
    return plan_rows(
        request,
        artifacts,
        probe=lambda name: Availability(engine=name, available=True),
        problems={} if len(artifacts) > 1 else {"onnx": "operator x"},
    )


def test_every_row_runs_at_the_only_batch_where_none_was_asked_for(tmp_path: Path) -> None:
    artifacts = make("three", tmp_path).artifacts
    rows = plan(artifacts)
    assert [(row.engine.batch, row.skip) for row in rows] == [(3, None)] * 2
    assert [a.inputs[0].shape for a in artifacts] == [(3, 8)] * 2
    alone = plan(artifacts[:1])
    assert [row.engine.batch for row in alone] == [3, 3] and alone[0].skip is None  # the graph could not be made


@pytest.mark.parametrize("built", [1, 3, 6])
def test_another_batch_is_refused_with_the_one_that_it_takes(built: int, tmp_path: Path) -> None:
    rows = plan(make("three", tmp_path, batch=built).artifacts, 3, 6)
    reason = "user_batches:three takes a batch of 3 only, not 6: give --batch 3"
    assert [(row.engine.batch, row.skip) for row in rows] == [(3, None), (3, None), (6, reason), (6, reason)]


def test_a_free_batch_stays_free_and_no_axis_of_a_picture_is_one(tmp_path: Path) -> None:
    names = ("free", "picture", "steps")
    free, picture, steps = (make_torch_artifact(f"user_batches:{name}", tmp_path) for name in names)
    assert (steps.inputs[0].shape, steps.inputs[0].sizes) == (("input_0", 3, 8), (5, 0, 0)), "time comes first"
    assert (free.inputs[0].shape, free.allowed) == ((1, 8), {})
    assert (picture.inputs[0].shape, picture.inputs[0].sizes) == (("input_0", 9, 9), (3, 0, 0))
    assert picture.allowed == {}


def test_a_recurrent_state_of_one_entry_fixes_the_batch_at_one(tmp_path: Path) -> None:
    artifact = make_torch_artifact("user_batches:state", tmp_path, batch=4)
    assert {name: shapes.largest for name, shapes in artifact.allowed.items()} == {"input": (1, 5, 8)}


def test_the_users_entries_are_run_at_the_only_batch(tmp_path: Path) -> None:
    given = {"input": np.random.default_rng(0).standard_normal((7, 8), np.float32)}
    assert make_torch_artifact("user_batches:three", tmp_path, given=given).inputs[0].shape == (3, 8)
    with pytest.raises(FeedError, match=r"input has torch\.float64, not torch\.float32"):
        make_torch_artifact("user_batches:three", tmp_path, given={"input": given["input"].astype(np.float64)})


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        ({"batch": 6}, "takes a batch of 3 only, not 6: give --batch 3$"),
        ({"any_batch": True, "dynamic_batch": True}, "3 only. Export it with --batch 3, without --dynamic-batch$"),
    ],
)
def test_an_export_says_which_batch_it_can_have(wishes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        make("three", tmp_path, onnx_out=str(tmp_path / "a.onnx"), **{"dynamic_batch": False, **wishes})


def test_an_export_has_the_only_batch_where_none_was_asked_for(tmp_path: Path) -> None:
    wishes = {"onnx_out": str(tmp_path / "a.onnx"), "any_batch": True, "dynamic_batch": False}
    graph = make("three", tmp_path, **wishes).artifacts[-1]
    assert graph.inputs[0].shape == (3, 8)
    assert graph.export_check is not None and graph.export_check.batches == (3, 3)


def test_a_graph_is_not_open_where_the_module_branches_on_a_batch_of_one(tmp_path: Path) -> None:
    graph = make("alone", tmp_path, onnx=True, dynamic_batch=True).artifacts[-1]
    assert graph.inputs[0].shape == (1, 8)
    with pytest.raises(ModelError, match=r"alone at batch 1: .* or branch on the batch"):
        make("alone", tmp_path, onnx_out=str(tmp_path / "a.onnx"), dynamic_batch=True)


def test_tensors_in_a_list_are_one_call_in_the_lengths_of_the_example(tmp_path: Path) -> None:
    artifacts = make("listed", tmp_path).artifacts
    for artifact in artifacts:
        assert [concrete_shape(spec, 1) for spec in artifact.inputs] == [(3, 8), (3, 8)]
    assert [(row.engine.batch, row.skip) for row in plan(artifacts)] == [(1, None)] * 2
    assert [row.skip for row in plan(artifacts, 3)] == [
        "no axis of the inputs can be a batch of 3; leave --batch out"
    ] * 2
    graph = artifacts[-1]
    assert graph.export_check is not None and graph.export_check.batches == (1, 1)
    made = quantize(graph, "fp16", None, tmp_path / "half.onnx")
    assert made.inputs == graph.inputs


@pytest.mark.filterwarnings("ignore")
def test_a_program_that_was_exported_at_three_runs_at_three(tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.Linear(4, 2).eval(), (torch.randn(3, 4),))
    torch.export.save(program, tmp_path / "p.pt2")
    artifact = make_torch_artifact(str(tmp_path / "p.pt2"), tmp_path / "out")
    assert artifact.inputs[0].shape == (3, 4) and artifact.allowed["input"].smallest == (3, 4)
