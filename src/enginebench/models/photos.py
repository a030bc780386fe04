"""Real photographs for models that take pictures: crops of those that an installed package brings along."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from enginebench.models.zoo import find_packaged

if TYPE_CHECKING:
    from enginebench.models.task import Preprocess

# What `--data` calls them.
SAMPLE_PHOTOS = "sample-photos"
# The photographs in the wheel of scikit-image; microscopes, drawings and patterns are left out.
NAMES = (
    *("astronaut.png", "camera.png", "chelsea.png", "clock_motion.png", "coffee.png", "coins.png", "rocket.jpg"),
    *("motorcycle_left.png", "hubble_deep_field.jpg", "brick.png", "grass.png", "gravel.png"),
)
# A crop keeps this fraction of the area at least, so that most of what a photograph shows stays in it.
SMALLEST_CROP = 0.35


def find_photos() -> list[Path]:
    """The photographs; empty where scikit-image is not installed."""
    found = [find_packaged(f"skimage/data/{name}") for name in NAMES]
    return [path for path in found if path is not None]


def draw_photo(paths: list[Path], i: int, seed: int, *, whole_first: bool) -> Any:
    """Entry i as a Pillow image: a seeded crop, perhaps mirrored; with `whole_first` each photograph whole first."""
    picture = _open_photo(paths[i % len(paths)])
    if whole_first and i < len(paths):
        return picture
    rng = np.random.default_rng((seed, i, whole_first))
    width, height = picture.size
    share, lengthened = rng.uniform(SMALLEST_CROP, 1), np.exp(rng.uniform(-0.25, 0.25))
    w, h = (min(1.0, float(np.sqrt(share) * factor)) for factor in (lengthened, 1 / lengthened))
    left, top = rng.uniform(0, 1 - w) * width, rng.uniform(0, 1 - h) * height
    crop = picture.crop((round(left), round(top), round(left + w * width), round(top + h * height)))
    return crop.transpose(0) if rng.random() < 0.5 else crop  # 0: left to right


@cache
def _open_photo(path: Path) -> Any:
    from PIL import Image

    with Image.open(path) as picture:
        return picture.convert("RGB")


def prepare_photos(preprocess: Preprocess, start: int, stop: int, seed: int, *, whole_first: bool) -> Any:
    """Entries `start` to `stop`, each prepared as for inference, in one array."""
    paths = find_photos()
    drawn = (draw_photo(paths, i, seed, whole_first=whole_first) for i in range(start, stop))
    return np.stack([preprocess.apply(picture) for picture in drawn])
