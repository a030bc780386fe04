"""Wrong input is refused before a device is waited for, and nothing of the user's is imported meanwhile."""

import os
import pickle
import re
import shutil
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

import enginebench
from enginebench.core.errors import ModelError, ParseError
from enginebench.models.objects import FACTORY, check_importable
from enginebench.models.samples import read_file, read_heads
from enginebench.models.zoo import DATA_DIR
from enginebench.runs.targets.ahead import run_quietly
from held_device import check_refused_at_once

GRAPH = DATA_DIR / "digits-cnn.onnx"
SHAPE = (4, 1, 8, 8)
IMPORTED = "raise RuntimeError('imported')\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with inputs of every kind, right and wrong, and modules that must not be imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    np.savez("good.npz", input=np.zeros(SHAPE, np.float32))
    np.savez("names.npz", wrong=np.zeros(SHAPE, np.float32))
    np.savez("dtype.npz", input=np.zeros(SHAPE, np.float64))
    np.savez("shape.npz", input=np.zeros((4, 3, 8, 8), np.float32))
    Path("cut.npz").write_bytes(Path("good.npz").read_bytes()[:300])
    Path("cut.onnx").write_bytes(GRAPH.read_bytes()[:2000])
    Path("targets.json").write_text("{not json")
    Path("three.txt").write_text("1\n2\n3\n")
    Path("weights.pt").write_text("hello")
    Path("my_module.py").write_text(
        IMPORTED + "def make(): ...\ndef score(outputs, targets): ...\nsize = 5\ndef sized(size): ...\n"
    )
    fixed = onnx.load(GRAPH)
    fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 8
    onnx.save(fixed, "fixed.onnx")
    fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "tokens"
    onnx.save(fixed, "whole.onnx")
    Path("photos/0").mkdir(parents=True)
    for name in ("a", "b"):
        Image.fromarray(np.full((60, 80, 3), 9, np.uint8)).save(f"photos/0/{name}.jpg")
    Path("pictures").mkdir()
    shutil.copy("photos/0/a.jpg", "pictures")
    header = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'.ljust(128)
    Path("cut.safetensors").write_bytes((128).to_bytes(8, "little") + header)
    Path("cut.pt2").write_bytes(b"")
    with zipfile.ZipFile("broken.pt2", "w") as archive:
        archive.writestr("broken/models/model.json", "{no json")
    with zipfile.ZipFile("script.pt", "w") as archive:
        archive.writestr("script/constants.pkl", pickle.dumps(()))
        archive.writestr("script/data.pkl", b"c__torch__\nNet\n.")
        archive.writestr("script/code/__torch__.py", "class Net(Module):\n  def forward(self, x: Tensor) -> Tensor:\n")
    Path("cut.pt").write_bytes(Path("script.pt").read_bytes()[:100])
    Path("hub").mkdir()
    Path("hub/config.json").write_text("{no json")
    Path("whole.pt").write_bytes(b"\x80\x02cmy_module\nmake\n.")
    Path("sweep.toml").write_text('engines = ["ort"]\n[[model]]\nname = "nosuch.onnx"\n')
    # A package of that name, found before an installed one.
    Path("timm/models").mkdir(parents=True)
    Path("timm/__init__.py").write_text(IMPORTED)
    Path("timm/models/resnet.py").write_text(IMPORTED + "@register_model\ndef resnet18(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    Path("photos/0/b.jpg").write_bytes(Path("photos/0/b.jpg").read_bytes()[:400])
    return tmp_path


def run(model: str = str(GRAPH), **options: object) -> object:
    return enginebench.run(model, engines="ort", quick=True, out="r", **options)


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "a module": (lambda: run("my_modul:make"), "cannot import my_modul: ModuleNotFoundError"),
    "a factory": (lambda: run("my_module:mak"), "my_module has no 'mak'; did you mean make"),
    "a constant for a factory": (
        lambda: run("my_module:size"),
        "size is an int; expected a function without arguments",
    ),
    "a factory that needs arguments": (lambda: run("my_module:sized"), "sized needs size; expected a function without"),
    "a metric that takes something else": (
        lambda: run(inputs="good.npz", targets="targets.json", metric="my_module:make"),
        "--metric my_module:make: make takes no arguments; expected f(outputs, targets)",
    ),
    "a graph": (lambda: run("cut.onnx"), "cut.onnx, 2000 bytes: found no complete protobuf message"),
    "images": (lambda: run("resnet18", data="photos"), "image photos/0/b.jpg cannot be decoded"),
    "names of inputs": (lambda: run(inputs="names.npz"), "unknown input 'wrong'; missing input 'input'"),
    "a damaged file": (lambda: run(inputs="cut.npz"), "cut.npz: found"),
    "a function of inputs": (lambda: run(inputs="my_module:makes"), "--inputs my_module:makes: my_module has no"),
    "targets": (lambda: run(inputs="good.npz", targets="targets.json"), "targets.json: found"),
    "a metric": (
        lambda: run(inputs="good.npz", targets="targets.json", metric="my_module:scores"),
        "--metric my_module:scores: my_module has no 'scores'; did you mean score",
    ),
    "weights": (lambda: run("my_module:make", weights="weights.pt"), "weights weights.pt cannot be read"),
    "a whole module as weights": (
        lambda: run("my_module:make", weights="whole.pt"),
        "weights whole.pt cannot be read as a state dict: it is a pickle of my_module.make",
    ),
    "images for a model of something else": (
        lambda: run(data="pictures", task="classification"),
        "takes input float32[batchx1x8x8]; images are prepared for",
    ),
    # Not the whole list: where a test before imported the real timm, its names are near, too.
    "a model of timm": (lambda: run("timm:resnet18x"), "timm has no model 'resnet18x'; did you mean timm:resnet18"),
    "a program that was cut off": (lambda: run("cut.pt2"), "cut.pt2 cannot be opened as an exported program"),
    "a program whose graph is no JSON": (
        lambda: run("broken.pt2"),
        "broken.pt2 cannot be opened as an exported program: Expecting",
    ),
    "names of inputs of TorchScript": (lambda: run("script.pt", inputs="names.npz"), "takes x; --inputs holds wrong"),
    "a folder of transformers without its file": (lambda: run("hf:./photos"), "directory: 'photos/config"),
    "a folder of transformers with no JSON": (lambda: run("hf:./hub"), "hf:./hub: its config.json cannot be read"),
    "weights that were cut off": (
        lambda: run("timm:resnet18", weights="cut.safetensors"),
        "it is a safetensors file of 144 bytes that was cut off after 136",
    ),
    "an archive of weights that was cut off": (
        lambda: run("my_module:make", weights="cut.pt"),
        "it is an archive that was cut off",
    ),
    "safetensors, whose header begins as a pickle does": (
        lambda: run("cut.safetensors"),
        "a state dict has no architecture",
    ),
    "a model, in calibrate": (lambda: enginebench.calibrate("timm:resnet18x", "fake", "c.json"), "timm has no model"),
    "two models, in drift": (
        lambda: enginebench.drift(f"ort@{GRAPH}", f"ort@{DATA_DIR / 'digits-mlp.onnx'}"),
        "the sides cannot be compared: input 'input' has shape",
    ),
    "a module, in bisect": (
        lambda: enginebench.bisect("my_modul:make", "onnxruntime", "1.20", "1.21", engine="ort"),
        "cannot import my_modul",
    ),
    "a model, in sweep": (lambda: enginebench.sweep("sweep.toml", "s"), "no such file"),
    "a factory, in export": (lambda: enginebench.export("my_module:mak", "e.onnx"), "did you mean make"),
    "shapes, in bench": (lambda: enginebench.bench(GRAPH, "ort", inputs="shape.npz", out="b"), "has shape 4x3x8x8"),
    "dtypes, in drift": (
        lambda: enginebench.drift(f"ort@{GRAPH}", f"ort@{GRAPH}", inputs="dtype.npz"),
        "has dtype float64, not float32",
    ),
    "shapes, in infer": (lambda: enginebench.infer(GRAPH, "shape.npz", engine="ort"), "has shape 4x3x8x8"),
    "a fixed batch, in infer": (
        lambda: enginebench.infer("fixed.onnx", "good.npz", engine="ort"),
        "input 'input' has shape 4x1x8x8, not 8x1x8x8",
    ),
    "each of several batches, of a graph that fixes its own": (
        lambda: run("fixed.onnx", batch="3,5"),
        "fixed.onnx: the graph has a fixed batch of 8; batch 3 needs one of `enginebench export",
    ),
    "a batch of the other side, in bench": (
        lambda: enginebench.bench(GRAPH, "ort", against="ort@fixed.onnx", batch=3, out="r"),
        "fixed.onnx: the graph has a fixed batch of 8; batch 3 needs one of `enginebench export",
    ),
    "a batch, in tune": (lambda: enginebench.tune("fixed.onnx", batch=3, out="r"), "has a fixed batch of 8"),
    "a batch of what has none": (
        lambda: run("whole.onnx", batch=2),
        "no axis of the inputs can be a batch of 2; leave --batch out",
    ),
    "targets of inputs of a module, in accuracy": (
        lambda: enginebench.accuracy("ort@my_module:make", inputs="good.npz", targets="three.txt"),
        "--targets has 3 entries, and there are 4 samples",
    ),
    "targets of inputs of a module, in run": (
        lambda: run("my_module:make", inputs="good.npz", targets="three.txt", task="classification"),
        "--targets has 3 entries, and there are 4 samples",
    ),
    "targets of inputs, in accuracy": (
        lambda: enginebench.accuracy(f"ort@{GRAPH}", inputs="good.npz", targets="three.txt"),
        "--targets has 3 entries, and there are 4 samples",
    ),
    "targets of prepared arrays, in accuracy": (
        lambda: enginebench.accuracy(f"ort@{GRAPH}", "good.npz", targets="three.txt"),
        "--targets has 3 entries, and there are 4 samples",
    ),
    "images, in accuracy": (lambda: enginebench.accuracy(f"ort@{GRAPH}", "photos"), "b.jpg cannot be decoded"),
    "inputs, in profile": (lambda: enginebench.profile(GRAPH, engine="ort", inputs="names.npz"), "unknown input"),
    "a name in --input-shape": (lambda: run(input_shape="image:1x1x8x8"), "no such input; the inputs are input"),
    "a rank": (lambda: run(input_shape="input:1x64"), "--input-shape input:1x64: the model takes"),
    "each of several shapes": (
        lambda: run(input_shape=["input:1x2x8x8", "input:1x3x8x8"]),
        "--input-shape input:1x2x8x8: the model takes",
    ),
    "a name, of a built-in module": (lambda: run("resnet18", input_shape="x:1x3x64x64"), "the inputs are input"),
    "a name, of TorchScript": (
        lambda: run("script.pt", input_shape="y:1x4"),
        "--input-shape names y; the inputs are x",
    ),
    "another model, in bench": (
        lambda: enginebench.bench(GRAPH, "ort", against=f"ort@{DATA_DIR / 'digits-mlp.onnx'}", out="b"),
        "the sides cannot be compared: input 'input' has shape",
    ),
    "a shape, in bench": (lambda: enginebench.bench(GRAPH, "ort", input_shape="x:1x1x8x8", out="b"), "no such input"),
    "a shape, in drift": (
        lambda: enginebench.drift(f"ort@{GRAPH}", f"ort@{GRAPH}", input_shape="x:1x1x8x8"),
        "no such input",
    ),
    "a shape, in profile": (lambda: enginebench.profile(GRAPH, engine="ort", input_shape="x:1x1x8x8"), "no such input"),
    "a shape, in tune": (lambda: enginebench.tune(str(GRAPH), input_shape="x:1x1x8x8", out="t"), "no such input"),
    "a shape, in load": (
        lambda: enginebench.load(GRAPH, engine="ort", qps=10, input_shape="x:1x1x8x8", out="l"),
        "no such input",
    ),
    "a graph, for PyTorch": (
        lambda: enginebench.run(str(GRAPH), engines="pytorch,pytorch-compile", out="r"),
        "pytorch-compile needs a PyTorch model; MODEL is a graph",
    ),
    "too few targets": (
        lambda: run(inputs="good.npz", targets="three.txt", task="classification"),
        "--targets has 3 entries, and there are 4 samples",
    ),
    "a model that takes no pictures, in stages": (
        lambda: enginebench.stages(DATA_DIR / "digits-mlp.onnx", engine="ort"),
        "images are prepared for one input",
    ),
    "a module, in stages": (lambda: enginebench.stages("my_modul:make", engine="ort"), "cannot import my_modul"),
}


