"""A stored run of a small network, and bundles of its rows; made once."""

import shutil
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from bundles import make_run, name
from enginebench.features.deliver.verb import deliver_configuration
from environments import Environments
from reporters import Silent
from shared import make_once

ENGINES = ("pytorch", "ort", "openvino")


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows in FP32: pytorch, ort, openvino; and fake, which cannot be delivered."""
    asked = ("--engines", ",".join((*ENGINES, "fake")))
    return make_once(tmp_path_factory, "for-delivery", lambda home: make_run(home, *asked)) / "run"


@pytest.fixture(scope="session")
def delivered(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A bundle of each row by its engine; not to be changed."""
    forms = ("triton", "kserve", "dockerfile")

    def deliver(folder: Path) -> None:
        for engine in ENGINES:
            deliver_configuration(run, folder / engine, row=name(engine), forms=forms, reporter=Silent())

    folder = make_once(tmp_path_factory, "delivered", deliver)
    return {engine: folder / engine for engine in ENGINES}


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Environments:
    """Virtual environments, made as they are asked for."""
    return Environments(tmp_path_factory.mktemp("environments"))


@pytest.fixture
def bundle(delivered: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the bundle of ort, to be tampered with."""
    return Path(shutil.copytree(delivered["ort"], tmp_path / "bundle"))


@pytest.fixture
def load_program(delivered: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Any]]:
    """(engine, name) -> a program of that bundle, imported for the time of the test."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(variable, "1")

    def load(engine: str, program: str) -> Any:
        monkeypatch.syspath_prepend(str(delivered[engine]))
        return import_module(program)

    yield load
    for module in set(sys.modules) - before:
        if module.partition(".")[0] in ("facts", "trial", "predict", "preprocess", "module", "measured"):
            del sys.modules[module]
