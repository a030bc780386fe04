"""Read inputs of a model from the user's data, step by step: for calibration, and with labels for accuracy."""

import hashlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from enginebench.core.array_files import ONLY, declare_arrays, read_array_file
from enginebench.core.commands import advise_inputs
from enginebench.core.errors import ArtifactError, FeedError, MissingDependency, ParseError, UsageError
from enginebench.core.feeds import random_feeds
from enginebench.core.preprocess import EXTERNAL
from enginebench.core.protocols import Array
from enginebench.core.records import ResultWarning, TensorSpec
from enginebench.core.shapes import find_batch_axes
from enginebench.core.store import explain_reading, parsing, refuse_pointer, replace_atomic
from enginebench.core.text import first_line, list_some
from enginebench.core.warnings import make_warning
from enginebench.models.photos import SAMPLE_PHOTOS, find_photos, prepare_photos
from enginebench.models.pictures import check_depth, import_pillow
from enginebench.models.precision.calibration import explain_external
from enginebench.models.samples import EXPECTED, drop_hidden, group_samples, join_samples, list_problems, read_entries
from enginebench.models.task import (
    Preprocess,
    choose_preprocess,
    feed_digits,
    list_preprocess_warnings,
    load_digits,
    preprocess_for,
)
from enginebench.models.zoo import BUILTIN, MODELS_EXTRA

Split = Literal["calibrate", "evaluate"]

# The word for made-up data.
MADE_UP = "fake"
# Common picture formats that Pillow reads in its base installation.
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})
# Pixels of pictures that are decoded as a check before a run: PNG takes about 10 ns each, so that this is a second of
# one core. Further pictures are only opened then, and decoded when they are used.
DECODED_PIXELS = 100_000_000
# The entry of an .npz with the origin of kept batches.
ORIGIN_KEY = "__enginebench__"
# Names of the file beside the class folders that maps folders to classes.
CLASS_INDEX_NAMES = ("class_index.json", "imagenet_class_index.json", "classes.txt")


class CalibrationData(Struct, frozen=True, kw_only=True, eq=False):
    """n entries of inputs. `read(start, stop)` makes the entries of one step; no others are kept in memory."""

    source: str  # as the user wrote it
    n: int
    read: Callable[[int, int], dict[str, Array]]  # input name -> array [stop - start, ...]
    preprocess_sha256: str | None
    seed: int = 0
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")
    label: Callable[[int | None], Any] | None = None  # number of classes -> int64 [n]
    names: tuple[str, ...] | None = None  # of pictures: their paths in the folder
    apart: bool = False  # entries cannot be joined along a first axis: `read` gives one at a time

    def batches(self, size: int) -> Iterator[dict[str, Array]]:
        """Yield the entries in steps of `size`, or one by one if they cannot be joined; the last may be shorter."""
        size = 1 if self.apart else size
        for start in range(0, self.n, size):
            yield self.read(start, min(start + size, self.n))

    def read_labels(self, classes: int | None = None) -> NDArray[np.int64]:
        """Return the labels, int64 [n].

        Args:
            classes: number of the model's classes; needed where folders are numbered by their order.
        """
        if self.label is None:
            raise UsageError(f"{self.source} has no labels; expected digits, or a folder with one folder per class")
        labels: NDArray[np.int64] = self.label(classes)
        return labels


def open_data(
    text: str,
    *,
    model: str,
    inputs: Sequence[TensorSpec],
    n: int,
    seed: int = 0,
    input_size: int | None = None,
    split: Split = "calibrate",
) -> CalibrationData:
    """Open the data that `text` names.

    Args:
        text: `digits`, `sample-photos`, `fake`, a folder of images or of .npy or .npz files, or one of these.
        model: MODEL, by whose own preprocessing images are prepared; for a user's model they are prepared as
            ImageNet's are.
        inputs: of the graph; axis 0 of each is the batch.
        n: entries, at most; a folder or file may have fewer.
        seed: of the choice among more entries, and of random arrays.
        split: of the digits or the photographs: those for training and ranges, or those held out.
    """
    if n < 1:
        raise UsageError(f"n {n} must be at least 1")
    scalars = ", ".join(spec.name for spec in inputs if not spec.shape)
    if scalars or not inputs:
        raise UsageError(f"a graph is calibrated over inputs with a batch axis; without one: {scalars or 'all'}")
    if text == MADE_UP:
        return make_fake(inputs, n, seed)
    if text == "digits":
        return _open_digits(model, inputs, n, seed, split)
    path = check_source(text)
    if path is not None and not path.is_dir():
        return open_arrays(path, inputs, n)
    if path and {file.suffix.lower() for file in path.iterdir() if file.name[0] != "."} in ({".npy"}, {".npz"}):
        return open_input_data(text, inputs, n)
    preprocess, guessed = choose_preprocess(model, input_size, inputs), list_preprocess_warnings(model, input_size)
    if path is None:
        images = _open_sample_photos(preprocess, inputs, n, seed, split)
    else:
        images = open_images(path, preprocess, inputs, n, seed)
    return replace(images, preprocess_sha256=EXTERNAL, warnings=guessed) if guessed else images


