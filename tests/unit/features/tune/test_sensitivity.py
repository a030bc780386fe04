"""One group of nodes quantized at a time: the pairs are those of the recipe, and nothing else changes."""

import math
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, MeasurementError
from enginebench.features.tune.sensitivity import WORST, find_groups, measure_harm, quantize_only
from enginebench.models.onnx.source import read_onnx
from enginebench.models.precision.calibrate import calibrate
from enginebench.models.precision.calibration_data import open_arrays, open_data
from enginebench.models.precision.graph import answer, count_quantizers, load_whole_graph, prepare_graph
from enginebench.models.precision.macs import list_quantized_products
from enginebench.models.precision.quantize import quantize
from enginebench.models.zoo import packaged_onnx
from graphs import build_residual, save


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """By (model, recipe): (exported graph, prepared graph, quantized graph, feeds)."""
    folder = tmp_path_factory.mktemp("graphs")
    digits = replace(read_onnx(packaged_onnx("digits-cnn")), model="digits-cnn")
    data = open_data("digits", model="digits-cnn", inputs=digits.inputs, n=16)
    artifacts = {"digits": (replace(digits, preprocess_sha256=data.preprocess_sha256), data)}
    residual = read_onnx(save(build_residual(), folder / "residual.onnx"))
    np.save(folder / "x.npy", np.random.default_rng(0).standard_normal((16, 3, 8, 8), dtype=np.float32))
    artifacts["residual"] = residual, open_arrays(folder / "x.npy", residual.inputs, 16)
    found = {}
    for name, (artifact, entries) in artifacts.items():
        given = load_whole_graph(Path(artifact.path))
        calibration = calibrate(artifact, entries, threads=1)
        for recipe in ("cpu", "tensorrt"):
            out = folder / f"{name}.{recipe}.onnx"
            quantize(artifact, "int8", recipe, out, calibration=calibration)
            found[name, recipe] = given, prepare_graph(given), load_whole_graph(out), entries.read(0, 16)
    return found


CASES = [(model, recipe) for model in ("digits", "residual") for recipe in ("cpu", "tensorrt")]


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_one_group_has_its_own_pairs_and_no_others(made, case):
    given, prepared, quantized, feeds = made[case]
    reference = answer(prepared, feeds, 1)
    products = list_quantized_products(quantized)
    for group in find_groups(given, prepared, quantized):
        alone = quantize_only(prepared, quantized, group.nodes)
        assert list_quantized_products(alone) == [name for name in products if name in group.nodes]
        assert 0 < sum(count_quantizers(alone)) < sum(count_quantizers(quantized))
        assert np.isfinite(measure_harm(reference, answer(alone, feeds, 1)))


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_each_quantized_node_is_in_one_group_and_every_product_begins_one(made, case):
    given, prepared, quantized, _ = made[case]
    groups = find_groups(given, prepared, quantized)
    names = [name for group in groups for name in group.nodes]
    assert len(names) == len(set(names))
    assert [group.nodes[0] for group in groups if group.macs] == list_quantized_products(quantized)
    exported = {node.name for node in given.graph.node}
    assert all(set(group.originals) <= exported for group in groups)


def test_a_graph_that_does_not_run_is_refused(made):
    _, prepared, _, feeds = made["digits", "cpu"]
    with pytest.raises(ArtifactError, match="does not run"):
        answer(prepared, {name: array[:, :, :2] for name, array in feeds.items()}, 1)


def test_noise_is_the_power_of_the_difference_over_that_about_the_mean():
    reference = {"y": np.array([[1.0, 5.0], [3.0, 5.0]])}  # about its mean: 1 + 1
    answers = {"y": np.array([[1.0, 5.5], [3.0, 5.0]])}
    assert measure_harm(reference, answers) == pytest.approx(0.25 / 2)

    with pytest.raises(MeasurementError, match="do not depend on the inputs"):
        measure_harm({"y": np.ones((4, 3))}, {"y": np.zeros((4, 3))})
    broken = {"y": np.full((2, 2), np.nan)}
    assert measure_harm(reference, broken) == WORST and math.isfinite(WORST)
