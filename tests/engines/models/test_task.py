from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image

from enginebench.core.errors import ArtifactError, FeedError, ParseError
from enginebench.core.records import TensorSpec
from enginebench.models import task
from enginebench.models.task import feed_digits, hash_preprocess, load_digits, preprocess_for, sample_feeds
from enginebench.models.torch.torchvision_import import import_torchvision
from enginebench.models.zoo import BUILTIN

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
    assert preprocess is not None
    found = preprocess.apply(picture)
    assert found.dtype == np.float32 and found.flags.c_contiguous
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_preprocess_of_timm_equals_timms_transform(picture: Image.Image) -> None:
    from enginebench.models.torch.architectures import import_timm

    import_timm()
    from timm.data import create_transform, resolve_data_config
    from timm.models import get_pretrained_cfg

    config = get_pretrained_cfg("mobilenetv3_small_100")
    expected = create_transform(**resolve_data_config(pretrained_cfg=config.to_dict()))(picture).numpy()
    preprocess = preprocess_for("timm:mobilenetv3_small_100")
    assert preprocess is not None
    np.testing.assert_allclose(preprocess.apply(picture), expected, atol=1e-6)


def test_arrays_grey_and_palette_pictures_are_accepted(picture: Image.Image) -> None:
    preprocess = preprocess_for("resnet18", 64)
    assert preprocess is not None and (preprocess.resize, preprocess.crop) == (73, 64)
    np.testing.assert_array_equal(preprocess.apply(np.asarray(picture)), preprocess.apply(picture))
    for mode in ("L", "P", "RGBA", "CMYK"):
        assert preprocess.apply(picture.convert(mode)).shape == (3, 64, 64)
    assert preprocess.apply(np.zeros((100, 80), np.uint8)).shape == (3, 64, 64)


@pytest.mark.parametrize("shape", [(8,), (2, 3, 8, 8), (0, 8, 3)])
def test_arrays_that_are_no_picture_are_refused(shape: tuple[int, ...]) -> None:
    preprocess = preprocess_for("resnet18")
    assert preprocess is not None
    with pytest.raises(FeedError, match="expected"):
        preprocess.apply(np.zeros(shape, np.uint8))


def test_float_pictures_cannot_be_resized() -> None:
    preprocess = preprocess_for("resnet18")
    assert preprocess is not None
    with pytest.raises(FeedError, match="uint8"):
        preprocess.apply(np.zeros((300, 300, 3), np.float32))


def test_hash_is_that_of_the_content() -> None:
    first, second = preprocess_for("resnet18"), preprocess_for("mobilenet_v3_small")
    assert first is not None and second is not None and first.sha256() == second.sha256()
    for field, value in {"resize": 255, "scale": 1.0, "mean": (0.0, 0.0, 0.0), "interpolation": "bicubic"}.items():
        assert msgspec.structs.replace(first, **{field: value}).sha256() != first.sha256()
    assert hash_preprocess("resnet18", 192) != hash_preprocess("resnet18") == first.sha256()
    assert hash_preprocess("some/file.onnx") is None and hash_preprocess("a.b:c") is None


def test_digits_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits as load_bundled
    from sklearn.model_selection import train_test_split

    digits, bundled = load_digits(), load_bundled()
    np.testing.assert_array_equal(digits.images, bundled.images)
    np.testing.assert_array_equal(digits.labels, bundled.target)
    assert (digits.images.dtype, digits.labels.dtype) == (np.float32, np.int64)
    indices = np.arange(len(bundled.target))
    _, test = train_test_split(indices, test_size=450, stratify=bundled.target, random_state=0)
    np.testing.assert_array_equal(np.flatnonzero(digits.held_out), np.sort(test))
    assert len(digits.select(held_out=True).labels) == 450 and len(digits.select(held_out=False).labels) == 1347


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 not a zip", None])
def test_damaged_digits_are_named(damage: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "DATA_DIR", tmp_path)
    if damage is not None:
        (tmp_path / "digits.npz").write_bytes(damage)
    with pytest.raises(ParseError, match=r"digits\.npz"):
        load_digits()


def test_feeds_of_digits_are_scaled_and_shaped() -> None:
    images = load_digits().images[:3]
    cnn, mlp = feed_digits("digits-cnn", images), feed_digits("digits-mlp", images)
    assert cnn.shape == (3, 1, 8, 8) and mlp.shape == (3, 64)
    np.testing.assert_array_equal(cnn.reshape(3, 64), mlp)
    np.testing.assert_array_equal(mlp, images.reshape(3, 64) / 16)
    with pytest.raises(ArtifactError, match="resnet18 takes no digits"):
        feed_digits("resnet18", images)


def test_sampled_digits_are_held_out_seeded_and_repeat_only_after_all() -> None:
    spec = TensorSpec(name="x", dtype="float32", shape=("batch", 64))
    feeds = sample_feeds([spec], "digits-mlp", 9, seed=3, count=50)
    drawn = np.concatenate([feed["x"] for feed in feeds])
    held_out = feed_digits("digits-mlp", load_digits().select(held_out=True).images)
    assert sorted(map(bytes, drawn)) == sorted(map(bytes, held_out))
    again = sample_feeds([spec], "digits-mlp", 9, seed=3, count=50)
    np.testing.assert_array_equal(again[7]["x"], feeds[7]["x"])
    assert not np.array_equal(sample_feeds([spec], "digits-mlp", 9, seed=4, count=1)[0]["x"], feeds[0]["x"])
    assert len(sample_feeds([spec], "digits-mlp", 450, seed=0, count=2)[1]["x"]) == 450


def test_a_static_batch_wins_and_others_get_random_arrays() -> None:
    static = TensorSpec(name="input", dtype="float32", shape=(2, 1, 8, 8))
    assert sample_feeds([static], "digits-cnn", 7, 0, 1)[0]["input"].shape == (2, 1, 8, 8)
    image = TensorSpec(name="input", dtype="float32", shape=("batch", 3, 4, 4))
    first, second = sample_feeds([image], "resnet18", 5, 0, 2)
    assert first["input"].shape == (5, 3, 4, 4) and not np.array_equal(first["input"], second["input"])
