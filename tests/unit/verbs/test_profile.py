"""The verb `profile`, and the layers that a run keeps."""

import csv
import json
from pathlib import Path

import pytest

from enginebench.core.errors import MeasurementError
from enginebench.core.records import LayerProfile, LayerTime
from enginebench.runs.child.proving import list_layers
from processes import Cli

FAKE = "fake:latency_us=400,ran=int8,ran_share=0.75"


def test_the_verb_says_where_the_time_goes(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    document = json.loads(cli("profile", tiny_onnx, "--engine", FAKE, "--out", "where", "--json", code=0).stdout)
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
    done = cli("profile", "digits-mlp", "--engine", "fpga-sim", code=3)
    assert "cannot time its layers; these can: pytorch, " in done.stderr


def test_a_prepared_row_keeps_its_layers(cli: Cli, tiny_onnx: Path, tmp_path: Path) -> None:
    short = ("--warmup", 1, "--iters", 5, "--processes", 1, "--json")
    cli("bench", tiny_onnx, "--engine", "ort", "--against", FAKE, *short, code=0)
    rows = [json.loads(path.read_text()) for path in tmp_path.glob("results/*/rows/*.json")]
    layers = {row["engine"]["backend"]: row["layers"] for row in rows}
    assert {layer["precision"] for layer in layers["fake"]} == {"int8", "fp32"}
    assert layers["ort"] and all(layer["mean_ns"] > 0 and layer["kind"] for layer in layers["ort"])


def test_a_profiler_that_fails_is_a_doubt_and_no_failure() -> None:
    profile = LayerProfile(layers=(LayerTime(name="a", mean_ns=1.0),), runs=1, profiler="p")
    assert list_layers(lambda: profile) == (profile.layers, ())
    assert list_layers(None) == ((), ())

    def fail() -> LayerProfile:
        raise MeasurementError("nothing was recorded\nsecond line")

    layers, (doubt,) = list_layers(fail)
    assert layers == () and doubt.code == "no_layer_times" and doubt.message.endswith("nothing was recorded")
