"""EfficientNet-Lite by the package that ships it; this file goes into bundles as it is."""

from torch import nn


def make_lite0() -> nn.Module:
    """The module, with weights that mean nothing yet."""
    from efficientnet_lite_pytorch import EfficientNet

    return EfficientNet.from_name("efficientnet-lite0")
