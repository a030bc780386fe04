"""Calibration: ranges from data, thresholds from histograms, the record as a file, TensorRT's cache."""

import json
import struct
from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import numpy_helper

from enginebench.core.errors import ArtifactError, ParseError, UsageError
from enginebench.core.preprocess import EXTERNAL
from enginebench.models.onnx.source import read_onnx
from enginebench.models.precision import calibrate as calibrating
from enginebench.models.precision.calibrate import (
    BINS_PER_SIDE,
    MOST_CLIPPED,
    calibrate,
    choose_by_entropy,
    choose_by_percentile,
)
from enginebench.models.precision.calibration import (
    Calibration,
    TensorRange,
    read_calibration,
    read_calibration_cache,
    write_calibration,
    write_calibration_cache,
)
from enginebench.models.precision.calibration_data import keep_batches, open_arrays, open_data, open_input_data
from enginebench.models.precision.graph import hash_weights, load_whole_graph, name_nodes, prepare_graph
from graphs import build_graph, build_residual, save, write_graph, write_nodes


@pytest.fixture
def residual(tmp_path):
    return read_onnx(save(build_residual(), tmp_path / "residual.onnx"))


@pytest.fixture
def arrays(tmp_path, residual):
    path = tmp_path / "x.npy"
    np.save(path, np.random.default_rng(0).standard_normal((20, 3, 8, 8), dtype=np.float32))
    return open_arrays(path, residual.inputs, 20)


def observe(artifact):
    model = prepare_graph(load_whole_graph(Path(artifact.path)))
    return calibrating.Observer(model, calibrating.find_activations(model), 1)


def watch_directly(artifact, feeds):
    """All tensors of the prepared graph at once, as the truth."""
    observer = observe(artifact)
    return observer._run(feeds, observer._names)


def test_minmax_is_the_smallest_and_largest_value_seen(residual, arrays):
    found = calibrate(residual, arrays, threads=1)
    truth = watch_directly(residual, arrays.read(0, 20))
    assert found.ranges.keys() == truth.keys()
    for name, values in truth.items():
        assert found.ranges[name].low == pytest.approx(values.min(), rel=1e-5, abs=1e-6)
        assert found.ranges[name].high == pytest.approx(values.max(), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("method", ["minmax", "entropy", "percentile"])
def test_steps_do_not_change_the_ranges(residual, arrays, method):
    one = calibrate(residual, arrays, method=method, batch=1, threads=1)
    many = calibrate(residual, arrays, method=method, batch=7, threads=1)
    assert one.data_sha256 == many.data_sha256
    for name in one.ranges:
        assert one.ranges[name].high == pytest.approx(many.ranges[name].high, rel=5e-3, abs=1e-5), name


def test_memory_of_a_step_is_bounded(monkeypatch, residual, arrays):
    entry = sum(v.nbytes for v in watch_directly(residual, arrays.read(0, 1)).values())
    sizes = []
    original = calibrating.Observer._run

    def run(self, feeds, names):
        sizes.append(len(feeds["x"]))
        return original(self, feeds, names)

    monkeypatch.setattr(calibrating.Observer, "_run", run)
    calibrate(residual, arrays, batch=16, threads=1)
    assert sizes == [1, 16, 3]
    sizes.clear()
    monkeypatch.setattr(calibrating, "STEP_BYTES", 4 * entry)
    calibrate(residual, arrays, batch=16, threads=1)
    assert sizes == [1, 4, 4, 4, 4, 3]


def test_tensors_in_front_of_a_relu_keep_what_was_seen(residual, arrays):
    assert calibrating.find_clipped(prepare_graph(build_residual())) == {"n0", "c1", "s"}
    whole = calibrate(residual, arrays, threads=1).ranges
    cut = calibrate(residual, arrays, method="percentile", percentile=90.0, threads=1).ranges
    assert cut["n0"] == whole["n0"] and cut["r0"].high < whole["r0"].high


def fix_batch(batch, path):
    model = build_residual()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
    return read_onnx(save(model, path))


def test_weights_have_the_same_hash_under_another_batch(tmp_path, residual, arrays):
    fixed = fix_batch(5, tmp_path / "fixed.onnx")
    one, other = calibrate(residual, arrays, threads=1), calibrate(fixed, arrays, threads=1)
    assert one.weights_sha256 == other.weights_sha256 and one.model_sha256 != other.model_sha256
    for name in one.ranges:
        assert one.ranges[name].high == pytest.approx(other.ranges[name].high, rel=1e-5)


def test_weights_have_the_same_hash_in_an_older_opset():
    """Scalars that the definition of a newer operator (Gelu) brings along do not count, weights do."""
    model, lowered, other = build_residual(), build_residual(), build_residual()
    lowered.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "half"))
    other.graph.initializer.append(numpy_helper.from_array(np.ones(1, np.float32), "gain"))
    assert hash_weights(lowered) == hash_weights(model) != hash_weights(other)


