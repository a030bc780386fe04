"""Preprocess a picture into one entry of a batch. Bundles hold a copy of this file."""

from typing import Any

import numpy as np

from ..core.engine_api import Array
from ..core.errors import FeedError, importing


def import_pillow() -> Any:
    with importing("Pillow", 'pip install "pillow>=10"'):
        from PIL import Image
    return Image


def check_depth(picture: Any) -> None:
    """Raise FeedError for a picture of more than 8 bits a channel: Pillow would make nearly all of it white."""
    if picture.mode[0] in "IF":  # also I;16
        raise FeedError(f"more than 8 bits a channel (mode {picture.mode}); expected 8. Convert it to 8 bits")


class Pictures:
    """Resizes, crops, divides by `scale`, subtracts `mean` and divides by `std`, which a subclass has as attributes."""

    __slots__ = ()
    resize: int
    crop: int
    colour: Any
    scale: float
    mean: Any
    std: Any
    layout: Any
    dtype: Any
    interpolation: Any

    def apply(self, image: Any) -> Array:
        """Return one picture as the model takes it, without a batch axis.

        Returns:
            `dtype` [channels, crop, crop], or [channels * crop * crop] in layout "flat".
        """
        pixels = self._fit(image)
        # Rounded half to even, as torchvision.transforms.CenterCrop does it.
        top, left = (round((length - self.crop) / 2) for length in pixels.shape[:2])
        normal = pixels[top : top + self.crop, left : left + self.crop].reshape(self.crop, self.crop, -1)
        if self.dtype != "uint8":
            pixels = normal.astype(np.float32) / np.float32(self.scale)
            normal = (pixels - np.asarray(self.mean, np.float32)) / np.asarray(self.std, np.float32)
        axes = (0, 1, 2) if self.layout == "HWC" else (2, 0, 1)
        planes = np.ascontiguousarray(normal.transpose(axes), dtype=self.dtype)
        return planes.reshape(-1) if self.layout == "flat" else planes

    def _fit(self, image: Any) -> Array:
        """Return the picture in the model's colours, its shorter side `resize` pixels long."""
        if isinstance(image, np.ndarray):
            channels = 3 if self.colour == "RGB" else 1
            if image.ndim not in (2, 3) or 0 in image.shape:
                raise FeedError(f"image of shape {image.shape}; expected [height, width] or [height, width, channels]")
            if min(image.shape[:2]) == self.resize and (image.shape[2] if image.ndim == 3 else 1) == channels:
                return image
            if image.dtype != np.uint8:
                raise FeedError(f"image of dtype {image.dtype} must be resized or recoloured; expected uint8 for that")
            image = import_pillow().fromarray(image[:, :, 0] if image.ndim == 3 and image.shape[2] == 1 else image)
        check_depth(image)
        picture = image.convert(self.colour)
        width, height = picture.size
        if (short := min(width, height)) != self.resize:
            # Truncated, as torchvision.transforms.Resize does it.
            size = (int(self.resize * width / short), int(self.resize * height / short))
            picture = picture.resize(size, import_pillow().Resampling[self.interpolation.upper()])
        return np.asarray(picture)