# Without PyTorch that it is missing is said first.
OF_TORCH = re.compile("images|weights|program|name, of a built-in|for PyTorch")


@pytest.mark.parametrize("wrong", WRONG)
def test_it_is_refused_while_another_run_holds_the_device(wrong: str, here: Path) -> None:
    if OF_TORCH.search(wrong):
        pytest.importorskip("torch")
    check_refused_at_once(*WRONG[wrong])
    assert not (here / "r").exists()


def test_files_for_a_stored_configuration_are_checked_by_its_own_inputs(here: Path) -> None:
    enginebench.bench(GRAPH, "fake", time_limit=0.01, processes=1, out="stored")
    (result,) = Path("stored/rows").glob("*.json")
    check_refused_at_once(
        lambda: enginebench.accuracy(result, inputs="good.npz", targets="three.txt"),
        "--targets has 3 entries, and there are 4 samples",
    )
    check_refused_at_once(lambda: enginebench.drift(result, f"ort@{GRAPH}", inputs="shape.npz"), "has shape 4x3x8x8")


FOUND = {
    "a function": "def make(): ...",
    "a function whose arguments have defaults": "def make(size=5, *more, wide=False): ...",
    "a function that a decorator changes": "@call_with(5)\ndef make(size): ...",
    "a name for what another module puts there": "make = None",
    "a constant that is replaced": "make = 5\ndef later():\n    global make\n    make = print",
    "a name that is assigned in a branch": "try:\n    make = 1\nexcept ImportError:\n    make = 2",
    "what is imported": "from json import loads as make",
    "a star import": "from json import *",
    "names made at import": "globals()['ma' + 'ke'] = print",
    "a lazy module": "def __getattr__(name): return print",
    "a class": "class make: ...",
}


