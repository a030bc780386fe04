"""Data sources: what they feed, what they remember, and what they refuse."""

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from enginebench.core.commands import advise_inputs
from enginebench.core.errors import ArtifactError, FeedError, ParseError, UsageError
from enginebench.core.preprocess import EXTERNAL
from enginebench.core.records import TensorSpec
from enginebench.models.precision.calibration_data import (
    check_images,
    keep_batches,
    list_images,
    open_arrays,
    open_data,
    open_images,
    read_class_index,
)
from enginebench.models.task import load_digits, preprocess_for

IMAGES = (TensorSpec(name="input", dtype="float32", shape=("batch", 3, 32, 32)),)
DIGITS = (TensorSpec(name="input", dtype="float32", shape=("batch", 64)),)
TWO = (
    TensorSpec(name="ids", dtype="int64", shape=("batch", 5)),
    TensorSpec(name="mask", dtype="float32", shape=("batch", 5)),
)


def draw_picture(path, size=(40, 36), seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def folder(tmp_path):
    for i, name in enumerate(["7/a.png", "7/b.jpg", "12/ä b.png", "3/d.PNG"]):
        draw_picture(tmp_path / "Bilder 1" / name, seed=i)
    (tmp_path / "Bilder 1" / "notes.txt").write_text("no picture")
    return tmp_path / "Bilder 1"


def open_pictures(folder, **changes):
    options = {"model": "resnet18", "inputs": IMAGES, "n": 10, "input_size": 32} | changes
    return open_data(str(folder), **options)


def test_images_go_through_the_models_own_preprocessing(folder):
    data = open_pictures(folder)
    preprocess = preprocess_for("resnet18", 32)
    assert data.n == 4 and data.preprocess_sha256 == preprocess.sha256() and data.warnings == ()
    expected = {preprocess.apply(Image.open(p)).tobytes() for p in list_images(folder)}
    assert {entry.tobytes() for entry in data.read(0, 4)["input"]} == expected


def test_reads_only_what_is_asked_for(folder, monkeypatch):
    opened = []
    original = Image.open
    monkeypatch.setattr(Image, "open", lambda path: opened.append(path) or original(path))
    data = open_pictures(folder)
    assert opened == []
    data.read(1, 2)
    assert len(opened) == 1
    assert [len(feeds["input"]) for feeds in data.batches(3)] == [3, 1], "each once"


def test_the_seed_chooses(folder):
    chosen = {open_pictures(folder, n=2, seed=s).read(0, 2)["input"].tobytes() for s in range(8)}
    assert len(chosen) > 1
    assert (
        open_pictures(folder, n=2, seed=1).read(0, 2)["input"].tobytes()
        == open_pictures(folder, n=2, seed=1).read(0, 2)["input"].tobytes()
    )


@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n broken", b"GIF89a"])
def test_a_bad_picture_is_named(folder, content):
    (folder / "7" / "bad.png").write_bytes(content)
    data = open_pictures(folder)
    with pytest.raises(ArtifactError, match=r"bad\.png cannot be decoded"):
        data.read(0, data.n)


def test_all_pictures_that_cannot_be_used_are_named_before_a_run(tmp_path: Path, recwarn) -> None:
    for i in range(9):
        Image.new("RGB", (20, 16), (i, 90, 200)).save(tmp_path / f"{i}.png")
    Image.new("RGB", (20, 16)).save(tmp_path / "a.gif")
    Image.new("CMYK", (20, 16)).save(tmp_path / "b.jpg")
    check_images(tmp_path, 100, 0)  # Pillow reads all of these
    Image.fromarray(np.full((16, 20), 40_000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(ArtifactError, match=r"deep.png cannot be decoded: more than 8 bits a channel .*Convert it"):
        check_images(tmp_path, 100, 0)
    for i in range(7):
        (tmp_path / f"{i}.png").write_bytes((tmp_path / f"{i}.png").read_bytes()[:40])
    write_header(tmp_path / "bomb.png", 20_000)
    write_header(tmp_path / "large.png", 10_000)
    with pytest.raises(ArtifactError) as refused:
        check_images(tmp_path, 100, 0)
    text = str(refused.value)
    assert text.startswith(f"{tmp_path}: 9 of 14 images cannot be decoded: 0.png (") and "and 4 more. Remove" in text
    assert not recwarn.list, "that a picture is large is no news"


def write_header(path: Path, side: int) -> None:
    """Write a PNG of which the header alone is whole: enough to be opened."""
    body = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    idat = struct.pack(">I", 0) + b"IDAT" + struct.pack(">I", zlib.crc32(b"IDAT"))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body)) + idat)