def check_source(text: str) -> Path | None:
    """Return the folder of pictures or the file of arrays that `--data` names; None for a name of packaged data.

    Raises:
        UsageError: there is no such folder, or the file is of another kind.
    """
    path = Path(text)
    if text in ("digits", MADE_UP, SAMPLE_PHOTOS):
        return None
    if path.is_dir() or path.suffix.lower() in (".npy", ".npz"):
        return path
    fault = "a file of another kind" if path.exists() else "no such folder"
    raise UsageError(
        f"--data {text!r}: {fault}; expected a folder of images, an .npy or .npz file, digits, {SAMPLE_PHOTOS} or fake"
    )


def make_fake(inputs: Sequence[TensorSpec], n: int, seed: int) -> CalibrationData:
    """Return seeded random arrays, whose ranges may be far from those of real inputs."""
    whole = _lie_apart(inputs)
    singles = [replace(spec, shape=("batch", *spec.shape[1:])) for spec in inputs]

    def read(start: int, stop: int) -> dict[str, Array]:
        if whole:
            return random_feeds(inputs, 1, seed + start)
        entries = [random_feeds(singles, 1, seed + i) for i in range(start, stop)]
        return {spec.name: np.concatenate([entry[spec.name] for entry in entries]) for spec in inputs}

    return CalibrationData(
        source=MADE_UP,
        n=n,
        read=read,
        preprocess_sha256=None,
        seed=seed,
        warnings=(make_warning("random_calibration", source=f"random inputs (seed {seed})", cure=advise_inputs()),),
        apart=whole,
    )


def require_digits(model: str) -> None:
    """Check that a model takes digits."""
    card = BUILTIN.get(model)
    if card is None or card.task != "digits":
        raise UsageError(f"--data digits fits digits-cnn and digits-mlp; {model} needs --data DIR, FILE.npz or fake")


def _open_digits(model: str, inputs: Sequence[TensorSpec], n: int, seed: int, split: Split) -> CalibrationData:
    require_digits(model)
    preprocess = preprocess_for(model, None, inputs)
    if preprocess is None or len(inputs) != 1:
        raise UsageError(f"--data digits fits models of one input; {model} has {len(inputs)}")
    digits = load_digits().select(held_out=split == "evaluate")
    order = np.random.default_rng(seed).permutation(len(digits.images))[:n]
    return CalibrationData(
        source="digits",
        n=len(order),
        read=lambda start, stop: {inputs[0].name: feed_digits(model, digits.images[order[start:stop]], inputs)},
        preprocess_sha256=preprocess.sha256(),
        seed=seed,
        label=lambda _: digits.labels[order],
    )


def _open_sample_photos(
    preprocess: Preprocess, inputs: Sequence[TensorSpec], n: int, seed: int, split: Split
) -> CalibrationData:
    import_pillow()
    if not find_photos():
        raise MissingDependency(f"scikit-image, whose photographs --data {SAMPLE_PHOTOS} takes,", MODELS_EXTRA)
    prepare = partial(prepare_photos, preprocess, seed=seed, held_out=split == "evaluate")
    return CalibrationData(
        source=SAMPLE_PHOTOS,
        n=n,
        read=lambda start, stop: {inputs[0].name: prepare(start, stop)},
        preprocess_sha256=preprocess.sha256(),
        seed=seed,
        names=tuple(path.name for path in find_photos(held_out=split == "evaluate")),
    )


