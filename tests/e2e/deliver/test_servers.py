"""Layouts for servers, read by their own definitions."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from bundles import ask
from enginebench.core.records import EngineSpec, TensorSpec
from enginebench.features.deliver.servers import describe_model, format_config, format_dockerfile
from enginebench.runs.bundles.reading import read_bundle
from enginebench.runs.bundles.record import Bundle
from environments import Environments

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


def test_triton_reads_batches_gpus_and_other_types(delivered: dict[str, Path], parse) -> None:  # type: ignore[no-untyped-def]
    found = on_gpu(read_bundle(delivered["ort"]))
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


def test_triton_reads_tensors_of_the_batch_alone(delivered: dict[str, Path], parse) -> None:  # type: ignore[no-untyped-def]
    step, label = (TensorSpec(name=name, dtype="int64", shape=("batch",)) for name in ("step", "label"))
    found = read_bundle(delivered["ort"])
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


def test_kserve_metadata_is_that_of_the_protocol(delivered: dict[str, Path]) -> None:
    document = json.loads((delivered["pytorch"] / "kserve" / "metadata.json").read_text("utf-8"))
    sides = {"inputs": ("input", 64), "outputs": ("output", 10)}
    tensors = {side: [{"name": name, "datatype": "FP32", "shape": [-1, n]}] for side, (name, n) in sides.items()}
    assert document == {"name": "digits-mlp-pytorch", "versions": ["1"], "platform": "python", **tensors}
    assert describe_model(on_gpu(read_bundle(delivered["ort"])))["platform"] == "tensorrt_plan"


def test_a_dockerfile_installs_what_was_measured(delivered: dict[str, Path]) -> None:
    found = read_bundle(delivered["pytorch"])
    assert (delivered["pytorch"] / "Dockerfile").read_text("utf-8") == format_dockerfile(found)
    engine = replace(found.engine, backend="pytorch-compile")
    text = format_dockerfile(replace(found, engine=engine, requirements={"torch": "2.1+cu9"}))
    assert "g++" in text and "--extra-index-url https://download.pytorch.org/whl/cu9\n" in text
    engine = EngineSpec(backend="ort-cuda", device="cuda:0")
    text = format_dockerfile(replace(found, engine=engine, requirements={"onnxruntime-gpu": "1.9"}))
    assert '"onnxruntime-gpu[cuda,cudnn]==1.9"' in text and "NVIDIA_VISIBLE_DEVICES" in text
