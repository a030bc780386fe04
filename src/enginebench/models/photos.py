"""Photographs: crops of real ones from an installed package, and generated ones that take as long to decode.

The generated ones have the spectrum of natural scenes and ImageNet's usual size, and are stored as JPEG.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from enginebench.core.errors import ArtifactError
from enginebench.core.store import explain_reading, refuse_pointer, write_atomic
from enginebench.models.pictures import import_pillow
from enginebench.models.zoo import find_packaged

if TYPE_CHECKING:
    from enginebench.models.task import Preprocess

# Their name as a value of `--data`.
SAMPLE_PHOTOS = "sample-photos"
# Photographs in the wheel of scikit-image. Outputs are compared on those that show one of ImageNet's objects: of others
# no class is more right than another. Ranges are taken from the others, so that no photograph serves both.
HELD_OUT = ("chelsea.png", "coffee.png", "rocket.jpg", "camera.png", "motorcycle_left.png", "motorcycle_right.png")
SEEN = (
    *("astronaut.png", "clock_motion.png", "coins.png", "hubble_deep_field.jpg", "brick.png", "grass.png"),
    *("gravel.png", "retina.jpg"),
)
# A crop keeps this fraction of each side at least, so that most of what a photograph shows stays in it.
SMALLEST_CROP = 0.6

# The commonest size in the ImageNet validation set, whose files are about 110 kB on average.
WIDTH, HEIGHT = 500, 375
TARGET_BYTES, QUALITIES = 110_000, (75, 82, 87, 90, 92, 94, 96)

# Amplitudes fall with the inverse of the spatial frequency. Source: D. J. Field, "Relations between the statistics of
# natural images and the response properties of cortical cells", J. Opt. Soc. Am. A 4 (1987), 2379.
SPECTRUM_EXPONENT = 1.0
# Photographs vary mostly in brightness; colours vary a quarter as much and more slowly, which is what JPEG's own
# subsampling of colours lives on.
COLOUR_SHARE = 0.25
COLOUR_EXPONENT = 1.4
# Grey levels: a photograph's usual mean and spread, and the grain of a sensor, which keeps decoders busy.
MEAN_LEVEL, SPREAD_LEVEL, GRAIN_LEVEL = 118.0, 52.0, 4.0


def find_photos(*, held_out: bool = True) -> list[Path]:
    """Return the files of the photographs; an empty list if scikit-image is not installed."""
    paths = [find_packaged(f"skimage/data/{name}") for name in (HELD_OUT if held_out else SEEN)]
    return [path for path in paths if path is not None]


def prepare_photos(preprocess: Preprocess, start: int, stop: int, seed: int, *, held_out: bool = True) -> Any:
    """Return entries `start` to `stop`, preprocessed for inference: each whole photograph, then seeded crops of them.

    Every second round of crops is mirrored.
    """
    paths = find_photos(held_out=held_out)
    prepared = []
    for i in range(start, stop):
        picture, turn = _open_photo(paths[i % len(paths)]), i // len(paths)
        if turn:
            rng, sides = np.random.default_rng((seed, i)), np.asarray(picture.size)
            lengths = np.round(sides * rng.uniform(SMALLEST_CROP, 1, 2)).astype(int)
            left, top = rng.integers(0, sides - lengths + 1).tolist()
            picture = picture.crop((left, top, left + int(lengths[0]), top + int(lengths[1])))
        prepared.append(preprocess.apply(picture.transpose(0) if turn % 2 else picture))  # 0: left to right
    return np.stack(prepared)


@cache
def _open_photo(path: Path) -> Any:
    with import_pillow().open(path) as picture:
        return picture.convert("RGB")


def make_photo(seed: int, width: int = WIDTH, height: int = HEIGHT) -> NDArray[np.uint8]:
    """Return a random scene, uint8 [height, width, 3], RGB; the same for the same seed."""
    rng = np.random.default_rng(seed)
    luma = MEAN_LEVEL + SPREAD_LEVEL * _draw_field(rng, width, height, SPECTRUM_EXPONENT)
    luma = luma + rng.normal(0.0, GRAIN_LEVEL, (height, width))
    blue, red = (
        COLOUR_SHARE * SPREAD_LEVEL * _draw_field(rng, width, height, SPECTRUM_EXPONENT * COLOUR_EXPONENT)
        for _ in range(2)
    )
    # Source: ITU-T T.871 (JFIF), conversion from YCbCr.
    planes = (luma + 1.402 * red, luma - 0.344136 * blue - 0.714136 * red, luma + 1.772 * blue)
    return np.clip(np.stack(planes, axis=-1), 0, 255).astype(np.uint8)


def make_photos(n: int, seed: int = 0) -> list[bytes]:
    """Return `n` JPEG files, photo i from seed + i, each at the quality whose size comes nearest to 110 kB."""
    photos = []
    for i in range(n):
        picture = import_pillow().fromarray(make_photo(seed + i))
        files = [io.BytesIO() for _ in QUALITIES]
        for file, quality in zip(files, QUALITIES, strict=True):
            picture.save(file, "JPEG", quality=quality)
        photos.append(min((file.getvalue() for file in files), key=lambda data: abs(len(data) - TARGET_BYTES)))
    return photos


def write_photos(folder: Path, photos: Iterable[bytes]) -> list[Path]:
    """Write the photos to files of the folder, for `stages --images` and `calibrate --data`; return the files."""
    paths = []
    for index, photo in enumerate(photos):
        paths.append(folder / f"photo-{index:04d}.jpg")
        write_atomic(paths[-1], photo)
    return paths


def read_photos(folder: Path, n: int) -> list[bytes]:
    """Return the first `n` JPEG files of a folder and its subfolders, by name."""
    if not folder.is_dir():
        raise ArtifactError(f"--images {folder}: no such folder")
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg") and p.is_file())
    if not paths:
        raise ArtifactError(f"--images {folder}: no file in it ends in .jpg or .jpeg")
    with explain_reading(folder):
        photos = [path.read_bytes() for path in paths[:n]]
    image = import_pillow()
    for path in paths[:n]:
        try:
            with image.open(path) as picture:
                picture.load()  # opening alone reads the header only
        except Exception as error:  # the decoders raise whatever they run into
            refuse_pointer(path)
            raise ArtifactError(f"image {path} cannot be decoded: {error}. Remove it or replace it") from error
    return photos


def _draw_field(rng: np.random.Generator, width: int, height: int, exponent: float) -> NDArray[np.float64]:
    """Return Gaussian noise [height, width], mean 0, deviation 1; amplitudes fall with frequency to the `exponent`."""
    fx, fy = np.fft.rfftfreq(width), np.fft.fftfreq(height)
    frequency = np.hypot(fx[np.newaxis, :], fy[:, np.newaxis])
    frequency[0, 0] = np.inf  # the mean is set by the caller
    spectrum = np.fft.rfft2(rng.standard_normal((height, width))) / frequency**exponent
    field = np.fft.irfft2(spectrum, s=(height, width))
    return np.asarray(field / field.std(), dtype=np.float64)
