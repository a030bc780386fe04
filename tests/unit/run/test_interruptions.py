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
# Rows that cannot be built, answer otherwise, or ran in another precision; several batches; graphs made by the run.
FAULTY = tuple(("fake", {**OPTIONS, **more}) for more in ({"fault": "raise", "at": "build"}, {}, {"bias": "0.1"}))
REQUESTS = {
    "plain": REQUEST,
    "faulty": replace(REQUEST, engines=(*FAULTY, ("fake", {**OPTIONS, "ran": "fp16", "bias": "0.001"}))),
    "batches": replace(REQUEST, batches=(1, 2)),
    "int8": replace(REQUEST, precisions=(("fp32", None), ("int8", None))),
}


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("request_of", REQUESTS)
def test_whatever_the_moment_the_document_is_that_of_an_undisturbed_run(tmp_path: Path, request_of: str) -> None:
    def run(root: Path) -> object:
        folder = root / "run"
        found = run_model(REQUESTS[request_of], folder, reporter=Silent(), resume=holds_run(folder))
        return replace(describe_stored(*found), took_s=None)

    check_any_moment(run, tmp_path)
