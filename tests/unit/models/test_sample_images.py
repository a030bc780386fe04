"""Made photographs: their size, their spectrum, and folders of JPEG files."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from enginebench.core.errors import ArtifactError
from enginebench.models.photos import HEIGHT, WIDTH, make_photo, make_photos, read_photos, write_photos


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


def test_pictures_come_back_from_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "bilder größer"
    photos = make_photos(3)
    paths = write_photos(folder, photos)
    (folder / "notes.txt").write_text("no picture")
    assert [path.read_bytes() for path in paths] == photos
    assert read_photos(folder, 2) == photos[:2]
    assert read_photos(folder, 99) == photos


def test_a_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no such folder"):
        read_photos(tmp_path / "nowhere", 1)
    with pytest.raises(ArtifactError, match=r"ends in \.jpg"):
        read_photos(tmp_path, 1)
