"""The reproduction of a fault of TensorRT, run over the stand-in as a user runs it: without EngineBench."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from enginebench.core.records import EngineSpec
from enginebench.features.locate.judging import Deviation
from enginebench.features.locate.repro import write_reproduction
from enginebench.features.locate.shrink import Case
from enginebench.report.located import FoundFault
from fakes.tensorrt_modules import MODULES, VERSIONS, forget_modules, use_fakes
from graphs import build_graph

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:importlib")


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    use_fakes(monkeypatch, request.param)
    yield request.param
    forget_modules()


@pytest.mark.parametrize("off", [0.0, 1.0])
def test_it_exits_with_1_while_the_outputs_are_others(version: str, tmp_path: Path, off: float) -> None:
    """The graph is of a newer operator set than 8.6 reads: the one that was built is written."""
    model = build_graph("y = ReduceSum <keepdims = 1> (x, axes)", {"axes": [1]}, (2, 4), (2, 1), opset=20)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    expected = x.sum(1, keepdims=True) + off
    fault = FoundFault(node="y", kind="ReduceSum", tensor="y", nodes=("y",))
    deviation = Deviation(leaves=True, largest=1.0)
    case = Case(
        model=model, feeds={"x": x}, expected={"y": expected}, actual={"y": x[:, :1]}, deviations={"y": deviation}
    )
    write_reproduction(tmp_path / "repro", case, EngineSpec(backend="tensorrt", device="cuda:0"), fault)
    done = subprocess.run(
        [sys.executable, "repro.py"],
        cwd=tmp_path / "repro",
        env={**os.environ, "PYTHONPATH": str(MODULES), "FAKE_TENSORRT_VERSION": version},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == int(off), done.stderr
    assert "the fault is there above" in done.stdout
    program = (tmp_path / "repro" / "repro.py").read_text()
    assert "enginebench" not in program.lower() and len(program.splitlines()) <= 40
