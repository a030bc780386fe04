"""The proof of precision comes from the runtimes' records, also where the label says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper, save

from enginebench.analyze.effective import judge_precision
from enginebench.backends.openvino import OpenvinoBackend
from enginebench.backends.ort import OrtBackend, find_kernel_dtype, read_kernel_times
from enginebench.backends.precision import Operator, choose_calm_runs, count_watched_runs, prove_precision, share_times
from enginebench.backends.torch_engine import find_operator_dtype, read_operator_times, split_runs
from enginebench.core.errors import UsageError
from enginebench.core.feeds import random_feeds
from enginebench.core.protocols import PrecisionProof
from enginebench.core.records import Artifact, EngineSpec, TensorSpec
from enginebench.core.store import hash_files

X = TensorSpec(name="x", dtype="float32", shape=(1, 16, 32, 32))
Y = TensorSpec(name="y", dtype="float32", shape=(1, 16, 30, 30))


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """One convolution between Q/DQ pairs: eight bits inside, whatever the artefact's label."""
    rng = np.random.default_rng(0)
    tensors = {
        "w": rng.integers(-127, 128, (16, 16, 3, 3)).astype(np.int8),
        "s": np.array(0.05, np.float32),
        "ws": np.array(0.01, np.float32),
        "z": np.array(128, np.uint8),
        "wz": np.array(0, np.int8),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"]),
        helper.make_node("Conv", ["xd", "wd"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "s", "z"], ["cq"]),
        helper.make_node("DequantizeLinear", ["cq", "s", "z"], ["y"]),
    ]
    declared = [[helper.make_tensor_value_info(s.name, 1, s.shape)] for s in (X, Y)]
    graph = helper.make_graph(
        nodes, "q", *declared, [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    )
    path = tmp_path_factory.mktemp("q") / "q.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), str(path))
    sha256, files = hash_files([path], path.parent)
    return Artifact(kind="onnx", model="q", path=str(path), sha256=sha256, files=files, inputs=(X,), outputs=(Y,))


@pytest.mark.parametrize("name", ["pytorch", "ort", "openvino"])
def test_fp32_is_proved(name: str, load_engine: Callable[..., Any]) -> None:
    with load_engine(name) as engine:
        assert isinstance(engine, PrecisionProof)
        with pytest.raises(UsageError, match="call bind first"):
            engine.effective_precision()
        feeds = random_feeds(engine.inputs, 1, 0)
        engine.bind(feeds)
        engine.run()
        before = engine.fetch()["scores"]
        shares = engine.effective_precision()
        assert set(shares) <= {"fp32", "reorder"} and shares["fp32"] > 0.4
        assert sum(shares.values()) == pytest.approx(1)
        np.testing.assert_array_equal(engine.fetch()["scores"], before)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_generated_code_is_not_claimed(load_engine: Callable[..., Any]) -> None:
    with load_engine("pytorch-compile") as engine:
        engine.bind(random_feeds(engine.inputs, 1, 0))
        shares = engine.effective_precision()
    assert set(shares) == {"fp32", "other"}
    assert sum(shares.values()) == pytest.approx(1)


@pytest.mark.parametrize("backend", [OrtBackend(), OpenvinoBackend()], ids=["ort", "openvino"])
def test_eight_bits_are_found_under_an_fp32_label(backend: Any, quantized: Artifact) -> None:
    with backend.load(quantized, EngineSpec(backend=backend.name)) as engine:
        engine.bind(random_feeds([X], 1, 0))
        shares = engine.effective_precision()
    assert shares["int8"] > 0.1
    assert sum(shares.values()) == pytest.approx(1)
    ran, caveats = judge_precision("fp32", shares)
    assert ran == "int8"
    assert [c.code for c in caveats] == ["relabelled"]


def test_proof_leaves_no_files(load_engine: Callable[..., Any], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with load_engine("ort") as engine:
        engine.bind(random_feeds(engine.inputs, 1, 0))
        engine.effective_precision()
    assert list(tmp_path.iterdir()) == []


def test_shares_add_up_largest_first() -> None:
    times = {"f32": 1.0, "I8": 5.0, "uint8": 1.0, "int64": 2.0, "c10::Half": 1.0, "bf16": 0.0}
    shares = share_times(Operator(dtype, time) for dtype, time in times.items())
    assert shares == {"int8": 0.6, "other": 0.2, "fp32": 0.1, "fp16": 0.1}
    assert next(iter(shares)) == "int8"
    assert share_times([]) == {}


@pytest.mark.parametrize(
    ("op", "inputs", "dtype"),
    [
        ("Conv", [{"float": [1]}, {"float": [1]}], "float"),
        ("QLinearConv", [{"uint8": [1]}, {"float": []}], "uint8"),
        ("DynamicQuantizeMatMul", [{"float": [1]}], "int8"),
        ("QuantizeLinear", [{"float": [1]}], "reorder"),
        ("Cast", [{"float": [1]}], "reorder"),
        ("ReorderOutput", [{"float": [1]}], "reorder"),
        ("Range", [], "none"),
        ("Clip", [{}, {"float16": [1]}], "float16"),
    ],
)
def test_kernels_compute_in_the_type_of_their_input(op: str, inputs: Any, dtype: str) -> None:
    assert find_kernel_dtype({"op_name": op, "input_type_shape": inputs}) == dtype


def test_first_run_is_not_counted() -> None:
    def kernel(start: int, duration: int) -> dict[str, Any]:
        args = {"op_name": "Relu", "input_type_shape": [{"float": [1]}]}
        return {"cat": "Node", "name": "r_kernel_time", "ts": start, "dur": duration, "args": args}

    runs = [{"cat": "Session", "name": "model_run", "ts": t, "dur": 10} for t in (0, 20)]
    assert read_kernel_times([kernel(1, 9), runs[0], kernel(21, 3), runs[1], {"name": "x"}]) == [
        [("float", 3000.0, "r", "Relu")]
    ]


def test_an_interruption_is_not_a_precision() -> None:
    calm = [Operator("f32", 1.0), Operator("I8", 9.0)]
    assert prove_precision([calm, [Operator("f32", 900.0), Operator("I8", 9.0)], calm]) == {"int8": 0.9, "fp32": 0.1}
    assert choose_calm_runs([]) == []
    assert choose_calm_runs([calm]) == [calm]


def test_small_networks_are_watched_longer() -> None:
    assert [count_watched_runs(s) for s in (0.0, 1e-5, 0.1, 60.0)] == [50, 50, 10, 5]


class Event:
    """One event of PyTorch's profiler."""

    def __init__(self, name: str, start: int, duration: int, *dtypes: str) -> None:
        self.values = {"name": name, "start_ns": start, "duration_ns": duration, "dtypes": list(dtypes)}

    def __getattr__(self, name: str) -> Callable[[], Any]:
        return lambda: self.values[name]


def test_events_belong_to_the_run_around_them() -> None:
    spans = [Event("enginebench run", 20, 9), Event("enginebench run", 0, 9)]
    first, second = Event("aten::relu", 1, 2, "float"), Event("aten::add", 21, 2, "float")
    assert split_runs([second, *spans, first, Event("aten::late", -5, 1)]) == [[first], [second]]


def test_fp32_that_a_setting_made_shorter_is_found() -> None:
    import torch

    try:
        torch.set_float32_matmul_precision("medium")
        assert find_operator_dtype("aten::linear", "float") == "bf16"
        assert find_operator_dtype("aten::relu", "float") == "float"
        assert find_operator_dtype("aten::conv2d", "float") == "fp32"
        assert find_operator_dtype("aten::linear", "c10::Half") == "c10::Half"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert find_operator_dtype("aten::linear", "float") == "fp32"


def test_casts_are_no_work_in_either_type() -> None:
    assert find_operator_dtype("aten::to", "float") == "reorder"


def test_only_outermost_operators_count() -> None:
    events = [
        Event("aten::empty", 102, 3),
        Event("aten::conv2d", 0, 50, "float"),
        Event("aten::convolution", 1, 40, "float"),
        Event("## Call CompiledFxGraph x ##", 100, 30),
        Event("aten::addmm", 110, 12, "c10::BFloat16"),
    ]
    assert list(read_operator_times(events)) == [
        ("fp32", 50.0, "conv2d", "conv2d"),
        ("", 3.0, "empty", "empty"),
        ("c10::BFloat16", 12.0, "addmm", "addmm"),
        ("generated code", 15.0, "generated code", "fused"),
    ]
