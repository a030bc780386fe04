"""The copied programs against the code of this package that they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import to_builtins
from onnx import TensorProto, helper, save

from enginebench.analyze.drift import default_limits, measure_drift
from enginebench.bundle.contents import PROGRAMS
from enginebench.core.records import EngineSpec, Precision
from enginebench.models.task import preprocess_for

Load = Callable[[str, str], Any]


def test_every_predict_is_short() -> None:
    lengths = {path.name: len(path.read_text("utf-8").splitlines()) for path in PROGRAMS.glob("predict_*.py")}
    assert len(lengths) == 6
    assert {name: length for name, length in lengths.items() if length >= 120} == {}


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


@pytest.mark.parametrize(
    "options", [{}, {"spinning": "never", "opt": "basic"}, {"spinning": "always", "opt": "none", "arena": "none"}]
)
def test_settings_of_ort_are_those_of_its_engine(load_program: Load, options: dict[str, str]) -> None:
    from enginebench.backends.onnxruntime.ort import make_session_options

    spec = EngineSpec(backend="ort", options=options, threads=3)
    ours, theirs = make_session_options(spec), load_program("ort", "session_cpu").make_settings(to_builtins(spec))
    fields = ["intra_op_num_threads", "inter_op_num_threads", "execution_mode", "graph_optimization_level"]
    fields += ["enable_cpu_mem_arena"]
    assert [getattr(ours, f) for f in fields] == [getattr(theirs, f) for f in fields]
    for key in ("session.intra_op.allow_spinning", "session.force_spinning_stop"):
        assert ours.get_session_config_entry(key) == theirs.get_session_config_entry(key)


@pytest.mark.parametrize(("flags", "saturate"), [("fma avx2", True), ("avx2 avx512_vnni", False), ("avx_vnni", False)])
def test_sums_of_ort_are_as_exact_as_its_engines(
    load_program: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: str, saturate: bool
) -> None:
    from enginebench.backends.onnxruntime.ort import make_session_options
    from enginebench.core import sums

    (tmp_path / "cpuinfo").write_text(f"processor : 0\nflags : {flags}\n")
    program = load_program("ort", "session_cpu")
    monkeypatch.setattr(program.facts, "PROCESSOR", tmp_path / "cpuinfo")
    monkeypatch.setattr(sums, "PROCESSOR", tmp_path / "cpuinfo")
    spec = EngineSpec(backend="ort")
    for settings in (make_session_options(spec), program.make_settings(to_builtins(spec))):
        if saturate:
            assert settings.get_session_config_entry(sums.EXACT_SUMS) == "1"
        else:
            with pytest.raises(RuntimeError, match="does not have"):
                settings.get_session_config_entry(sums.EXACT_SUMS)


def test_ort_answers_an_input_that_is_handed_on(
    load_program: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    x, y = ({"name": name, "dtype": "int64", "shape": ["batch", 4]} for name in "xy")
    values = [helper.make_tensor_value_info(s["name"], TensorProto.INT64, s["shape"]) for s in (x, y)]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", values[:1], values)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    save(made, str(tmp_path / "model.onnx"))
    program = load_program("ort", "predict")
    artifact = {"path": "model.onnx", "inputs": [x], "outputs": [x, y]}
    monkeypatch.setattr(program.facts, "HERE", tmp_path)
    monkeypatch.setitem(program.facts.BUNDLE, "artifact", artifact)
    bundle = {"engine": to_builtins(EngineSpec(backend="ort")), "artifact": artifact}
    predict = program.Predictor(program.session_cpu.open_session(bundle), bundle)
    for batch in (1, 1, 2):
        feeds = {"x": np.random.default_rng(batch).integers(1, 9, (batch, 4))}
        answer = predict(feeds)
        assert np.array_equal(answer["x"], feeds["x"]) and np.array_equal(answer["y"], -feeds["x"])


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "int8"])
@pytest.mark.parametrize("floats", ["fp32", "bf16"])
def test_settings_of_openvino_are_those_of_its_engine(
    load_program: Load, precision: Precision, floats: Precision
) -> None:
    from enginebench.backends.openvino.openvino import make_settings

    spec = EngineSpec(backend="openvino", precision=precision, threads=3, options={"floats": floats})
    assert load_program("openvino", "predict").make_settings(to_builtins(spec)) == make_settings(spec)


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("size", [(8, 8), (30, 17), (9, 40)])
@pytest.mark.parametrize("model", ["digits-mlp", "digits-cnn", "efficientnet_b0", "resnet50"])
def test_pictures_become_the_same_inputs(
    load_program: Load, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str, size: tuple[int, int], mode: str
) -> None:
    from PIL import Image

    preprocess = preprocess_for(model, None if model.startswith("digits") else 24)
    assert preprocess is not None
    copied = load_program("ort", "preprocess")
    monkeypatch.setattr(copied, "SETTINGS", json.loads(json.dumps(to_builtins(preprocess))))
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
    right = np.zeros((1, 64), np.float32)
    for feeds, said in [
        ({"image": right}, "the input 'input' is missing; the model has no input 'image'"),
        ({"input": right.astype(np.float64)}, r"'input' is float64 \[1, 64\]; expected input: float32"),
        ({"input": right[:, :3]}, r"'input' is float32 \[1, 3\]"),
        ({"input": [[0.0] * 64]}, "'input' is list"),
    ]:
        with pytest.raises(ValueError, match=said):
            predict(feeds)
    assert predict({"input": right})["output"].shape == (1, 10)
    for feeds, said in (({"input": right, "more": right}, "no input 'more'"), ({}, "the input 'input' is missing")):
        for _ in range(2):
            with pytest.raises(ValueError, match=said):
                predict(feeds)
    assert predict({"input": right})["output"].shape == (1, 10)
