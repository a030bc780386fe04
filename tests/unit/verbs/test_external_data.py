"""A user's model with its weights in a second file: no verb changes what lies there, and none stumbles over links."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from enginebench.core.records import Artifact
from enginebench.core.store import hash_file, read_result
from enginebench.models.zoo import packaged_onnx
from fakes.trtexec_shim import install_trtexec
from processes import Cli, environment

SHORT = ("--warmup", "2", "--iters", "20", "--processes", "1")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A graph with its weights in a folder below, its names with spaces and not ASCII."""
    path = tmp_path / "mein modell" / "netz ü.onnx"
    (path.parent / "gewichte ü").mkdir(parents=True)
    graph = onnx.load(str(packaged_onnx("digits-mlp")))
    location = "gewichte ü/teil 1.bin"
    onnx.save(graph, path, save_as_external_data=True, location=location, size_threshold=0)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((12, 64), dtype=np.float32))
    np.savez(tmp_path / "x.npz", input=np.load(tmp_path / "x.npy")[:1])
    return path


def data_of(model: Path) -> Path:
    return model.parent / "gewichte ü" / "teil 1.bin"


def check_untouched(model: Path) -> None:
    """The user's files have one name each, and their own tool reads them."""
    assert {path.name: path.stat().st_nlink for path in (model, data_of(model))} == {model.name: 1, "teil 1.bin": 1}
    onnx.load(str(model))


