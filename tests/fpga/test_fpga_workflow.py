"""The engine `fpga-sim` with the real designs: what `run` will put together."""

import numpy as np
import pytest

from enginebench.core.errors import UsageError
from enginebench.core.records import EngineSpec, MeasureSpec
from enginebench.features.fpga.board import find_speed
from enginebench.features.fpga.engine import create_backend
from enginebench.features.fpga.verb import find_differences, find_network_file, quantize_default
from enginebench.models.onnx.source import read_onnx
from enginebench.models.task import feed_digits, load_digits

SPEC = EngineSpec(backend="fpga-sim", precision="int8")


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    return quantize_default(tmp_path_factory.mktemp("quantized é"))


def test_row_of_the_digits_network(quantized, tmp_path):
    backend = create_backend(tmp_path / "cache")
    built = backend.build(read_onnx(quantized), SPEC, tmp_path)
    measured = backend.measure(built, SPEC, MeasureSpec(iters=5))
    # 70 bytes in and 46 back at 3 Mbaud, 1 ms of the adapter, 180 + 8 cycles at the Fmax of 16 lanes on an ECP5.
    compute_ns = 188e3 / find_speed("ecp5-25k", 16, 32)
    assert measured.device_ns == [round(compute_ns)] * 5
    assert measured.latency_ns == [round(233_333 + compute_ns) + 1_153_333] * 5
    digits = load_digits()
    with backend.load(built, SPEC) as engine:
        engine.bind({"input": feed_digits("digits-mlp", digits.images[:200])})
        engine.run()
        answers = engine.fetch()["output"]
    assert answers.shape == (200, 10) and answers.dtype == np.float32
    assert (answers.argmax(axis=1) == digits.labels[:200]).mean() > 0.97


def test_differences_name_both_classes_and_the_margin():
    ours = np.array([[1, 5, 4.5], [9, 0, 0]], np.float32)
    theirs = np.array([[1, 5, 5.5], [9, 0, 0]], np.float32)
    (found,) = find_differences(ours, theirs, np.array([2, 0]))
    assert (found.index, found.device, found.onnxruntime, found.label, found.margin) == (0, 1, 2, 2, 0.5)


def test_models_that_the_design_cannot_run_are_refused(tmp_path):
    with pytest.raises(UsageError, match="digits-mlp"):
        find_network_file("timm:resnet10t", tmp_path)
    assert find_network_file("F.ONNX", tmp_path).name == "F.ONNX"
