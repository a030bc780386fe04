"""An environment that is deleted while a run measures in it."""

import shutil
from pathlib import Path

import pytest

from asked import make_row
from enginebench.core.records import EngineSpec, MeasureSpec
from enginebench.measure.machine import describe_machine
from enginebench.models.onnx.source import read_packaged_onnx
from enginebench.runs.campaign import Campaign
from enginebench.runs.child import places
from enginebench.runs.folder import RunFolder
from other_environment import NEEDED, make_environment
from reporters import Silent

MEASURE = MeasureSpec(warmup=1, iters=5, processes=3)


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment called `lost`, with what a child needs."""
    folder = make_environment(tmp_path / "other", *NEEDED)
    monkeypatch.setattr(places, "_named", {"lost": folder / "bin" / "python"})
    return folder


def test_an_environment_deleted_while_it_runs_costs_the_repetitions_that_were_left(other: Path, tmp_path: Path) -> None:
    class Deleting(Silent):
        def step(self, text: str) -> None:
            if "env=lost" in text and "trial 2 of 3" in text:
                shutil.rmtree(other)

    source = read_packaged_onnx("digits-mlp")
    specs = [EngineSpec(backend="fake", options=options) for options in ({}, {"env": "lost"})]
    rows = [make_row(spec, source, MEASURE, model="digits-mlp") for spec in specs]
    here, there = Campaign(RunFolder(tmp_path / "r"), rows, describe_machine(), timeout_s=60, reporter=Deleting()).run()
    assert (here.status, len(here.measurements)) == ("ok", 3)
    assert (there.status, len(there.measurements)) == ("failed", 1), "what was measured is kept"
    reason = there.reason or ""
    assert "in trial 2: environment lost: " in reason and "cannot be started any more" in reason
    assert reason.count("\n") == 0
