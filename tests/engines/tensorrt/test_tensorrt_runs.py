"""The main job, `build`, `bench` and `infer` with both TensorRT engines over stand-ins, in this process if they may."""

import csv
import hashlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from calls import read_document, succeed
from enginebench.models.zoo import DATA_DIR
from enginebench.runs.child import environments
from enginebench.stats.drift import default_limits
from fakes.tensorrt_modules import MODULES, forget_modules
from fakes.trtexec_shim import install_trtexec
from graphs import write_graph, write_tokens
from in_process import children, run_here
from processes import Cli, environment, run_cli

__all__ = ["children"]

# trtexec's version, that of the Python module, and what is run with both.
JOBS = [
    ("8.6.0", "8.6", "", "trtexec,tensorrt", "fp32,int8"),
    ("10.16", "10.16", "", "trtexec,tensorrt", "int8"),
    ("11.1", "11.4", "digits-cnn", "pytorch,tensorrt,trtexec", "fp32,fp16,int8"),
]
# Of the fakes' layer times; casts at both ends of an FP16 graph are "reorder", and only convolutions are in INT8.
SHARES = {"fp32": 1.0, "fp16": 11 / 13, "int8": 1 / 4}
SHORT = ("--processes", 1, "--warmup", 2, "--iters", 20)


