"""From the options of a user, on the command line or in a program, to the records of verbs: defaults and checks."""

import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from enginebench.core.entry import find_kind
from enginebench.core.errors import UsageError
from enginebench.core.features import require_hook
from enginebench.core.hooks import TrtexecChoice
from enginebench.core.records import Normalize, Scope
from enginebench.core.shapes import join_axes
from enginebench.engines.registry import list_unasked
from enginebench.runs.folder import RunRequest, allow_request, check_named_files
from enginebench.runs.plan import check_engines_here

# The percentiles where none are named.
PERCENTILES = (50.0, 90.0, 95.0, 99.0)

_DEVICE = re.compile(r"cpu|cuda(?::(\d{1,3}))?")


def validate_request(request: RunRequest) -> None:
    """Check a complete request before anything is waited for or built, and allow the code that its user named."""
    allow_request(request)
    check_named_files(request)
    check_engines_here(request.engines, request.precisions, request.device)


def name_default_engines(device: str, scope: Scope = "compute") -> str:
    return ",".join(list_unasked(find_kind(device), scope))


def parse_device(text: str) -> str:
    """`cpu` or `cuda:N` (`cuda` is `cuda:0`)."""
    match = _DEVICE.fullmatch(text.strip().lower())
    if match is None:
        raise UsageError(f"{text!r} is neither cpu nor cuda:N, for example cuda:0")
    return "cpu" if match[0] == "cpu" else f"cuda:{int(match[1] or 0)}"


def use_trtexec(path: str | None, engines: Iterable[str] | None) -> None:
    """Make `path` the executable, if it is named and one of these engines needs it; None: a stored run knows them."""
    if path is None:
        return
    if engines is not None and "trtexec" not in engines:
        unused = "the engine trtexec, which this command does not use; leave it out"
        raise UsageError(f"--trtexec sets the executable of {unused}")
    require_hook(TrtexecChoice)(path)


def merge_options(engine: str, own: dict[str, str], added: dict[str, str]) -> dict[str, str]:
    for key in own.keys() & added.keys():
        if own[key] != added[key]:
            contradiction = f"{engine}:{key}={own[key]} contradicts {key}={added[key]}"
            raise UsageError(f"{contradiction}, which another option sets; keep one")
    return {**own, **added}


