"""Any moment of interruption, then `--resume`: the document is that of an undisturbed run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from enginebench.core.records import MeasureSpec
from enginebench.engines.fake import FakeClock
from enginebench.features.sweep.spec import read_spec
from enginebench.features.sweep.verb import run_sweep
from enginebench.models.zoo import DATA_DIR
from enginebench.runs.folder import RunRequest, holds_run
from enginebench.runs.main_job import run_model
from enginebench.runs.reporting import describe_stored
from interruptions import Interruptions, still
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
OPTIONS = dict(pair.split("=") for pair in ENGINE.split(","))
REQUEST = RunRequest(
    model=str(DATA_DIR / "digits-mlp.onnx"),
    engines=tuple(("fake", {"seed": seed, **OPTIONS}) for seed in "12"),
    measure=MeasureSpec(warmup=1, iters=5, processes=2),
)
# (number of the change ahead of which it is interrupted, whether it is killed): once, or again while it is resumed.
MOMENTS = st.lists(st.tuples(st.integers(0, 10_000), st.booleans()), min_size=1, max_size=3)
EXAMPLES = settings(max_examples=25, deadline=None, database=None)


def run(root: Path) -> object:
    folder = root / "run"
    return describe_stored(*run_model(REQUEST, folder, reporter=Silent(), resume=holds_run(folder)))


def sweep(root: Path) -> object:
    store, spec = root / "store", root.parent / "sweep.toml"
    spec.write_text(SPEC)
    resume = (store / "sweep.json").exists()
    return replace(run_sweep(read_spec(spec), str(store), reporter=Silent(), resume=resume), store="", started_utc="")


@pytest.fixture(scope="module")
def interruptions() -> Interruptions:
    return Interruptions()


@pytest.mark.parametrize("work", [run, sweep])
def test_whatever_the_moment_the_document_is_that_of_an_undisturbed_run(
    work: Callable[[Path], object],
    tmp_path: Path,
    still: FakeClock,
    interruptions: Interruptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calm, root = tmp_path / "calm", tmp_path / "interrupted"
    wanted = interruptions.run(calm, lambda: work(calm))
    assert wanted is not None
    changes = interruptions.count

    @EXAMPLES
    @given(MOMENTS)
    def check(moments: list[tuple[int, bool]]) -> None:
        shutil.rmtree(root, ignore_errors=True)
        for at, killed in moments:
            interruptions.run(root, lambda: work(root), at % changes, killed=killed)
        assert work(root) == wanted

    check()
