"""Lengths for the axes that a graph leaves open, from their names and places: what to try, the likeliest first.

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
# Heights at which recognizers of text take their lines, and the width that goes with them.
# Source: PP-OCR (rec_image_shape 3,48,320; before version 3: 3,32,320); CRNN and its kin use 64 with a free width.
LINES = {48: 320, 32: 320, 64: 256}
# Squares: of classifiers (ImageNet), then of detectors; all but the last are multiples of 32, the deepest usual stride.
SQUARES = (224, 640, 320, 256, 416, 512, 384, 128, 800, 1024, 64, 32, 28)
# Seconds and chunks of speech at 16 kHz; 512 samples are what streaming detectors of speech take at a time.
STREAMED = (512, 576, 1536, 480, 1600, 1280, 16000)
LENGTHS = {
    "audio": (16000, 512, 1600, 1280, 576, 480, 8000, 32000, 80000, 160000),
    "tokens": (128, 64, 32, 16, 256, 77, 512, 8, 1024),
    "frames": (100, 128, 200, 64, 300, 80, 76, 32, 16, 3000, 500),
    "past": (16, 1),
    "other": (128, 64, 32, 16, 8, 100, 224, 256, 512, 4, 2),
}
# More combinations than this are not tried: by then the graph needs something that its names do not say.
MOST_TRIED = 40


class Knob(Struct, frozen=True):
    """Axes that are set together, and what they may be set to."""

    axes: tuple[str, ...]
    choices: tuple[tuple[int, ...], ...]


def split_words(name: str) -> list[str]:
    """The words of a name: `image_width` and `imageWidth` have two."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return [word for word in re.split(r"[^a-z0-9]+", spaced.lower()) if word]


def find_batches(specs: Sequence[TensorSpec]) -> dict[str, int | None]:
    """{input name: the open axis that is its batch}: one that is called so, else the first, unless that is a length."""
    named = {
        axis for spec in specs for axis in spec.shape if isinstance(axis, str) and BATCH_WORDS & {*split_words(axis)}
    }
    firsts = {spec.shape[0] for spec in specs if spec.shape and isinstance(spec.shape[0], str)}
    known = named or {axis for axis in firsts if not LENGTH_WORDS.keys() & {*split_words(str(axis))}}
    return {spec.name: _find_batch(spec, known) for spec in specs}


def _find_batch(spec: TensorSpec, known: Collection[int | str]) -> int | None:
    """The axis that has a name of a batch; of a recurrent state, which layers come first in, the first open one."""
    opened = [i for i, axis in enumerate(spec.shape) if isinstance(axis, str)]
    if not known or not opened:
        return None
    state = spec.values is not None and not any(spec.values) and opened[0] > 0
    return next((i for i in opened if spec.shape[i] in known), opened[0] if state else None)


def list_knobs(
    specs: Sequence[TensorSpec],
    batches: Mapping[str, int | None],
    *,
    imgsz: tuple[int, int] | None = None,
    classifies: bool = False,
    streams: bool = False,
) -> list[Knob]:
    """Every open axis that is no batch, with what to try for it.

    Args:
        imgsz: height and width that the graph's metadata name.
        classifies: the graph answers with one row of scores: its pictures are smaller than a detector's.
        streams: the graph takes a state along: its sound comes in chunks.
    """
    knobs: dict[tuple[str, ...], Knob] = {}
    seen: set[str] = set()
    for spec in specs:
        opened = [(i, a) for i, a in enumerate(spec.shape) if isinstance(a, str) and i != batches[spec.name]]
        picture = _find_picture(spec)
        if picture and any(i in picture for i, _ in opened):
            knob = _list_pictures(spec, picture, imgsz, classifies)
            knobs.setdefault(knob.axes, knob)
            seen |= {*knob.axes}
        for place, axis in opened:
            if axis not in seen and not _SUM.fullmatch(axis):
                role = _find_role(spec, place, axis)
                choices = STREAMED if streams and role == "audio" else LENGTHS[role]
                knobs.setdefault((axis,), Knob((axis,), tuple((length,) for length in choices)))
                seen.add(axis)
    return list(knobs.values())