def open_images(
    folder: Path, preprocess: Preprocess, inputs: Sequence[TensorSpec], n: int, seed: int
) -> CalibrationData:
    """Return a seeded choice of n pictures of a folder and its subfolders, each preprocessed as for inference."""
    if len(inputs) != 1:
        raise UsageError(f"images feed one input; the graph has {len(inputs)}. Give an .npz with one array per input")
    import_pillow()
    images = list_images(folder)
    order = np.random.default_rng(seed).permutation(len(images))[:n]
    files = [images[i] for i in order]

    def read(start: int, stop: int) -> dict[str, Array]:
        return {inputs[0].name: np.stack([_read_image(path, preprocess, inputs[0]) for path in files[start:stop]])}

    return CalibrationData(
        source=str(folder),
        n=len(files),
        read=read,
        preprocess_sha256=preprocess.sha256(),
        seed=seed,
        label=lambda classes: _label_files(folder, files, classes),
        names=tuple(path.relative_to(folder).as_posix() for path in files),
    )


def list_images(folder: Path) -> list[Path]:
    """Return the pictures in a folder and its subfolders, sorted by their path; hidden ones are left out."""
    with explain_reading(folder):
        paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES and p.is_file())
    paths = [p for p in paths if not any(part.startswith(".") for part in p.relative_to(folder).parts)]
    if not paths:
        raise ArtifactError(f"{folder} holds no images; expected files that end in {', '.join(sorted(IMAGE_SUFFIXES))}")
    return paths


def _read_image(path: Path, preprocess: Preprocess, spec: TensorSpec) -> Array:
    try:
        with import_pillow().open(path) as picture:
            array = preprocess.apply(picture)
    except Exception as error:  # the decoders raise whatever they run into
        raise _explain_image(path, error) from error
    if any(isinstance(want, int) and want != have for want, have in zip(spec.shape[1:], array.shape, strict=False)):
        raise FeedError(
            f"image {path} is prepared as {array.shape}, input {spec.name!r} takes {spec.shape[1:]}. "
            "Give the same input size as at export"
        )
    return array


def find_label_fault(folder: Path, classes: int | None) -> str | None:
    """Return the reason why the pictures of a folder have no labels; None if they have."""
    files = list_images(folder)
    named = any((folder / name).is_file() for name in CLASS_INDEX_NAMES)
    try:
        if classes is not None or named or any(path.parent == folder for path in files):
            _label_files(folder, files, classes)
    except ArtifactError as error:
        return str(error)
    return None


def _label_files(folder: Path, files: Sequence[Path], classes: int | None) -> NDArray[np.int64]:
    names = [path.relative_to(folder).parts[0] for path in files]
    flat = [path.name for path in files if path.parent == folder]
    if flat:
        raise ArtifactError(f"{folder}/{flat[0]} is not in a class folder; expected {folder}/CLASS/{flat[0]}")
    index = read_class_index(folder, classes)
    unknown = sorted({name for name in names if name not in index})
    if unknown:
        raise ArtifactError(f"{folder}: folder {unknown[0]!r} is not in the class index; add it or remove the folder")
    labels = np.array([index[name] for name in names], np.int64)
    if classes is not None and labels.max() >= classes:
        raise ArtifactError(f"{folder}: class {labels.max()} of {classes}; the model does not have so many classes")
    return labels


def read_class_index(folder: Path, classes: int | None) -> dict[str, int]:
    """Return the class number by folder name.

    From `class_index.json` or `imagenet_class_index.json` ({"0": ["n01440764", "tench"]} or {"n01440764": 0}), or
    `classes.txt` (a name on each line, class 0 first). Without such a file the names themselves if all are numbers,
    else their order if there are as many as the model has classes.
    """
    if path := next((folder / name for name in CLASS_INDEX_NAMES if (folder / name).is_file()), None):
        expected = '{"0": ["n01440764", "tench"], ...} or {"n01440764": 0, ...}'
        caught = OSError, RecursionError, ValueError, AttributeError, TypeError, LookupError
        with parsing(path, expected, *caught):
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".txt":
                return {name: i for i, name in enumerate(filter(None, map(str.strip, text.splitlines())))}
            index = json.loads(text)
            if all(isinstance(value, int) for value in index.values()):
                return {str(name): int(i) for name, i in index.items()}
            return {str(value[0]): int(i) for i, value in index.items()}
    folders = sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if folders and all(name.isdecimal() for name in folders):
        return {name: int(name) for name in folders}
    if len(folders) != classes:
        raise ArtifactError(
            f"{folder} has {len(folders)} class folders, the model {classes or 'an unknown number of'} classes: their "
            f"order says nothing. Put a {CLASS_INDEX_NAMES[0]} into it"
        )
    return {name: i for i, name in enumerate(folders)}


