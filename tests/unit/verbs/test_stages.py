"""File to label: what is timed, how stages overlap, what is refused; and layers, by `profile` and in a run."""

import csv
import io
import itertools
import json
import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from enginebench.core.entry import Entry
from enginebench.core.errors import MeasurementError
from enginebench.core.records import EngineSpec, LayerProfile, LayerTime, TensorSpec
from enginebench.engines.registry import ENTRIES, check_options
from enginebench.models.task import Preprocess
from enginebench.runs.child.perform.stages import (
    MIN_BATCHES,
    WARMUP_BATCHES,
    choose_waiting,
    rank_classes,
    time_overlapped,
    time_serial,
)
from enginebench.runs.child.proving import list_layers
from enginebench.stats.stages import STAGES
from graphs import build_residual
from processes import Cli, environment

SMALL = Preprocess(resize=8, crop=8, colour="RGB", scale=255.0, mean=(0.0,) * 3, std=(1.0,) * 3, layout="CHW")


def make_jpeg(level: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (12, 10), (level, level, level)).save(buffer, "JPEG")
    return buffer.getvalue()


class Brightness:
    """An engine that puts a picture into class `level // 16`; it remembers what it saw."""

    inputs = (TensorSpec(name="x", dtype="float32", shape=("batch", 3, 8, 8)),)
    outputs = (TensorSpec(name="y", dtype="float32", shape=("batch", 16)),)

    def __init__(self, fail: bool = False) -> None:
        self.fail, self.closed, self.batches = fail, False, 0

    def bind(self, feeds: Any) -> None:
        self.array = feeds["x"]

    def run(self) -> None:
        if self.fail:
            raise RuntimeError("the GPU fell off the bus")
        self.batches += 1

    def fetch(self) -> dict[str, np.ndarray]:
        level = (self.array.mean(axis=(1, 2, 3)) * 255 / 16).astype(int)
        return {"y": 10 * np.eye(16, dtype=np.float32)[level]}

    def __enter__(self) -> "Brightness":
        return self

    def __exit__(self, *args: object) -> None:
        self.closed = True


def test_every_stage_of_every_batch_is_timed_to_its_end_and_warm_up_leaves_no_sample() -> None:
    ticks, engine = itertools.count(0, 1000), Brightness()
    found = time_serial(engine, [make_jpeg(8), make_jpeg(200)], SMALL, 2, 0.0, clock=lambda: next(ticks))
    assert engine.batches == WARMUP_BATCHES + MIN_BATCHES
    assert tuple(found.stages_ns) == STAGES
    assert all(times == [1000] * MIN_BATCHES for times in found.stages_ns.values())
    assert found.device_ns == {}
    assert found.top_classes == [0, 12]


@pytest.mark.parametrize("lanes", [1, 3])
def test_lanes_share_the_pictures_and_close_their_engines(lanes: int) -> None:
    made: list[Brightness] = []
    threads: set[int] = set()

    def load() -> Brightness:
        threads.add(threading.get_ident())
        made.append(Brightness())
        return made[-1]

    photos = [make_jpeg(level) for level in (0, 64, 128)]
    rate = time_overlapped(load, photos, SMALL, batch=2, decoders=2, lanes=lanes, seconds=0.05)
    assert rate > 0
    assert len(made) == lanes == len(threads)
    assert all(engine.closed for engine in made)
    assert sum(engine.batches for engine in made) > WARMUP_BATCHES * lanes


@pytest.mark.parametrize(
    ("loaded", "why"),
    [([Brightness(), Brightness(fail=True)], "fell off the bus"), (RuntimeError("no memory"), "no memory")],
)
def test_the_error_of_a_lane_ends_all_lanes(loaded: Any, why: str) -> None:
    with pytest.raises(RuntimeError, match=why):
        time_overlapped(Mock(side_effect=loaded), [make_jpeg(9)], SMALL, batch=1, decoders=1, lanes=2, seconds=30.0)


def test_classes_are_ranked_with_their_probabilities() -> None:
    classes, shares = rank_classes(np.log(np.array([[1.0, 5.0, 2.0, 1.5, 0.4, 0.1]])))
    assert classes.tolist() == [[1, 2, 3, 0, 4]]
    np.testing.assert_allclose(shares, [[0.5, 0.2, 0.15, 0.1, 0.04]], rtol=1e-6)
    assert rank_classes(np.zeros((2, 3)))[0].shape == (2, 3)


@pytest.mark.parametrize(
    "entry",
    [e for e in ENTRIES.values() if (e.device or e.describe_on("cuda").default is not None) and not e.find_program],
    ids=lambda e: e.name,
)
def test_overlapped_lanes_sleep_while_they_wait(entry: Entry) -> None:
    """In the engine's own words: an option that it does not have would end the measurement."""
    gpu = EngineSpec(backend=entry.name, device="cuda:0")
    check_options(choose_waiting(gpu))
    known = entry.list_options("cuda")
    assert bool(choose_waiting(gpu).options) == bool(known.keys() & {"wait", "spin"})
    asked = replace(gpu, options={"wait": "spin"})
    assert choose_waiting(asked).options["wait"] == "spin"
    assert not choose_waiting(EngineSpec(backend="pytorch")).options


