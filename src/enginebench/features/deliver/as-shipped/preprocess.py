"""A picture as this model takes it, by preprocess.json: resized, cropped, and unless it takes bytes normalized."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from measured.models.pictures import Pictures
from PIL import Image


class Settings(Pictures, SimpleNamespace):  # type: ignore[misc]
    """The contents of preprocess.json."""


SETTINGS = Settings(**json.loads((Path(__file__).resolve().parent / "preprocess.json").read_text("utf-8")))


def preprocess(image: Image.Image | str | Path) -> np.ndarray[Any, Any]:
    """One entry of a batch: [channels, height, width], or flat; of a picture, or of the file of one."""
    if not isinstance(image, Image.Image):
        with Image.open(image) as opened:
            return preprocess(opened)
    entry: np.ndarray[Any, Any] = SETTINGS.apply(image)
    return entry