def test_a_fixed_batch_leaves_out_what_does_not_fill_it(tmp_path, arrays):
    fixed = fix_batch(8, tmp_path / "fixed.onnx")
    assert calibrate(fixed, arrays, threads=1).n == 16
    with pytest.raises(UsageError, match="fixed batch of 8"):
        calibrate(fixed, replace(arrays, n=7), threads=1)


def test_nan_names_its_tensor(tmp_path):
    artifact = write_nodes(tmp_path, "h = Log (x) y = Relu (h)")
    np.save(tmp_path / "z.npy", -np.ones((2, 4), np.float32))
    with pytest.raises(ArtifactError, match="'h' holds NaN among the first 1 entries"):
        calibrate(artifact, open_arrays(tmp_path / "z.npy", artifact.inputs, 2), threads=1)


@pytest.mark.parametrize("method", ["minmax", "entropy"])
def test_an_infinity_takes_the_range_away(tmp_path, method):
    artifact = write_nodes(tmp_path, "h = Log (x) y = Relu (h)")
    np.save(tmp_path / "z.npy", np.array([[1, 2, 3, 4], [0, 1, 1, 1]], np.float32))
    found = calibrate(artifact, open_arrays(tmp_path / "z.npy", artifact.inputs, 2), method=method, threads=1)
    assert found.ranges.keys() == {"x", "y"}
    assert [c.code for c in found.warnings] == ["external_preprocess", "nonfinite"] and ": h" in found.warnings[
        1
    ].message


def test_nodes_get_names_of_their_own():
    model = build_graph("[twin] a = Relu (x) [twin] b = Relu (a) c = Relu (b) [Relu_1] y = Relu (c)", {})
    model.graph.node[2].name = ""
    name_nodes(model)
    assert [node.name for node in model.graph.node] == ["twin", "twin_1", "Relu_2", "Relu_1"]


def test_a_tensor_of_zeros_is_a_range(tmp_path):
    artifact = write_nodes(tmp_path, "y = Relu (x)")
    np.save(tmp_path / "z.npy", np.zeros((2, 4), np.float32))
    data = open_arrays(tmp_path / "z.npy", artifact.inputs, 2)
    for method in ("minmax", "entropy", "percentile"):
        assert calibrate(artifact, data, method=method, threads=1).ranges["y"] == TensorRange(low=0, high=0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"method": "magic"}, "minmax, entropy, percentile"),
        ({"percentile": 99.0}, "no effect with --method minmax"),
        ({"method": "percentile", "percentile": 101.0}, "at most 100"),
        ({"method": "percentile", "percentile": 50.0}, "above 50"),
        ({"batch": 0}, "at least 1"),
    ],
)
def test_refuses_what_cannot_be_asked_for(residual, arrays, options, said):
    with pytest.raises(UsageError, match=said):
        calibrate(residual, arrays, **options)


def test_refuses_what_is_no_fp32_graph(residual, arrays):
    with pytest.raises(UsageError, match="kind torch"):
        calibrate(replace(residual, kind="torch"), arrays)
    with pytest.raises(UsageError, match="int8 already"):
        calibrate(replace(residual, precision="int8"), arrays)


def make_calibration():
    ranges = {"input": TensorRange(low=-1.5, high=2.54), "täg/0:0 x": TensorRange(low=0, high=6)}
    return Calibration(
        model="m",
        model_sha256="a" * 64,
        weights_sha256="b" * 64,
        method="entropy",
        n=3,
        source="pictures",
        preprocess_sha256="c" * 64,
        ranges=ranges,
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.update(schema="enginebench.calibration/9"), "schema"),
        (lambda d: d["ranges"]["input"].update(low=3.0), "in order"),
        (lambda d: d["ranges"]["input"].update(low="x"), "ranges"),
        (lambda d: d.pop("ranges"), "ranges"),
        (lambda d: d.update(method="magic"), "method"),
    ],
)
def test_damaged_json_names_the_field(tmp_path, change, said):
    path = tmp_path / "calib.json"
    write_calibration(make_calibration(), path)
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    with pytest.raises(ParseError, match=said):
        read_calibration(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"schema": "enginebench.cal', "found JSON that was cut off; expected Calibration"),
        (b"[1, 2]", "found `array` instead of `object`; expected Calibration"),
        (b'{"a": 1}', "found object missing required field"),
    ],
)
def test_a_damaged_file_of_ranges_is_refused_with_the_command_that_makes_one(content, message, tmp_path: Path) -> None:
    (tmp_path / "calib.json").write_bytes(content)
    with pytest.raises(ParseError, match=rf"{message}.*\. Make it with enginebench calibrate"):
        read_calibration(tmp_path / "calib.json")


