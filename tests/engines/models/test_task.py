from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime as ort
import pytest
import torch
from msgspec.structs import replace
from PIL import Image

from enginebench.core.errors import ArtifactError, FeedError, ParseError, UsageError
from enginebench.core.records import Artifact, ModelSource, Normalize, TensorSpec
from enginebench.models import task
from enginebench.models.onnx.source import load_graph
from enginebench.models.precision.calibrate import calibrate
from enginebench.models.precision.calibration_data import open_data
from enginebench.models.precision.quantize import quantize
from enginebench.models.task import complete_normalize, feed_digits, hash_preprocess, preprocess_for, sample_feeds
from enginebench.models.torch.source import load_module
from enginebench.models.torch.torchvision_import import import_torchvision
from enginebench.models.zoo import BUILTIN
from enginebench.runs.child.jobs import SourceJob
from enginebench.runs.child.perform.sources import make_source
from enginebench.runs.request import read_normalize
from graphs import write_text

IMAGENET_MODELS = [name for name, card in BUILTIN.items() if card.task == "imagenet" and card.source is None]


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (301, 413, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("name", IMAGENET_MODELS)
def test_preprocess_equals_the_transforms_of_the_weights(name: str, picture: Image.Image) -> None:
    import_torchvision()
    from torchvision.models import get_model_weights

    expected = get_model_weights(name).DEFAULT.transforms()(picture).numpy()
    preprocess = preprocess_for(name)
    found = preprocess.apply(picture)
    assert found.dtype == np.float32 and found.flags.c_contiguous
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_preprocess_of_timm_and_of_arrays_grey_and_palette_pictures(picture: Image.Image) -> None:
    from enginebench.models.torch.architectures import import_timm

    import_timm()
    from timm.data import create_transform, resolve_data_config
    from timm.models import get_pretrained_cfg

    config = get_pretrained_cfg("mobilenetv3_small_100")
    expected = create_transform(**resolve_data_config(pretrained_cfg=config.to_dict()))(picture).numpy()
    preprocess = preprocess_for("timm:mobilenetv3_small_100")
    np.testing.assert_allclose(preprocess.apply(picture), expected, atol=1e-6)
    preprocess = preprocess_for("resnet18", 64)
    assert (preprocess.resize, preprocess.crop) == (73, 64)
    np.testing.assert_array_equal(preprocess.apply(np.asarray(picture)), preprocess.apply(picture))
    for mode in ("L", "P", "RGBA", "CMYK"):
        assert preprocess.apply(picture.convert(mode)).shape == (3, 64, 64)
    assert preprocess.apply(np.zeros((100, 80), np.uint8)).shape == (3, 64, 64)


@pytest.mark.parametrize(
    ("shape", "dtype", "said"),
    [
        *((shape, np.uint8, "expected") for shape in ((8,), (2, 3, 8, 8), (0, 8, 3))),
        ((300, 300, 3), np.float32, "uint8"),  # it must be resized
    ],
)
def test_arrays_that_are_no_picture_are_refused(shape: tuple[int, ...], dtype: type, said: str) -> None:
    with pytest.raises(FeedError, match=said):
        preprocess_for("resnet18").apply(np.zeros(shape, dtype))


def test_hash_is_that_of_the_content() -> None:
    first, second = preprocess_for("resnet18"), preprocess_for("mobilenet_v3_small")
    assert first.sha256() == second.sha256()
    for field, value in {"resize": 255, "scale": 1.0, "mean": (0.0, 0.0, 0.0), "interpolation": "bicubic"}.items():
        assert msgspec.structs.replace(first, **{field: value}).sha256() != first.sha256()
    assert hash_preprocess("resnet18", 192) != hash_preprocess("resnet18") == first.sha256()
    assert hash_preprocess("some/file.onnx") is None and hash_preprocess("a.b:c") is None


def test_digits_are_those_of_scikit_learn_scaled_and_shaped() -> None:
    from sklearn.datasets import load_digits as load_bundled
    from sklearn.model_selection import train_test_split

    digits, bundled = task.load_digits(), load_bundled()
    np.testing.assert_array_equal(digits.images, bundled.images)
    np.testing.assert_array_equal(digits.labels, bundled.target)
    assert (digits.images.dtype, digits.labels.dtype) == (np.float32, np.int64)
    indices = np.arange(len(bundled.target))
    _, test = train_test_split(indices, test_size=450, stratify=bundled.target, random_state=0)
    np.testing.assert_array_equal(np.flatnonzero(digits.held_out), np.sort(test))
    assert len(digits.select(held_out=True).labels) == 450 and len(digits.select(held_out=False).labels) == 1347
    images = task.load_digits().images[:3]
    cnn, mlp = feed_digits("digits-cnn", images), feed_digits("digits-mlp", images)
    assert cnn.shape == (3, 1, 8, 8) and mlp.shape == (3, 64)
    np.testing.assert_array_equal(cnn.reshape(3, 64), mlp)
    np.testing.assert_array_equal(mlp, images.reshape(3, 64) / 16)
    with pytest.raises(ArtifactError, match="resnet18 takes no digits"):
        feed_digits("resnet18", images)


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 not a zip", None])
def test_damaged_digits_are_named(damage: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "DATA_DIR", tmp_path)
    if damage is not None:
        (tmp_path / "digits.npz").write_bytes(damage)
    with pytest.raises(ParseError, match=r"digits\.npz"):
        task.load_digits()


def test_sampled_digits_are_held_out_and_others_get_random_arrays() -> None:
    spec = TensorSpec(name="x", dtype="float32", shape=("batch", 64))
    feeds = sample_feeds([spec], "digits-mlp", 9, seed=3, count=50)
    drawn = np.concatenate([feed["x"] for feed in feeds])
    held_out = feed_digits("digits-mlp", task.load_digits().select(held_out=True).images)
    assert sorted(map(bytes, drawn)) == sorted(map(bytes, held_out))
    again = sample_feeds([spec], "digits-mlp", 9, seed=3, count=50)
    np.testing.assert_array_equal(again[7]["x"], feeds[7]["x"])
    assert not np.array_equal(sample_feeds([spec], "digits-mlp", 9, seed=4, count=1)[0]["x"], feeds[0]["x"])
    assert len(sample_feeds([spec], "digits-mlp", 450, seed=0, count=2)[1]["x"]) == 450
    static = TensorSpec(name="input", dtype="float32", shape=(2, 1, 8, 8))
    assert sample_feeds([static], "digits-cnn", 7, 0, 1)[0]["input"].shape == (2, 1, 8, 8)
    image = TensorSpec(name="input", dtype="float32", shape=("batch", 3, 4, 4))
    first, second = sample_feeds([image], "resnet18", 5, 0, 2)
    assert first["input"].shape == (5, 3, 4, 4) and not np.array_equal(first["input"], second["input"])


def make(model: str, place: Path, **source: Any) -> tuple[Artifact, ...]:
    job = SourceJob(source=ModelSource(model=model, **source), out_dir=str(place))
    return make_source(job, lambda _: None, lambda _: None).artifacts


def test_a_model_of_bytes_computes_as_that_of_floats_and_keeps_its_picture(tmp_path: Path) -> None:
    name = "digits-cnn"
    (plain, _), (module, graph) = make(name, tmp_path / "f"), make(name, tmp_path / "b", normalize=Normalize())
    hashes = {artifact.preprocess_sha256 for artifact in (module, graph)}
    assert hashes == {hash_preprocess(name, inputs=graph.inputs)} != {hash_preprocess(name)}
    read = [open_data("digits", model=name, inputs=a.inputs, n=4) for a in (plain, graph)]
    floats, levels = (data.read(0, 4)["input"] for data in read)
    assert levels.dtype == np.uint8 and levels.max() > 10
    with torch.inference_mode():
        pairs = ((plain, floats), (module, levels))
        expected, first = (load_module(a)(torch.from_numpy(x)).numpy() for a, x in pairs)
    half = quantize(graph, "fp16", None, tmp_path / "h.onnx")
    others = [ort.InferenceSession(a.path).run(None, {"input": levels})[0] for a in (graph, half)]
    for answer, tolerance in zip((first, *others), (1e-4, 1e-4, 3e-2), strict=True):
        np.testing.assert_allclose(answer, expected, atol=tolerance * np.abs(expected).max())
    small = quantize(graph, "int8", "cpu", tmp_path / "i.onnx", calibration=calibrate(graph, read[1]))
    kinds = [node.op_type for node in load_graph(Path(small.path)).graph.node]
    assert kinds[kinds.index("QuantizeLinear") - 1] == "Div"
    assert small.normalize == half.normalize == graph.normalize == module.normalize is not None


@pytest.mark.parametrize("shape", [("batch", 2, 4, 3), ("batch", 3, 4, 5)])
def test_a_graph_of_the_users_takes_bytes_and_warns_where_it_normalizes_itself(shape: Any, tmp_path: Path) -> None:
    ends = "(float[{0}] x) => (float[{0}] y)".format(", ".join(map(str, shape)))
    model = str(write_text(tmp_path / "m.onnx", f"{ends} {{ y = Sub (x, two) }}", {"two": np.float32([2])}))
    known = Normalize(mean=(1.0, 2.0, 3.0), std=(2.0, 4.0, 8.0))
    (made,) = make(model, tmp_path / "out", normalize=known)
    assert any("goes on with Sub" in warning.message for warning in made.warnings)
    picture = np.random.default_rng(0).integers(0, 256, (2, *shape[1:]), np.uint8)
    mean, std = (np.array(n, np.float32).reshape((3,) if shape[3] == 3 else (3, 1, 1)) for n in (known.mean, known.std))
    (found,) = ort.InferenceSession(made.path).run(None, {"x": picture})
    np.testing.assert_allclose(found, (picture - mean) / std - 2, rtol=1e-5)
    np.save(tmp_path / "f.npy", found)
    for wishes, kind, why in (
        ({"normalize": Normalize()}, UsageError, "is not known; give --normalize"),
        ({"normalize": Normalize(mean=(0.0,), std=(1.0,))}, UsageError, "its 1 channels"),
        ({"model": "digits-cnn", "normalize": Normalize(mean=(127.5,), std=(25.5,))}, UsageError, "which is known"),
        ({"model": "digits-cnn", "normalize": known}, UsageError, "which is known"),
        ({"normalize": known, "inputs": str(tmp_path / "f.npy")}, FeedError, "has images of float32"),
    ):
        with pytest.raises(kind, match=why):
            make(**{"model": model, "place": tmp_path / "no", **wishes})  # type: ignore[arg-type]  # of several kinds
    own = complete_normalize(Normalize(), "digits-cnn")
    assert [complete_normalize(own, "digits-cnn", w).shape for w in ("default", "w.pt")] == [own.shape, own.shape]
    assert complete_normalize(known, "digits-cnn", "w.pt") == known


@pytest.mark.parametrize("model", ["factories:make_likeness", "m.onnx"])
def test_of_several_inputs_the_named_one_comes_in_bytes(model: str, tmp_path: Path) -> None:
    if model == "m.onnx":
        ends = "(float[batch, 3, 4, 4] x1, float[batch, 3, 4, 4] x2) => (float[batch, 3, 4, 4] y)"
        model = str(write_text(tmp_path / model, f"{ends} {{ y = Mul (x1, x2) }}", {}))
    known = read_normalize("uint8", "x2:0.1,0.2,0.3/0.5,0.6,0.7")
    plain, made = make(model, tmp_path / "f"), make(model, tmp_path / "b", normalize=known)
    assert known and [[s.dtype for s in artifact.inputs] for artifact in made] == [["float32", "uint8"]] * len(made)
    x1, levels = (np.random.default_rng(0).integers(0, 256, (1, 3, 4, 4), np.uint8) for _ in range(2))
    mean, std = (np.array(n, np.float32).reshape(3, 1, 1) for n in (known.mean, known.std))
    given = {"x1": x1.astype(np.float32), "x2": levels}
    floats = given | {"x2": (levels - mean) / std}
    expected, answer = (ort.InferenceSession(m[-1].path).run(None, f)[0] for m, f in ((plain, floats), (made, given)))
    answers = [answer, *(load_module(m)(*map(torch.from_numpy, given.values())).numpy() for m in made[:-1])]
    for answer in answers:
        np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)
    np.savez(tmp_path / "f.npz", **floats)
    for wishes, kind, why in (
        ({"normalize": replace(known, input="other")}, UsageError, "Of several inputs name the image"),
        ({"normalize": replace(known, input="")}, UsageError, "Of several inputs name the image"),
        ({"normalize": known, "inputs": str(tmp_path / "f.npz")}, FeedError, "has images of float32"),
    ):
        with pytest.raises(kind, match=why):
            make(model, tmp_path / "no", **wishes)  # type: ignore[arg-type]  # of several kinds


TURNED = "t = Transpose <perm = [0, 1, 3, 2]> (x)"


@pytest.mark.parametrize(
    ("nodes", "operator"),
    [(f"{TURNED} y = Sub (t, two)", "Sub"), (f"{TURNED} y = Mul (t, two)", "Mul"), ("y = Mul (x, two)", "Mul")],
)
def test_a_graph_that_scales_or_turns_its_picture_first_is_warned_of(nodes: str, operator: str, tmp_path: Path) -> None:
    text = f"(float[batch, 3, 4, 4] x) => (float[batch, 3, 4, 4] y) {{ {nodes} }}"
    model = str(write_text(tmp_path / "m.onnx", text, {"two": np.float32([2])}))
    (made,) = make(model, tmp_path / "out", normalize=Normalize(mean=(1.0, 2.0, 3.0), std=(2.0, 4.0, 8.0)))
    assert any(f"goes on with {operator}" in warning.message for warning in made.warnings)
