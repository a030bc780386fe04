"""File to label: what is timed, how stages overlap, and what is refused."""

import json
from pathlib import Path

import pytest

from enginebench.stats.stages import STAGES
from processes import Cli


def test_the_verb_says_where_the_time_goes(cli: Cli, tmp_path: Path) -> None:
    args = ("stages", "digits-cnn", "--engine", "ort", "--n", 8, "--batch", 4, "--time-limit", 0.2, "--threads", 1)
    done = cli(*args, "--decoders", 2, "--save-images", "pictures", "--out", "stages.json", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document == json.loads((tmp_path / "stages.json").read_text())
    assert document["schema"] == "enginebench.stages/1"
    assert [stage["name"] for stage in document["stages"]] == list(STAGES)
    assert sum(stage["share"] for stage in document["stages"]) == pytest.approx(1.0)
    assert document["overlapped_per_s"] > 0 and document["device_times"] is None
    assert len(list((tmp_path / "pictures").glob("*.jpg"))) == 8

    shown = cli(*args, "--images", "pictures", "--decoders", 1)
    assert shown.returncode == 0, shown.stderr
    words = " ".join(shown.stdout.split())  # where a line breaks depends on the figures
    assert "file to label" in words and "the bound is" in words


def test_several_engines_stand_side_by_side_and_a_failing_one_is_left_out(cli: Cli, tmp_path: Path) -> None:
    short = ("--n", 4, "--time-limit", 0.1, "--threads", 1, "--decoders", 1)
    done = cli("stages", "digits-cnn", "--engines", "ort,fake:fault=raise,at=load,fake", *short, "--out", "s.json")
    assert done.returncode == 0, done.stderr
    assert "fake:at=load,fault=raise is left out: " in done.stderr
    document = json.loads((tmp_path / "s.json").read_text())
    assert [document["engine"], *(other["engine"] for other in document["others"])] == ["ort", "fake"]
    assert "From file to label" in done.stdout and "ort fp32, batch 1" in done.stdout
    alone = cli("stages", "digits-cnn", "--engines", "fake:fault=raise,at=load", *short)
    assert alone.returncode == 6 and "is left out" not in alone.stderr
