"""The copied programs against the code of this package that they stand for."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from bundles import ask
from enginebench.core.records import EngineSpec, Precision, TensorSpec
from enginebench.features.deliver.servers import describe_model, format_config, format_dockerfile
from enginebench.features.deliver.writing import MEASURED, PACKAGE
from enginebench.models.task import preprocess_for
from enginebench.runs.bundles import Bundle
from enginebench.runs.targets.bundles import read_bundle_folder
from enginebench.stats.drift import default_limits, measure_drift
from environments import Environments

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


# Layouts for servers, read by their own definitions.

# Prints a config.pbtxt as JSON, read by Triton's own definition. The package around that file imports gRPC.
PARSE = """
import importlib.util, json, sys
from pathlib import Path
from google.protobuf import json_format, text_format
found = importlib.util.find_spec("tritonclient").submodule_search_locations[0]
spec = importlib.util.spec_from_file_location("model_config_pb2", Path(found) / "grpc" / "model_config_pb2.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
config = text_format.Parse(sys.stdin.read(), module.ModelConfig())
print(json_format.MessageToJson(config, preserving_proto_field_name=True))
"""


@pytest.fixture(scope="session")
def parse(environments: Environments):  # type: ignore[no-untyped-def]
    """A config.pbtxt as Triton reads it. Its client wants an older protobuf than other tools here: it has its own."""
    python = environments.make("tritonclient==2.73.0", "protobuf>=6.30,<7", no_dependencies=True)

    def read(text: str) -> dict:  # type: ignore[type-arg]
        return json.loads(environments.run(python, "-c", PARSE, stdin=text))

    return read


PLATFORMS = {
    "ort": ({"platform": "onnxruntime_onnx"}, {"1/model.onnx"}),
    "openvino": ({"backend": "openvino"}, {"1/model.xml", "1/model.bin"}),
    "pytorch": ({"backend": "python"}, {"1/model.py", "1/predict.py", "1/bundle.json", "1/model/weights.npz"}),
}


@pytest.mark.parametrize("engine", PLATFORMS)
def test_triton_reads_its_repository(delivered: dict[str, Path], engine: str, parse) -> None:  # type: ignore[no-untyped-def]
    (home,) = (delivered[engine] / "triton").iterdir()
    config = parse((home / "config.pbtxt").read_text("utf-8"))
    chooser, files = PLATFORMS[engine]
    assert config["name"] == home.name == f"digits-mlp-{engine}"
    assert config.items() >= {**chooser, "max_batch_size": 1}.items()
    assert config["input"] == [{"name": "input", "data_type": "TYPE_FP32", "dims": ["64"]}]
    assert config["output"] == [{"name": "output", "data_type": "TYPE_FP32", "dims": ["10"]}]
    assert config["instance_group"] == [{"count": 1, "kind": "KIND_CPU"}]
    assert config["model_warmup"][0]["batch_size"] == 1
    if engine != "pytorch":
        threads = {"ort": "intra_op_thread_count", "openvino": "INFERENCE_NUM_THREADS"}[engine]
        assert config["parameters"][threads] == {"string_value": "1"}
    found = {path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file()}
    assert found >= files
    if engine == "pytorch":
        done = ask(home / "1", "--check")
        assert done.returncode == 0, done.stderr


def test_triton_reads_batches_gpus_other_types_and_the_batch_alone(delivered, parse) -> None:
    found = on_gpu(read_bundle_folder(delivered["ort"]))
    config = parse(format_config("net", found))
    assert config["platform"] == "tensorrt_plan"
    assert config["max_batch_size"] == 8 and config["dynamic_batching"] == {"preferred_batch_size": [8]}
    assert config["instance_group"] == [{"count": 1, "kind": "KIND_GPU", "gpus": [1]}]
    assert config["input"][1] == {"name": 'odd "name"', "data_type": "TYPE_INT64", "dims": ["-1"]}
    warmed = config["model_warmup"][0]["inputs"]['odd "name"']
    assert warmed == {"data_type": "TYPE_INT64", "dims": ["1"], "zero_data": True}
    fixed = replace(found, artifact=replace(found.artifact, inputs=(TensorSpec(name="x", dtype="bool", shape=(8, 3)),)))
    config = parse(format_config("net", fixed))
    assert config.get("max_batch_size", 0) == 0 and config["input"][0]["dims"] == ["8", "3"]
    step, label = (TensorSpec(name=name, dtype="int64", shape=("batch",)) for name in ("step", "label"))
    found = read_bundle_folder(delivered["ort"])
    inputs, outputs = (*found.artifact.inputs, step), (*found.artifact.outputs, label)
    text = format_config("net", replace(found, artifact=replace(found.artifact, inputs=inputs, outputs=outputs)))
    assert "dims: [  ]" not in text, "Triton refuses a tensor without dims"
    config = parse(text)
    assert config["output"][1] == {"name": "label", "data_type": "TYPE_INT64", "dims": ["1"], "reshape": {}}
    assert config["model_warmup"][0]["inputs"]["step"]["dims"] == ["1"]


def on_gpu(bundle: Bundle) -> Bundle:
    """The bundle of a plan with a batch of 8 on the second GPU, with an input of tokens."""
    inputs = (*bundle.artifact.inputs, TensorSpec(name='odd "name"', dtype="int64", shape=("batch", "length")))
    spec = EngineSpec(backend="tensorrt", device="cuda:1", batch=8)
    return replace(bundle, engine=spec, artifact=replace(bundle.artifact, kind="plan", inputs=inputs))


def test_kserve_metadata_and_dockerfile_are_those_of_what_was_measured(delivered: dict[str, Path]) -> None:
    document = json.loads((delivered["pytorch"] / "kserve" / "metadata.json").read_text("utf-8"))
    sides = {"inputs": ("input", 64), "outputs": ("output", 10)}
    tensors = {side: [{"name": name, "datatype": "FP32", "shape": [-1, n]}] for side, (name, n) in sides.items()}
    assert document == {"name": "digits-mlp-pytorch", "versions": ["1"], "platform": "python", **tensors}
    assert describe_model(on_gpu(read_bundle_folder(delivered["ort"])))["platform"] == "tensorrt_plan"
    found = read_bundle_folder(delivered["pytorch"])
    assert (delivered["pytorch"] / "Dockerfile").read_text("utf-8") == format_dockerfile(found)
    engine = replace(found.engine, backend="pytorch-compile")
    text = format_dockerfile(replace(found, engine=engine, requirements={"torch": "2.1+cu9"}))
    assert "g++" in text and "--extra-index-url https://download.pytorch.org/whl/cu9\n" in text
    engine = EngineSpec(backend="ort-cuda", device="cuda:0")
    text = format_dockerfile(replace(found, engine=engine, requirements={"onnxruntime-gpu": "1.9"}))
    assert '"onnxruntime-gpu[cuda,cudnn]==1.9"' in text and "NVIDIA_VISIBLE_DEVICES" in text