def open_arrays(path: Path, inputs: Sequence[TensorSpec], n: int) -> CalibrationData:
    """Open prepared inputs: an .npy for a graph of one input, else an .npz with an array for each input."""
    if path.suffix.lower() == ".npy" and len(inputs) != 1:
        raise FeedError(f"{path} is one array, the graph has {len(inputs)} inputs; give an .npz")
    declared = _name_arrays(path, inputs, declare_arrays(path, EXPECTED))
    lengths = check_arrays(path, declared, inputs)
    if path.suffix.lower() == ".npy":
        arrays: dict[str, Array] = dict.fromkeys(declared, np.lib.format.open_memmap(path, mode="r"))
    else:
        arrays = _name_arrays(path, inputs, read_array_file(path, EXPECTED, entries=n))

    def read(start: int, stop: int) -> dict[str, Array]:
        feeds = {name: np.ascontiguousarray(array[start:stop]) for name, array in arrays.items()}
        for name, array in feeds.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise FeedError(f"{path}: {name!r} holds values that are not finite in entries {start} to {stop - 1}")
        return feeds

    origin = read_origin(path)
    external = explain_external(f"inputs come from {path.name}")
    return CalibrationData(
        source=origin.source if origin else str(path),
        n=min(n, *lengths),
        read=read,
        preprocess_sha256=origin.preprocess_sha256 if origin else EXTERNAL,
        seed=origin.seed if origin else 0,
        warnings=origin.warnings if origin else (external,),
    )


def check_arrays(path: Path, arrays: Mapping[str, Array], inputs: Sequence[TensorSpec]) -> set[int]:
    """Return the number of entries of prepared inputs, as a set of one number, or empty without a batch axis.

    Raises:
        FeedError: the arrays do not fit the inputs.
    """
    problems = list_problems(arrays, inputs, {spec.name: 0 for spec in inputs})
    lengths = {len(array) for array in arrays.values() if array.ndim}
    if len(lengths) > 1:
        problems.append(f"inputs of {', '.join(map(str, sorted(lengths)))} entries")
    if problems:
        expected = ", ".join(f"{s.name}: {s.dtype}{list(s.shape)}" for s in inputs)
        raise FeedError(f"{path}: {'; '.join(problems)}. Expected {expected}, any number of entries on axis 0")
    return lengths


def check_images(folder: Path, n: int, seed: int) -> None:
    """Open the images that `open_images` would choose, and decode the first ones, up to `DECODED_PIXELS`.

    A picture is decoded at a fraction of its size where its format allows that.

    Raises:
        ArtifactError: names the images that cannot be used, the first ones with the reason.
    """
    image, faults = import_pillow(), list[tuple[Path, Exception]]()
    images, pixels_left = list_images(folder), DECODED_PIXELS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", image.DecompressionBombWarning)  # twice its limit is refused
        for index in np.random.default_rng(seed).permutation(len(images))[:n]:
            path = images[index]
            try:
                with image.open(path) as picture:
                    check_depth(picture)
                    pixels_left -= picture.width * picture.height
                    if pixels_left >= 0:
                        picture.draft("RGB", (1, 1))
                        picture.load()
            except Exception as error:  # the decoders raise whatever they run into
                faults.append((path, error))
    if not faults:
        return
    faults.sort(key=lambda fault: fault[0])
    explained = _explain_image(*faults[0])
    if len(faults) > 1:
        named = list_some([f"{path.relative_to(folder)} ({first_line(error)})" for path, error in faults], 5)
        checked = f"{len(faults)} of {min(n, len(images))} images"
        explained = ArtifactError(f"{folder}: {checked} cannot be decoded: {named}. Remove or replace them")
    raise explained from faults[0][1]


