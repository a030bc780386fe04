"""Two sides of one model start from the same export."""

from pathlib import Path
from typing import Any

import pytest

from enginebench.core.errors import BackendUnavailable
from enginebench.core.records import Artifact, ModelSource
from enginebench.models.onnx.source import read_packaged_onnx
from enginebench.models.zoo import DATA_DIR
from enginebench.runs.child.jobs import SourceJob
from enginebench.runs.targets import sides
from enginebench.runs.targets.sides import MadeSources, SideRequest, check_side, open_side
from reporters import Silent

REQUEST = SideRequest(source=ModelSource(model=""))


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[SourceJob]:
    """Every job that would have made sources."""
    asked: list[SourceJob] = []

    def make(job: SourceJob, **_: Any) -> tuple[Artifact, ...]:
        asked.append(job)
        return (read_packaged_onnx("digits-mlp"),)

    monkeypatch.setattr(sides, "make_sources", make)
    return asked


def test_what_both_sides_start_from_is_made_once(jobs: list[SourceJob], tmp_path: Path) -> None:
    made: MadeSources = {}
    ref = open_side("ort@digits-mlp", REQUEST, tmp_path / "ref", Silent(), made)
    cand = open_side("openvino@digits-mlp", REQUEST, tmp_path / "cand", Silent(), made)
    assert ref.artifact == cand.artifact and (ref.engine.backend, cand.engine.backend) == ("ort", "openvino")
    assert [(job.source.model, job.out_dir) for job in jobs] == [("digits-mlp", str(tmp_path / "ref"))]


def test_an_engine_of_cpus_is_refused_on_a_gpu_before_anything_is_opened() -> None:
    with pytest.raises(BackendUnavailable, match="engine ort runs on cpu, not on cuda:0"):
        check_side("ort@digits-mlp", "cuda:0")
    assert [check_side(f"{name}@digits-mlp", "cuda:0").engine[0] for name in ("pytorch", "tensorrt")]


@pytest.mark.parametrize("other", ["ort@digits-cnn", f"ort@{DATA_DIR / 'digits-mlp.onnx'}"])
def test_another_model_is_made_for_itself(jobs: list[SourceJob], tmp_path: Path, other: str) -> None:
    made: MadeSources = {}
    for text in ("ort@digits-mlp", other):
        open_side(text, REQUEST, tmp_path, Silent(), made)
    assert len(jobs) == 2
