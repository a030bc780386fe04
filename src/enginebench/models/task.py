"""The task of a model: its preprocessing, its labelled data, and inputs to time it with."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.feeds import random_feeds
from enginebench.core.protocols import Array
from enginebench.core.records import Artifact, Normalize, ResultWarning, TensorSpec
from enginebench.core.shapes import concrete_shape, format_shape
from enginebench.core.store import parsing
from enginebench.core.warnings import make_warning
from enginebench.models.photos import SAMPLE_PHOTOS, find_photos, prepare_photos
from enginebench.models.pictures import Pictures
from enginebench.models.samples import find_batch, group_samples, join_samples, read_samples
from enginebench.models.zoo import BUILTIN, DATA_DIR, IMAGENET_CROP, TIMM_PREFIX, Interpolation

# Source: means and deviations of the ImageNet training set as torchvision publishes them with every classifier.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
# Mean and deviation that map 0 to 255 to about -1 to 1. Source: MEAN_RGB and STDDEV_RGB of Google's EfficientNet-Lite.
HALF_MEAN, HALF_STD = (127 / 255,) * 3, (128 / 255,) * 3


class Preprocess(Pictures, Struct, frozen=True, kw_only=True):
    """The preprocessing of a picture: resize, crop, divide by `scale`, subtract `mean`, divide by `std`."""

    resize: int  # shorter side, pixels; the filter is antialiased
    crop: int  # height and width cut from the centre, pixels
    colour: Literal["RGB", "L"]
    scale: float
    mean: tuple[float, ...]  # per channel, after the division by scale
    std: tuple[float, ...]
    layout: Literal["CHW", "HWC", "flat"]
    dtype: Literal["float32", "uint8"] = "float32"  # uint8: cropped, and no arithmetic; the model does that
    interpolation: Interpolation = "bilinear"

    def fit(self, inputs: Sequence[TensorSpec]) -> Preprocess:
        """Return this preprocessing for a graph with these inputs: without arithmetic if it takes bytes (uint8)."""
        if [spec.dtype for spec in inputs] != ["uint8"]:
            return self
        return replace(self, scale=1.0, mean=(0.0,), std=(1.0,), dtype="uint8")

    def sha256(self) -> str:
        """Return the hash of the canonical JSON (keys sorted): equal hashes mean equal preprocessing."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()


def preprocess_for(model: str, input_size: int | None = None, inputs: Sequence[TensorSpec] = ()) -> Preprocess | None:
    """Return the preprocessing that belongs to a model; None where only its owner knows it (`.onnx`, factory).

    Args:
        input_size: height and width in pixels where not the model's own; the resize grows in proportion.
        inputs: of the graph, which may take bytes.
    """
    card = BUILTIN.get(model)
    preprocess: Preprocess | None = None
    if model.startswith(TIMM_PREFIX):
        preprocess = _preprocess_timm(model.removeprefix(TIMM_PREFIX), input_size)
    elif card is not None and card.task == "digits":
        layout: Literal["CHW", "flat"] = "flat" if len(card.input_shape) == 1 else "CHW"
        preprocess = Preprocess(resize=8, crop=8, colour="L", scale=16.0, mean=(0.0,), std=(1.0,), layout=layout)
    elif card is not None:
        crop = input_size or IMAGENET_CROP
        mean, std = (HALF_MEAN, HALF_STD) if card.half_range else (IMAGENET_MEAN, IMAGENET_STD)
        resize = round(card.resize * crop / IMAGENET_CROP)
        preprocess = preprocess_imagenet(crop, resize=resize, interpolation=card.interpolation, mean=mean, std=std)
    return preprocess and preprocess.fit(inputs)


def choose_preprocess(model: str, input_size: int | None, inputs: Sequence[TensorSpec] = ()) -> Preprocess:
    """Return the model's own preprocessing; for a model of the user's, the usual one for its shape of pictures.

    Raises:
        UsageError: the inputs are not one square picture.
    """
    if (preprocess := preprocess_for(model, input_size, inputs)) is not None:
        return preprocess
    shape = concrete_shape(inputs[0], 1) if len(inputs) == 1 else ()
    channels_last = len(shape) == 4 and shape[-1] == 3
    sides = shape[1:3] if channels_last else shape[2:]
    colours = len(shape) == 4 and (channels_last or shape[1] == 3)
    if colours and sides[0] == sides[1] and inputs[0].dtype.startswith(("float", "uint8")):
        return preprocess_imagenet(sides[0], layout="HWC" if channels_last else "CHW").fit(inputs)
    listed = ", ".join(f"{s.name} {s.dtype}[{format_shape(s.shape)}]" for s in inputs) or "what only its engine knows"
    raise UsageError(
        f"{model} takes {listed}; images are prepared for one input of floats or uint8, 3 x SIDE x SIDE. For others "
        "give run prepared arrays, --inputs F.npz, with --targets for the labels"
    )