def test_other_files_are_no_calibration(tmp_path):
    for content in (b"", b"{", b"[]", b"\xff\xfe"):
        (tmp_path / "calib.json").write_bytes(content)
        with pytest.raises(ParseError):
            read_calibration(tmp_path / "calib.json")


def test_cache_has_tensorrts_form(tmp_path):
    path = tmp_path / "calib.cache"
    write_calibration_cache(make_calibration(), path, tensorrt_version="8.6.1")
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "TRT-8601-EntropyCalibration2"
    assert lines[1] == f"input: {struct.pack('>f', 2.54 / 127).hex()}"
    found = read_calibration_cache(path)
    assert found.method == "entropy" and found.n is None and found.preprocess_sha256 == EXTERNAL
    assert found.ranges["täg/0:0 x"].high == pytest.approx(6, rel=1e-6)
    assert found.ranges["input"].low == pytest.approx(-2.54, rel=1e-6)
    assert [c.code for c in found.warnings] == ["external_preprocess"]


@pytest.mark.parametrize(
    ("name", "version", "said"),
    [
        *(("a", version, r"major\.minor\.patch") for version in ("10", "10.0", "ten.0.1", "")),
        ("a\nb", "10.0.1", "line end"),
    ],
)
def test_what_a_cache_cannot_hold_is_refused(tmp_path, name, version, said):
    bad = replace(make_calibration(), ranges={name: TensorRange(low=0, high=1)})
    with pytest.raises(UsageError, match=said):
        write_calibration_cache(bad, tmp_path / "c", tensorrt_version=version)


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"", "line 1"),
        (b"hello\ninput: 3c010a14\n", "line 1"),
        (b"TRT-8601-MagicCalibration\ninput: 3c010a14\n", "line 1"),
        (b"TRT-8601-EntropyCalibration2\n", "header without entries"),
        (b"TRT-8601-EntropyCalibration2\ninput 3c010a14\n", "line 2"),
        (b"TRT-8601-EntropyCalibration2\ninput: 3c010a\n", "line 2"),
        (b"TRT-8601-EntropyCalibration2\na: 3c010a14\ninput: 7fc00000\n", "line 3"),
        (b"TRT-8601-EntropyCalibration2\ninput: bc010a14\n", "not below 0"),
        (b"TRT-8601-\xff\n", "byte 9"),
    ],
)
def test_a_damaged_cache_names_the_line(tmp_path, content, where):
    path = tmp_path / "calib.cache"
    path.write_bytes(content)
    with pytest.raises(ParseError, match=where):
        read_calibration_cache(path)


def test_a_huge_or_missing_cache_is_refused(tmp_path):
    path = tmp_path / "calib.cache"
    with pytest.raises(ParseError, match="no readable file"):
        read_calibration_cache(path)
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ParseError, match="1073741824 bytes"):
        read_calibration_cache(path)


def test_a_graph_with_branches_can_be_watched(tmp_path):
    branches = "then_branch = t () => (float[] t) { t = Relu (x) }, else_branch = e () => (float[] e) { e = Neg (x) }"
    nodes = f"""
        largest = ReduceMax <keepdims = 0> (x) which = Greater (largest, zero)
        h = If (which) <{branches}> y = Relu (h)
    """
    artifact = write_nodes(tmp_path, nodes, {"zero": np.float32(0)})
    np.save(tmp_path / "x.npy", np.ones((3, 4), np.float32))
    found = calibrate(artifact, open_arrays(tmp_path / "x.npy", artifact.inputs, 3), threads=1)
    assert found.ranges["y"] == TensorRange(low=1, high=1)
    assert onnx.load(artifact.path).graph.node[2].op_type == "If"


