"""A mix of requests: read from `--traffic`, and its shapes settled by the inputs of the model."""

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.core.records import Artifact, TensorSpec, TrafficCell
from enginebench.core.shapes import (
    BATCH_AXIS,
    concrete_shape,
    find_batch_axes,
    fits_shape,
    format_shape,
    match_axes,
    name_axis,
)

# Cells of a mix: each is built, checked and timed, and more of them change its mean by less than its interval.
MOST_CELLS = 12
# Lines of a file that are read: a day of requests; a longer one is a log, of which a sample does.
MOST_LINES = 1_000_000
# Characters of a line that are read: a file without line ends is none of shapes.
LONGEST_LINE = 10_000
# Less is a slip of the pen: a request in a billion.
LEAST_WEIGHT = 1e-9
_SHAPE = re.compile(r"[1-9]\d{0,8}(x[1-9]\d{0,8})*")
_FORMS = "batch=N, AXIS=N (joined by +), a length, or a whole shape such as 1x128"


class TrafficPart(Struct, frozen=True, kw_only=True):
    """One shape of a mix as the user gave it, before the model's inputs are known."""

    weight: float
    axes: dict[str, int] = {}  # "batch" or the name of a dynamic axis -> its length
    shape: tuple[int, ...] = ()  # of the inputs that have as many axes; of one axis: the length of the only dynamic one


def read_traffic(requested: str | os.PathLike[str] | Mapping[str, float] | None) -> tuple[TrafficPart, ...]:
    """Read a mix: `batch=1:0.7,batch=8:0.3`, {"batch=1": 0.7, ...}, or a file with a length or shape on each line.

    Weights are made to sum to 1; those of a shape that is given twice are added. Lines of a file count by their
    frequency; where they have more than `MOST_CELLS` different shapes, `group_parts` cuts them into as many. A file
    that is there is read, whatever its name looks like.

    Raises:
        UsageError: no such file, a shape that cannot be read, or a weight that is not positive.
    """
    if requested is None:
        return ()
    if isinstance(requested, os.PathLike) or (
        isinstance(requested, str) and (_is_file(Path(requested)) or not _is_mix(requested))
    ):
        return _read_file(Path(requested))
    if not isinstance(requested, str | Mapping):
        raise UsageError(f"--traffic {requested!r}: expected a text, a path, or a dict of shapes with their weights")
    pairs = requested.items() if isinstance(requested, Mapping) else map(_split_weight, requested.split(","))
    parts = [_read_part(str(text).strip(), weight, f"--traffic {text!r}") for text, weight in pairs]
    if not parts:
        raise UsageError("--traffic has no shapes; leave it out")
    if len(parts) > MOST_CELLS:
        raise UsageError(f"--traffic has {len(parts)} shapes, more than {MOST_CELLS}; give a file with one a line")
    return _normalize(parts)


def _is_mix(text: str) -> bool:
    """Whether a text is a mix, not the path of a file."""
    return "=" in text or ":" in text or all(_SHAPE.fullmatch(piece.strip()) for piece in text.split(","))


def _split_weight(text: str) -> tuple[str, float]:
    shape, colon, weight = text.partition(":")
    try:
        return shape, float(weight) if colon else 1.0
    except ValueError:
        raise UsageError(f"--traffic {text!r}: expected SHAPE:WEIGHT with a number, as in batch=8:0.3") from None


def _read_part(text: str, weight: float, where: str) -> TrafficPart:
    if not isinstance(weight, int | float) or not 0 < weight < math.inf:
        raise UsageError(f"{where}: the weight {weight!r} is not a finite number above 0")
    if _SHAPE.fullmatch(text):
        return TrafficPart(weight=float(weight), shape=tuple(map(int, text.split("x"))))
    axes: dict[str, int] = {}
    for piece in text.split("+"):
        name, _, length = piece.strip().rpartition("=")
        if not name or name in axes or not re.fullmatch(r"[1-9]\d{0,8}", length):
            raise UsageError(f"{where}: expected {_FORMS}")
        axes[name] = int(length)
    return TrafficPart(weight=float(weight), axes=axes)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a long mix is no possible name
        return False


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # as of a long mix
        return False


