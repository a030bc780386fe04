"""Any moment of interruption of a sweep, then `--resume`: the document is that of an undisturbed one."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from enginebench.features.sweep import group
from enginebench.features.sweep.spec import read_spec
from enginebench.features.sweep.verb import run_sweep
from enginebench.models.zoo import DATA_DIR
from enginebench.runs import main_job
from interruptions import check_any_moment, still
from reporters import Silent

__all__ = ["still"]

ENGINE = "latency_us=20,process_sd=0.1,build_sd=0.1"
SPEC = f"""
engines = ["fake:seed=1,{ENGINE}", "fake:seed=2,{ENGINE}"]
processes = 2
iters = 5
warmup = 1
[[model]]
name = "{DATA_DIR / "digits-mlp.onnx"}"
"""


def sweep(root: Path) -> object:
    store, spec = root / "store", root.parent / "sweep.toml"
    spec.write_text(SPEC)
    resume = (store / "sweep.json").exists()
    return replace(run_sweep(read_spec(spec), str(store), reporter=Silent(), resume=resume), store="", started_utc="")


@pytest.mark.usefixtures("still")
def test_whatever_the_moment_the_document_is_that_of_an_undisturbed_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "describe_machine", main_job.describe_machine)
    check_any_moment(sweep, tmp_path)
