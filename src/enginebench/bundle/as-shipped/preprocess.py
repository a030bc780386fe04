"""A picture as this model takes it, by preprocess.json: resized, cropped, scaled, less `mean`, divided by `std`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SETTINGS: dict[str, Any] = json.loads((Path(__file__).resolve().parent / "preprocess.json").read_text("utf-8"))


def preprocess(image: Image.Image | str | Path) -> np.ndarray[Any, Any]:
    """One entry of a batch: float32 [channels, height, width], or flat; of a picture, or of the file of one."""
    if not isinstance(image, Image.Image):
        with Image.open(image) as opened:
            return preprocess(opened.convert(SETTINGS["colour"]))
    pixels = crop(np.asarray(resize(image.convert(SETTINGS["colour"]))), SETTINGS["crop"])
    scaled = (pixels.astype(np.float32) / np.float32(SETTINGS["scale"])).reshape(*pixels.shape[:2], -1)
    normal = (scaled - np.asarray(SETTINGS["mean"], np.float32)) / np.asarray(SETTINGS["std"], np.float32)
    planes = np.ascontiguousarray(normal.transpose(2, 0, 1), dtype=SETTINGS["dtype"])
    return planes.reshape(-1) if SETTINGS["layout"] == "flat" else planes


def resize(image: Image.Image) -> Image.Image:
    """The shorter side `resize` pixels long; the other is rounded down, as torchvision does it."""
    width, height = image.size
    short, wanted = min(width, height), SETTINGS["resize"]
    if short == wanted:
        return image
    size = (int(wanted * width / short), int(wanted * height / short))
    return image.resize(size, Image.Resampling[SETTINGS["interpolation"].upper()])


def crop(pixels: np.ndarray[Any, Any], side: int) -> np.ndarray[Any, Any]:
    """The centre, rounded half to even, as torchvision does it."""
    top, left = (round((length - side) / 2) for length in pixels.shape[:2])
    return pixels[top : top + side, left : left + side]
