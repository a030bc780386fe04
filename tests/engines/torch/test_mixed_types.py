"""Modules whose own code mixes types: they fail once they are cast, and run under torch.autocast with a warning."""

from typing import Any

import pytest
import torch
from torch import nn

from enginebench.core.records import Artifact, EngineSpec, TensorSpec
from enginebench.engines.backends.torch.engine import list_cast_warnings
from enginebench.engines.backends.torch.entries import PYTORCH
from enginebench.engines.pytorch_module import place_module

OPTIONS = {key: option.default for key, option in PYTORCH.options.items()}
ENDS = tuple(TensorSpec(name=name, dtype="float32", shape=("n", 6, 8)) for name in "xy")


class Rotary(nn.Module):
    """One projection, and an embedding of positions that is computed in FP32."""

    def __init__(self, *, mixes: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mixes, self.norm = mixes, nn.LayerNorm(8)
        self.inward, self.outward = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("rates", 100 ** -torch.linspace(0, 1, 8))

    def forward(self, x: Any) -> Any:
        angles = torch.arange(x.shape[1], dtype=torch.float32)[:, None] * self.rates.float()
        turned = self.norm(self.inward(x)).float() * angles.cos()
        return self.outward(turned if self.mixes else turned.to(x.dtype))


class Broken(nn.Module):
    """Fails in every type."""

    def forward(self, x: Any) -> Any:
        raise ValueError("never takes anything")


def place(module: nn.Module) -> Any:
    artifact = Artifact(kind="torch", model="m", path="", sha256="", files=(), inputs=ENDS[:1], outputs=ENDS[1:])
    spec = EngineSpec(backend="pytorch", precision="bf16", threads=1, batch=4)
    return place_module(module.eval(), artifact, spec, OPTIONS)


@pytest.mark.parametrize("mixes", [True, False])
def test_a_module_that_mixes_types_runs_under_autocast(mixes: bool) -> None:
    x, plain = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(1)), Rotary(mixes=mixes).eval()
    placed = place(Rotary(mixes=mixes))
    with torch.inference_mode():
        expected, (found,) = plain(x), placed(x)
    assert found.dtype == torch.float32
    assert float((found - expected).square().mean() / expected.square().mean()) < 1e-3  # 30 dB
    warnings = list_cast_warnings(placed)
    assert [one.code for one in warnings] == (["low_effective_precision"] if mixes else [])
    assert all("mixes types and fails once it is cast to bf16" in one.message for one in warnings)
    # Rounded to BF16 the rates would turn positions by other angles.
    kept = placed._module.rates
    assert torch.equal(kept.float(), plain.rates) is mixes


def test_a_module_that_fails_in_every_type_stays_cast() -> None:
    placed = place(nn.Sequential(nn.Linear(8, 8), Broken()))
    assert list_cast_warnings(placed) == () and placed._module[0].weight.dtype == torch.bfloat16
    with pytest.raises(ValueError, match="never takes anything"):
        placed(torch.zeros(2, 6, 8))
