"""Pictures with labels and without, photographs that a built-in model brings along, and made ones."""

import io
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from enginebench.core.errors import ArtifactError, MissingDependency, UsageError
from enginebench.core.records import Artifact, MeasureSpec, TensorSpec
from enginebench.models import photos, zoo
from enginebench.models.photos import HEIGHT, WIDTH, make_photo, make_photos, read_photos
from enginebench.models.precision.calibration_data import find_label_fault, open_data
from enginebench.models.task import find_own_data, preprocess_for, sample_feeds
from enginebench.runs.child.arrays import save_outputs
from enginebench.runs.classes import format_columns
from enginebench.runs.folder import RunFolder, RunRequest
from enginebench.runs.targets.sources import choose_scoring, fit_scoring

REQUEST = RunRequest(
    model="resnet18",
    engines=(("fake", {}),),
    precisions=(("fp32", None),),
    batches=(1,),
    threads=1,
    measure=MeasureSpec(),
)
INPUT = (TensorSpec(name="input", dtype="float32", shape=("batch", 3, 32, 32)),)


def draw(path: Path, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (160, 200, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """Three pictures in no class folder."""
    for i in range(3):
        draw(tmp_path / "flat ü" / f"{i}.png", i)
    return tmp_path / "flat ü"


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Photographs as scikit-image ships them."""
    names = [draw(tmp_path / "skimage" / name, i) for i, name in enumerate((*photos.SEEN, *photos.HELD_OUT))]
    places = {f"skimage/data/{path.name}": path for path in names}
    monkeypatch.setattr(photos, "find_packaged", places.get)
    return names


def test_folders_that_are_no_classes_are_no_labels(tmp_path: Path) -> None:
    """Of a model of the user's own that is known once its graph is there, and of a built-in one at once."""
    for name in ("spring", "summer"):
        draw(tmp_path / name / "a.png")
    assert "2 class folders, the model 1000" in str(find_label_fault(tmp_path, 1000))
    assert find_label_fault(tmp_path, 2) is None
    own = replace(REQUEST, model="mine.onnx", data=str(tmp_path))
    judged = choose_scoring(own)
    assert judged is not None and judged.labelled.unlabelled is None and judged.metrics
    graph = Artifact(
        kind="onnx",
        model="mine.onnx",
        path="",
        sha256="",
        files=(),
        inputs=INPUT,
        outputs=(TensorSpec(name="output", dtype="float32", shape=("batch", 7)),),
    )
    settled = fit_scoring(judged, own, (graph,))
    assert settled is not None and "2 class folders, the model 7" in str(settled.labelled.unlabelled)
    with pytest.raises(UsageError, match="A metric needs"):
        fit_scoring(judged, replace(own, metrics=("top1",)), (graph,))


@pytest.mark.parametrize(
    "changed", [{"shape": ("n", 64)}, {"shape": ("n", 1, 8, 8)}, {"shape": ("n", 3, 48, 320)}, {"dtype": "int64"}]
)
def test_what_takes_no_pictures_says_what_it_takes(flat: Path, changed: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=r"mine.onnx takes input .*3 x SIDE x SIDE.*--inputs F.npz"):
        open_data(str(flat), model="mine.onnx", inputs=(replace(INPUT[0], **changed),), n=3)


def test_photographs_are_cropped_by_their_seed_and_held_out_apart(packaged: list[Path]) -> None:
    read = {
        (split, seed): open_data(
            photos.SAMPLE_PHOTOS, model="efficientnet-lite0", inputs=INPUT, n=40, input_size=32, seed=seed, split=split
        ).read(0, 40)["input"]
        for split in ("calibrate", "evaluate")
        for seed in (0, 1)
    }
    evaluated = read["evaluate", 0]
    whole = [
        preprocess_for("efficientnet-lite0", 32).apply(Image.open(p)) for p in packaged if p.name in photos.HELD_OUT
    ]
    assert (evaluated[: len(whole)] == np.stack(whole)).all(), "each photograph whole first"
    assert len({entry.tobytes() for entry in evaluated}) == 40
    assert not {e.tobytes() for e in evaluated} & {e.tobytes() for e in read["calibrate", 0]}
    assert (read["evaluate", 1] != evaluated).any() and (read["calibrate", 1] != read["calibrate", 0]).any()


def test_the_feeds_of_the_model_are_its_photographs(packaged: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    (first, second) = sample_feeds(INPUT, "efficientnet-lite0", 2, 0, 2)
    assert first["input"].shape == (2, 3, 32, 32) and (first["input"] != second["input"]).any()
    assert find_own_data("efficientnet-lite0") == photos.SAMPLE_PHOTOS and find_own_data("digits-cnn") == "digits"
    monkeypatch.setattr(photos, "find_packaged", lambda path: None)
    assert find_own_data("efficientnet-lite0") is None
    with pytest.raises(MissingDependency, match=r"scikit-image.*enginebench\[models\]"):
        open_data(photos.SAMPLE_PHOTOS, model="resnet18", inputs=INPUT, n=1)


def test_a_model_without_its_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "find_packaged", lambda path: None)
    with pytest.raises(MissingDependency, match=r"trained weights of efficientnet-lite0 is not installed.*\[models\]"):
        zoo.require_packages("efficientnet-lite0")
    for other in ("resnet18", "mine.onnx"):
        zoo.require_packages(other)


def test_the_top_classes_of_a_run_are_printed(packaged: list[Path], tmp_path: Path) -> None:
    scores = np.full((5, 3), -9.0, np.float32)
    scores[np.arange(5), [0, 1, 2, 0, 1]] = 9
    changed = scores.copy()
    changed[4] = [9, -9, -9]
    folder = RunFolder(tmp_path / "run")
    for name, answers in (("plain", scores), ("short", changed)):
        save_outputs(folder.outputs_path(name), {"output": answers}, 5)
    lines = list(
        format_columns(
            folder, {"plain": "pytorch fp32", "short": "ort int8"}, ["cat", "cup", "dog"], ["a.png", "ü.png"]
        )
    )
    assert [line.split() for line in lines] == [
        ["Top", "class", "pytorch", "fp32", "ort", "int8"],
        ["a.png", "cat", "100%", "cat", "100%"],
        ["ü.png", "cup", "100%", "cup", "100%"],
        ["The", "same", "class", "on", "4", "of", "5", "images"],
    ]
    save_outputs(folder.outputs_path("short"), {"output": changed[:, :2]}, 5)
    assert list(format_columns(folder, {"short": "x"}, ["cat", "cup", "dog"], ["a.png"])) == [], "no scores of classes"


def test_files_are_as_large_as_photographs() -> None:
    for photo in make_photos(4, seed=10):
        assert 80_000 <= len(photo) <= 150_000
        picture = Image.open(io.BytesIO(photo))
        assert (picture.size, picture.mode, picture.format) == ((WIDTH, HEIGHT), "RGB", "JPEG")


def test_the_seed_makes_the_photo() -> None:
    np.testing.assert_array_equal(make_photo(3), make_photo(3))
    assert (make_photo(3) != make_photo(4)).mean() > 0.9
    assert make_photos(2, seed=5)[1] == make_photos(1, seed=6)[0]


def test_power_falls_with_the_square_of_the_frequency() -> None:
    """Between 8 and 64 cycles a picture; below lies the mean, above the grain."""
    grey = np.mean([np.abs(np.fft.fft2(make_photo(seed, 256, 256).mean(axis=2))) ** 2 for seed in range(4)], axis=0)
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(256, 1 / 256), np.fft.fftfreq(256, 1 / 256)))
    bands = [(8, 12), (12, 18), (18, 27), (27, 40), (40, 64)]
    power = [grey[(frequency >= low) & (frequency < high)].mean() for low, high in bands]
    slope = np.polyfit([np.log((low * high) ** 0.5) for low, high in bands], np.log(power), 1)[0]
    assert -2.3 < slope < -1.7


def test_a_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no such folder"):
        read_photos(tmp_path / "nowhere", 1)
    with pytest.raises(ArtifactError, match=r"ends in \.jpg"):
        read_photos(tmp_path, 1)