@pytest.mark.parametrize("shape", ["batch, 2", "1, 2"])
def test_random_entries_have_the_shapes_that_the_graph_wants(tmp_path, shape):
    """Not every input has its entries along the first axis: a step of joined ones would not run."""
    ends = f"(float[5, {shape}] x, float[3, {shape}] state) => (float[n, {shape}] y)"
    text = f"{ends} {{ y = Concat <axis = 0> (x, state) }}"
    artifact = write_graph(tmp_path / "states.onnx", text)
    found = calibrate(artifact, open_data("fake", model="m", inputs=artifact.inputs, n=3), threads=1)
    assert found.n == 3 and set(found.ranges) == {"x", "state", "y"}
    assert found.ranges["y"].high == max(found.ranges["x"].high, found.ranges["state"].high)


def test_every_file_counts_where_entries_share_an_input(tmp_path):
    """Scales differ from file to file: taken together, all would have had the first one's, in silence."""
    text = "(float[batch, 2] x, float[1] scale) => (float[batch, 2] y) { y = Mul (x, scale) }"
    artifact = write_graph(tmp_path / "scaled.onnx", text)
    folder = tmp_path / "given"
    folder.mkdir()
    for i, size in enumerate((1, 10, 2)):
        np.savez(folder / f"{i}.npz", x=np.array([[1, -3], [2, 0]], np.float32), scale=np.array([size], np.float32))
    data = open_input_data(str(folder), artifact.inputs)
    assert data.apart and data.n == 6
    found = calibrate(artifact, data, method="minmax", threads=1)
    assert (found.n, found.ranges["y"].low, found.ranges["y"].high) == (6, -30, 20)
    again = calibrate(artifact, open_input_data(str(folder), artifact.inputs), method="entropy", threads=1)
    assert again.data_sha256 == found.data_sha256
    with pytest.raises(UsageError, match="--keep-batches"):
        keep_batches(data, tmp_path / "kept.npz")


def count(values, limit):
    return np.histogram(values, bins=2 * BINS_PER_SIDE, range=(-limit, limit))[0].astype(np.int64)


RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("values", "limit", "low", "high"),
    [
        pytest.param(np.append(RNG.standard_normal(100_000), 40.0), 40.0, 2.5, 8, id="cuts a lonely outlier"),
        pytest.param(RNG.uniform(-1, 1, 200_000), 1.0, 0.99, 1.0, id="keeps a uniform distribution whole"),
        pytest.param(RNG.integers(0, 17, 50_000) / 16, 1.0, 0.999, 1.001, id="keeps the levels of discrete inputs"),
        pytest.param(RNG.standard_normal(100_000).clip(0), 5.0, 2.5, 5.0, id="ignores the zeros of a ReLU"),
        pytest.param([0.5, 2.0], 2.0, 0, 2.0, id="of few values is the limit or below"),
    ],
)
def test_entropy(values, limit, low, high):
    assert low < choose_by_entropy(count(values, limit), limit) <= high


def test_entropy_never_clips_more_than_one_value_in_a_thousand():
    # All values far from zero: clipping them to one would be a perfect match of shapes.
    values = np.random.default_rng(0).normal(10, 0.1, 50_000)
    limit = float(values.max())
    threshold = choose_by_entropy(count(values, limit), limit)
    assert (values > threshold + limit / BINS_PER_SIDE).mean() <= MOST_CLIPPED


@pytest.mark.parametrize("percentile", [99.0, 99.9, 90.0])
def test_percentile_keeps_that_share(percentile):
    values = np.random.default_rng(0).standard_normal(200_000)
    limit = float(np.abs(values).max())
    low, high = choose_by_percentile(count(values, limit), limit, percentile)
    tail = (100 - percentile) / 200
    bin_width = limit / BINS_PER_SIDE
    assert low == pytest.approx(np.quantile(values, tail), abs=2 * bin_width)
    assert high == pytest.approx(np.quantile(values, 1 - tail), abs=2 * bin_width)
    low, high = choose_by_percentile(count([-1.0, 0.5, 2.0], 2.0), 2.0, 100)
    assert low <= -1.0 and high == pytest.approx(2.0)


def test_inputs_are_watched_without_the_runtime(residual):
    """ONNX Runtime 1.23, the last for Python 3.10, returns freed memory for an input that is an output as well."""
    observer, requested = observe(residual), []
    name = residual.inputs[0].name
    entries = np.random.default_rng(0).random((3, 3, 8, 8), np.float32)

    class Session:
        def run(self, names, feeds):
            requested.extend(names)
            return [np.zeros((3, 1), np.float32)] * len(names)

    observer._session = Session()
    watched = observer._run({name: entries}, [name, "computed"])
    assert requested == ["computed"] and watched[name] is entries
    assert list(observer._run({name: entries}, [name])) == [name] and requested == ["computed"]
