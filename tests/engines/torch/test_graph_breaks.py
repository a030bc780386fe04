"""Recurrent layers under torch.compile: left to PyTorch's own kernels, and everything around them compiled."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn
from torch._dynamo.utils import counters

from calls import run_on
from enginebench.core.errors import ModelError
from enginebench.core.records import Artifact, EngineSpec, TensorSpec
from enginebench.engines.backends.torch.pytorch_compile import PytorchCompileBackend, refuse_breaks
from enginebench.engines.pytorch_compile import compiles_whole, find_recurrent, leave_recurrent, listen_to_left

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")

SPEC = EngineSpec(backend="pytorch-compile", precision="fp32", threads=1)
STEPS, WIDTH = 3, 4
X = TensorSpec(name="x", dtype="float32", shape=(1, STEPS, WIDTH))
Y = TensorSpec(name="y", dtype="float32", shape=(1, WIDTH))
ARTIFACT = Artifact(kind="torch", path="", sha256="", files=(), model="recurrent", inputs=(X,), outputs=(Y,))


class Recurrent(nn.Module):
    """A recurrent layer between two parts that can be compiled."""

    def __init__(self, layer: type[nn.RNNBase], *, broken: bool = False) -> None:
        super().__init__()
        self.before, self.layer, self.after = nn.Linear(WIDTH, WIDTH), layer(WIDTH, WIDTH, batch_first=True), nn.Tanh()
        self.broken = broken

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, _ = self.layer(self.before(x).relu())
        if self.broken:
            torch._dynamo.graph_break()
        return self.after(x.sum(1) * 2)


class Bare(nn.Module):
    """Nothing but a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[1]  # type: ignore[no-any-return]  # PyTorch is not followed by mypy


@pytest.fixture(autouse=True)
def forget_compiled() -> None:
    """Each test begins as a process does: PyTorch takes what it compiled for another module of the same code."""
    torch._dynamo.reset()
    counters.clear()


def count_graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


def test_what_is_around_a_recurrent_layer_is_compiled(tmp_path: Path) -> None:
    module = Recurrent(nn.LSTM).eval()
    x = np.random.default_rng(0).standard_normal((1, STEPS, WIDTH)).astype(np.float32)
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).numpy()
    with PytorchCompileBackend(lambda artifact: module, tmp_path).load(ARTIFACT, SPEC) as engine:
        assert count_graphs() == 2  # one before it, one behind it
        np.testing.assert_allclose(run_on(engine, {"x": x})["y"], expected, rtol=1e-5, atol=1e-6)


def test_unrolled_it_is_one_graph(tmp_path: Path) -> None:
    module = Recurrent(nn.GRU).eval()
    unrolled = replace(SPEC, options={"rnn": "unroll"})
    with PytorchCompileBackend(lambda artifact: module, tmp_path).load(ARTIFACT, unrolled):
        assert count_graphs() == 1


def test_any_other_break_is_refused_all_the_same(tmp_path: Path) -> None:
    backend = PytorchCompileBackend(lambda artifact: Recurrent(nn.GRU, broken=True).eval(), tmp_path)
    with pytest.raises(ModelError, match=r"graph_break.*pytorch-compile:fullgraph=0"):
        backend.load(ARTIFACT, SPEC)
    with backend.load(ARTIFACT, replace(SPEC, options={"fullgraph": "0"})):
        pass


def test_a_row_of_which_nothing_is_compiled_is_refused(tmp_path: Path) -> None:
    backend = PytorchCompileBackend(lambda artifact: Bare().eval(), tmp_path)
    with pytest.raises(ModelError, match="nothing to compile"):
        backend.load(ARTIFACT, SPEC)


def test_only_a_module_without_recurrent_layers_has_to_be_one_graph() -> None:
    strict = {"fullgraph": "1", "rnn": "eager"}
    plain, recurrent = nn.Linear(1, 1), nn.Sequential(nn.GRU(1, 1))
    assert compiles_whole(plain, strict) and not compiles_whole(recurrent, strict)
    assert compiles_whole(recurrent, strict | {"rnn": "unroll"}) and not compiles_whole(
        plain, strict | {"fullgraph": "0"}
    )
    assert [*find_recurrent(recurrent)] == [recurrent[0]] and not [*find_recurrent(torch.relu)]


def test_a_break_counts_only_inside_of_the_block() -> None:
    def break_graph(x: Any) -> Any:
        torch._dynamo.graph_break()
        return x + 1

    compiled = torch.compile(break_graph, backend="eager")
    compiled(torch.ones(1))
    with refuse_breaks():
        pass
    torch._dynamo.reset()
    with pytest.raises(RuntimeError, match="graph_break"), refuse_breaks():
        compiled(torch.ones(1))


def test_older_versions_of_pytorch_take_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "disable", lambda forward: ("left", forward))
    module = nn.Sequential(nn.GRU(1, 1))
    leave_recurrent(module)
    kind, forward = module[0].forward
    heard: list[Any] = []
    with listen_to_left(heard.append):
        answer, _ = forward(torch.ones(2, 1))
    forward(torch.ones(2, 1))
    assert kind == "left" and answer.shape == (2, 1) and heard == [module[0]]
