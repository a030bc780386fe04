"""The operation at which a compiled module leaves its own operations, run one by one; the compiler is made wrong."""

import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from enginebench.core.records import Artifact, EngineSpec, TensorSpec  # noqa: E402
from enginebench.features.locate import torch_program  # noqa: E402
from enginebench.features.locate.jobs import SideJob  # noqa: E402
from enginebench.report.located import LocatedSide  # noqa: E402
from enginebench.runs.child.arrays import save_arrays  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


class Net(torch.nn.Module):
    """Two outputs, one of which the fault does not reach; a split, whose result is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        left, right = torch.split(self.first(x), 8, dim=1)
        bent = torch.tanh(right) * left
        return self.second(bent), torch.relu(left)


def make_artifact() -> Artifact:
    outputs = tuple(TensorSpec(name=name, dtype="float32", shape=(4, 8)) for name in ("a", "b"))
    return Artifact(
        kind="torch",
        path="",
        sha256="",
        files=(),
        model="net",
        inputs=(TensorSpec(name="x", dtype="float32", shape=(4, 8)),),
        outputs=outputs,
        precision="fp32",
    )


def search(folder: Path, repro: Path | None = None) -> LocatedSide:
    save_arrays(folder / "call.npz", {"x": np.random.default_rng(0).standard_normal((4, 8), np.float32)})
    job = SideJob(
        text="pytorch-compile@net",
        artifact=make_artifact(),
        engine=EngineSpec(backend="pytorch-compile", precision="fp32"),
        calls=(str(folder / "call.npz"),),
        out_dir=str(folder / "scratch"),
        slice_mb=2000,
        repro_dir=str(repro) if repro else None,
    )
    with patch.object(torch_program, "open_module", lambda artifact: Net().eval()):
        return job.perform(lambda text: None, lambda answer: None)


def test_a_module_that_is_compiled_rightly_has_no_fault(tmp_path: Path) -> None:
    assert search(tmp_path).state == "keeps"


def test_the_operation_that_a_compiler_gets_wrong_is_found_and_reproduced(tmp_path: Path) -> None:
    from torch._inductor.codegen.cpp import CppOverrides, CppVecOverrides

    def bend(x: Any) -> str:
        return f"{x}.sin()"

    def bend_one(x: Any) -> str:
        return f"std::sin({x})"

    vectors = patch.object(CppVecOverrides, "tanh", staticmethod(bend))
    with vectors, patch.object(CppOverrides, "tanh", staticmethod(bend_one)):
        side = search(tmp_path, tmp_path / "repro")
    assert side.state == "leaves" and side.fault is not None
    assert (side.fault.node, side.fault.kind, side.fault.nodes) == ("tanh", "tanh", ("tanh",))
    assert [way.engine for way in side.fault.ways] == ["pytorch"]
    # The compiler of another process is right: the program says so.
    assert side.fault.reproduction is not None and side.fault.reproduction.shown is False
    repro = tmp_path / "repro"
    done = subprocess.run([sys.executable, "-I", "repro.py"], cwd=repro, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "the fault is there above" in done.stdout, done.stderr
    assert "enginebench" not in (repro / "repro.py").read_text().lower()
    assert len((repro / "repro.py").read_text().splitlines()) <= 40
    report = (repro / "report.md").read_text("utf-8")
    assert "pytorch-compile: wrong outputs of tanh" in report and "1 nodes" not in report
    assert f"torch {torch.__version__}" in report and "repro.py did not show it" in report
    (row,) = [line for line in report.splitlines() if line.startswith("| y0")]
    _, expected, found, _ = [cell.strip() for cell in row.strip("|").split("|")]
    np.testing.assert_allclose(np.sin(np.arctanh(np.float64(expected.split()))), np.float64(found.split()), atol=1e-4)


def test_an_engine_that_casts_what_it_loads_leaves_the_reference_alone(tmp_path: Path) -> None:
    artifact = make_artifact()
    spec = EngineSpec(backend="pytorch-compile", precision="bf16", options={"force": "1"})
    feeds = {"x": np.random.default_rng(0).standard_normal((4, 8), np.float32)}
    with patch.object(torch_program, "open_module", lambda artifact: Net().eval()):
        program = torch_program.TorchProgram(artifact, spec, feeds, tmp_path, lambda text: None)
    program.record(1 << 30)
    every, values = range(len(program.steps)), program.values
    program.compute(every, program.outputs, values, values)
    again = program.expect(every, program.outputs, values)
    for name in program.outputs:
        np.testing.assert_array_equal(again[name], values[name])