def overwrite(path: Path) -> None:
    """New content in the same file, as a training script or `cp` writes it."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(os.urandom(size))


def check_stored(place: Path, artifact: Artifact) -> None:
    """Every stored file of the artifact still is what was hashed."""
    assert len(artifact.files) == 2
    for known in artifact.files:
        assert hash_file(place / Path(artifact.path).parent / known.path) == known.sha256, known.path


@pytest.mark.parametrize("verb", ["run", "bench", "against"])
def test_what_is_measured_is_a_copy(cli: Cli, model: Path, tmp_path: Path, verb: str) -> None:
    commands: dict[str, tuple[object, ...]] = {
        "run": ("run", model, "--engines", "ort,fake"),
        "bench": ("bench", model, "--engine", "ort"),
        "against": ("bench", model, "--engine", "ort", "--against", f"ort:opt=basic@{model}"),
    }
    done = cli(*commands[verb], *SHORT, "--out", "r" if verb == "run" else "r.json", "--json")
    assert done.returncode in (0, 4), done.stderr  # 4: two rows of one process have no verdict
    check_untouched(model)
    folder = tmp_path / "r" if verb == "run" else next((tmp_path / "results").iterdir())
    overwrite(model)
    overwrite(data_of(model))
    rows = sorted((folder / "rows").glob("*.json"))
    assert len(rows) == (1 if verb == "bench" else 2)
    for row in rows:
        check_stored(folder, read_result(row).artifacts[0])
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_stored_configuration_is_measured_again_on_a_copy_of_its_artifact(
    cli: Cli, model: Path, tmp_path: Path
) -> None:
    assert cli("run", model, "--engines", "ort,fake", *SHORT, "--out", "r").returncode == 0
    (row,) = (tmp_path / "r" / "rows").glob("ort*.json")
    done = cli("bench", model, "--engine", "ort", "--against", row, *SHORT)
    assert done.returncode in (0, 4), done.stderr
    check_untouched(model)
    (folder,) = (tmp_path / "results").iterdir()
    for kept in (*(tmp_path / "r" / "artefacts" / "source").rglob("*"), *(folder / "against").rglob("*")):
        assert kept.is_dir() or kept.stat().st_nlink == 1, kept


@pytest.mark.feature("trtexec")
def test_a_built_plan_and_its_source_are_files_of_their_own(cli: Cli, model: Path, tmp_path: Path) -> None:
    variables = environment(tmp_path) | {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    variables["TRTEXEC"] = str(install_trtexec(tmp_path / "tools", "11.1"))
    cli("build", model, "--out", "net.plan", env=variables, code=0)
    check_untouched(model)
    kept = [path for path in (tmp_path / "net.plan.build").rglob("*") if path.is_file()]
    assert kept and {path.stat().st_nlink for path in [*kept, tmp_path / "net.plan"]} == {1}


VERBS: dict[str, Callable[[Path], tuple[object, ...]]] = {
    "calibrate": lambda m: ("calibrate", m, "--data", "x.npy", "--out", "c.json"),
    "int8": lambda m: ("quantize", m, "--to", "int8@cpu", "--calib", "x.npy", "--out", "q.onnx"),
    "fp16": lambda m: ("quantize", m, "--to", "fp16", "--out", "h.onnx"),
    "run in int8": lambda m: ("run", m, "--engines", "ort,fake", "--precisions", "fp32,int8", *SHORT, "--out", "r"),
    "infer": lambda m: ("infer", m, "x.npz", "--engine", "ort", "--out", "y.npz"),
    "infer by openvino": lambda m: ("infer", m, "x.npz", "--engine", "openvino", "--out", "y.npz"),
    "drift": lambda m: ("drift", f"ort@{m}", f"openvino@{m}", "--n", "2"),
    "accuracy": lambda m: ("accuracy", f"ort@{m}", "--data", "digits", "--model", "digits-mlp", "--n", "8"),
    "profile": lambda m: ("profile", m, "--engine", "ort"),
}


@pytest.mark.parametrize("links", [1, 2])
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_takes_such_a_model_also_if_its_data_have_a_second_name(cli, model, tmp_path, verb, links) -> None:
    """`cp --link`, backups and data version control give files more than one name; onnx 1.23 refuses those."""
    if links == 2:
        (tmp_path / "second name").hardlink_to(data_of(model))
    before = {path: hash_file(path) for path in (model, data_of(model))}
    done = cli(*VERBS[verb](model), code=0)
    assert "Traceback" not in done.stderr and "no graph in" not in done.stderr
    assert data_of(model).stat().st_nlink == links
    assert {path: hash_file(path) for path in before} == before


@pytest.mark.feature("fpga")
def test_a_design_for_an_fpga_says_what_to_do_about_links(cli: Cli, model: Path, tmp_path: Path) -> None:
    quantized = tmp_path / "q.onnx"
    assert cli("quantize", model, "--to", "int8", "--calib", "x.npy", "--out", quantized).returncode == 0
    apart = tmp_path / "apart" / "q.onnx"
    apart.parent.mkdir()
    onnx.save(onnx.load(str(quantized)), apart, save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "second name").hardlink_to(apart.parent / "w.bin")
    done = cli("fpga", "simulate", apart, "--n", "1")
    assert done.returncode == 0 or (done.returncode == 5 and "without links" in done.stderr), done.stderr
    assert "Traceback" not in done.stderr


def damage(model: Path, how: str) -> str:
    """Where the graph then says that its data lie."""
    data, outside = data_of(model), model.parent.parent / "teil 1.bin"
    if how in ("moved out", "behind a link"):
        data.rename(outside)
    if how == "behind a link":
        data.symlink_to(outside)
    if how == "lost":
        data.unlink()
    if how == "cut":
        data.write_bytes(data.read_bytes()[:-1])
    places = {"moved out": "../teil 1.bin", "absolute": str(data)}
    return places.get(how, "gewichte ü/teil 1.bin")


@pytest.mark.parametrize(
    "verb", [("run", "--engines", "ort,fake"), ("quantize", "--to", "fp16"), ("calibrate", "--data", "x.npy")]
)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        *((how, "lies outside the model's folder") for how in ("moved out", "absolute", "behind a link")),
        ("lost", "is missing"),
        ("cut", "expected at least"),
    ],
)
def test_data_that_cannot_be_taken_are_refused_in_a_sentence(cli, model, verb, how, said) -> None:
    graph = onnx.load(str(model), load_external_data=False)
    location = damage(model, how)
    for tensor in graph.graph.initializer:
        entry: Any = next(entry for entry in tensor.external_data if entry.key == "location")
        entry.value = location
    model.write_bytes(graph.SerializeToString())
    done = cli(verb[0], model, *verb[1:])
    words = " ".join(done.stderr.split())
    assert done.returncode == 5 and said in words and "teil 1.bin" in words, done.stderr
    assert "Traceback" not in done.stderr


def test_without_permission_to_read_the_data_the_file_is_named(cli: Cli, model: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read every file")
    data_of(model).chmod(0)
    done = cli("run", model, "--engines", "ort,fake", *SHORT, code=5)
    assert "teil 1.bin" in done.stderr and "Traceback" not in done.stderr
