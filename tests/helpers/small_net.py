"""Fixtures that open an engine on the small network of the contract suite, and that network in both of its forms."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from enginebench.core.records import Artifact, EngineSpec
from enginebench.engines.registry import open_backend, takes
from enginebench.testing import INPUT, OUTPUT, expect_scores, make_module, make_weights, save_network


@pytest.fixture(scope="session")
def weights() -> dict[str, np.ndarray]:
    return make_weights()


@pytest.fixture(scope="session")
def expect() -> Callable[[np.ndarray], np.ndarray]:
    """The truth that every engine is held against."""
    return expect_scores


@pytest.fixture(scope="session")
def onnx_artifact(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The network as ONNX, in a folder whose name has a space and no ASCII."""
    return save_network(tmp_path_factory.mktemp("modèle été") / "small net.onnx")


@pytest.fixture(scope="session")
def torch_artifact() -> Artifact:
    return Artifact(kind="torch", model="small", path="", sha256="0" * 64, files=(), inputs=(INPUT,), outputs=(OUTPUT,))


@pytest.fixture(scope="session")
def loader() -> Callable[[Artifact], Any]:
    """What `workflow` hands in: rebuilds the module of a `torch` artifact."""
    return make_module


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
