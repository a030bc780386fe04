"""The verb `parse`: documents on stdout, files under --out, exit code 5 for what cannot be read."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import trtexec_artifacts as made
from enginebench.features.trtexec.verb import command as parse


def run(*args: object) -> Result:
    return CliRunner().invoke(parse, [str(arg) for arg in args], terminal_width=80)


def read(*args: object) -> dict[str, Any]:
    result = run(*args, "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made.fill(tmp_path / "ein ördner", n=400)


def test_layers_against_another_engine_find_its_profile(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "fp16.layers.json"
    other.write_bytes(made.make_layers())
    (tmp_path / "fp16.profile.json").write_bytes(made.make_profile(count=102))
    args = ("layers", folder / "layers.json", "--profile", folder / "profile.json", "--against", other)
    document = read(*args)
    assert set(document["diff"][0]) == {"onnx_nodes", "base", "candidate", "delta_ms"}
    assert document["diff_totals"]["delta_ms"] == pytest.approx(document["diff_totals"]["base_ms"])
    assert "operators met by their names" in run(*args).stdout
    untimed = run("layers", folder / "layers.json", "--against", other).stdout.splitlines()
    assert next(line for line in untimed if "/fc/Gemm" in line).split()[-3:] == ["-", "-", "-"], "not known, not 0"


def test_out_as_a_folder_and_as_one_file(folder: Path, tmp_path: Path) -> None:
    result = run("profile", folder / "profile.json", "--out", tmp_path / "o", "--json")
    assert json.loads(result.stdout)["count"] == 51
    assert {path.name for path in (tmp_path / "o").iterdir()} == {
        "summary.json", "per_layer_times.csv", "per_layer_time.png"
    }  # fmt: skip
    assert result.stderr.count("\n") == 3
    run("log", folder / "run.log", "--out", tmp_path / "one.json")
    assert json.loads((tmp_path / "one.json").read_text())["runs"][0]["queries"] == 400
