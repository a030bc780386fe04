"""The copied programs against the code of this package that they stand for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import to_builtins

from enginebench.core.records import Precision
from enginebench.features.deliver.writing import MEASURED, PACKAGE
from enginebench.models.task import preprocess_for
from enginebench.stats.drift import default_limits, measure_drift

Load = Callable[[str, str], Any]


@pytest.mark.parametrize("engine", ["pytorch", "ort", "openvino"])
def test_the_engine_in_a_bundle_is_the_one_that_was_measured(delivered: dict[str, Path], engine: str) -> None:
    measured = delivered[engine] / MEASURED
    files = [path for path in measured.rglob("*") if path.is_file()]
    copied = {path.relative_to(measured).as_posix(): path.read_bytes() for path in files}
    assert {f"engines/{engine}.py", "core/engine_api.py"} <= copied.keys()
    assert copied == {name: (PACKAGE / name).read_bytes() for name in copied}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("noise", [0.0, 1e-4, 3e-2, 1.0])
def test_its_limits_are_those_of_drift(load_program: Load, precision: Precision, noise: float) -> None:
    rng = np.random.default_rng(1)
    reference = rng.standard_normal((8, 10)).astype(np.float32)
    found = reference + noise * rng.standard_normal((8, 10)).astype(np.float32)
    limits = default_limits(precision)
    drift = measure_drift({"o": reference}, {"o": found}, limits)
    figures, kept = load_program("ort", "trial").compare(reference, found, limits)
    assert kept is drift.passed
    assert figures["snr"] == pytest.approx(drift.outputs[0].snr_db)
    assert figures["centred_cosine"] == pytest.approx(drift.outputs[0].centred_cosine_mean)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_never_passes(load_program: Load, bad: float) -> None:
    arrays = np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)
    arrays[1][0, 0] = bad
    compare = load_program("ort", "trial").compare
    assert not compare(*arrays, {"centred_cosine": 0.9})[1] and not compare(*reversed(arrays), {})[1]
    assert not compare(np.zeros((1, 3), np.float32), np.ones((1, 3), np.float32), {"snr": 20.0})[1]
    assert not compare(np.ones((1, 3), np.float32), np.ones((1, 3), np.float64), {})[1]


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("size", [(8, 8), (30, 17), (9, 40)])
@pytest.mark.parametrize("model", ["digits-mlp", "digits-cnn", "efficientnet_b0", "resnet50"])
def test_pictures_become_the_same_inputs(load_program, monkeypatch, tmp_path, model, size, mode) -> None:
    from PIL import Image

    preprocess = preprocess_for(model, None if model.startswith("digits") else 24)
    assert preprocess is not None
    copied = load_program("ort", "preprocess")
    monkeypatch.setattr(copied, "SETTINGS", copied.Settings(**json.loads(json.dumps(to_builtins(preprocess)))))
    shape = (*size[::-1], 3) if mode == "RGB" else size[::-1]
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, np.uint8))
    picture.save(tmp_path / "picture.png")
    wanted = preprocess.apply(picture)
    assert copied.preprocess(picture).dtype == wanted.dtype
    assert np.array_equal(copied.preprocess(picture), wanted)
    assert np.array_equal(copied.preprocess(tmp_path / "picture.png"), wanted)


@pytest.mark.parametrize("engine", ["pytorch", "ort", "openvino"])
def test_inputs_that_do_not_fit_are_named(load_program: Load, engine: str) -> None:
    predict = load_program(engine, "predict").load()
    FeedError = load_program(engine, "measured.core.engine_api").FeedError
    right = np.zeros((1, 64), np.float32)
    for feeds, said in [
        ({"image": right}, "unknown input 'image'; missing input 'input'"),
        ({"input": right.astype(np.float64)}, "'input' has dtype float64, not float32"),
        ({"input": right[:, :3]}, r"'input' has shape 1x3, not .*x64. Expected input: float32"),
        ({"input": [[0.0] * 64]}, "'input' is a list"),
        ({"input": right, "more": right}, "unknown input 'more'"),
        ({}, "missing input 'input'"),
    ]:
        for _ in range(2):
            with pytest.raises(FeedError, match=said):
                predict(feeds)
        assert predict({"input": right})["output"].shape == (1, 10)