def _read_file(path: Path) -> tuple[TrafficPart, ...]:
    if not _is_file(path) and _exists(path):
        kind = "a folder" if path.is_dir() else "no plain file"
        raise UsageError(f"--traffic {path} is {kind}; expected a text file with one length or shape a line")
    if not _is_file(path):
        raise UsageError(f"--traffic {str(path)[:100]!r} is neither a file nor a mix such as batch=1:0.7,batch=8:0.3")
    counts: Counter[str] = Counter()
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(iter(partial(lines.readline, LONGEST_LINE), ""), 1):
                if number > MOST_LINES:
                    raise UsageError(f"--traffic {path}: more than {MOST_LINES:,} lines; give a sample of them")
                if text := line.strip():
                    counts[text] += 1
                    if counts[text] == 1:
                        _read_part(text, 1.0, f"--traffic {path}, line {number}, {text[:100]!r}")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--traffic {path} cannot be read as text: {error}") from error
    if not counts:
        raise UsageError(f"--traffic {path} is empty: expected one length or shape a line")
    return _normalize(group_parts([_read_part(text, float(n), text) for text, n in counts.items()]))


def group_parts(parts: Sequence[TrafficPart]) -> list[TrafficPart]:
    """Cut a mix of many shapes into `MOST_CELLS` by size: groups of equal weight, each with the size in its middle.

    What is longest along any axis stays as it is, with its own weight: an engine for the mix has to run it.
    """
    if len(parts) <= MOST_CELLS:
        return list(parts)
    names = {tuple(part.axes) or len(part.shape) for part in parts}
    if len(names) > 1:
        raise UsageError(f"--traffic: more than {MOST_CELLS} shapes of several forms; give each line in the same form")
    by_axis = zip(*map(_list_lengths, parts), strict=True)
    longest = {max(zip(lengths, map(_size, parts), range(len(parts)), strict=True))[-1] for lengths in by_axis}
    kept = [parts[i] for i in sorted(longest)]
    ordered = sorted((part for i, part in enumerate(parts) if i not in longest), key=_size)
    count = max(1, MOST_CELLS - len(kept))
    total, done = sum(part.weight for part in ordered), 0.0
    groups: list[list[TrafficPart]] = [[] for _ in range(count)]
    for part in ordered:  # by the middle of its own weight
        groups[min(count - 1, int(count * (done + part.weight / 2) / total))].append(part)
        done += part.weight
    return [*(_take_middle(group) for group in groups if group), *kept]


def _take_middle(group: Sequence[TrafficPart]) -> TrafficPart:
    total, done = sum(part.weight for part in group), 0.0
    for part in group:
        done += part.weight
        if 2 * done >= total:
            return replace(part, weight=total)
    return replace(group[-1], weight=total)


def _size(part: TrafficPart) -> tuple[int, tuple[int, ...]]:
    lengths = _list_lengths(part)
    return math.prod(lengths), lengths


def _list_lengths(part: TrafficPart) -> tuple[int, ...]:
    return (*part.axes.values(), *part.shape)


def _normalize(parts: Sequence[TrafficPart]) -> tuple[TrafficPart, ...]:
    _, exponent = math.frexp(max(part.weight for part in parts))
    scaled = [math.ldexp(part.weight, -exponent) for part in parts]  # the sum of what is finite may not be
    weights = [weight / sum(scaled) for weight in scaled]
    if min(weights) < LEAST_WEIGHT:
        raise UsageError(
            f"--traffic: a fraction of {min(weights):.3g} of the requests is less than {LEAST_WEIGHT:g}, and shows in "
            "no figure; leave that shape out"
        )
    return tuple(replace(part, weight=weight) for part, weight in zip(parts, weights, strict=True))


def settle_traffic(
    parts: Iterable[TrafficPart], inputs: Sequence[TensorSpec], batches: Mapping[str, int | None] | None = None
) -> tuple[TrafficCell, ...]:
    """Return the cells of a mix for the inputs of a model, the smallest first.

    Args:
        batches: {input: its batch axis}, where the inputs do not tell.

    Raises:
        UsageError: an axis that the model does not have or fixes, or a shape that it does not take.
    """
    batch_axes = find_batch_axes(inputs) if batches is None else batches
    settled = [(part, *_settle_part(part, inputs, batch_axes)) for part in parts]
    by_batch = not any(lengths for _, _, lengths in settled)
    cells: dict[tuple[int, str], TrafficCell] = {}
    for part, batch, lengths in settled:
        shapes = {} if by_batch else {s.name: _size_input(s, lengths, batch, batch_axes[s.name]) for s in inputs}
        key = batch, repr(shapes)
        weight = part.weight + (cells[key].weight if key in cells else 0.0)
        cells[key] = TrafficCell(weight=weight, batch=batch, shapes=shapes)
    return tuple(sorted(cells.values(), key=lambda cell: (sum(map(math.prod, cell.shapes.values())), cell.batch)))