def _explain_image(path: Path, error: Exception) -> ArtifactError:
    refuse_pointer(path)
    return ArtifactError(f"image {path} cannot be decoded: {str(error).rstrip('.')}. Remove it or replace it")


def open_input_data(text: str, inputs: Sequence[TensorSpec], n: int | None = None) -> CalibrationData:
    """Open the inputs that `--inputs` names as data."""
    return use_samples(read_entries(text, inputs)[:n], inputs, text)


def use_samples(
    samples: Sequence[Mapping[str, Array]], inputs: Sequence[TensorSpec], source: str = "--inputs"
) -> CalibrationData:
    """Return the user's entries as data: those with the shapes of the first one, since a step has one shape.

    If entries cannot be joined along a first axis (a recording as a whole, states with their layers first, a sampling
    rate), all are used, one at a time.
    """
    apart = _lie_apart(inputs)
    entries = samples if apart else [samples[index] for index in group_samples(samples, len(samples), inputs)[0]]
    return CalibrationData(
        source=source,
        n=len(entries),
        read=lambda start, stop: join_samples(entries[start:stop], inputs, stop - start),
        preprocess_sha256=EXTERNAL,
        warnings=(explain_external(f"inputs come from {source}"),),
        apart=apart,
    )


def _lie_apart(inputs: Sequence[TensorSpec]) -> bool:
    """Return whether an input has no batch as first axis, so that entries cannot be joined to one step."""
    return any(axis != 0 for axis in find_batch_axes(inputs).values())


class _Origin(Struct, frozen=True, kw_only=True):
    source: str
    preprocess_sha256: str | None
    seed: int
    warnings: tuple[ResultWarning, ...] = field(name="caveats")


def read_origin(path: Path) -> _Origin | None:
    """Read the origin of the entries in a file that `keep_batches` wrote; None for any other file."""
    if path.suffix.lower() != ".npz" or ORIGIN_KEY not in declare_arrays(path, EXPECTED):
        return None
    text = str(read_array_file(path, EXPECTED, names=(ORIGIN_KEY,))[ORIGIN_KEY])
    with parsing(path, "what --keep-batches of enginebench calibrate wrote", where=ORIGIN_KEY):
        return msgspec.json.decode(text.encode(), type=_Origin)


def _name_arrays(path: Path, inputs: Sequence[TensorSpec], arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays of a file by the name of their input."""
    if ONLY not in arrays:
        return drop_hidden(arrays)
    if path.suffix.lower() != ".npy":
        raise ParseError(path, "", "a single array", "several arrays by name, as numpy.savez writes them")
    return {inputs[0].name: arrays[ONLY]}


def keep_batches(data: CalibrationData, path: Path) -> None:
    """Write all entries, with their origin, into an .npz that `open_data` reads."""
    if data.apart:
        raise UsageError(
            f"{path}: arrays are kept along their first axis, and not every input of this model has its entries there. "
            "Leave --keep-batches out; --inputs takes them as they are"
        )
    arrays: dict[str, Array] = {}
    for i, feeds in enumerate(data.batches(1)):
        for name, array in feeds.items():
            if name not in arrays:
                arrays[name] = np.empty((data.n, *array.shape[1:]), array.dtype)
            arrays[name][i] = array[0]
    origin = _Origin(
        source=data.source, preprocess_sha256=data.preprocess_sha256, seed=data.seed, warnings=data.warnings
    )
    arrays[ORIGIN_KEY] = np.array(msgspec.json.encode(origin).decode())
    with replace_atomic(path) as file:  # the arrays are too large to be in memory a second time
        np.savez(file, **arrays)  # type: ignore[arg-type]  # NumPy types names as its own options


def hash_while_reading(data: CalibrationData) -> tuple[CalibrationData, Callable[[], str]]:
    """Return the same data, and a function that returns the SHA-256 over all entries read so far.

    The same hash means the same inputs in the same order, in steps of whatever size.
    """
    digest = hashlib.sha256()

    def read(start: int, stop: int) -> dict[str, Array]:
        feeds = data.read(start, stop)
        for entry in range(stop - start):
            for name in sorted(feeds):
                own = feeds[name] if data.apart else feeds[name][entry]
                digest.update(name.encode() + b"\0" + np.ascontiguousarray(own).tobytes())
        return feeds

    return replace(data, read=read), digest.hexdigest
