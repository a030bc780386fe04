"""Guess lengths for the dynamic axes of a graph from their names and positions, the likeliest first.

Nothing here opens a graph; `models/onnx/inputs.py` tries the lengths and keeps those that every operator accepts.
"""

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.records import TensorSpec

Sizes = dict[str, int]

BATCH_WORDS = frozenset({"batch", "batchsize", "bs", "n"})
LENGTH_WORDS = {
    "past": "past",
    **dict.fromkeys(("sequence", "seq", "seqlen", "tokens", "token", "length"), "tokens"),
    **dict.fromkeys(("samples", "sample", "audio", "wave"), "audio"),
    **dict.fromkeys(("frames", "frame", "time"), "frames"),
}
IMAGE_WORDS = frozenset({"height", "width", "h", "w"})
CHANNELS = (1, 3, 4)
# Heights of the lines that text recognizers take, each with its width.
# Source: PP-OCR (rec_image_shape 3,48,320; before version 3: 3,32,320); CRNN and its kin use 64 with a free width.
LINES = {48: 320, 32: 320, 64: 256}
# Squares: of classifiers (ImageNet), then of detectors; all but the last are multiples of 32, the deepest usual stride.
SQUARES = (224, 640, 320, 256, 416, 512, 384, 128, 800, 1024, 64, 32, 28)
# Samples of speech at 16 kHz: streaming detectors take 512 at a time.
STREAMED = (512, 576, 1536, 480, 1600, 1280, 16000)
LENGTHS = {
    "audio": (16000, 512, 1600, 1280, 576, 480, 8000, 32000, 80000, 160000),
    "tokens": (128, 64, 32, 16, 256, 77, 512, 8, 1024),
    "frames": (100, 128, 200, 64, 300, 80, 76, 32, 16, 3000, 500),
    "past": (16, 1),
    "other": (128, 64, 32, 16, 8, 100, 224, 256, 512, 4, 2),
}
# More combinations than this are not tried: by then the graph needs something that its names do not show.
MOST_TRIED = 40


class Knob(Struct, frozen=True):
    """Axes that are set together, and the lengths to choose from."""

    axes: tuple[str, ...]
    choices: tuple[tuple[int, ...], ...]