@pytest.mark.parametrize("source", FOUND)
def test_what_may_be_there_is_not_refused(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("their_pack").mkdir()
    Path("their_pack/__init__.py").write_text(IMPORTED)
    Path("their_pack/inner.py").write_text(f"{IMPORTED}{FOUND[source]}\n")
    check_importable("their_pack.inner:make", ModelError, "MODEL", FACTORY)
    check_importable("their_pack:inner", ModelError, "MODEL", FACTORY)
    check_importable("numpy.linalg:norm", ModelError, "MODEL", FACTORY)
    check_importable("math:sqrt", ModelError, "MODEL", FACTORY)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("their_pack.outer:make", "cannot import their_pack.outer: .*No module named 'their_pack.outer'"),
        ("their_pack.inner.more:make", "'their_pack.inner' is not a package"),
        ("their_pack.broken:make", "cannot import their_pack.broken: SyntaxError"),
        ("their_pack.inner.py:make", "A module is meant, not its file: their_pack.inner:make"),
    ],
)
def test_what_cannot_be_there_is_named(named: str, message: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("their_pack").mkdir()
    Path("their_pack/__init__.py").write_text("")
    Path("their_pack/inner.py").write_text("def make(): ...\n")
    Path("their_pack/broken.py").write_text("def make(:\n")
    with pytest.raises(ModelError, match=message):
        check_importable(named, ModelError, "MODEL", FACTORY)


def test_headers_say_what_the_whole_file_says(tmp_path: Path) -> None:
    arrays = {"a": np.zeros((3, 2), np.float16), "b": np.array(["x"]), "__hidden__": np.zeros(1)}
    np.savez_compressed(tmp_path / "many.npz", **arrays)
    np.save(tmp_path / "one.npy", np.asfortranarray(np.ones((5, 4), np.int64)))
    for name in ("many.npz", "one.npy"):
        heads, whole = read_heads(tmp_path / name), read_file(tmp_path / name)
        described = [[(key, array.dtype, array.shape) for key, array in read.items()] for read in (heads, whole)]
        assert described[0] == described[1]


@pytest.mark.parametrize("fault", ["cut", "objects", "text"])
def test_headers_of_what_cannot_be_read_are_refused(fault: str, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.array([{}], object) if fault == "objects" else np.zeros(100))
    if fault != "objects":
        path.write_bytes(b"hello" if fault == "text" else path.read_bytes()[:-8])
    with pytest.raises(ParseError, match="expected one array for each input"):
        read_heads(path)


def test_what_looks_ahead_steps_back_and_this_thread_does_not() -> None:
    before = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    lowered = run_quietly(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before
    assert lowered == 19 or os.uname().sysname != "Linux"
