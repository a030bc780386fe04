"""The main job, `build`, `bench` and `infer` with both TensorRT engines over stand-ins, as whole processes."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enginebench.models.zoo import DATA_DIR
from fakes.tensorrt_modules import MODULES
from fakes.trtexec_shim import install_trtexec
from processes import ROOT, Cli, environment

# trtexec's version beside that of the Python module; 8.6 has no Python engine.
PAIRS = [("8.6.1", None, "fp32,fp16"), ("10.16", "10.16", "fp16"), ("11.1", "11.4", "fp32")]
SHORT = ("--processes", 1, "--time-limit", 0.2)


def make_environment(folder: Path, tool: str | None, module: str | None) -> dict[str, str]:
    found = environment(folder)
    found["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    found.pop("TRTEXEC", None)
    if tool:
        found["TRTEXEC"] = str(install_trtexec(folder / "tools", tool))
    if module:
        found["PYTHONPATH"] = f"{ROOT / 'src'}:{MODULES}"
        found["FAKE_TENSORRT_VERSION"] = module
    return found


def take_graph(folder: Path) -> Path:
    path = folder / "mein netz.onnx"
    path.write_bytes((DATA_DIR / "digits-cnn.onnx").read_bytes())
    return path


def rows_of(done: Any) -> dict[str, dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return {f"{row['engine']} {row['requested_precision']}": row for row in json.loads(done.stdout)["rows"]}


@pytest.mark.parametrize(("tool", "module", "precisions"), PAIRS)
def test_the_main_job(cli: Cli, tmp_path: Path, tool: str, module: str | None, precisions: str) -> None:
    engines = "ort,tensorrt,trtexec" if module else "ort,trtexec"
    done = cli(
        *("run", take_graph(tmp_path), "--engines", engines, "--precisions", precisions, "--out", "r", "--json"),
        *SHORT,
        env=make_environment(tmp_path, tool, module),
    )
    rows = rows_of(done)
    for engine in engines.split(",")[1:]:
        for precision in precisions.split(","):
            row = rows[f"{engine} {precision}"]
            assert row["status"] == "ok", row["reason"]
            assert row["clock"] == ("tool" if engine == "trtexec" else "host")
            assert row["device"] == "cuda:0" and row["p50_device_ms"]["value"] > 0
            assert row["effective_precision"][precision] > 0.8  # casts at both ends of an FP16 graph are "other"
            assert row["cosine"] > 0.999
            assert "unverified_engine" in {c["code"] for c in row["caveats"]}
    plans = list((tmp_path / "r" / "artefacts" / "plans").glob("*.plan"))
    assert len(plans) == len(precisions.split(",")) * (len(engines.split(",")) - 1)


@pytest.mark.parametrize(("tool", "module"), [("10.16", "10.16"), ("11.1", "11.4")])
def test_a_plan_alone_without_pytorch_or_onnx(cli: Cli, tmp_path: Path, tool: str, module: str) -> None:
    variables = make_environment(tmp_path, tool, module)
    hide_packages(tmp_path, variables)
    graph = take_graph(tmp_path)
    built = cli("build", graph, "--out", "net.plan", "--json", env=variables)
    assert built.returncode == 0, built.stderr
    document = json.loads(built.stdout)
    assert document["artifact"]["path"] == "net.plan" and document["command"][0].endswith("trtexec")
    assert document["effective_precision"] == pytest.approx({"fp32": 1.0})
    timed = cli(
        "bench", "net.plan", "--engine", "trtexec", "--warmup", 2, "--iters", 30, "--json", *SHORT, env=variables
    )
    assert timed.returncode == 0, timed.stderr
    assert json.loads(timed.stdout)["row"]["n"] == 30


HIDE = """
import sys
import importlib.util

def is_hidden(name):
    return name.split('.')[0] in ('torch', 'onnx') and 'fake_trtexec' not in ' '.join(sys.argv)

class Hide:
    def find_spec(self, name, path=None, target=None):
        if is_hidden(name):
            raise ModuleNotFoundError(name)

look = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if is_hidden(name) else look(name, package)
sys.meta_path.insert(0, Hide())
"""


def hide_packages(folder: Path, variables: dict[str, str]) -> None:
    """Makes torch and onnx impossible to find, as where only TensorRT is installed."""
    site = folder / "hidden"
    site.mkdir()
    (site / "sitecustomize.py").write_text(HIDE, encoding="utf-8")
    variables["PYTHONPATH"] = f"{site}:{variables['PYTHONPATH']}"


def test_infer_and_the_five_lines(cli: Cli, tmp_path: Path) -> None:
    variables = make_environment(tmp_path, "11.1", "11.4")
    built = cli("build", take_graph(tmp_path), "--engine", "tensorrt", "--out", "net.plan", "--batch", 3, env=variables)
    assert built.returncode == 0, built.stderr
    batch = np.random.default_rng(0).standard_normal((3, 1, 8, 8), np.float32)
    np.savez(tmp_path / "in.npz", input=batch)
    done = cli("infer", "net.plan", "in.npz", "--engine", "tensorrt", "--out", "out.npz", env=variables)
    assert done.returncode == 0, done.stderr
    import onnxruntime

    (expected,) = onnxruntime.InferenceSession(str(tmp_path / "mein netz.onnx")).run(None, {"input": batch})
    with np.load(tmp_path / "out.npz") as archive:
        np.testing.assert_allclose(archive["output"], expected, rtol=1e-5)


def test_the_same_plan_through_both(cli: Cli, tmp_path: Path) -> None:
    variables = make_environment(tmp_path, "10.16", "10.16")
    built = cli("build", take_graph(tmp_path), "--out", "net.plan", env=variables)
    assert built.returncode == 0, built.stderr
    done = cli(
        "bench",
        "net.plan",
        "--engine",
        "tensorrt:graph=0",
        "--against",
        "trtexec@net.plan",
        "--json",
        *SHORT,
        env=variables,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["row"]["engine"] == "tensorrt:graph=0"
    messages = [c["message"] for c in document["row"]["caveats"]]
    assert any(m == "CUDA graph is 1 in trtexec and 0 in tensorrt" for m in messages)
    assert any("device's clock" in m for m in messages)


def test_refusals_and_exit_codes(cli: Cli, tmp_path: Path) -> None:
    graph = take_graph(tmp_path)
    none = make_environment(tmp_path, None, None)
    assert cli("build", graph, env=none).returncode == 3
    dry = cli("build", graph, "--dry-run", "--tensorrt-version", "11", "--weak-typing", "--precision", "fp16", env=none)
    assert dry.returncode == 2 and "knows no --fp16" in dry.stderr
    assert cli("build", graph, "--tensorrt-version", "11", env=none).returncode == 2
    assert cli("build", "nowhere.onnx", "--dry-run", "--tensorrt-version", "11", env=none).returncode == 5
    eleven = make_environment(tmp_path, "11.1", None)
    failed = cli("build", graph, "--out", "a.plan", env={**eleven, "FAKE_TRTEXEC_FAULT": "build_fails"})
    assert failed.returncode == 5 and "Error Code 10" in failed.stderr
    assert not (tmp_path / "a.plan").exists()
    assert cli("build", graph, "--engine", "ort", env=eleven).returncode == 2
    (tmp_path / "empty.plan").write_bytes(b"")
    assert cli("bench", "empty.plan", "--engine", "trtexec", *SHORT, env=eleven).returncode == 5


@pytest.mark.parametrize("version", ["8.6", "10.16", "11"])
def test_a_dry_run_needs_nothing_but_the_graph(cli: Cli, tmp_path: Path, version: str) -> None:
    variables = make_environment(tmp_path, None, None)
    done = cli(
        "build",
        take_graph(tmp_path),
        "--dry-run",
        "--tensorrt-version",
        version,
        "--",
        "--sparsity=enable",
        env=variables,
    )
    assert done.returncode == 0, done.stderr
    argv = shlex.split(done.stdout)
    assert argv[0] == "trtexec" and argv[-1] == "--sparsity=enable" and done.stdout.count("\n") == 1
    assert f"--onnx={tmp_path / 'mein netz.onnx'}" in argv
    assert ("--stronglyTyped" in argv) == (version == "10.16")


def test_a_graph_is_quantized_first(cli: Cli, tmp_path: Path) -> None:
    variables = make_environment(tmp_path, "11.1", None)
    done = cli("build", take_graph(tmp_path), "--precision", "fp16", "--out", "h.plan", env=variables)
    assert done.returncode == 0, done.stderr
    assert "quantizing it to" in done.stderr and "fp16 86 %" in done.stdout
    assert (tmp_path / "mein netz.fp16.onnx").is_file()


def test_bench_says_what_it_would_run(cli: Cli, tmp_path: Path) -> None:
    variables = make_environment(tmp_path, None, None)
    options = ("--engine", "trtexec", "--dry-run", "--warmup", 5, "--iters", 100, "--extra", "--verbose")
    ten = cli("bench", "m.plan", *options, "--tensorrt-version", "10.16", env=variables)
    eleven = cli("bench", "m.plan", *options, "--tensorrt-version", "11", "--no-cuda-graph", env=variables)
    assert ten.returncode == eleven.returncode == 0, ten.stderr + eleven.stderr
    assert {"--loadEngine=m.plan", "--useCudaGraph", "--iterations=105", "--warmUp=0", "--verbose"} <= set(
        ten.stdout.split()
    )
    assert "--noCudaGraph" in eleven.stdout and "--useSpinWait" not in eleven.stdout
    assert cli("bench", "m.plan", "--engine", "ort", "--dry-run", env=variables).returncode == 2
