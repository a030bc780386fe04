"""Pictures that cost what photographs cost: the spectrum of natural scenes, ImageNet's usual size, stored as JPEG."""

import io
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from enginebench.core.errors import ArtifactError
from enginebench.core.store import write_atomic
from enginebench.models.pictures import import_pillow

# The commonest size in the ImageNet validation set, whose files are about 110 kB on average.
WIDTH, HEIGHT = 500, 375
TARGET_BYTES = 110_000

# Amplitudes fall with the inverse of the spatial frequency. Source: D. J. Field, "Relations between the statistics of
# natural images and the response properties of cortical cells", J. Opt. Soc. Am. A 4 (1987), 2379.
SPECTRUM_EXPONENT = 1.0
# Photographs vary mostly in brightness; colours vary a quarter as much and more slowly, which is what JPEG's own
# subsampling of colours lives on.
COLOUR_SHARE = 0.25
COLOUR_EXPONENT = 1.4
# Grey levels: a photograph's usual mean and spread, and the grain of a sensor, which keeps decoders busy.
MEAN_LEVEL, SPREAD_LEVEL, GRAIN_LEVEL = 118.0, 52.0, 4.0


def make_photo(seed: int, width: int = WIDTH, height: int = HEIGHT) -> NDArray[np.uint8]:
    """A random scene uint8 [height, width, 3], RGB: the same for the same seed."""
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


def encode_photo(pixels: NDArray[np.uint8]) -> bytes:
    """The picture as JPEG, at the quality whose size comes nearest to 110 kB."""
    sizes = {quality: _encode(pixels, quality) for quality in (75, 82, 87, 90, 92, 94, 96)}
    return min(sizes.values(), key=lambda data: abs(len(data) - TARGET_BYTES))


def make_photos(n: int, seed: int = 0) -> list[bytes]:
    """`n` JPEG files, photo i from seed + i."""
    return [encode_photo(make_photo(seed + i)) for i in range(n)]


def write_photos(folder: Path, photos: Iterable[bytes]) -> list[Path]:
    """The photos as files of the folder, for `stages --images` and `calibrate --data`."""
    paths = []
    for index, photo in enumerate(photos):
        paths.append(folder / f"photo-{index:04d}.jpg")
        write_atomic(paths[-1], photo)
    return paths


def read_photos(folder: Path, n: int) -> list[bytes]:
    """The first `n` JPEG files of a folder, by name, its subfolders included."""
    if not folder.is_dir():
        raise ArtifactError(f"--images {folder}: no such folder")
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg") and p.is_file())
    if not paths:
        raise ArtifactError(f"--images {folder}: no file in it ends in .jpg or .jpeg")
    try:
        photos = [path.read_bytes() for path in paths[:n]]
    except OSError as error:
        raise ArtifactError(f"--images {folder}: {error.filename} cannot be read ({error.strerror})") from error
    for path in paths[:n]:
        _check_decodes(path)
    return photos


def _check_decodes(path: Path) -> None:
    image = import_pillow()
    try:
        with image.open(path) as picture:
            picture.load()  # opening alone reads the header only
    except Exception as error:  # the decoders raise whatever they run into
        raise ArtifactError(f"picture {path} cannot be decoded: {error}. Remove it or replace it") from error


def _draw_field(rng: np.random.Generator, width: int, height: int, exponent: float) -> NDArray[np.float64]:
    """Gaussian noise [height, width] of mean 0 and spread 1 whose amplitudes fall with frequency to the `exponent`."""
    fx, fy = np.fft.rfftfreq(width), np.fft.fftfreq(height)
    frequency = np.hypot(fx[np.newaxis, :], fy[:, np.newaxis])
    frequency[0, 0] = np.inf  # the mean is set by the caller
    spectrum = np.fft.rfft2(rng.standard_normal((height, width))) / frequency**exponent
    field = np.fft.irfft2(spectrum, s=(height, width))
    return np.asarray(field / field.std(), dtype=np.float64)


def _encode(pixels: NDArray[np.uint8], quality: int) -> bytes:
    buffer = io.BytesIO()
    import_pillow().fromarray(pixels).save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()