def test_pictures_of_another_size_and_for_two_inputs_are_refused(folder):
    with pytest.raises(UsageError, match="the graph has 2"):
        open_images(folder, preprocess_for("resnet18"), TWO, 4, 0)
    with pytest.raises(FeedError, match="the same input size as at export"):
        open_pictures(folder, input_size=24).read(0, 1)


def test_hidden_files_and_other_files_are_no_pictures(folder):
    draw_picture(folder / ".cache" / "x.png")
    draw_picture(folder / ".hidden.png")
    assert len(list_images(folder)) == 4


BARE = (TensorSpec(name="x", dtype="float32", shape=()),)


@pytest.mark.parametrize(
    ("text", "changes", "error", "said"),
    [
        ("", {}, ArtifactError, "holds no images"),
        ("nowhere", {}, UsageError, "no such folder"),
        ("data.txt", {}, UsageError, "a file of another kind; expected a folder of images"),
        ("digits", {}, UsageError, "digits-cnn and digits-mlp"),
        ("fake", {"inputs": ()}, UsageError, "batch axis; without one: all"),
        ("fake", {"inputs": BARE}, UsageError, "batch axis; without one: x"),
        ("fake", {"n": 0}, UsageError, "at least 1"),
    ],
)
def test_what_is_no_data_for_a_model_is_refused(tmp_path, text, changes, error, said):
    (tmp_path / "data.txt").write_text("1 2 3")
    with pytest.raises(error, match=said):
        open_pictures(text if text in ("digits", "fake") else tmp_path / text, **changes)


def test_labels_are_the_numbers_of_the_folders(folder):
    data = open_pictures(folder)
    assert sorted(data.read_labels(1000).tolist()) == [3, 7, 7, 12]
    with pytest.raises(ArtifactError, match="class 12 of 10"):
        data.read_labels(10)


def name_folders(folder):
    for old, new in (("7", "n01"), ("12", "n02"), ("3", "n03")):
        (folder / old).rename(folder / new)


def test_labels_by_the_order_of_the_folders_where_all_are_there(folder):
    name_folders(folder)
    assert read_class_index(folder, 3) == {"n01": 0, "n02": 1, "n03": 2}
    with pytest.raises(ArtifactError, match=r"3 class folders, the model 1000.*class_index\.json"):
        open_pictures(folder).read_labels(1000)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("class_index.json", json.dumps({"0": ["n03", "cat"], "5": ["n01", "dog"], "9": ["n02", "cow"]})),
        ("imagenet_class_index.json", json.dumps({"n03": 0, "n01": 5, "n02": 9})),
    ],
)
def test_labels_from_an_index_file(folder, name, text):
    name_folders(folder)
    (folder / name).write_text(text)
    assert sorted(open_pictures(folder).read_labels(1000).tolist()) == [0, 5, 5, 9]


@pytest.mark.parametrize("text", ["", "[1, 2]", '{"0": 1.5}', '{"x": ["n01"]}', '{"0": []}'])
def test_a_damaged_index_file(folder, text):
    (folder / "class_index.json").write_text(text)
    with pytest.raises(ParseError, match="class_index"):
        open_pictures(folder).read_labels(1000)


def test_pictures_outside_the_classes(folder):
    (folder / "class_index.json").write_text('{"7": 7, "12": 12}')
    with pytest.raises(ArtifactError, match="'3' is not in the class index"):
        open_pictures(folder).read_labels(1000)
    draw_picture(folder / "a.png")
    with pytest.raises(ArtifactError, match="is not in a class folder"):
        open_pictures(folder).read_labels(10)


def test_digits_calibrate_on_the_training_set_only():
    data = open_data("digits", model="digits-mlp", inputs=DIGITS, n=5000)
    held_out = open_data("digits", model="digits-mlp", inputs=DIGITS, n=5000, split="evaluate")
    assert (data.n, held_out.n) == (1347, 450)
    seen = {entry.tobytes() for entry in data.read(0, data.n)["input"]}
    kept = load_digits().select(held_out=True)
    assert sum((image.reshape(-1) / np.float32(16)).tobytes() in seen for image in kept.images) < 3
    assert sorted(held_out.read_labels().tolist()) == sorted(kept.labels.tolist())


