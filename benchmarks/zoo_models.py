"""Models of the zoo that no wheel holds: factories of seeded networks, and functions that write a graph.

The claims of docs/models.md and docs/tensorrt.md rest on this.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def _seeded(build: Callable[[], Any]) -> Any:
    import torch

    torch.manual_seed(0)
    return build().eval()


def _timm(name: str) -> tuple[Any, tuple[Any, ...]]:
    import timm
    import torch

    return _seeded(lambda: timm.create_model(name)), (torch.randn(1, 3, 224, 224),)


def vit() -> tuple[Any, tuple[Any, ...]]:
    """ViT-tiny."""
    return _timm("vit_tiny_patch16_224")


def swin() -> tuple[Any, tuple[Any, ...]]:
    """Swin-tiny."""
    return _timm("swin_tiny_patch4_window7_224")


def convnext() -> tuple[Any, tuple[Any, ...]]:
    """ConvNeXt-atto."""
    return _timm("convnext_atto")


def segmenter() -> tuple[Any, tuple[Any, ...]]:
    """LR-ASPP on MobileNetV3."""
    import torch
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    build = lambda: lraspp_mobilenet_v3_large(weights=None, weights_backbone=None)  # noqa: E731
    return _seeded(build), (torch.randn(1, 3, 224, 224),)


def detector() -> tuple[Any, tuple[Any, ...]]:
    """SSDlite on MobileNetV3, boxes after suppression."""
    import torch
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    build = lambda: ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None)  # noqa: E731
    return _seeded(build), ([torch.rand(3, 320, 320)],)


def encoder() -> tuple[Any, tuple[Any, ...]]:
    """PyTorch's transformer encoder over an embedding of 1,000 tokens."""
    import torch
    from torch import nn

    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        return nn.Sequential(nn.Embedding(1000, 64), nn.TransformerEncoder(layer, 2), nn.Linear(64, 10))

    return _seeded(build), (torch.randint(0, 1000, (1, 32)),)


def lstm() -> tuple[Any, tuple[Any, ...]]:
    """PyTorch's LSTM, which answers with its sequence and its two states."""
    import torch
    from torch import nn

    return _seeded(lambda: nn.LSTM(32, 64, num_layers=2, batch_first=True)), (torch.randn(1, 20, 32),)


def _prepare_torchvision() -> None:
    """Lets a torchvision be imported that was built for another PyTorch than is installed."""
    from enginebench.models.torch.torchvision_import import import_torchvision

    import_torchvision()


def _export(module: Any, inputs: tuple[Any, ...], path: str, opset: int = 18) -> None:
    """By the exporter that goes over TorchScript, which writes old operator sets."""
    import torch

    torch.onnx.export(module, inputs, path, opset_version=opset, dynamo=False, input_names=["x"])


def make_gru(path: str) -> None:
    """A GRU at operator set 9."""
    import torch
    from torch import nn

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = nn.GRU(16, 32, batch_first=False), nn.Linear(32, 5)

        def forward(self, x: Any) -> Any:
            return self.head(self.gru(x)[0][-1])

    _export(_seeded(Last), (torch.randn(12, 1, 16),), path, opset=9)


def _mobilenet() -> Any:
    _prepare_torchvision()
    from torchvision.models import mobilenet_v3_small

    return _seeded(lambda: mobilenet_v3_small(weights=None))


def _resnet() -> Any:
    _prepare_torchvision()
    from torchvision.models import resnet18

    return _seeded(lambda: resnet18(weights=None))


def make_half(path: str) -> None:
    """MobileNetV3 in FP16, inputs too."""
    import torch

    _export(_mobilenet().half(), (torch.randn(1, 3, 224, 224).half(),), path)


def make_qoperator(path: str) -> None:
    """ResNet-18 by ONNX Runtime's static quantization into operators of their own."""
    import torch
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quant_pre_process, quantize_static

    class Noise(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            rng = np.random.default_rng(0)
            self._left = [{"x": rng.standard_normal((1, 3, 224, 224), np.float32)} for _ in range(4)]

        def get_next(self) -> dict[str, Any] | None:
            return self._left.pop() if self._left else None

    whole = str(Path(path).with_suffix(".fp32.onnx"))
    _export(_resnet(), (torch.randn(1, 3, 224, 224),), whole)
    quant_pre_process(whole, whole, skip_symbolic_shape=True)
    quantize_static(whole, path, Noise(), quant_format=QuantFormat.QOperator)


def make_external(path: str) -> None:
    """ResNet-18 with its weights in a second file."""
    import onnx
    import torch

    whole = str(Path(path).with_suffix(".whole.onnx"))
    _export(_resnet(), (torch.randn(1, 3, 224, 224),), whole)
    weights = Path(path).with_suffix(".data")
    weights.unlink(missing_ok=True)
    onnx.save(onnx.load(whole), path, save_as_external_data=True, location=weights.name)


def make_pipeline(path: str) -> None:
    """Scaling and logistic regression of scikit-learn, which ends in a sequence of maps."""
    from skl2onnx import to_onnx
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline as join
    from sklearn.preprocessing import StandardScaler

    x, y = load_iris(return_X_y=True)
    fitted = join(StandardScaler(), LogisticRegression(max_iter=500)).fit(x, y)
    Path(path).write_bytes(to_onnx(fitted, x[:1].astype(np.float32)).SerializeToString())


def make_custom(path: str) -> None:
    """Upper case and length of text, by operators of onnxruntime-extensions."""
    import onnx
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("StringUpper", ["x"], ["upper"], domain="ai.onnx.contrib"),
        helper.make_node("StringLength", ["upper"], ["n"], domain="ai.onnx.contrib"),
    ]
    values = [
        helper.make_tensor_value_info("x", TensorProto.STRING, ["n"]),
        helper.make_tensor_value_info("upper", TensorProto.STRING, ["n"]),
        helper.make_tensor_value_info("n", TensorProto.INT64, ["n"]),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.contrib", 1)]
    graph = helper.make_graph(nodes, "text", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