def join_argv(extra: Sequence[str]) -> str:
    """All arguments of --extra as one option's text; each may hold several, quoted as for a shell."""
    try:
        return shlex.join(piece for text in extra for piece in shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--extra {' '.join(extra)!r}: {error}; close the quotation") from error


def name_settings(cuda_graph: bool | None, profile_index: int | None, extra: Sequence[str]) -> dict[str, str]:
    """Make an engine's options from those that have flags of their own in `bench`."""
    settings = {
        "graph": None if cuda_graph is None else str(int(cuda_graph)),
        "profile_index": None if profile_index is None else str(profile_index),
        "run_extra": join_argv(extra) or None,
    }
    return {key: value for key, value in settings.items() if value is not None}


def pass_on(engines: Iterable[tuple[str, dict[str, str]]], extra: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
    """Add the arguments of --extra to the engine trtexec; raises UsageError if no engine is trtexec."""
    listed, added = list(engines), name_settings(None, None, extra)
    if added and all(name != "trtexec" for name, _ in listed):
        raise UsageError(
            f"{added['run_extra']}: --extra and further arguments are for the engine trtexec, "
            "which this command does not use"
        )
    return [(name, merge_options(name, own, added) if name == "trtexec" else own) for name, own in listed]


def choose_drop(of_metric: float | None, top1_points: float | None, metrics: Sequence[str] = ()) -> float | None:
    """The largest allowed drop of the deciding metric: in its own unit, or from points of top-1 accuracy."""
    if top1_points is None:
        return of_metric
    if of_metric is not None:
        raise UsageError("--max-top1-drop and --max-metric-drop set the same limit; give one")
    if metrics and metrics[0] != "top1":
        raise UsageError(f"--max-top1-drop is about top1, and {metrics[0]} decides; give --max-metric-drop")
    return top1_points / 100


def parse_axes(texts: Iterable[str]) -> dict[str, tuple[int, ...]]:
    axes: dict[str, tuple[int, ...]] = {}
    for text in (piece.strip() for t in texts for piece in t.split(",")):
        name, _, axis = text.rpartition(":")
        if not name or not axis.isdecimal():
            raise UsageError(f"--dynamic-axes {text!r}: expected NAME:AXIS, axes counted from 0, such as ids:1")
        axes[name] = tuple(dict.fromkeys((*axes.get(name, ()), int(axis))))
    return axes


def read_buckets(
    input_shape: str | Sequence[str] | Mapping[str, Sequence[int]] | None,
) -> tuple[dict[str, tuple[int, ...]], ...]:
    """Read --input-shape: a {name: shape} for each of its shapes, from texts or from such a mapping; () of none."""
    if not isinstance(input_shape, Mapping):
        return parse_buckets((input_shape,) if isinstance(input_shape, str) else input_shape or ())
    for name, shape in input_shape.items():
        if not shape or not all(isinstance(axis, int) and axis > 0 for axis in shape):
            fault = f"{tuple(shape)!r} is not a shape; expected positive whole numbers"
            raise UsageError(f"--input-shape {name}: {fault}")
    return ({name: tuple(shape) for name, shape in input_shape.items()},) if input_shape else ()


def parse_buckets(texts: Iterable[str]) -> tuple[dict[str, tuple[int, ...]], ...]:
    """Parse a {name: shape} for each shape of `ids:1x16,1x128`; a shape without a name belongs to the input before it.

    Several inputs have the same number of shapes each, or one that goes with all of them.
    """
    shapes_by_input: dict[str, list[tuple[int, ...]]] = {}
    name = ""
    for text in (piece.strip() for t in texts for piece in join_axes(t).split(",")):
        before, colon, dims = text.rpartition(":")
        name = before if colon else name
        try:
            shape = tuple(int(d) for d in dims.split("x"))
        except ValueError:
            shape = ()
        if not name or not shape or min(shape) < 1:
            raise UsageError(f"--input-shape {text!r}: expected NAME:1x3x224x224 with positive numbers")
        shapes_by_input.setdefault(name, []).append(shape)
    counts = {len(shapes) for shapes in shapes_by_input.values()} - {1}
    if len(counts) > 1:
        lengths = ", ".join(f"{name} has {len(shapes)}" for name, shapes in shapes_by_input.items())
        raise UsageError(f"--input-shape: {lengths} shapes; give each input as many, or one for all")
    count = max(counts, default=1) if shapes_by_input else 0
    return tuple({name: shapes[i % len(shapes)] for name, shapes in shapes_by_input.items()} for i in range(count))


def read_normalize(dtype: str | None, text: str | None) -> Normalize | None:
    """Parse --input-dtype and --normalize."""
    if dtype is None and text is not None:
        raise UsageError("--normalize is for --input-dtype uint8; give both or neither")
    name, _, numbers = (text or "").rpartition(":")
    try:
        mean, std = ([255 * float(n) for n in part.split(",")] for part in numbers.split("/")) if text else ((), ())
        if len(mean) != len(std) or not all(map(math.isfinite, (*mean, *std))) or any(value <= 0 for value in std):
            raise ValueError
    except ValueError as error:
        raise UsageError(
            f"--normalize {text}: expected MEAN/STD or NAME:MEAN/STD, a number for each channel, of pixels scaled to 0 "
            "to 1, as in 0.485,0.456,0.406/0.229,0.224,0.225"
        ) from error
    return None if dtype is None else Normalize(mean=tuple(mean), std=tuple(std), input=name)


def choose_batches(requested: tuple[int, ...] | None, shapes: dict[str, tuple[int, ...]] | None) -> tuple[int, ...]:
    """Choose the batches: those of --batch, else the first axis that all shapes of --input-shape share, else 1."""
    firsts = {shape[0] for shape in (shapes or {}).values()}
    first = firsts.pop() if len(firsts) == 1 else None
    if requested is None:
        return (first or 1,)
    if first is not None and first not in (1, *requested):
        listed = ", ".join(map(str, requested))
        raise UsageError(f"the first axis of --input-shape is {first}, but --batch is {listed}; make them equal")
    return requested
