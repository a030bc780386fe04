"""Any moment of interruption, then `--resume`: the document is that of an undisturbed run."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from enginebench.core.records import MeasureSpec
from enginebench.models.zoo import DATA_DIR
from enginebench.runs.folder import RunRequest, holds_run
from enginebench.runs.main_job import run_model
from enginebench.runs.reporting import describe_stored
from interruptions import check_any_moment, still
from reporters import Silent

__all__ = ["still"]

OPTIONS = {"latency_us": "20", "process_sd": "0.1", "build_sd": "0.1"}
REQUEST = RunRequest(
    model=str(DATA_DIR / "digits-mlp.onnx"),
    engines=tuple(("fake", {"seed": seed, **OPTIONS}) for seed in "12"),
    measure=MeasureSpec(warmup=1, iters=5, processes=2),
)


def run(root: Path) -> object:
    folder = root / "run"
    document = describe_stored(*run_model(REQUEST, folder, reporter=Silent(), resume=holds_run(folder)))
    return replace(document, took_s=None)


@pytest.mark.usefixtures("still")
def test_whatever_the_moment_the_document_is_that_of_an_undisturbed_run(tmp_path: Path) -> None:
    check_any_moment(run, tmp_path)
