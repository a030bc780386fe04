"""A module that comes quantized is named after its weights, however little of its time eight-bit kernels take."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from enginebench.engines.backends.torch.stored_weights import find_eight_bits

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def make_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).eval()


def quantize(config: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        quantization = pytest.importorskip("torchao").quantization
        net = make_net()
        quantization.quantize_(net, getattr(quantization, config)())
        return net

    return make


class HoldsPictures(nn.Module):
    """A network in FP32 beside more bytes than weights, and a table that is looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()
        self.register_buffer("pictures", torch.zeros(100, 100, 3, dtype=torch.uint8))
        self.table = nn.Embedding(1000, 64)

    def weight(self, x: torch.Tensor) -> torch.Tensor:
        """Bear the name by which quantized modules return their weights."""
        return x


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (make_net, None),
        (HoldsPictures, None),
        (quantize("Int8DynamicActivationInt8WeightConfig"), "int8"),
        (quantize("Int8WeightOnlyConfig"), "int8"),
        (lambda: torch.ao.quantization.quantize_dynamic(make_net(), {nn.Linear}, dtype=torch.qint8), "int8"),
        (lambda: make_net().half(), None),
        (lambda: nn.Sequential(nn.ReLU()), None),
        (lambda: torch.relu, None),
    ],
)
def test_the_weights_name_the_module(make: Callable[[], nn.Module], named: str | None) -> None:
    assert find_eight_bits(make()) == named