def test_fake_is_seeded_and_marked():
    data = open_data("fake", model="mine.onnx", inputs=TWO, n=6, seed=4)
    feeds = data.read(0, 6)
    assert feeds["ids"].shape == (6, 5) and feeds["ids"].dtype == np.int64
    assert np.array_equal(data.read(3, 5)["mask"], feeds["mask"][3:5])
    assert [(c.code, c.advice) for c in data.warnings] == [("random_calibration", advise_inputs())]
    with pytest.raises(UsageError, match="no labels"):
        data.read_labels()


def test_arrays_are_external(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((7, 64), np.float32))
    data = open_data(str(tmp_path / "x.npy"), model="digits-mlp", inputs=DIGITS, n=5)
    assert data.n == 5 and data.preprocess_sha256 == EXTERNAL
    assert [c.code for c in data.warnings] == ["external_preprocess"]
    np.savez(tmp_path / "x.npz", ids=np.ones((3, 5), np.int64), mask=np.ones((3, 5), np.float32))
    assert open_arrays(tmp_path / "x.npz", TWO, 100).read(2, 3)["ids"].shape == (1, 5)
    (tmp_path / "many").mkdir()
    for place in range(3):
        np.save(tmp_path / "many" / f"{place}.npy", np.full((2, 64), place, np.float32))
    many = open_data(str(tmp_path / "many"), model="digits-mlp", inputs=DIGITS, n=5)
    assert many.n == 5 and many.preprocess_sha256 == EXTERNAL
    assert many.read(0, 5)[DIGITS[0].name][:, 0].tolist() == [0, 0, 1, 1, 2]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"ids": np.ones((3, 5), np.int64)}, "missing input 'mask'"),
        ({"ids": np.ones((3, 5), np.int64), "mask": np.ones((3, 5))}, "float64, not float32"),
        ({"ids": np.ones((3, 4), np.int64), "mask": np.ones((3, 5), np.float32)}, r"'ids' has shape 3x4, not batchx5"),
        ({"ids": np.ones((2, 5), np.int64), "mask": np.ones((3, 5), np.float32)}, "inputs of 2, 3 entries"),
        ({"ids": np.ones((0, 5), np.int64), "mask": np.ones((0, 5), np.float32)}, "shape"),
        ({"a": np.ones(3)}, "unknown input 'a'"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, arrays, said):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(FeedError, match=said):
        open_arrays(tmp_path / "x.npz", TWO, 10)


def test_arrays_with_values_that_are_not_finite(tmp_path):
    values = np.ones((3, 64), np.float32)
    values[2, 5] = np.nan
    np.save(tmp_path / "x.npy", values)
    data = open_arrays(tmp_path / "x.npy", DIGITS, 10)
    with pytest.raises(FeedError, match="entries 2 to 2"):
        list(data.batches(1))


def test_missing_pickled_and_damaged_array_files(tmp_path):
    with pytest.raises(ParseError, match="no such file"):
        open_arrays(tmp_path / "no.npy", DIGITS, 10)
    with pytest.raises(FeedError, match=r"give an \.npz"):
        open_arrays(tmp_path / "x.npy", TWO, 10)
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(ParseError):
        open_arrays(tmp_path / "x.npy", DIGITS, 10)
    np.savez(tmp_path / "x.npz", input=np.array([{"a": 1}], object))
    with pytest.raises(ParseError):
        open_arrays(tmp_path / "x.npz", DIGITS, 10)
    np.savez(tmp_path / "x.npz", input=np.ones((1, 64), np.float32), __enginebench__=np.array("{"))
    with pytest.raises(ParseError, match="__enginebench__"):
        open_arrays(tmp_path / "x.npz", DIGITS, 1)


def test_kept_batches_remember_where_they_come_from(tmp_path):
    data = open_data("digits", model="digits-mlp", inputs=DIGITS, n=9, seed=2)
    keep_batches(data, tmp_path / "neu" / "kept.npz")
    again = open_data(str(tmp_path / "neu" / "kept.npz"), model="digits-mlp", inputs=DIGITS, n=100)
    assert (again.n, again.source, again.seed) == (9, "digits", 2)
    assert again.preprocess_sha256 == data.preprocess_sha256 and again.warnings == ()
    assert np.array_equal(again.read(0, 9)["input"], data.read(0, 9)["input"])
    fake = open_data("fake", model="digits-mlp", inputs=DIGITS, n=2)
    keep_batches(fake, tmp_path / "fake.npz")
    assert open_arrays(tmp_path / "fake.npz", DIGITS, 2).warnings == fake.warnings
