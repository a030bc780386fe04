"""Recurrent layers under torch.compile: left to PyTorch's own kernels, and everything around them compiled."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from msgspec.structs import replace
from torch import nn
from torch._dynamo.utils import counters

from calls import run_on
from enginebench.core.errors import ModelError
from enginebench.core.records import Artifact, EngineSpec, TensorSpec
from enginebench.engines import pytorch_compile
from enginebench.engines.backends.torch.pytorch_compile import PytorchCompileBackend
from enginebench.engines.pytorch_compile import ATTENTION, Simplify, leave_recurrent, listen_to_left

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


def forget() -> None:
    """Begins as a process does: PyTorch takes what it compiled for another module of the same code."""
    torch._dynamo.reset()
    counters.clear()


each_forgets = pytest.fixture(forget, autouse=True)


def count_graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


def test_what_is_around_a_recurrent_layer_is_compiled_and_unrolled_it_is_one_graph(tmp_path: Path) -> None:
    module = Recurrent(nn.LSTM).eval()
    x = np.random.default_rng(0).standard_normal((1, STEPS, WIDTH)).astype(np.float32)
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).numpy()
    with PytorchCompileBackend(lambda artifact: module, tmp_path).load(ARTIFACT, SPEC) as engine:
        assert count_graphs() == 2  # one before it, one behind it
        np.testing.assert_allclose(run_on(engine, {"x": x})["y"], expected, rtol=1e-5, atol=1e-6)
    forget()
    module = Recurrent(nn.GRU).eval()
    unrolled = replace(SPEC, options={"rnn": "unroll"})
    with PytorchCompileBackend(lambda artifact: module, tmp_path).load(ARTIFACT, unrolled):
        assert count_graphs() == 1


def test_any_other_break_and_a_configuration_without_compiled_parts_is_refused(tmp_path: Path) -> None:
    backend = PytorchCompileBackend(lambda artifact: Recurrent(nn.GRU, broken=True).eval(), tmp_path)
    with pytest.raises(ModelError, match=r"graph_break.*pytorch-compile:fullgraph=0"):
        backend.load(ARTIFACT, SPEC)
    with backend.load(ARTIFACT, replace(SPEC, options={"fullgraph": "0"})):
        pass
    forget()
    backend = PytorchCompileBackend(lambda artifact: Bare().eval(), tmp_path)
    with pytest.raises(ModelError, match="nothing to compile"):
        backend.load(ARTIFACT, SPEC)


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


# The rewrites of a traced graph: what they leave out, and what they must not touch.

N = 6


def trace(module: Any, *inputs: Any) -> Any:
    """(the graph as torch.compile hands it to its compiler, what it is called with)."""
    found: list[Any] = []

    def record(graph: Any, given: Any) -> Any:
        found[:] = [graph, [one.detach() for one in given]]
        return graph.forward

    torch._dynamo.reset()
    with torch.inference_mode():
        torch.compile(module, backend=record, dynamic=False, fullgraph=True)(*inputs)
    return found


def written() -> Any:
    mask = torch.ones(N, N, dtype=torch.bool)
    mask[0, 1:] = False
    return mask


MASKS: dict[str, tuple[Any, bool]] = {
    "true": (lambda x: torch.arange(N)[:, None].expand(N, N) >= 0, True),
    "zero": (lambda x: torch.zeros(1, 1, N, N), True),
    "causal": (lambda x: torch.arange(N)[:, None] >= torch.arange(N), False),
    "of the input": (lambda x: x[0, 0, :, :1].isfinite().expand(N, N), False),
    "written later": (lambda x: written(), False),
    "within vmap": (lambda x: torch.vmap(lambda n: torch.arange(N) >= n - n)(torch.arange(N)), False),
    "random": (lambda x: torch.rand(N, N) >= 0, False),
    "none": (lambda x: None, True),
}


@pytest.mark.parametrize("exported", [False, True], ids=["traced", "exported"])
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_that_forbids_nothing_is_left_out(name: str, exported: bool) -> None:
    make, dropped = MASKS[name]

    class Attention(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return F.scaled_dot_product_attention(x, x, x, attn_mask=make(x))

    x = torch.randn(2, 3, N, 4)
    module = torch.export.export(Attention(), (x,)).module() if exported else Attention()
    graph, given = trace(module, x)
    Simplify()(graph.graph)
    graph.recompile()
    (node,) = (one for one in graph.graph.nodes if one.target in ATTENTION)
    masks = [*node.args[3:4], node.kwargs.get("attn_mask")]
    assert all(mask is None for mask in masks) == dropped
    with torch.inference_mode():
        assert torch.allclose(graph(*given)[0], Attention()(x))


@pytest.mark.parametrize(
    ("made", "replaced"),
    [
        ({}, True),
        ({"kernel_size": (4, 2), "stride": (4, 2)}, True),
        ({"padding": 4}, False),
        ({"stride": 2}, False),
        ({"kernel_size": 3, "stride": 3}, False),  # leaves a row of the image out
        ({"kernel_size": 1, "stride": 1}, False),
        ({"in_channels": 8}, False),
        ({"dtype": torch.float32}, False),
    ],
    ids=str,
)
def test_a_convolution_over_patches_is_a_product(monkeypatch, made, replaced) -> None:
    monkeypatch.setattr(pytorch_compile, "PATCHED", "cpu")
    wanted = {"in_channels": 3, "out_channels": 5, "kernel_size": 4, "stride": 4, "dtype": torch.bfloat16} | made
    module = torch.nn.Sequential(torch.nn.Conv2d(**wanted)).eval()
    x = torch.randn(2, wanted["in_channels"], 16, 16).to(wanted["dtype"])
    graph, given = trace(module, x)
    (before,) = (one for one in graph.graph.nodes if one.target is torch.conv2d)
    Simplify()(graph.graph)
    graph.graph.lint()
    graph.recompile()
    (after,) = (one for one in graph.graph.nodes if one.target in (torch.conv2d, F.linear))
    assert (after.name, after.target is F.linear) == (before.name, replaced)
    assert after.meta.get("nn_module_stack") == before.meta.get("nn_module_stack")
    with torch.inference_mode():
        assert torch.allclose(graph(*given)[0].float(), module(x).float(), atol=2e-2)