def make_environment(folder: Path, tool: str | None, module: str | None, *, draws: bool = False) -> dict[str, str]:
    found = environment(folder, draws=draws)
    found["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    found.pop("TRTEXEC", None)
    if tool:
        found["TRTEXEC"] = str(install_trtexec(folder / "tools", tool))
    if module:
        found["PYTHONPATH"] += f":{MODULES}"
        found["FAKE_TENSORRT_VERSION"] = module
    return found


@pytest.fixture
def cli(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cli]:
    """Runs `enginebench ARGS` in this process, or in one of its own where packages are hidden from it.

    Its children too, but for those of a test whose parameter is "apart": they die, or are killed.
    """
    if getattr(request, "param", "") != "apart":
        request.getfixturevalue("children")

    def run(*arguments: object, env: dict[str, str], code: int | None = None) -> Any:
        if "hidden" in env["PYTHONPATH"]:
            return run_cli(tmp_path, *arguments, env=env, code=code)
        forget_modules()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(environments, "find_gpu_name", "Fake GPU".__getitem__)  # the GPU of the fakes
            for folder in reversed(env["PYTHONPATH"].split(":")):
                patch.syspath_prepend(folder)
            return run_here(tmp_path, *arguments, env=env, code=code)

    yield run
    forget_modules()


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "mein netz.onnx"
    path.write_bytes((DATA_DIR / "digits-cnn.onnx").read_bytes())
    return path


def rows_of(done: Any) -> dict[str, dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return {f"{row['engine']} {row['requested_precision']}": row for row in json.loads(done.stdout)["rows"]}


@pytest.mark.parametrize(("tool", "module", "model", "engines", "precisions"), JOBS)
def test_the_main_job(cli, tmp_path, graph, tool, module, model, engines, precisions) -> None:
    variables = make_environment(tmp_path, tool, module)
    asked = ("--engines", engines, "--precisions", precisions, "--strict-precision", *SHORT)
    rows = rows_of(cli("run", model or graph, *asked, "--out", "r", "--json", env=variables))
    for engine in ("tensorrt", "trtexec"):
        for precision in precisions.split(","):
            row = rows[f"{engine} {precision}"]
            assert row["status"] == "ok", row["reason"]
            assert row["clock"] == ("tool" if engine == "trtexec" else "host")
            assert row["device"] == "cuda:0" and row["p50_device_ms"]["value"] > 0
            assert row["precision"] == precision and row["recipe"] == ("tensorrt" if precision == "int8" else None)
            assert row["effective_precision"][precision] == pytest.approx(SHARES[precision])
            assert row["cosine"] > 0.999 and row["top1_agreement"] > 0.9
            assert "unverified_engine" not in {c["code"] for c in row["caveats"]}
    plans = list((tmp_path / "r" / "artefacts" / "plans").glob("*.plan"))
    asked = precisions.split(",")
    assert len(plans) == len(asked) * 2, "the reference is the graph, for which no plan is built"


def test_int8_that_ran_as_fp32_fails_under_strict_precision(cli: Cli, tmp_path: Path, graph: Path) -> None:
    variables = make_environment(tmp_path, "11.1", "11.4")
    variables |= {"FAKE_TRTEXEC_FAULT": "ignores_precision", "FAKE_TENSORRT_FAULT": "ignores_precision"}
    asked = ("--engines", "trtexec,tensorrt", "--precisions", "int8", "--strict-precision", *SHORT)
    done = cli("run", graph, *asked, "--out", "r", "--json", env=variables)
    assert done.returncode == 4, done.stderr
    for row in json.loads(done.stdout)["rows"]:
        assert (row["requested_precision"], row["precision"], row["status"]) == ("int8", "fp32", "ok")
        assert set(row["effective_precision"]) == {"fp32", "tf32"}  # only an FP32 build forbids TF32
        assert row["engine"] in done.stderr and "asked for int8, ran in fp32" in done.stderr
        assert "relabelled" in {c["code"] for c in row["caveats"]}


def test_a_plan_alone_without_pytorch_or_onnx(cli: Cli, tmp_path: Path, graph: Path) -> None:
    variables = make_environment(tmp_path, "10.16", "10.16")
    built = cli("build", graph, "--out", "net.plan", "--json", env=variables)
    hide_packages(tmp_path, variables)
    assert built.returncode == 0, built.stderr
    document = json.loads(built.stdout)
    assert document["artifact"]["path"] == "net.plan" and document["command"][0].endswith("trtexec")
    assert document["effective_precision"] == pytest.approx({"fp32": 1.0})
    done = cli("run", "net.plan", "--engines", "tensorrt,trtexec", "--out", "r", "--json", *SHORT, env=variables)
    rows = rows_of(done)
    assert {(row["status"], row["build_s"]) for row in rows.values()} == {("ok", None)}, "loaded, not built"
    assert len(rows) == 2 and all(row["effective_precision"] == pytest.approx({"fp32": 1.0}) for row in rows.values())
    assert rows["trtexec fp32"]["cosine"] > 0.9999


@pytest.mark.parametrize(
    ("model", "options"),
    [("digits-cnn", ("--precision", "fp16")), ("GRAPH", ("--engine", "tensorrt", "--normalize", "0/0.0627451"))],
)
def test_a_plan_takes_bytes_and_says_so(
    cli: Cli, tmp_path: Path, graph: Path, model: str, options: tuple[str, ...]
) -> None:
    """Levels of 0 to 16, which the model divides by 16: its trained weights tell a wrong picture by its outputs."""
    variables, own = make_environment(tmp_path, "10.16", "10.16"), model == "GRAPH"
    command = ("build", graph if own else model, "--input-dtype", "uint8", *options, "--out", "n.plan")
    if not own:
        dry = succeed(cli, *command, "--dry-run", env=variables)
        assert "/n.plan.build/model.fp16.onnx " in dry.stdout and "1x1x8x8" in dry.stdout
        assert not (tmp_path / "n.plan.build").exists()
    made = read_document(cli, *command, "--json", env=variables)["artifact"]
    assert ([s["dtype"] for s in made["inputs"]], made["normalize"]["mean"]) == (["uint8"], [0.0])
    assert (tmp_path / "n.plan.build" / ("mein netz.uint8.onnx" if own else "model.onnx")).is_file()
    levels, found = np.random.default_rng(0).integers(0, 17, (1, 1, 8, 8), np.uint8), []
    for target, engine, array in (("n.plan", "tensorrt", levels), (graph, "ort", (levels / 16).astype(np.float32))):
        np.savez(tmp_path / "in.npz", input=array)
        succeed(cli, "infer", target, "in.npz", "--engine", engine, "--out", "out.npz", env=variables)
        found.append(next(iter(np.load(tmp_path / "out.npz").values())))
    np.testing.assert_allclose(found[0], found[1], atol=3e-2 * np.abs(found[1]).max())
    succeed(cli, "bench", "n.plan", "--engine", "tensorrt", "--out", "b", *SHORT, env=variables)
    (row,) = (json.loads(path.read_text()) for path in (tmp_path / "b" / "rows").glob("*.json"))
    assert made["normalize"] in [artifact["normalize"] for artifact in row["artifacts"]]


def test_trtexec_alone_as_on_a_jetson(cli: Cli, tmp_path: Path, graph: Path) -> None:
    """Neither NVML nor a Python package of TensorRT: GPU and version are those of trtexec's log, everywhere."""
    variables = make_environment(tmp_path, "8.6.0", None, draws=True)
    hide_packages(tmp_path, variables, "pynvml", "tensorrt", "tensorrt_rtx", "cuda")
    build = ("--precision", "int8", "--calib", "calib.npz", "--workspace-mb", 64, "--out", "net.plan")
    np.savez(tmp_path / "calib.npz", input=np.random.default_rng(0).random((4, 1, 8, 8), np.float32))
    for command in (
        ("build", graph, *build),
        ("bench", "net.plan", "--engine", "trtexec", "--out", "b", *SHORT),
        ("run", graph, "--engines", "trtexec,ort", "--precisions", "fp32", "--out", "r", *SHORT),
    ):
        done = succeed(cli, *command, env=variables)
        assert command[0] == "build" or "GPU: Fake GPU" in done.stdout
    for folder, made_with in (("b", ("64", "minmax over 4 entries of calib.npz")), ("r", ("", ""))):
        succeed(cli, "report", folder, "--format", "json,csv,md,html", env=variables)
        document = json.loads((tmp_path / folder / "report.json").read_text())
        assert document["machine"]["gpus"][0]["name"] == "Fake GPU"
        row = next(row for row in document["rows"] if row["engine"] == "trtexec")
        lines = csv.DictReader((tmp_path / folder / "table.csv").read_text(encoding="utf-8").splitlines())
        cells = next(line for line in lines if line["engine"] == "trtexec")
        wanted = dict(zip(("workspace_mb", "calibration"), made_with, strict=True))
        wanted |= {"gpu": "Fake GPU", "engine_version": "8.6.0"}
        assert {key: row[key] or "" for key in wanted} == {key: cells[key] for key in wanted} == wanted
        assert float(cells["mean_ms"]) == row["mean_ms"]["value"] > 0
        for page in ("report.md", "report.html"):
            text = (tmp_path / folder / page).read_text(encoding="utf-8")
            assert all(part in text for part in ("Fake GPU", "trtexec 8.6.0", "mean", *made_with)), page


HIDE = """
import sys
import importlib.util

def is_hidden(name):
    return name.split('.')[0] in {names} and 'fake_trtexec' not in ' '.join(sys.argv)

class Hide:
    def find_spec(self, name, path=None, target=None):
        if is_hidden(name):
            raise ModuleNotFoundError(name)

look = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if is_hidden(name) else look(name, package)
sys.meta_path.insert(0, Hide())
from enginebench.core import cuda_devices
cuda_devices.find_gpu_name = lambda index=0: "Fake GPU"
"""


def hide_packages(folder: Path, variables: dict[str, str], *names: str) -> None:
    """Makes packages impossible to find: torch and onnx, as where only TensorRT is installed."""
    site = folder / "hidden"
    site.mkdir()
    (site / "sitecustomize.py").write_text(HIDE.format(names=names or ("torch", "onnx")), encoding="utf-8")
    variables["PYTHONPATH"] = f"{site}:{variables['PYTHONPATH']}"


def test_shapes_and_profiles_reach_a_plan(cli: Cli, tmp_path: Path, graph: Path) -> None:
    """A plan alone says that an axis is open, not how long it is to be."""
    variables = make_environment(tmp_path, "10.16", "10.16")
    profile = ("--profile", ONE, "--profile", FOUR)
    succeed(cli, "build", graph, "--engine", "tensorrt", *profile, "--out", "two.plan", env=variables)
    shape = ("--input-shape", "input:4x1x8x8", "--profile-index", 1, "--json", *SHORT)
    row = read_document(cli, "bench", "two.plan", "--engine", "tensorrt", *shape, env=variables)["row"]
    assert row["batch"] == 4 and "shapes=input:4x1x8x8" in row["engine"]
    asked = ("--engine", "trtexec", "--input-shape", "input:4x1x8x8", "--profile-index", 1)
    dry = cli("bench", "two.plan", *asked, "--dry-run", "--tensorrt-version", "10.16", env=variables)
    assert {"--shapes=input:4x1x8x8", "--useProfile=1"} <= set(dry.stdout.split()), dry.stderr
    sides = (f"ort@{graph}", "tensorrt@two.plan")
    drift = ("--input-shape", "input:4x1x8x8", "--n", 8, "--json")
    document = read_document(cli, "drift", *sides, *drift, "--profile-index", 1, env=variables)
    assert document["n"] == 8 and document["candidate"]["engine"]["options"]["profile_index"] == "1"
    assert "profile_index" not in document["reference"]["engine"]["options"]
    told = cli("drift", sides[0], "trtexec@two.plan", *drift, "--profile-index", 1, env=variables)
    assert told.returncode == 0 and json.loads(told.stdout)["n"] == 8, told.stderr
    other = cli("bench", "two.plan", "--engine", "trtexec", "--batch", 2, "--profile-index", 1, *SHORT, env=variables)
    assert other.returncode == 6 and "Valid range for profile 1: [4,1,8,8]..[8,1,8,8]" in other.stderr
    fits = ("--batch", 8, "--profile-index", 1, "--json", *SHORT)
    batched = cli("bench", "two.plan", "--engine", "trtexec", *fits, env=variables)
    assert batched.returncode == 0 and json.loads(batched.stdout)["row"]["batch"] == 8, batched.stderr
    unused = cli("drift", sides[0], sides[0], "--profile-index", 1, env=variables)
    assert unused.returncode == 2 and "TensorRT runs neither side" in unused.stderr


def test_a_dry_run_waits_for_no_large_package(tmp_path: Path, graph: Path) -> None:
    """The onnx package reads the graph, and brings NumPy; nothing larger is imported."""
    script = (
        "import sys; from enginebench.door import main\n"
        f"sys.argv = ['enginebench', 'build', {str(graph)!r}, '--dry-run', '--tensorrt-version', '11.1']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print({'torch', 'onnxruntime', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env=make_environment(tmp_path, None, None), capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == "set()", done.stdout + done.stderr


def test_warnings_name_where_the_ranges_came_from(cli, tmp_path, graph) -> None:
    variables = make_environment(tmp_path, None, "10.16")
    np.savez(tmp_path / "in.npz", input=np.zeros((4, 1, 8, 8), np.float32))
    weak = ("--engine", "tensorrt", "--precision", "int8", "--weak-typing", "--json", "--out", "net.plan")
    calib = ("--calib", "in.npz", "--calib-cache", "new.cache")
    made = cli("build", graph, *weak, *calib, env=variables)
    assert made.returncode == 0 and "cache new.cache" not in made.stdout, made.stderr
    read = cli("build", graph, *weak, *calib[2:], env=variables)
    assert read.returncode == 0 and "cache new.cache" in read.stdout, read.stderr
    np.save(tmp_path / "in.npy", np.zeros((4, 1, 8, 8), np.float32))
    succeed(cli, "build", graph, *weak, "--calib", "in.npy", env=variables)
    assert list((tmp_path / "net.plan.build").glob("calibration-*.cache")), "its cache is kept without the option, too"


def test_a_plan_is_named_after_what_ran(cli: Cli, tmp_path: Path, graph: Path) -> None:
    """An argument of the user's own can change the precision behind the label."""
    variables = make_environment(tmp_path, "8.6.0", None)
    document = read_document(cli, "build", graph, "--out", "net.plan", "--json", "--", "--fp16", env=variables)
    assert document["artifact"]["precision"] == "fp16" and document["effective_precision"]["fp16"] > 0.8
    assert "relabelled" in {c["code"] for c in document["caveats"]}


def test_infer_takes_the_shapes_of_the_arrays(cli: Cli, tmp_path: Path) -> None:
    """From the graph and from a plan whose inner axis is open, too."""
    text = "sum (float[batch, length] x) => (float[batch, length] y) { y = Add (x, x) }"
    write_graph(tmp_path / "sum.onnx", text)
    variables = make_environment(tmp_path, "10.16", "10.16")
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    np.savez(tmp_path / "in.npz", x=x)
    shapes = ("--min-shapes", "x:1x1", "--opt-shapes", "x:2x4", "--max-shapes", "x:4x8")
    assert cli("build", "sum.onnx", *shapes, "--out", "sum.plan", env=variables).returncode == 0
    for target, engine in itertools.product(("sum.onnx", "sum.plan"), ("trtexec", "tensorrt")):
        done = cli("infer", target, "in.npz", "--engine", engine, "--out", "out.npz", env=variables)
        assert done.returncode == 0, (target, done.stderr)
        with np.load(tmp_path / "out.npz") as archive:
            np.testing.assert_array_equal(archive["y"], 2 * x)


ONE, FOUR = "input:1x1x8x8/1x1x8x8/2x1x8x8", "input:4x1x8x8/4x1x8x8/8x1x8x8"
# Shapes that a run with a batch of 1 lies outside of, and the batch that is not made of the first axis.
SHAPES = {
    "smallest above 1": ("--min-shapes", "input:4x1x8x8", "--opt-shapes", "input:8x1x8x8"),
    "first profile above 1": (*("--profile", FOUR), *("--profile", ONE)),
    "chosen profile above 1": (*("--profile", ONE), *("--profile", FOUR)),
    "open inner axes": ("--min-shapes", "x:1x3x4x4", "--opt-shapes", "x:2x3x6x6", "--max-shapes", "x:4x3x9x9"),
}
# A convolution of images of any size, and the mean over each.
OPEN = "(float[batch, 3, height, width] x) => (float[batch, 2, 1, 1] y) { h = Conv (x, w) y = GlobalAveragePool (h) }"


@pytest.mark.parametrize("engine", ["trtexec", "tensorrt"])
@pytest.mark.parametrize("shapes", SHAPES)
def test_a_plan_is_proved_at_the_shapes_that_it_is_tuned_for(cli, tmp_path, graph, shapes, engine) -> None:
    variables = make_environment(tmp_path, "10.16", "10.16")
    chosen = f"{engine}:profile_index=1" if "chosen" in shapes else engine
    if shapes == "open inner axes":
        write_graph(graph, OPEN, {"w": np.ones((2, 3, 3, 3), np.float32)})
    options = ("--engine", chosen, *SHAPES[shapes], "--out", "net.plan", "--json")
    document = read_document(cli, "build", graph, *options, env=variables)
    assert document["effective_precision"] == pytest.approx({"fp32": 1.0})
    told = {"outputs_not_compared"} if "open" in shapes and engine == "trtexec" else set()
    assert {c["code"] for c in document["caveats"]} == told


# How a proof can fail: (engine, variables, what the warning says).
FAILED_PROOFS = [
    ("trtexec", {"FAKE_TRTEXEC_FAULT": "profile_faults"}, "illegal memory access"),
    ("trtexec", {"FAKE_TRTEXEC_FAULT": "profile_aborts"}, "SIGABRT"),
    ("tensorrt", {"FAKE_TENSORRT_FAULT": "profile_aborts"}, "the process was killed by SIGABRT"),
    ("tensorrt", {"FAKE_TENSORRT_FAULT": "execute"}, "cannot run the plan"),
]


@pytest.mark.parametrize(("engine", "fault", "words"), FAILED_PROOFS)
@pytest.mark.parametrize("version", ["8.6", "10.16"])
@pytest.mark.parametrize("cli", ["apart"], indirect=True)
def test_a_failed_proof_costs_no_plan(cli, tmp_path, graph, engine, fault, words, version) -> None:
    variables = make_environment(tmp_path, version.replace("8.6", "8.6.0"), version) | fault
    document = read_document(cli, "build", graph, "--engine", engine, "--out", "net.plan", "--json", env=variables)
    (warning,) = (c for c in document["caveats"] if c["code"] == "failed_proof")
    assert words in warning["message"] and document["effective_precision"] is None
    assert (tmp_path / "net.plan").stat().st_size > 0 and document["artifact"]["path"] == "net.plan"


def test_a_plan_that_cannot_be_captured_is_built_and_proved(cli: Cli, tmp_path: Path, graph: Path) -> None:
    variables = make_environment(tmp_path, None, "10.16") | {"FAKE_CUDA_FAULT": "capture"}
    done = succeed(cli, "build", graph, "--engine", "tensorrt", "--out", "net.plan", "--json", env=variables)
    assert json.loads(done.stdout)["effective_precision"] == pytest.approx({"fp32": 1.0})
    run = cli("run", graph, "--engines", "ort,tensorrt,tensorrt:graph=0", "--out", "r", "--json", *SHORT, env=variables)
    rows = rows_of(run)
    captured = rows["tensorrt fp32"]
    assert captured["status"] == "failed" and "tensorrt:graph=0" in captured["reason"]
    assert rows["tensorrt:graph=0 fp32"]["status"] == "ok"


def test_drift_compares_every_sample_that_was_asked_for(cli: Cli, tmp_path: Path, graph: Path) -> None:
    """trtexec starts anew for each of them; a gate that saw the first few says nothing of the others."""
    variables = make_environment(tmp_path, "10.16", None)
    succeed(cli, "build", graph, "--out", "net.plan", env=variables)
    rng = np.random.default_rng(0)
    arrays = rng.standard_normal((7, 1, 8, 8), np.float32)
    arrays[5] = 3e38  # sums beyond FP32: whatever else is compared, this sample never passes
    np.savez(tmp_path / "in.npz", input=arrays)
    sides = (f"ort@{graph}", "trtexec@net.plan", "--limit", "cosine=0.9", "--json")
    whole = succeed(cli, "drift", *sides, "--inputs", "in.npz", "--n", 5, env=variables)
    assert [json.loads(whole.stdout)[key] for key in ("n", "n_asked", "passed")] == [5, 5, True]
    broken = cli("drift", *sides, "--inputs", "in.npz", env=variables)
    assert broken.returncode == 4 and "not finite" in broken.stderr
    assert json.loads(broken.stdout)["n"] == 7


def test_drift_of_plans_that_do_not_run_a_batch_of_1(cli: Cli, tmp_path: Path, graph: Path) -> None:
    """Their profiles say what they run; one side's profile is its own, and not the other's."""
    variables = make_environment(tmp_path, "10.16", "10.16")
    for name, shapes in {
        "two": ("--profile", ONE, "--profile", FOUR),
        "range": ("--min-shapes", "input:4x1x8x8", "--max-shapes", "input:8x1x8x8"),
        "only": ("--batch", 3),
    }.items():
        succeed(cli, "build", graph, "--engine", "tensorrt", *shapes, "--out", f"{name}.plan", env=variables)
    gate = ("--n", 10, "--limit", "cosine=0.999", "--json")
    for sides in (
        (f"ort@{graph}", "tensorrt@range.plan"),
        (f"ort@{graph}", "trtexec@range.plan"),
        ("tensorrt@only.plan", "trtexec@only.plan"),
        ("trtexec@range.plan", "tensorrt:profile_index=1@two.plan"),
        ("trtexec:profile_index=1@two.plan", "tensorrt@range.plan"),
        ("tensorrt@two.plan", "tensorrt:profile_index=0@two.plan"),
    ):
        done = cli("drift", *sides, *gate, env=variables)
        assert done.returncode == 0, (sides, done.stderr)
        assert json.loads(done.stdout)["n"] == json.loads(done.stdout)["n_asked"] == 10
    sides = ("tensorrt:profile_index=0@range.plan", "tensorrt@two.plan")
    document = read_document(cli, "drift", *sides, *gate, "--profile-index", 1, env=variables)
    found = [document[side]["engine"]["options"]["profile_index"] for side in ("reference", "candidate")]
    assert found == ["0", "1"]
    apart = cli("drift", "tensorrt@range.plan", "tensorrt@two.plan", *gate, env=variables)
    assert apart.returncode == 5 and "one takes 4 or more, one 2 or fewer" in apart.stderr
    both = tuple(side.replace("tensorrt@", "tensorrt:profile_index=0@") for side in sides)
    unused = cli("drift", *both, "--profile-index", 1, env=variables)
    assert unused.returncode == 2 and "both name their own" in unused.stderr
    other = cli("bench", "range.plan", "--engine", "tensorrt", "--batch", 1, *SHORT, env=variables)
    assert other.returncode == 6 and "takes a batch of 4 to 8 at input, not 1" in other.stdout + other.stderr


def test_a_plan_brings_its_batch_and_its_precision(cli: Cli, tmp_path: Path, graph: Path) -> None:
    """Of one that somebody else built, the layers say it; where they do not either, nobody claims FP32."""
    variables = make_environment(tmp_path, "8.6.0", "8.6")
    for name, engine in {"net.plan": "trtexec", "terse.plan": "trtexec:detailed=0"}.items():
        asked = ("--precision", "fp16", "--engine", engine, "--batch", 32, "--out", name)
        succeed(cli, "build", graph, *asked, env=variables)
    sides = ("bench", "net.plan", "--engine", "tensorrt", "--against", "trtexec@net.plan", "--json", *SHORT)
    document = read_document(cli, *sides, env=variables)
    for row in (document["row"], document["against"]):
        assert (row["batch"], row["requested_precision"], row["precision"]) == (32, "fp16", "fp16"), row["engine"]
        assert not {"outputs_not_compared", "unproved_precision"} & {c["code"] for c in row["caveats"]}
    (tmp_path / "net.plan.json").unlink()
    done = cli("bench", "net.plan", "--engine", "trtexec", "--batch", 32, "--json", *SHORT, env=variables)
    row = json.loads(done.stdout)["row"]
    assert (row["requested_precision"], row["precision"]) == (None, "fp16")
    for asked, judged in (((), "fp16"), (("--precision", "int8"), "int8")):
        drift = cli("drift", f"ort@{graph}", "tensorrt@net.plan", "--json", *asked, env=variables)
        limits = json.loads(drift.stdout)["limits"]
        assert limits.items() <= default_limits(judged).items(), "by the layers, without a note, or as asked"
    told = cli("bench", "terse.plan", "--engine", "tensorrt", "--json", *SHORT, env=variables)
    row = json.loads(told.stdout)["row"]
    assert (row["requested_precision"], row["precision"]) == ("fp16", "fp16")
    assert any("not verified" in c["message"].lower() for c in row["caveats"] if c["code"] == "unproved_precision")
    (tmp_path / "terse.plan.json").write_text("{}")
    told = cli("bench", "terse.plan", "--engine", "tensorrt", "--json", *SHORT, env=variables)
    row = json.loads(told.stdout)["row"]
    assert (row["batch"], row["requested_precision"], row["precision"]) == (32, None, None)
    assert "as built" in told.stderr and "fp32" not in told.stderr


def test_a_plan_is_held_against_its_graph(cli: Cli, tmp_path: Path, graph: Path) -> None:
    """`build` leaves the graph beside the plan; one that answers otherwise is told, and one that has no graph."""
    variables = make_environment(tmp_path, "8.6.1", "8.6")
    timed = ("bench", "net.plan", "--engine", "tensorrt", "--json", *SHORT)
    other = tmp_path / "other.onnx"
    model = onnx.load(graph)
    for tensor in model.graph.initializer:
        if len(tensor.dims) > 1 and tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.CopyFrom(onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(tensor), tensor.name))
    onnx.save(model, other)
    for source, out in ((graph, "net.plan"), (other, "other.plan")):
        built = succeed(cli, "build", source, "--engine", "tensorrt", "--out", out, "--json", env=variables)
        assert json.loads(built.stdout)["lowered"]["opset"] == 17 and "lowering" in built.stderr
    same = cli(*timed, "--out", "same.json", env=variables)
    assert json.loads(same.stdout)["row"]["outputs_agree"] is True, same.stderr

    (record,) = (tmp_path / "net.plan.build" / "plans").glob("*.json")
    swapped = (tmp_path / "other.plan").read_bytes()
    (tmp_path / "net.plan").write_bytes(swapped)
    unknown = cli(*timed, env=variables)
    assert json.loads(unknown.stdout)["row"]["outputs_agree"] is None, unknown.stderr
    record.write_text(json.dumps(json.loads(record.read_text()) | {"sha256": hashlib.sha256(swapped).hexdigest()}))
    wrong = cli(*timed[:4], *SHORT, "--out", "wrong.json", env=variables)
    assert "changed" in wrong.stdout, wrong.stderr
    assert json.loads((tmp_path / "wrong.json").read_text())["row"]["outputs_agree"] is False


def test_token_ids_and_labels_are_run_and_delivered(cli: Cli, tmp_path: Path) -> None:
    """8.6 has no INT64: what a graph says in it goes in and comes out as the graph says, also from the bundle."""
    write_tokens(tmp_path / "tokens.onnx", 1, opset=20)
    variables = make_environment(tmp_path, "8.6.1", "8.6")
    for name in ("tensorrt", "cuda-python"):
        info = tmp_path / "site" / f"{name.replace('-', '_')}-8.6.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 8.6.0\n")
    variables["PYTHONPATH"] += f":{tmp_path / 'site'}"
    done = cli("run", "tokens.onnx", "--engines", "ort,tensorrt,trtexec", "--out", "r", "--json", *SHORT, env=variables)
    rows = rows_of(done)
    assert [(row["status"], row["outputs_agree"]) for row in rows.values()] == [("ok", True)] * 3, rows
    record = json.loads((tmp_path / "r" / rows["tensorrt fp32"]["result"]).read_text())
    assert [a["opset"] for a in record["artifacts"]] == [20, 17, None]
    row = rows["tensorrt fp32"]["id"]
    delivered = cli("deliver", "r", "--row", row, "--out", "b", "--json", env=variables)
    assert delivered.returncode == 0 and json.loads(delivered.stdout)["checked"] is True, delivered.stderr
