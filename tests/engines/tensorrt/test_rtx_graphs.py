"""Every graph that we write for TensorRT, read and built by NVIDIA's own parser and builder (TensorRT for RTX).

A refusal, a crash, or a product that the graph gives in 8 bits and the plan computes in floats is a fault of ours, or
one of the exceptions below.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import enginebench
from enginebench.models.precision.macs import list_quantized_products
from enginebench.models.torch.export import export_onnx
from enginebench.models.torch.source import make_torch_artifact
from enginebench.models.zoo import DATA_DIR
from rtx import Judge, needs_rtx

pytestmark = needs_rtx
TARGETS = "8.6+8.9+12.0"
FP8_TARGETS = "8.9+12.0"


# Model, image size, and where the builder plans fewer products in 8 bits than the graph has, how many are left out: it
# plans no convolution of 7x7 or 16x16 in FP8, and one of 1x1 as generated code in floats.
MODELS: list[tuple[str, int | None, dict[str, int]]] = [
    ("digits-cnn", None, {}),
    ("resnet18", 64, {"fp8": 1}),
    ("mobilenet_v3_small", 64, {}),
    ("short_models:make_short_efficientnet", None, {"int8": 1}),
    ("short_models:make_short_vit", None, {"fp8": 1}),
    ("short_models:make_short_convnext", None, {"fp8": 8}),
]


# A graph in 8 bits has every operator of its floats; casts are seen on these, and TF32, which is FP32 built otherwise.
FLOATS = ("tf32", "fp32", "fp16", "bf16")
IN_FLOATS = ("digits-cnn", "short_models:make_short_vit")


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    with Judge(tmp_path_factory.mktemp("plans")) as made:
        yield made


def export(name: str, size: int | None, folder: Path) -> Path:
    """The FP32 graph with an open batch; the digits have theirs in the package."""
    if name == "digits-cnn":
        return DATA_DIR / f"{name}.onnx"
    out = folder / "fp32.onnx"
    export_onnx(make_torch_artifact(name, folder, weights="random", input_size=size), out, dynamic_batch=True)
    return out


@pytest.mark.long
@pytest.mark.parametrize(("name", "size", "in_floats"), MODELS, ids=[name for name, _, _ in MODELS])
def test_a_model_in_every_precision(judge, tmp_path, name, size, in_floats) -> None:
    fp32 = export(name, size, tmp_path)
    enginebench.calibrate(str(fp32), "fake", tmp_path / "calib.json", n=4)
    for precision in (*(FLOATS if name in IN_FLOATS else ()), "int8@tensorrt", "fp8"):
        graph = fp32
        if precision not in ("fp32", "tf32"):
            calib = tmp_path / "calib.json" if precision in ("int8@tensorrt", "fp8") else None
            graph = tmp_path / f"{precision}.onnx"
            enginebench.quantize(fp32, precision, graph, calib=calib)
        short = precision.split("@")[0]
        found = judge.build(graph, short, compute_capability=FP8_TARGETS if short == "fp8" else TARGETS)
        assert "products" in found, (precision, found)
        check_products(found, graph, short, in_floats.get(short, 0))


def check_products(found: dict[str, Any], graph: Path, precision: str, in_floats: int) -> None:
    """The products are planned in the precision of the graph, those in 8 bits one by one."""
    products = found["products"]
    if precision in ("int8", "fp8"):
        wanted = list_quantized_products(onnx.load(graph))
        planned = {node for _, ran, nodes in found["layers"] if ran == precision for node in nodes}
        assert len([node for node in wanted if node not in planned]) == in_floats, found["doubts"]
        assert bool(found["doubts"]) == bool(in_floats)
        assert max(products, key=lambda key: products[key]) == precision
    elif products:  # a batch of one makes generated code of small products
        assert list(products) == ["fp32" if precision == "tf32" else precision], products


@pytest.mark.parametrize("opset", [13, 19, 21, 23, 26])
def test_every_opset(judge: Judge, tmp_path: Path, opset: int) -> None:
    """From the first that the recipes write to the newest that onnx knows, by way of those that changed Q/DQ nodes."""
    source = onnx.load(DATA_DIR / "digits-cnn.onnx")
    given = tmp_path / "given.onnx"
    onnx.save(convert(source, opset), given)
    assert "products" in judge.build(given, compute_capability=TARGETS)
    enginebench.calibrate(str(given), "fake", tmp_path / "calib.json", n=4)
    for precision in ("int8@tensorrt", "fp8"):
        made = tmp_path / f"{precision}.onnx"
        enginebench.quantize(given, precision, made, calib=tmp_path / "calib.json")
        short = precision.split("@")[0]
        found = judge.build(made, short, compute_capability=FP8_TARGETS)
        assert found.get("products") == {short: 5}, found


def convert(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    """The digits' CNN at another opset: but for one attribute its operators are alike from 13 to 26."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for node in made.graph.node if opset < 14 else ():
        for attribute in [a for a in node.attribute if a.name == "allowzero"]:
            node.attribute.remove(attribute)
    del made.opset_import[:]
    made.opset_import.append(onnx.helper.make_opsetid("", opset))
    made.ir_version = max(8, onnx.helper.find_min_ir_version_for(made.opset_import))
    onnx.checker.check_model(made, full_check=True)
    return made


def test_dynamic_shapes(judge: Judge, tmp_path: Path) -> None:
    """An open batch and open images, in one profile and in two."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.Conv2d(16, 32, 3)
            self.head = torch.nn.Linear(32, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(torch.relu(self.second(torch.relu(self.first(x)))).mean((2, 3)))  # type: ignore[no-any-return]

    path = tmp_path / "net.onnx"
    enginebench.export(Net().eval(), path, example_inputs=torch.zeros(1, 3, 32, 32), dynamic_batch=True)
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        for place, axis in enumerate(value.type.tensor_type.shape.dim):
            if place in (0, 2, 3):
                axis.dim_param = ("batch", "", "height", "width")[place]
    del model.graph.value_info[:]
    onnx.save(model, path)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((4, 3, 32, 32), dtype=np.float32))
    enginebench.calibrate(str(path), tmp_path / "x.npy", tmp_path / "calib.json", n=4)
    enginebench.quantize(path, "int8@tensorrt", tmp_path / "q.onnx", calib=tmp_path / "calib.json")
    (name,) = [value.name for value in model.graph.input]
    shapes = {"min_shapes": f"{name}:1x3x16x16", "opt_shapes": f"{name}:4x3x32x32", "max_shapes": f"{name}:8x3x64x64"}
    for more in ({}, {"profiles": f"{name}:16x3x32x32/16x3x32x32/32x3x32x32"}):
        found = judge.build(tmp_path / "q.onnx", "int8", compute_capability=TARGETS, **shapes, **more)
        assert found.get("products", {}).get("int8", 0) >= 2 and not found["doubts"], found


def test_builds_repeat(tmp_path: Path) -> None:
    """Two processes, two folders, other file names: the same bytes; another target, others."""
    found = []
    for index, targets in enumerate((("8.9",), ("8.9", "8.6"))):
        copy = tmp_path / f"{index}.onnx"
        copy.write_bytes((DATA_DIR / "digits-cnn.onnx").read_bytes())
        with Judge(tmp_path / f"plans{index}") as alone:
            (tmp_path / f"plans{index}").mkdir()
            found += [alone.build(copy, compute_capability=target)["sha256"] for target in targets]
    assert found[0] == found[1] != found[2]
