"""What Triton asks a delivered model: requests that it can answer, warm-up first."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from msgspec.structs import replace
from onnx import ModelProto, helper

from enginebench.core.records import Artifact, EngineSpec, Estimate, ShapeRange, TensorSpec
from enginebench.core.shapes import size_axes
from enginebench.features.deliver.servers import format_config
from enginebench.models.onnx.source import read_onnx
from enginebench.runs.bundles import Bundle, Figures
from graphs import build_graph, double, find_positive

DIMS = r"dims: \[ ([-\d, ]*) \]"
TENSOR = re.compile(r'^(input|output) \[ \{ name: "(\w+)" data_type: \w+ ' + DIMS, re.M)
WARM_UP = re.compile(r'key: "(\w+)" value: \{ data_type: \w+ ' + DIMS)
ONES = Estimate(value=1.0, low=None, high=None, level=0.95, n=1, method="none")


def make_bundle(artifact: Artifact, batch: int, backend: str = "ort") -> Bundle:
    figures = Figures(
        p50_ms=ONES,
        p99_ms=None,
        throughput_per_s=None,
        speedup=None,
        baseline=None,
        verdict=None,
        validity="valid",
        processes=1,
        n=1,
        outputs_agree=None,
    )
    return Bundle(
        model="net",
        row="row",
        engine=EngineSpec(backend=backend, batch=batch),
        precision="fp32",
        scope="compute",
        engine_version=None,
        artifact=artifact,
        chain=(),
        files=(),
        environment={},
        pinned_cpus=None,
        runtime={},
        requirements={},
        instructions=(),
        gpu=None,
        limits={},
        check_seed=0,
        figures=figures,
        machine_name="",
        machine=None,
        drift=None,
        effective_precision=None,
        warnings=(),
        measured_utc="",
    )


class Config:
    """What Triton reads in config.pbtxt, and what it would ask."""

    def __init__(self, bundle: Bundle) -> None:
        text = format_config("net", bundle)
        self.largest = int(re.findall(r"max_batch_size: (\d+)", text)[0])
        self.dims = {name: split(dims) for _, name, dims in TENSOR.findall(text)}
        self.outputs = {name for side, name, _ in TENSOR.findall(text) if side == "output"}
        self.first = {name: split(dims) for name, dims in WARM_UP.findall(text)}
        self.first_batch = int(re.findall(r"batch_size: (\d+) inputs", text)[0])

    def list_requests(self) -> list[tuple[int | None, dict[str, tuple[int, ...]]]]:
        """(entries that were joined, shapes of what the model gets): warm-up, and every batch that Triton may join."""
        if not self.largest:
            return [(None, self.first)]
        batches = (self.first_batch, *range(1, self.largest + 1))
        return [(n, {name: (n, *dims) for name, dims in self.first.items()}) for n in batches]


def split(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def fit(dims: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(dims) == len(shape) and all(d in (-1, axis) for d, axis in zip(dims, shape, strict=True))


def convolve() -> ModelProto:
    """Three values at least."""
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    return build_graph([node], {"w": np.ones((1, 2, 3), np.float32)}, ["batch", 2, "length"], ["batch", 1, "rest"])


def add_shared() -> ModelProto:
    model = build_graph(
        [helper.make_node("Add", ["x", "z"], ["y"])], {"z": np.zeros(4, np.float32)}, ["batch", 4], ["batch", 4]
    )
    del model.graph.initializer[:]
    model.graph.input.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [4]))
    return model


# name -> (graph, batch, the shapes it was measured in, whether Triton may join requests)
NETS: dict[str, tuple[ModelProto, int, dict[str, tuple[int, ...]], bool]] = {
    "plain": (double(["batch", 4]), 4, {}, True),
    "a dynamic axis": (convolve(), 2, {"x": (2, 2, 7)}, True),
    "a fixed batch": (double([8, 4]), 8, {}, False),
    "a fixed batch of one": (double([1, 4]), 1, {}, False),
    "a batch that is not first": (double([5, "batch", 4]), 3, {}, False),
    "outputs as long as there is something to say": (find_positive(), 4, {}, False),
    "an input that all entries share": (add_shared(), 4, {}, False),
}


@pytest.mark.parametrize("net", NETS)
def test_the_model_serves_every_request_that_triton_may_send(tmp_path: Path, net: str) -> None:
    model, batch, shapes, joins = NETS[net]
    onnx.save(model, tmp_path / "net.onnx")
    artifact = read_onnx(tmp_path / "net.onnx")
    artifact = replace(artifact, inputs=size_axes(artifact.inputs, shapes))
    config = Config(make_bundle(artifact, batch))
    assert (config.largest > 0) is joins
    session = onnxruntime.InferenceSession(str(tmp_path / "net.onnx"), providers=["CPUExecutionProvider"])
    for count, request in config.list_requests():
        feeds: dict[str, Any] = {name: np.ones(shape, np.float32) for name, shape in request.items()}
        answers = dict(zip((o.name for o in session.get_outputs()), session.run(None, feeds), strict=True))
        for name, shape in {**request, **{name: array.shape for name, array in answers.items()}}.items():
            assert count is None or shape[0] == count, f"{name} cannot be parted among {count} requests"
            assert fit(config.dims[name], shape if count is None else shape[1:])


def describe(shape: tuple[int | str, ...], sizes: tuple[int, ...] = (), **more: Any) -> Artifact:
    """A module, or a plan, that doubles its input."""
    spec = TensorSpec(name="x", dtype="float32", shape=shape, sizes=sizes)
    out = replace(spec, name="y")
    known: dict[str, Any] = {"kind": "torch", "model": "net", "path": "", "sha256": "", "files": (), **more}
    return Artifact(inputs=(spec,), outputs=(out,), precision="fp32", **known)


ONE, FOUR = (ShapeRange(smallest=(n, 3), largest=(4, 3)) for n in (1, 4))
OTHERS = {
    "a module of any batch": (describe((4, 3)), "pytorch", 4, (3,)),
    "a module of one batch alone": (describe((4, 3), allowed={"x": FOUR}), "pytorch", 0, (4, 3)),
    "a module that was compiled for its batch": (describe((4, 3)), "pytorch-compile", 0, (4, 3)),
    "a module without a batch": (describe(("x_0", 3), (7, 0)), "pytorch", 0, (7, 3)),
    "a plan of any batch up to four": (describe(("batch", 3), kind="plan", allowed={"x": ONE}), "tensorrt", 4, (3,)),
    "a plan of four alone": (describe(("batch", 3), kind="plan", allowed={"x": FOUR}), "tensorrt", 0, (4, 3)),
}


@pytest.mark.parametrize("net", OTHERS)
def test_modules_and_plans_are_asked_for_what_they_take(net: str) -> None:
    artifact, backend, largest, first = OTHERS[net]
    config = Config(make_bundle(artifact, 4, backend))
    assert (config.largest, config.first["x"]) == (largest, first)
    assert fit(config.dims["x"], first)