def split_words(name: str) -> list[str]:
    """Split a name into words: `image_width` and `imageWidth` have two."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return [word for word in re.split(r"[^a-z0-9]+", spaced.lower()) if word]


def find_batches(specs: Sequence[TensorSpec]) -> dict[str, int | None]:
    """Return {input name: its batch axis}: one that is named so, else the first, unless that is a length."""
    named = {
        axis for spec in specs for axis in spec.shape if isinstance(axis, str) and BATCH_WORDS & {*split_words(axis)}
    }
    firsts = {spec.shape[0] for spec in specs if spec.shape and isinstance(spec.shape[0], str)}
    batch_axes = named or {axis for axis in firsts if not LENGTH_WORDS.keys() & {*split_words(str(axis))}}
    return {spec.name: _find_batch(spec, batch_axes) for spec in specs}


def _find_batch(spec: TensorSpec, batch_axes: Collection[int | str]) -> int | None:
    """Return the axis named like a batch; of a recurrent state, whose first axis is the layers, the first open one."""
    open_axes = [i for i, axis in enumerate(spec.shape) if isinstance(axis, str)]
    if not batch_axes or not open_axes:
        return None
    state = spec.values is not None and not any(spec.values) and open_axes[0] > 0
    return next((i for i in open_axes if spec.shape[i] in batch_axes), open_axes[0] if state else None)


def list_knobs(
    specs: Sequence[TensorSpec],
    batches: Mapping[str, int | None],
    *,
    imgsz: tuple[int, int] | None = None,
    classifies: bool = False,
    streams: bool = False,
) -> list[Knob]:
    """Return every dynamic axis but the batch, with the lengths to try for it.

    Args:
        imgsz: height and width in the graph's metadata.
        classifies: the graph returns one vector of scores: its pictures are smaller than a detector's.
        streams: the graph takes a state as input: its sound comes in chunks.
    """
    knobs: dict[tuple[str, ...], Knob] = {}
    listed: set[str] = set()
    for spec in specs:
        open_axes = [(i, a) for i, a in enumerate(spec.shape) if isinstance(a, str) and i != batches[spec.name]]
        picture = _find_picture(spec)
        if picture and any(i in picture for i, _ in open_axes):
            knob = _list_pictures(spec, picture, imgsz, classifies)
            knobs.setdefault(knob.axes, knob)
            listed |= {*knob.axes}
        for index, axis in open_axes:
            if axis not in listed and not _SUM.fullmatch(axis):
                role = _find_role(spec, index, axis)
                choices = STREAMED if streams and role == "audio" else LENGTHS[role]
                knobs.setdefault((axis,), Knob((axis,), tuple((length,) for length in choices)))
                listed.add(axis)
    return list(knobs.values())


def _find_picture(spec: TensorSpec) -> tuple[int, int] | None:
    """Return the axes of height and width; None if the input is not a picture."""
    words = [{*split_words(axis)} if isinstance(axis, str) else set() for axis in spec.shape]
    named = [i for i, axis_words in enumerate(words) if axis_words & IMAGE_WORDS]
    if len(named) == 2:
        return named[0], named[1]
    if len(spec.shape) != 4 or any(axis_words & LENGTH_WORDS.keys() for axis_words in words[1:]):
        return None
    if spec.shape[1] in CHANNELS:
        return 2, 3
    return (1, 2) if spec.shape[3] in CHANNELS else None


def _list_pictures(spec: TensorSpec, axes: tuple[int, int], imgsz: tuple[int, int] | None, classifies: bool) -> Knob:
    high, wide = (spec.shape[i] for i in axes)
    squares = SQUARES if classifies else (640, *(s for s in SQUARES if s != 640))
    if isinstance(high, int):
        widths = dict.fromkeys((LINES.get(high, high), high, *squares))
        return Knob((str(wide),), tuple((w,) for w in widths))
    if isinstance(wide, int):
        return Knob((str(high),), tuple((h,) for h in dict.fromkeys((wide, *squares))))
    if high == wide:
        return Knob((high,), tuple((s,) for s in squares))
    pairs = [(s, s) for s in squares]
    pairs[2:2] = [*LINES.items(), (48, 192)]  # after the two likeliest squares, which a recognizer of lines refuses
    return Knob((high, wide), tuple(dict.fromkeys(([imgsz] if imgsz else []) + pairs)))


def _find_role(spec: TensorSpec, index: int, axis: str) -> str:
    words = split_words(axis)
    for word, role in LENGTH_WORDS.items():
        if word in words and not (role == "tokens" and spec.dtype.startswith("float") and len(spec.shape) == 2):
            return role
    if spec.dtype.startswith(("int", "uint")) or spec.values is not None:
        return "tokens"
    if index == len(spec.shape) - 1 and (len(spec.shape) == 2 or spec.shape[1] == 1):
        return "audio"
    return "frames" if len(spec.shape) >= 3 else "other"


def list_sizes(knobs: Sequence[Knob]) -> Iterator[Sizes]:
    """Yield lengths to try, the likeliest first: the same index in the choices of all knobs, then mixed ones."""
    longest = max((len(knob.choices) for knob in knobs), default=0)
    even = [tuple(min(i, len(knob.choices) - 1) for knob in knobs) for i in range(longest)]
    ranges = (range(min(len(knob.choices), 5)) for knob in knobs[:4])
    mixed = sorted((*chosen, *[0] * len(knobs[4:])) for chosen in itertools.product(*ranges))
    for chosen in itertools.islice(dict.fromkeys([*even, *sorted(mixed, key=sum)]), MOST_TRIED):
        pairs = (zip(knob.axes, knob.choices[i], strict=True) for knob, i in zip(knobs, chosen, strict=True))
        yield dict(itertools.chain.from_iterable(pairs))


def guess_sizes(specs: Sequence[TensorSpec], requested: Sizes) -> tuple[TensorSpec, ...]:
    """Return the specs with the likeliest lengths for their dynamic axes, untried; `requested` ones take precedence."""
    batches = find_batches(specs)
    (first, *_) = [*list_sizes(list_knobs(specs, batches)), {}]
    return set_sizes(specs, batches, first | requested)


# An axis whose name is the sum of two others, as in `past_sequence_length + 1`.
_SUM = re.compile(r"\s*([\w.]+)\s*\+\s*([\w.]+)\s*")


def set_sizes(specs: Sequence[TensorSpec], batches: Mapping[str, int | None], sizes: Sizes) -> tuple[TensorSpec, ...]:
    """Return the specs with lengths for their dynamic axes; one whose only dynamic axis is the batch stays as it is."""

    def find(spec: TensorSpec, index: int, axis: int | str) -> int:
        if isinstance(axis, int) or index == batches[spec.name]:
            return 0
        if not (match := _SUM.fullmatch(axis)):
            return sizes[axis]
        return sum(int(part) if part.isdecimal() else sizes.get(part, 1) for part in match.groups())

    def set_lengths(spec: TensorSpec) -> TensorSpec:
        open_axes = [i for i, axis in enumerate(spec.shape) if isinstance(axis, str)]
        if not open_axes or open_axes == [0] == [batches[spec.name]]:
            return spec
        return replace(spec, sizes=tuple(find(spec, i, axis) for i, axis in enumerate(spec.shape)))

    return tuple(map(set_lengths, specs))