def drop_chosen_shapes(artifact: Artifact, parts: Sequence[TrafficPart]) -> Artifact:
    """Return an artifact without the warning that lengths were chosen, where each shape of a mix names all of them."""
    batches = find_batch_axes(artifact.inputs)
    opened = {
        axis
        for s in artifact.inputs
        for i, axis in enumerate(s.shape)
        if isinstance(axis, str) and i != batches[s.name]
    }
    whole = all(part.shape or opened <= part.axes.keys() for part in parts)
    kept = (one for one in artifact.warnings if one.template != "chosen_shapes")
    return replace(artifact, warnings=tuple(kept)) if whole else artifact


def list_open_inputs(artifact: Artifact) -> tuple[TensorSpec, ...]:
    """The inputs of an artifact with their dynamic axes; all axes of a module are."""
    return _free_axes(artifact.inputs) if artifact.kind == "torch" else artifact.inputs


def _free_axes(inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The inputs of a module, which takes any lengths as far as anyone knows; none of its axes has a name."""
    return tuple(
        replace(
            spec,
            shape=tuple(name_axis(spec.name, index) for index in range(len(spec.shape))),
            sizes=tuple(axis if i and isinstance(axis, int) else 0 for i, axis in enumerate(spec.shape)),
        )
        for spec in inputs
    )


def _settle_part(
    part: TrafficPart, inputs: Sequence[TensorSpec], batch_axes: Mapping[str, int | None]
) -> tuple[int, dict[str, int]]:
    """Return (batch, the lengths of dynamic axes that are given)."""
    opened = dict.fromkeys(
        axis
        for spec in inputs
        for i, axis in enumerate(spec.shape)
        if isinstance(axis, str) and i != batch_axes[spec.name]
    )
    batch_names = {BATCH_AXIS, *(spec.shape[i] for spec in inputs if (i := batch_axes[spec.name]) is not None)}
    if len(part.shape) > 1:
        sized = {spec.name: part.shape for spec in inputs if fits_shape(spec.shape, part.shape)}
        text = f"--traffic {format_shape(part.shape)}"
        if not sized:
            taken = ", ".join(f"{spec.name}: {format_shape(spec.shape)}" for spec in inputs)
            raise UsageError(f"{text}: no input takes this shape; the inputs are {taken}")
        batch = next((part.shape[i] for name in sized if (i := batch_axes[name]) is not None), 1)
        lengths = match_axes(inputs, sized, batch_axes)
    else:
        axes = dict(part.axes)
        if part.shape:
            if len(opened) != 1:
                names = f"dynamic axes {', '.join(opened)}; write AXIS=N"
                if not opened:
                    advice = f"--dynamic-axes {inputs[0].name}:1 has one opened" if inputs else "name no length"
                    names = (
                        f"no dynamic axis but the batch, which is written batch={part.shape[0]}. Where a PyTorch "
                        f"model is exported, {advice}"
                    )
                raise UsageError(
                    f"--traffic {part.shape[0]}: a length needs one axis to be of, and the model has {names}"
                )
            axes[next(iter(opened))] = part.shape[0]
        batches = [length for name, length in axes.items() if name in batch_names]
        if len(batches) > 1:
            text = "+".join(f"{name}={length}" for name, length in axes.items())
            raise UsageError(f"--traffic {text}: two of these are the batch; leave one of them out")
        batch = next(iter(batches), 1)
        lengths = {name: length for name, length in axes.items() if name not in batch_names}
    for name in lengths.keys() - opened.keys():
        axes_known = ", ".join([BATCH_AXIS, *opened])
        raise UsageError(
            f"--traffic {name}={lengths[name]}: the model has no dynamic axis {name!r}; it has {axes_known}"
        )
    return batch, lengths


def _size_input(spec: TensorSpec, lengths: Mapping[str, int], batch: int, index: int | None) -> tuple[int, ...]:
    usual = concrete_shape(spec, batch)
    return tuple(
        lengths.get(axis, usual[i]) if isinstance(axis, str) and i != index else usual[i]
        for i, axis in enumerate(spec.shape)
    )
