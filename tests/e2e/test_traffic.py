"""A mix of requests from end to end: every shape is timed and compared; who errs in one of them alone is found."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cheats import save_stack, write_plugin
from graphs import write_text
from processes import ROOT, Cli, environment, run_cli
from shared import make_once

MIX = "batch=1:0.7,batch=8:0.3"
# Right for a batch of one: what they do wrong shows in the second cell alone.
KINDS = ("half", "half-later")


def run_mix(folder: Path) -> None:
    variables = environment(folder)
    variables["PYTHONPATH"] += f":{ROOT / 'tests' / 'helpers'}:{write_plugin(folder / 'plugin')}"
    kinds = (f"cheat:kind={kind}" for kind in KINDS)
    engines = ",".join(("ort", "ort:pad=largest,sessions=one", "openvino", "cheat", *kinds))
    few = ("--threads", "1", "--processes", "2", "--warmup", "5", "--iters", "60", "--json", "--out", "r")
    model = save_stack(folder / "stack.onnx")
    done = run_cli(folder, "run", model, "--engines", engines, "--traffic", MIX, *few, code=0, env=variables)
    (folder / "printed.json").write_text(done.stdout)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a run of a mix, and its document."""
    folder = make_once(tmp_path_factory, "traffic", run_mix)
    return folder / "r", json.loads((folder / "printed.json").read_text())


def test_one_engine_for_all_shapes_and_one_for_each_are_configurations(ran: tuple[Path, dict[str, Any]]) -> None:
    _, document = ran
    rows = {row["engine"]: row for row in document["rows"]}
    assert {"ort:sessions=one", "ort:sessions=each", "openvino:shapes=dynamic", "openvino:shapes=static"} < rows.keys()
    for row in rows.values():
        first, second = row["cells"]
        assert (first["name"], first["weight"]) == ("batch=1", 0.7)
        assert (second["name"], second["weight"]) == ("batch=8", 0.3)
        if "half" not in row["engine"]:
            assert row["outputs"] == "same", row["engine"]
            mean_ms = 0.7 * first["p50_ms"]["value"] + 0.3 * second["p50_ms"]["value"]
            assert row["p50_ms"]["value"] == pytest.approx(mean_ms, rel=0.2)


def test_what_padding_costs_stands_beside_the_exact_shapes(ran: tuple[Path, dict[str, Any]], cli: Cli) -> None:
    rows = {row["engine"]: row for row in ran[1]["rows"]}
    padded, exact = rows["ort:pad=largest,sessions=one"], rows["ort:sessions=one"]
    assert padded["outputs"] == "same" and padded["exact"] == exact["id"]
    assert [cell["padded"] for cell in padded["cells"]] == ["batch=8", "batch=8"]
    assert padded["padded_values"] == pytest.approx(8 / (0.7 + 0.3 * 8))
    assert padded["ratio_to_exact"]["value"] > 1, "a request of one entry has the work of eight"
    assert "1 of 2  2.58x" in cli("report", ran[0]).stdout


def test_outputs_that_padding_changes_are_not_named(cli: Cli, tmp_path: Path) -> None:
    """A mean over all places of a text, padding among them, as of a graph that has no mask."""
    ends = "(int64[batch, length] ids) => (float[batch, 8] mean)"
    nodes = "rows = Gather (table, ids) mean = ReduceMean <axes = [1], keepdims = 0> (rows)"
    table = np.random.default_rng(0).standard_normal((100, 8), np.float32)
    model = write_text(tmp_path / "pooled.onnx", f"pooled {ends} {{ {nodes} }}", {"table": table})
    few = ("--processes", "1", "--warmup", "5", "--iters", "50", "--out", tmp_path / "run", "--json")
    engines = "ort:sessions=one,ort:pad=16,sessions=one"
    done = cli("run", model, "--engines", engines, "--traffic", "5:1,12:1,16:1", *few)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    padded = next(row for row in document["rows"] if row["engine"] == "ort:pad=16,sessions=one")
    assert padded["outputs"] == "changed" and "without a mask" in padded["outputs_reason"]
    assert len(document["rows"]) == 2, "its optimizer is not blamed"
    assert document["recommended"]["engine"] == "ort:sessions=one"


def test_whoever_errs_in_one_shape_alone_is_found(ran: tuple[Path, dict[str, Any]]) -> None:
    rows = {row["engine"]: row for row in ran[1]["rows"]}
    assert rows["cheat"]["outputs"] == "same" and rows["cheat"]["validity"] != "implausible"
    assert rows["cheat:kind=half"]["outputs"] == "changed"
    assert "on shape batch=8" in rows["cheat:kind=half"]["outputs_reason"]
    assert rows["cheat:kind=half-later"]["validity"] == "implausible"


def test_the_samples_of_each_shape_are_stored_and_shown(ran: tuple[Path, dict[str, Any]], cli: Cli) -> None:
    folder, document = ran
    stored = json.loads((folder / document["rows"][0]["result"]).read_text())
    for trial in stored["measurements"]:
        first, second = trial["cells_ns"]
        assert (len(first), len(second), len(trial["latency_ns"])) == (420, 180, 60)
        mean = 0.7 * sum(first) / 420 + 0.3 * sum(second) / 180
        assert sum(trial["latency_ns"]) / 60 == pytest.approx(mean, abs=1)
    shown = cli("report", folder).stdout
    assert "mix of 2 shapes" in shown and "batch=8 30%" in shown and "a request" in shown