@pytest.mark.parametrize(("model", "why"), [("nope", "unknown model 'nope'"), ("tiny", "3 x SIDE x SIDE"), ("net", "")])
def test_any_model_of_images_is_timed_and_another_refused_before_pictures_are_made(
    cli: Cli, tiny_onnx: Path, tmp_path: Path, model: str, why: str
) -> None:
    target = {"tiny": tiny_onnx, "net": tmp_path / "net.onnx"}.get(model, model)
    if model == "net":
        (tmp_path / "net.onnx").write_bytes(build_residual().SerializeToString())
    done = cli("stages", target, "--engine", "ort", "--n", 2, "--time-limit", 0.01, code=2 if why else 0)
    assert ("generating" in done.stderr) == (not why) and why in done.stderr
    assert why or "images were prepared as ImageNet's are" in " ".join(done.stdout.split())


def test_a_picture_that_cannot_be_decoded_is_named(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "im").mkdir()
    (tmp_path / "im" / "a.jpg").write_bytes(make_jpeg(8))
    whole, pointer = make_jpeg(8), b"version https://git-lfs.github.com/spec/v1\n"
    for data, why in ((whole[:-200], "cannot be decoded: "), (pointer, ": found a pointer of Git LFS")):
        (tmp_path / "im" / "x.jpg").write_bytes(data)  # of the first the header is whole
        done = cli("stages", "digits-cnn", "--engine", "ort", "--images", "im", "--n", 2, code=5)
        assert "im/x.jpg" in done.stderr and why in done.stderr and "Traceback" not in done.stderr


def test_fewer_pictures_than_a_batch_are_refused(cli: Cli) -> None:
    pytest.importorskip("torch")
    done = cli("stages", "digits-cnn", "--n", 3, "--batch", 4)
    assert done.returncode == 2
    assert "less than a batch of 4" in done.stderr


FAKE = "fake:latency_us=400,ran=int8,ran_share=0.75"


def test_the_verb_says_where_the_time_goes(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    draws = environment(tmp_path, draws=True)
    done = cli("profile", tiny_onnx, "--engine", FAKE, "--out", "where", "--json", code=0, env=draws)
    document = json.loads(done.stdout)
    assert document == json.loads((tmp_path / "where" / "profile.json").read_text())
    assert document["schema"] == "enginebench.profile/1"
    assert [(layer["precision"], layer["share"]) for layer in document["layers"]] == [("int8", 0.75), ("fp32", 0.25)]
    assert document["average_ms"] == pytest.approx(0.4)
    assert document["end_to_end_ms"] >= 0.4  # the fake waits at least as long as it is told
    assert document["remainder_ms"] == pytest.approx(document["end_to_end_ms"] - 0.4)
    with (tmp_path / "where" / "per_layer_times.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["layer", "total_ms", "average_ms", "median_ms", "share"]
    assert rows[0]["layer"] == "slices in int8" and float(rows[0]["average_ms"]) == pytest.approx(0.3)
    assert (tmp_path / "where" / "per_layer_time.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_fits_80_columns_and_shows_the_slowest(cli: Cli, tiny_onnx: Path) -> None:
    done = cli("profile", tiny_onnx, "--engine", "ort", "--topk", 1, "--threads", 1, code=0)
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "ONNX Runtime's profiler" in done.stdout and "1 layer not shown" in " ".join(done.stdout.split())
    assert "without the profiler" in done.stdout


@pytest.mark.feature("fpga")
def test_an_engine_without_layers_is_refused_before_anything_is_made(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = cli("profile", "digits-mlp", "--engine", "fpga-sim", code=3)
    assert "cannot time its layers; these can: pytorch, " in done.stderr


def test_a_prepared_configuration_keeps_its_layers(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    short = ("--warmup", 1, "--iters", 5, "--processes", 1, "--json")
    cli("bench", tiny_onnx, "--engine", "ort", "--against", FAKE, *short, code=0)
    rows = [json.loads(path.read_text()) for path in tmp_path.glob("results/*/rows/*.json")]
    layers = {row["engine"]["backend"]: row["layers"] for row in rows}
    assert {layer["precision"] for layer in layers["fake"]} == {"int8", "fp32"}
    assert layers["ort"] and all(layer["mean_ns"] > 0 and layer["kind"] for layer in layers["ort"])


def test_a_profiler_that_fails_is_a_warning_and_no_failure() -> None:
    profile = LayerProfile(layers=(LayerTime(name="a", mean_ns=1.0),), runs=1, profiler="p")
    assert list_layers(lambda: profile) == (profile.layers, ())
    assert list_layers(None) == ((), ())

    def fail() -> LayerProfile:
        raise MeasurementError("nothing was recorded\nsecond line")

    layers, (warning,) = list_layers(fail)
    assert layers == () and warning.code == "no_layer_times" and warning.message.endswith("nothing was recorded")