def list_preprocess_warnings(model: str, input_size: int | None) -> tuple[ResultWarning, ...]:
    """Return the warning that the preprocessing of a user's model was assumed; empty where it is known."""
    guessed = make_warning("external_preprocess", what="images were prepared as ImageNet's are")
    return () if preprocess_for(model, input_size) is not None else (guessed,)


def hash_preprocess(model: str, input_size: int | None = None, inputs: Sequence[TensorSpec] = ()) -> str | None:
    """Return the hash of the model's preprocessing; None where only its owner knows it."""
    preprocess = preprocess_for(model, input_size, inputs)
    return preprocess.sha256() if preprocess else None


def complete_normalize(requested: Normalize, model: str, weights: str = "default") -> Normalize:
    """Return the requested normalization, else the model's own; the shape stays open unless its pictures are flat.

    With its own weights, a model gives nonsense for pictures that are not normalized as in its training.

    Raises:
        UsageError: the model's normalization is unknown and none was requested, or another one was.
    """
    preprocess = preprocess_for(model)
    if requested.mean and (preprocess is None or weights != "default"):
        return requested
    if preprocess is None:
        raise UsageError(
            f"--input-dtype uint8: how images are normalized for {model} is not known; give --normalize MEAN/STD, "
            "of pixels scaled to 0 to 1, as in 0.485,0.456,0.406/0.229,0.224,0.225"
        )
    mean, std = (tuple(preprocess.scale * n for n in numbers) for numbers in (preprocess.mean, preprocess.std))
    off = [abs(a - b) for a, b in zip((*requested.mean, *requested.std), (*mean, *std), strict=False)]
    if off and (len(requested.mean) != len(mean) or max(off) > 1):  # in levels, of which there are 256
        raise UsageError(f"--normalize is not how images are normalized for {model}, which is known; leave it out")
    return replace(requested, mean=mean, std=std, shape=(1,) if preprocess.layout == "flat" else ())


def take_bytes(artifact: Artifact, normalize: Normalize, input_size: int | None = None) -> Artifact:
    """Return the artifact with a picture of bytes; the code that opens or writes it puts the normalization first.

    Raises:
        UsageError: it is not clear which input is the picture, or which of its axes the channels.
    """
    listed = ", ".join(f"{spec.name} {spec.dtype}[{format_shape(spec.shape)}]" for spec in artifact.inputs)
    pictures = [spec for spec in artifact.inputs if normalize.input in ("", spec.name)]
    channels, shape = len(normalize.mean), pictures[0].shape if pictures else ()
    axes = [axis for axis in (1, 3) if len(shape) == 4 and shape[axis] == channels]
    if [spec.dtype for spec in pictures] != ["float32"] or (len(axes) != 1 and not normalize.shape):
        raise UsageError(
            f"--input-dtype uint8: {artifact.model} takes {listed}; expected one image of float32, its {channels} "
            "channels (one for each number of --normalize) on axis 1 or on axis 3, not on both. Of several inputs name "
            "the image: --normalize NAME:MEAN/STD"
        )
    inputs = tuple(replace(s, dtype="uint8", values=(0, 255)) if s in pictures else s for s in artifact.inputs)
    placed = (channels, 1, 1) if axes == [1] else (channels,)
    prepared = hash_preprocess(artifact.model, input_size, inputs)
    chosen = replace(normalize, shape=normalize.shape or placed, input=pictures[0].name)
    return replace(artifact, inputs=inputs, normalize=chosen, preprocess_sha256=prepared)


def preprocess_imagenet(
    crop: int,
    *,
    resize: int | None = None,
    interpolation: Interpolation = "bilinear",
    mean: tuple[float, ...] = IMAGENET_MEAN,
    std: tuple[float, ...] = IMAGENET_STD,
    layout: Literal["CHW", "HWC"] = "CHW",
) -> Preprocess:
    """Return the preprocessing of most classifiers: crop from a picture an eighth larger, and normalize."""
    return Preprocess(
        resize=resize or round(crop / 0.875),
        crop=crop,
        colour="RGB" if len(mean) == 3 else "L",
        scale=255.0,
        mean=mean,
        std=std,
        layout=layout,
        interpolation=interpolation,
    )


