"""The rewrites of a traced graph: what they leave out, and what they must not touch."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from enginebench.engines import pytorch_compile
from enginebench.engines.pytorch_compile import ATTENTION, Simplify

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
