"""How inputs are prepared, held against what every graph, calibration and file says about it."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, FeedError
from enginebench.core.preprocess import EXTERNAL
from enginebench.core.records import EngineSpec
from enginebench.models.onnx.source import read_metadata, read_packaged_onnx
from enginebench.models.precision.calibrate import calibrate
from enginebench.models.precision.calibration import write_calibration
from enginebench.models.precision.calibration_data import keep_batches, open_data
from enginebench.models.zoo import packaged_onnx
from enginebench.runs.child.jobs import Labelled, LabelledJob, QuantizeJob
from enginebench.runs.child.perform.outputs import open_labelled
from enginebench.runs.child.perform.sources import quantize_graph
from enginebench.runs.targets.sides import OpenSide, check_sides
from enginebench.verbs.build import list_range_warnings
from enginebench.verbs.drift import check_prepared, choose_inputs
from enginebench.verbs.quantize import quantize

OTHER = "0" * 64


def open_mlp(**changes: Any) -> OpenSide:
    artifact = replace(read_packaged_onnx("digits-mlp"), **changes)
    return OpenSide(text="ort@mlp", model="digits-mlp", artifact=artifact, engine=EngineSpec(backend="ort"))


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Prepared digits that say how they were prepared."""
    data = open_data("digits", model="digits-mlp", inputs=read_packaged_onnx("digits-mlp").inputs, n=8)
    keep_batches(data, tmp_path / "kept.npz")
    return tmp_path / "kept.npz"


def test_sides_of_unlike_preprocessing_are_refused() -> None:
    check_sides(open_mlp(), open_mlp())
    for unknown in (None, EXTERNAL):
        check_sides(open_mlp(), open_mlp(preprocess_sha256=unknown))
    with pytest.raises(FeedError, match=r"prepared by preprocess .* against 000000000000"):
        check_sides(open_mlp(), open_mlp(preprocess_sha256=OTHER))


def test_drift_takes_kept_batches_of_its_own_model_only(kept: Path) -> None:
    given = choose_inputs(open_mlp(), str(kept), None, 0)
    assert given.preprocess_sha256 == open_mlp().artifact.preprocess_sha256 and given.warnings == ()
    check_prepared(given, (open_mlp(), open_mlp(preprocess_sha256=None)))
    with pytest.raises(ArtifactError, match="the inputs of ort@mlp by 000000000000"):
        check_prepared(given, (open_mlp(), open_mlp(preprocess_sha256=OTHER)))


def test_drift_says_that_it_cannot_know_how_arrays_were_prepared(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", input=np.ones((3, 64), np.float32))
    given = choose_inputs(open_mlp(), str(tmp_path / "own.npz"), None, 0)
    assert given.preprocess_sha256 == EXTERNAL and [c.code for c in given.warnings] == ["external_preprocess"]
    check_prepared(given, (open_mlp(preprocess_sha256=OTHER),))
    assert choose_inputs(open_mlp(), None, 2, 0).preprocess_sha256 == open_mlp().artifact.preprocess_sha256


def test_ranges_for_tensorrts_own_calibrator_are_judged_alike(tmp_path: Path, kept: Path) -> None:
    graph = open_mlp().artifact
    assert list_range_warnings(graph, None, None) == list_range_warnings(graph, kept, None) == ()
    assert [c.code for c in list_range_warnings(graph, None, tmp_path / "c.cache")] == ["external_preprocess"]
    with pytest.raises(ArtifactError, match="another preprocessing"):
        list_range_warnings(open_mlp(preprocess_sha256=OTHER).artifact, kept, None)


def test_labelled_data_of_another_preprocessing_is_not_answered(tmp_path: Path) -> None:
    """Also in a run, whose rows answer it while they are checked; no engine is asked."""
    side, labelled = open_mlp(preprocess_sha256=OTHER), Labelled(data="digits", n=4)
    given = {"model": side.model, "artifact": side.artifact, "engine": side.engine, "labelled": labelled, "seed": 0}
    with pytest.raises(ArtifactError, match="another preprocessing"):
        open_labelled(LabelledJob(out_dir=str(tmp_path), labelled_path="", **given))  # type: ignore[arg-type]


@pytest.mark.parametrize(("recipe", "form"), [("cpu", "ranges"), ("cpu", "batches"), ("nncf", "batches")])
def test_quantizing_a_file_refuses_ranges_of_another_preprocessing(tmp_path, kept, recipe, form) -> None:
    """The file itself says how its inputs are prepared: no run and no model's name is needed."""
    if recipe == "nncf":
        pytest.importorskip("nncf")
    graph = read_packaged_onnx("digits-mlp")
    calib = kept
    if form == "ranges":
        calib = tmp_path / "calib.json"
        write_calibration(calibrate(graph, open_data("digits", model="digits-mlp", inputs=graph.inputs, n=8)), calib)
    model = onnx.load(graph.path)
    onnx.helper.set_model_props(model, {"enginebench.preprocess_sha256": OTHER})
    onnx.save(model, tmp_path / "other.onnx")
    options: Any = {"to": f"int8@{recipe}" if recipe else "int8", "calib": calib, "threads": 1}
    with pytest.raises(ArtifactError, match="belong to other inputs"):
        quantize(tmp_path / "other.onnx", out=tmp_path / "q.onnx", **options)
    shutil.copy(graph.path, tmp_path / "same.onnx")
    made = quantize(tmp_path / "same.onnx", out=tmp_path / "q.onnx", **options).artifact
    assert made.preprocess_sha256 == graph.preprocess_sha256
    assert read_metadata(onnx.load(tmp_path / "q.onnx"))["enginebench.preprocess_sha256"] == graph.preprocess_sha256


def test_a_quantized_graph_needs_no_data(tmp_path: Path) -> None:
    """QAT goes through as it is: nothing is calibrated, and no data is opened."""
    graph = read_packaged_onnx("digits-mlp")
    ranges = calibrate(graph, open_data("digits", model="digits-mlp", inputs=graph.inputs, n=8))
    write_calibration(ranges, tmp_path / "calib.json")
    options: Any = {"to": "int8@cpu", "calib": tmp_path / "calib.json", "threads": 1}
    shutil.copy(str(packaged_onnx("digits-mlp")), tmp_path / "mlp.onnx")
    trained = quantize(tmp_path / "mlp.onnx", out=tmp_path / "qat.onnx", **options).artifact
    paths = {"out": "out.onnx", "calibration_path": "made.json", "data": "nowhere"}
    how: Any = {"precision": "int8", "recipe": None, "method": "minmax", "n": 8, "seed": 0, "threads": 1}
    how |= {name: str(tmp_path / path) for name, path in paths.items()}
    made = quantize_graph(QuantizeJob(model="qat.onnx", artifact=trained, **how), lambda text: None)
    assert (made.precision, made.recipe, made.parent_sha256) == ("int8", "cpu", trained.sha256)
    assert not (tmp_path / "made.json").exists()