def _preprocess_timm(name: str, input_size: int | None) -> Preprocess | None:
    from enginebench.models.torch.architectures import import_timm  # PyTorch: only if a timm model is requested

    config = import_timm().get_pretrained_cfg(name)
    if config is None or config.interpolation not in ("bilinear", "bicubic"):
        return None
    crop = input_size or config.input_size[-1]
    # Source: timm.data.transforms_factory.transforms_imagenet_eval, crop mode "center".
    resize = math.floor(crop / (config.crop_pct or 0.875))
    mean, std = tuple(config.mean), tuple(config.std)
    return preprocess_imagenet(crop, resize=resize, interpolation=config.interpolation, mean=mean, std=std)


class Digits(Struct, frozen=True, kw_only=True, eq=False):
    """The labelled digits. `held_out` marks the 450 that were not used in training."""

    images: NDArray[np.float32]  # [n, 8, 8], grey levels 0 to 16
    labels: NDArray[np.int64]  # [n], 0 to 9
    held_out: NDArray[np.bool_]  # [n]

    def select(self, held_out: bool) -> Digits:
        """Return only the held-out digits, or only those of the training set."""
        keep = self.held_out == held_out
        return Digits(images=self.images[keep], labels=self.labels[keep], held_out=self.held_out[keep])


def load_digits() -> Digits:
    """Return all 1,797 digits in the package. Source: data/README.md."""
    path = DATA_DIR / "digits.npz"
    # zip, zlib, numpy and the file system each have errors of their own.
    with parsing(path, "the packaged digits", Exception, advice="Install enginebench again"):
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return Digits(
                images=stored["images"].astype(np.float32),
                labels=stored["labels"].astype(np.int64),
                held_out=stored["held_out"],
            )


def feed_digits(model: str, images: NDArray[np.float32], inputs: Sequence[TensorSpec] = ()) -> NDArray[Any]:
    """Return the batch [n, 1, 8, 8] or [n, 64] of digits as `digits-cnn` or `digits-mlp` takes it."""
    preprocess = preprocess_for(model, None, inputs)
    if preprocess is None or BUILTIN[model].task != "digits":
        raise ArtifactError(f"{model} takes no digits; expected digits-cnn or digits-mlp")
    return np.stack([preprocess.apply(image) for image in images])


def sample_feeds(
    artifact_inputs: Sequence[TensorSpec], model: str, batch: int, seed: int, count: int, samples: str | None = None
) -> list[dict[str, Array]]:
    """Return `count` different feeds: the user's, as far as they go, else real ones of the model, else seeded arrays.

    Args:
        seed: of the order of the digits, of the crops, or of the arrays; the arrays of feed i have seed + i.
        samples: the folder of the user's inputs (`models/samples.py`); None if none were given.
    """
    if samples is not None:
        step = find_batch(artifact_inputs, batch)
        entries = read_samples(samples, step * count)
        groups = group_samples(entries, step, artifact_inputs)[:count]
        return [join_samples([entries[i] for i in group], artifact_inputs, step) for group in groups]
    own = find_own_data(model)
    if own is None or len(artifact_inputs) != 1:
        return [random_feeds(artifact_inputs, batch, seed + i) for i in range(count)]
    spec = artifact_inputs[0]
    length, *_, side = concrete_shape(spec, batch)
    if own == SAMPLE_PHOTOS:
        preprocess = choose_preprocess(model, side, artifact_inputs)
        inputs = prepare_photos(preprocess, 0, length * count, seed)
    else:
        # n held-out digits in a seeded order; they come again, in the same order, after all 450.
        n = length * count
        images = load_digits().select(held_out=True).images
        order = np.random.default_rng(seed).permutation(len(images))
        inputs = feed_digits(model, images[np.resize(order, n)], artifact_inputs)
    return [{spec.name: inputs[i * length : (i + 1) * length]} for i in range(count)]


def find_own_data(model: str) -> str | None:
    """Return the name of the real inputs of a built-in model; None if it has none, or they are not installed."""
    card = BUILTIN.get(model)
    own = card.data if card is not None else None
    return None if own == SAMPLE_PHOTOS and not find_photos() else own