def _find_picture(spec: TensorSpec) -> tuple[int, int] | None:
    """The axes of height and width, if the input is a picture."""
    words = [{*split_words(axis)} if isinstance(axis, str) else set() for axis in spec.shape]
    named = [i for i, found in enumerate(words) if found & IMAGE_WORDS]
    if len(named) == 2:
        return named[0], named[1]
    if len(spec.shape) != 4 or any(found & LENGTH_WORDS.keys() for found in words[1:]):
        return None
    if spec.shape[1] in CHANNELS:
        return 2, 3
    return (1, 2) if spec.shape[3] in CHANNELS else None


def _list_pictures(spec: TensorSpec, places: tuple[int, int], imgsz: tuple[int, int] | None, classifies: bool) -> Knob:
    high, wide = (spec.shape[i] for i in places)
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


def _find_role(spec: TensorSpec, place: int, axis: str) -> str:
    words = split_words(axis)
    for word, role in LENGTH_WORDS.items():
        if word in words and not (role == "tokens" and spec.dtype.startswith("float") and len(spec.shape) == 2):
            return role
    if spec.dtype.startswith(("int", "uint")) or spec.values is not None:
        return "tokens"
    if place == len(spec.shape) - 1 and (len(spec.shape) == 2 or spec.shape[1] == 1):
        return "audio"
    return "frames" if len(spec.shape) >= 3 else "other"


def list_sizes(knobs: Sequence[Knob]) -> Iterator[Sizes]:
    """Lengths to try, the likeliest first: all knobs at the same place of their lists, then mixed."""
    longest = max((len(knob.choices) for knob in knobs), default=0)
    even = [tuple(min(i, len(knob.choices) - 1) for knob in knobs) for i in range(longest)]
    ranges = (range(min(len(knob.choices), 5)) for knob in knobs[:4])
    mixed = sorted((*places, *[0] * len(knobs[4:])) for places in itertools.product(*ranges))
    for places in itertools.islice(dict.fromkeys([*even, *sorted(mixed, key=sum)]), MOST_TRIED):
        chosen = (zip(knob.axes, knob.choices[i], strict=True) for knob, i in zip(knobs, places, strict=True))
        yield dict(itertools.chain.from_iterable(chosen))


def guess_sizes(specs: Sequence[TensorSpec], given: Sizes) -> tuple[TensorSpec, ...]:
    """The specs with the likeliest lengths for their open axes, where nothing can be tried; `given` ones win."""
    batches = find_batches(specs)
    (first, *_) = [*list_sizes(list_knobs(specs, batches)), {}]
    return set_sizes(specs, batches, first | given)


# An axis that is called the sum of two others, as in `past_sequence_length + 1`.
_SUM = re.compile(r"\s*([\w.]+)\s*\+\s*([\w.]+)\s*")


def set_sizes(specs: Sequence[TensorSpec], batches: Mapping[str, int | None], sizes: Sizes) -> tuple[TensorSpec, ...]:
    """The specs with lengths for their open axes; one that has nothing open beside a first axis stays as it is."""

    def find(spec: TensorSpec, place: int, axis: int | str) -> int:
        if isinstance(axis, int) or place == batches[spec.name]:
            return 0
        if not (found := _SUM.fullmatch(axis)):
            return sizes[axis]
        return sum(int(part) if part.isdecimal() else sizes.get(part, 1) for part in found.groups())

    def set_lengths(spec: TensorSpec) -> TensorSpec:
        opened = [i for i, axis in enumerate(spec.shape) if isinstance(axis, str)]
        if not opened or opened == [0] == [batches[spec.name]]:
            return spec
        return replace(spec, sizes=tuple(find(spec, i, axis) for i, axis in enumerate(spec.shape)))

    return tuple(map(set_lengths, specs))
