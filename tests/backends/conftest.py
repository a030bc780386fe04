"""One small network in two forms, ONNX and PyTorch, with the same seeded weights; and what opens an engine on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enginebench.backends.registry import open_backend, takes
from enginebench.core.records import Artifact, EngineSpec, TensorSpec
from enginebench.core.store import hash_files

CLASSES, CHANNELS, SIZE = 5, 4, 8
INPUT = TensorSpec(name="image", dtype="float32", shape=("batch", 3, SIZE, SIZE))
OUTPUT = TensorSpec(name="scores", dtype="float32", shape=("batch", CLASSES))


@pytest.fixture(scope="session")
def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    shapes = {
        "conv.weight": (CHANNELS, 3, 3, 3),
        "conv.bias": (CHANNELS,),
        "head.weight": (CLASSES, CHANNELS * SIZE * SIZE),
        "head.bias": (CLASSES,),
    }
    return {name: (rng.standard_normal(shape) * 0.2).astype(np.float32) for name, shape in shapes.items()}


@pytest.fixture(scope="session")
def expect(weights: dict[str, np.ndarray]) -> Callable[[np.ndarray], np.ndarray]:
    """The network in NumPy, in double precision: the truth that every engine is held against."""

    def infer(image: np.ndarray) -> np.ndarray:
        padded = np.pad(image.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        hidden = np.einsum("nchwij,ocij->nohw", windows, weights["conv.weight"].astype(np.float64))
        hidden = np.maximum(hidden + weights["conv.bias"][:, None, None], 0).reshape(len(image), -1)
        return hidden @ weights["head.weight"].T.astype(np.float64) + weights["head.bias"]

    return infer


@pytest.fixture(scope="session")
def onnx_artifact(tmp_path_factory: pytest.TempPathFactory, weights: dict[str, np.ndarray]) -> Artifact:
    """The network as ONNX, in a folder whose name has a space and no ASCII."""
    path = tmp_path_factory.mktemp("modèle été") / "small net.onnx"
    return save_onnx(path, weights, INPUT.shape, OUTPUT.shape)


def save_onnx(path: Path, weights: dict[str, np.ndarray], input_shape: Any, output_shape: Any) -> Artifact:
    """Writes the network with these outer shapes."""
    from onnx import TensorProto, helper, numpy_helper, save

    nodes = [
        helper.make_node("Conv", ["image", "conv.weight", "conv.bias"], ["conv"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["conv"], ["hidden"]),
        helper.make_node("Flatten", ["hidden"], ["flat"]),
        helper.make_node("Gemm", ["flat", "head.weight", "head.bias"], ["scores"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, input_shape)],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, output_shape)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(path))
    return describe_onnx(path, (INPUT,), (OUTPUT,))


def describe_onnx(path: Path, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> Artifact:
    """The artefact of an ONNX file."""
    sha256, files = hash_files([path], path.parent)
    return Artifact(
        kind="onnx", model="small", path=str(path), sha256=sha256, files=files, inputs=inputs, outputs=outputs
    )


@pytest.fixture(scope="session")
def torch_artifact() -> Artifact:
    return Artifact(kind="torch", model="small", path="", sha256="0" * 64, files=(), inputs=(INPUT,), outputs=(OUTPUT,))


@pytest.fixture(scope="session")
def loader(weights: dict[str, np.ndarray]) -> Callable[[Artifact], Any]:
    """What `workflow` hands in: rebuilds the module of a `torch` artefact."""

    def load_module(artifact: Artifact) -> Any:
        import torch

        layers = {"conv": torch.nn.Conv2d(3, CHANNELS, 3, padding=1), "relu": torch.nn.ReLU()}
        layers |= {"flat": torch.nn.Flatten(), "head": torch.nn.Linear(CHANNELS * SIZE * SIZE, CLASSES)}
        module = torch.nn.Sequential()
        for name, layer in layers.items():
            module.add_module(name, layer)
        module.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})
        return module

    return load_module


@pytest.fixture(scope="session")
def load_engine(
    onnx_artifact: Artifact,
    torch_artifact: Artifact,
    loader: Callable[[Artifact], Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Any]:
    """Opens, builds and loads an engine by name, on the small network."""
    cache_dir = tmp_path_factory.mktemp("cache")

    def load(name: str, **spec: Any) -> Any:
        backend = open_backend(name, loader, cache_dir)
        engine_spec = EngineSpec(backend=name, **spec)
        source = torch_artifact if takes(name) == "torch" else onnx_artifact
        return backend.load(backend.build(source, engine_spec, cache_dir), engine_spec)

    return load
