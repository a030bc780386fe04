"""Real photographs for models that take pictures: crops of those that an installed package brings along."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from enginebench.models.pictures import import_pillow
from enginebench.models.zoo import find_packaged

if TYPE_CHECKING:
    from enginebench.models.task import Preprocess

# What `--data` calls them.
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


def find_photos(*, held_out: bool = True) -> list[Path]:
    """The photographs; empty where scikit-image is not installed."""
    found = [find_packaged(f"skimage/data/{name}") for name in (HELD_OUT if held_out else SEEN)]
    return [path for path in found if path is not None]


def prepare_photos(preprocess: Preprocess, start: int, stop: int, seed: int, *, held_out: bool = True) -> Any:
    """Entries `start` to `stop`, prepared as for inference: each photograph whole, then seeded crops of them."""
    paths = find_photos(held_out=held_out)
    drawn = (_draw_crop(_open_photo(paths[i % len(paths)]), i // len(paths), (seed, i)) for i in range(start, stop))
    return np.stack([preprocess.apply(picture) for picture in drawn])


def _draw_crop(picture: Any, turn: int, seed: tuple[int, int]) -> Any:
    """The picture itself at its first turn; then a crop of it, every second one mirrored."""
    if turn == 0:
        return picture
    rng = np.random.default_rng(seed)
    sides = np.asarray(picture.size)
    lengths = np.round(sides * rng.uniform(SMALLEST_CROP, 1, 2)).astype(int)
    left, top = rng.integers(0, sides - lengths + 1).tolist()
    crop = picture.crop((left, top, left + int(lengths[0]), top + int(lengths[1])))
    return crop.transpose(0) if turn % 2 else crop  # 0: left to right


@cache
def _open_photo(path: Path) -> Any:
    with import_pillow().open(path) as picture:
        return picture.convert("RGB")
