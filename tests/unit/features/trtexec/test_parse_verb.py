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
    folder = tmp_path / "ein ördner"
    folder.mkdir()
    (folder / "times.json").write_bytes(made.make_times(400))
    (folder / "profile.json").write_bytes(made.make_profile())
    (folder / "layers.json").write_bytes(made.make_layers())
    (folder / "run.log").write_text(made.make_log(n=400))
    return folder


def test_what_is_said_of_a_log_stands_in_its_document(folder: Path) -> None:
    document = read("log", folder / "run.log", "--model", "m", "--precision", "fp16", "--batch", 2)
    (run,) = document["runs"]
    assert (run["model"], run["precision"], run["batch"], run["status"]) == ("m", "fp16", 2, "passed")
    assert document["schema"] == "enginebench.parse-log/1"


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


def test_the_log_tells_what_is_warmup(folder: Path) -> None:
    (folder / "old.log").write_text(made.make_log(8401, None))
    (folder / "times.json").write_bytes(made.make_times(4000))
    assert read("times", folder / "times.json")["warmup_dropped"] > 1000
    assert read("times", folder / "times.json", "--warmup-ms", 0)["warmup_dropped"] == 0
    assert read("times", folder / "times.json", "--log", folder / "old.log")["warmup_dropped"] == 0
    old = made.make_log(8401, None).replace("Duration: 0s (+ 0ms warm up)", "Duration: 3s (+ 200ms warm up)")
    (folder / "old.log").write_text(old.replace("over 0 ms", "over 200 ms"))
    assert read("times", folder / "times.json", "--log", folder / "old.log")["warmup_dropped"] > 1000
    assert read("times", folder / "times.json", "--warmup-ms", 100)["warmup_dropped"] > 500


def test_profile_against_the_run_without_profiler(folder: Path) -> None:
    args = ("profile", folder / "profile.json", "--against", folder / "run.log")
    document = read(*args)
    remainder_ms = document["remainder_ms"]
    assert remainder_ms < 0 and remainder_ms == pytest.approx(document["end_to_end_ms"] - document["average_ms"])
    assert f"the layers add up to {-remainder_ms:.4g}" in " ".join(run(*args).stdout.split())


def test_out_as_a_folder_and_as_one_file(folder: Path, tmp_path: Path) -> None:
    result = run("profile", folder / "profile.json", "--out", tmp_path / "o", "--json")
    assert json.loads(result.stdout)["count"] == 51
    assert {path.name for path in (tmp_path / "o").iterdir()} == {
        "summary.json", "per_layer_times.csv", "per_layer_time.png"
    }  # fmt: skip
    assert result.stderr.count("\n") == 3
    run("log", folder / "run.log", "--out", tmp_path / "one.json")
    assert json.loads((tmp_path / "one.json").read_text())["runs"][0]["queries"] == 400
    run("times", folder / "times.json", "--out", tmp_path / "t")
    assert len(list((tmp_path / "t").iterdir())) == 6
    run("layers", folder / "layers.json", "--out", tmp_path / "l")
    assert {path.name for path in (tmp_path / "l").iterdir()} == {"summary.json", "layers.csv"}


@pytest.mark.parametrize("verb", ["log", "times", "profile", "layers"])
def test_the_tables_fit_into_80_columns(folder: Path, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    file = folder / ("run.log" if verb == "log" else f"{verb}.json")
    result = run(verb, file)
    assert result.exit_code == 0 and result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "…" not in result.stdout


def test_a_plugin_cannot_colour_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(made.make_log().encode() + f"{made.STAMP} [W] \x1b[2J\x9b2Jwiped\u202e\n".encode())
    output = run("log", path).stdout
    assert "wiped" in output and "\x1b" not in output and "\x9b" not in output and "\u202e" not in output