def test_a_bundle_of_a_mix_checks_every_shape(ran: tuple[Path, dict[str, Any]], cli: Cli, tmp_path: Path) -> None:
    folder, document = ran
    ids = {row["engine"]: row["id"] for row in document["rows"]}
    apart = cli("deliver", folder, "--row", ids["openvino:shapes=static"], "--out", tmp_path / "apart")
    assert apart.returncode == 2 and "an engine for each shape" in apart.stderr
    out = tmp_path / "ship é 1"
    done = cli("deliver", folder, "--row", ids["openvino:shapes=dynamic"], "--out", out)
    assert done.returncode == 0, done.stderr
    assert "batch=1:0.7,batch=8:0.3" in (out / "README.md").read_text("utf-8")
    check = [sys.executable, out / "predict.py", "--check"]
    passed = subprocess.run(check, capture_output=True, text=True, check=False)
    assert passed.returncode == 0 and "in 2 shapes" in passed.stdout
    with np.load(out / "check-2.npz") as stored:
        arrays = {name: stored[name] for name in stored.files}
    (inputs,) = (array for name, array in arrays.items() if name.startswith("inputs."))
    assert inputs.shape[1] == 8 and len(inputs) > 3  # calls, each with eight entries
    output = next(name for name in arrays if name.startswith("outputs."))
    arrays[output][3] += 1.0  # the fault, in one call of the second shape
    np.savez(out / "check-2.npz", **arrays)
    failed = subprocess.run([*check, "--force"], capture_output=True, text=True, check=False)
    assert failed.returncode == 1 and "NOT within" in failed.stdout


def test_a_bundle_pads_by_itself_and_cuts_back(ran: tuple[Path, dict[str, Any]], cli: Cli, tmp_path: Path) -> None:
    folder, document = ran
    row = next(row for row in document["rows"] if row["engine"] == "ort:pad=largest,sessions=one")
    done = cli("deliver", folder, "--row", row["id"], "--out", tmp_path / "ship")
    assert done.returncode == 0 and "as measured" in done.stdout, done.stderr
    program = (
        "import numpy as np, predict\n"
        "loaded = predict.load()\n"
        "(spec,) = loaded.engine.inputs\n"
        "for n in (1, 5, 9):\n"
        "    x = np.ones((n, *spec.shape[1:]), np.float32)\n"
        "    (y,) = loaded({spec.name: x}).values()\n"
        "    print(n, len(y), loaded.engine.engine._feeds[spec.name].shape[0])\n"
    )
    ran_there = [sys.executable, "-c", program]
    shown = subprocess.run(ran_there, capture_output=True, text=True, check=False, cwd=tmp_path / "ship")
    assert shown.stdout.split("\n")[:3] == ["1 1 8", "5 5 8", "9 9 9"], shown.stderr


def test_lengths_of_a_file_are_shapes_of_the_only_dynamic_axis(cli: Cli, tmp_path: Path) -> None:
    ends = "(int64[batch, length] ids) => (float[batch, length, 8] rows)"
    table = np.random.default_rng(0).standard_normal((100, 8), np.float32)
    model = write_text(tmp_path / "tokens.onnx", f"tokens {ends} {{ rows = Gather (table, ids) }}", {"table": table})
    lengths = tmp_path / "lengths é 1.txt"
    lengths.write_text("16\n128\n16\n16\n", encoding="utf-8")
    out, few = tmp_path / "run", ("--processes", "1", "--warmup", "5", "--iters", "50")
    done = cli("run", model, "--engines", "ort", "--traffic", lengths, *few, "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    for row in json.loads(done.stdout)["rows"]:
        assert [(cell["name"], cell["weight"]) for cell in row["cells"]] == [("1x16", 0.75), ("1x128", 0.25)]
        assert row["outputs"] == "same"
    wrong = cli("run", model, "--engines", "ort", "--traffic", "width=9", "--out", tmp_path / "none")
    assert wrong.returncode == 2 and "no dynamic axis 'width'; it has batch, length" in wrong.stderr
    assert not (tmp_path / "none").exists()


def test_a_search_is_for_the_mean_request_of_a_mix(tmp_path: Path) -> None:
    """Every setting serves the mix: engines with one session for all shapes and with one for each are searched both."""
    few = ("--threads", "1", "--time-budget", "60s", "--processes", "6", "--json", "--out", "t")
    done = run_cli(tmp_path, "tune", save_stack(tmp_path / "s.onnx"), "--engines", "ort", "--traffic", MIX, *few)
    assert done.returncode == 0, done.stderr
    tried = json.loads(done.stdout)["candidates"]
    assert {"ort:sessions=one fp32 1 thread", "ort:sessions=each fp32 1 thread"} <= {one["candidate"] for one in tried}
    stored = [json.loads(path.read_text()) for path in (tmp_path / "t" / "rows").glob("*.json")]
    assert stored and all([cell["batch"] for cell in row["engine"]["traffic"]] == [1, 8] for row in stored)
    assert all(len(trial["cells_ns"]) == 2 for row in stored for trial in row["measurements"])
