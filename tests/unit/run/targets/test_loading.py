"""An engine from a file, in a few lines of a program."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import enginebench
from enginebench.core.errors import ArtifactError, UsageError
from enginebench.models.zoo import DATA_DIR
from enginebench.runs.targets.loading import load_engine
from fakes.tensorrt_modules import forget_modules, use_fakes


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    use_fakes(monkeypatch, "11.4")
    yield
    forget_modules()


@pytest.mark.usefixtures("fakes")
def test_five_lines() -> None:
    batch = np.zeros((2, 1, 8, 8), np.float32)
    with load_engine(DATA_DIR / "digits-cnn.onnx", "tensorrt", batch=2) as engine:
        engine.bind({"input": batch})
        engine.run()
        assert engine.fetch()["output"].shape == (2, 10)


def test_other_engines_load_the_same_way() -> None:
    with load_engine(DATA_DIR / "digits-cnn.onnx", "ort", batch=2) as engine:
        engine.bind({"input": np.zeros((2, 1, 8, 8), np.float32)})
        engine.run()
        assert engine.fetch()["output"].shape == (2, 10)


def test_it_is_open_at_once_and_closed_when_it_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    batch = np.zeros((2, 1, 8, 8), np.float32)
    engine = load_engine(DATA_DIR / "digits-cnn.onnx", "ort", batch=2)
    engine.bind({"input": batch})
    engine.run()
    assert np.array_equal(engine.fetch()["output"], engine({"input": batch})["output"])
    assert engine.threads == 1  # as only some engines say
    assert len(list(tmp_path.iterdir())) == 1
    engine.close()
    engine.close()
    assert not list(tmp_path.iterdir())
    with pytest.raises(UsageError, match="is closed"):
        engine.bind({"input": batch})
    engine = load_engine(DATA_DIR / "digits-cnn.onnx", "ort")
    del engine
    assert not list(tmp_path.iterdir())


@pytest.mark.feature("trtexec")
def test_what_cannot_be_loaded_is_refused_by_the_call(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="times itself"):
        load_engine(DATA_DIR / "digits-cnn.onnx", "trtexec")
    with pytest.raises(ArtifactError, match="missing or empty"):
        load_engine(tmp_path / "no.plan", "ort")
    with pytest.raises(UsageError, match="unknown engine 'orf'"):
        load_engine(DATA_DIR / "digits-cnn.onnx", "orf")
    with pytest.raises(UsageError, match="no option 'colour'"):
        load_engine(DATA_DIR / "digits-cnn.onnx", "ort", options={"colour": "red"})


@pytest.mark.parametrize("to", ["fp16", "int8@cpu"])
def test_a_graph_in_another_precision_is_opened_as_it_is(to: str, tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((2, 1, 8, 8), np.float32)
    np.savez(tmp_path / "x.npz", input=x)
    enginebench.quantize(DATA_DIR / "digits-cnn.onnx", to, tmp_path / "q.onnx", calib=tmp_path / "x.npz")
    with load_engine(tmp_path / "q.onnx", "ort", batch=2) as engine:
        engine.bind({"input": x})
        engine.run()
        loaded = engine.fetch()["output"]
    assert np.array_equal(loaded, enginebench.infer(tmp_path / "q.onnx", {"input": x}, engine="ort")["output"])
