"""The layers of a built engine, their times, and the differences between two engines, as they are stored."""

import re
from collections.abc import Callable, Iterable
from typing import Literal, TypeVar

from msgspec import Struct

from enginebench.core.precisions import REORDER, UNKNOWN

T = TypeVar("T")

PROFILE_SCHEMA = "enginebench.parse-profile/1"
LAYERS_SCHEMA = "enginebench.parse-layers/1"


class ProfiledLayer(Struct, frozen=True, kw_only=True):
    """Time of one layer over all profiled iterations."""

    name: str
    total_ms: float | None
    average_ms: float | None
    median_ms: float | None = None
    share: float | None = None  # of the sum over all layers, 0 to 1
    position: int | None = None  # in the file, which has the order of the engine


class ProfileDocument(Struct, frozen=True, kw_only=True):
    """A layer profile, slowest layer first."""

    schema: str = PROFILE_SCHEMA
    path: str
    model: str | None = None
    precision: str | None = None
    batch: int | None = None
    count: int | None
    total_ms: float
    average_ms: float | None  # of one iteration: sum of the layers' averages
    layers: tuple[ProfiledLayer, ...]
    end_to_end_ms: float | None = None  # median GPU compute time without the profiler
    remainder_ms: float | None = None  # end_to_end_ms - average_ms: what no layer explains (negative: profiler cost)
    duplicates_merged: int = 0
    names_repaired: int = 0
    nonfinite: int = 0
    notes: tuple[str, ...] = ()


class LayerTensor(Struct, frozen=True, kw_only=True):
    """A tensor at the edge of a layer. `dtype` is "fp32", "int8", ... or None where the engine does not say."""

    name: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    format: str | None = None


class EngineLayer(Struct, frozen=True, kw_only=True):
    name: str
    type: str | None = None
    precision: str | None = None  # in which it computes
    precision_in: str | None = None
    precision_out: str | None = None
    inputs: tuple[LayerTensor, ...] = ()
    outputs: tuple[LayerTensor, ...] = ()
    onnx_nodes: tuple[str, ...] = ()
    tactic: str | None = None
    overhead: bool = False  # a reformat, cast or copy: moves data, computes nothing
    average_ms: float | None = None
    share: float | None = None  # of time, when a profile was given

    @property
    def counted_as(self) -> str:
        """The name under which tables by precision have its time."""
        return REORDER if self.overhead else self.precision or UNKNOWN


class LayerGroup(Struct, frozen=True, kw_only=True):
    """Layers that share a type or a precision."""

    layers: int
    share: float | None  # of time with a profile, else of the number of layers
    average_ms: float | None = None


class EngineTensor(Struct, frozen=True, kw_only=True):
    name: str
    mode: Literal["input", "output"] | None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


class DiffSide(Struct, frozen=True, kw_only=True):
    """The layers of one engine for a group of ONNX operators."""

    layers: tuple[str, ...]
    precision: str | None
    average_ms: float | None
    overhead_ms: float | None  # of reformats, casts and copies, part of average_ms


class LayerDelta(Struct, frozen=True, kw_only=True):
    """The same ONNX operators in two engines; `delta_ms` is candidate minus base."""

    onnx_nodes: tuple[str, ...]
    base: DiffSide | None
    candidate: DiffSide | None
    delta_ms: float | None


class DiffTotals(Struct, frozen=True, kw_only=True):
    """One iteration of both engines in ms, over all layers of their profiles."""

    base_ms: float
    candidate_ms: float
    delta_ms: float
    base_overhead_ms: float
    candidate_overhead_ms: float


class LayersDocument(Struct, frozen=True, kw_only=True):
    """An engine's layers, and with a profile where its time goes."""

    schema: str = LAYERS_SCHEMA
    path: str
    model: str | None = None
    precision: str | None = None
    batch: int | None = None
    layers: tuple[EngineLayer, ...]
    by_precision: dict[str, LayerGroup]
    by_type: dict[str, LayerGroup]
    overhead: LayerGroup
    io: tuple[EngineTensor, ...]
    shares_of: Literal["time", "layers"] = "layers"
    diff: tuple[LayerDelta, ...] | None = None
    diff_matched_by: Literal["name", "order"] | None = None
    diff_totals: DiffTotals | None = None
    notes: tuple[str, ...] = ()


def sum_times(layers: Iterable[EngineLayer]) -> float:
    """Milliseconds of one iteration in some of the layers."""
    return sum(layer.average_ms or 0.0 for layer in layers)


def group_layers(
    layers: Iterable[T], key: Callable[[T], str], measure: Callable[[list[T]], LayerGroup]
) -> dict[str, LayerGroup]:
    """key -> its layers' number, time and share, largest share first."""
    groups: dict[str, list[T]] = {}
    for layer in layers:
        groups.setdefault(key(layer), []).append(layer)
    measured = {name: measure(group) for name, group in groups.items()}
    return dict(sorted(measured.items(), key=lambda pair: -(pair[1].share or 0.0)))


_METADATA = re.compile(r"\[ONNX Layer: (.*?)\](?=[\x1e\x1f\s\[]|$)", re.DOTALL)
_REFORMAT = re.compile(r"^Reformatting CopyNode for (?:Input|Output) Tensor \d+ to ")
# Names that TensorRT makes up while it lowers a graph; no operator of the model has them.
_MADE_UP = re.compile(
    r"^\(Unnamed Layer|^(?:copied_)?(?:un)?squeeze_(?:node_)?after_|^(?:reshape|shuffle|transpose)_(?:before|after)_"
    r"|^__myl|\.(?:weight|bias)$",  # and parameters, which PyTorch names so
    re.IGNORECASE,
)
# Longer than any fused name that was seen (a whole transformer in one Myelin layer has some 20 kB); what is longer
# is cut so that hostile files cost no time.
_MAX_NAME = 1 << 20


def read_layer_metadata(text: str | None) -> tuple[str, ...]:
    """Return the operators in a layer's `Metadata`.

    Each has the form "[ONNX Layer: /conv/Conv]"; they are separated by the control characters 0x1E (groups) and 0x1F
    (members).
    """
    nodes: list[str] = []
    for match in _METADATA.finditer((text or "")[:_MAX_NAME]):
        nodes += [node.strip() for node in match[1].split(" + ")]
    return tuple(dict.fromkeys(node for node in nodes if node))


def split_name(name: str) -> tuple[str, ...]:
    """Return the operators in a fused name: "Conv_0 + Relu_1", "Conv_1 || Conv_2", "PWN(PWN(Sigmoid_3), Mul_4)".

    A reformat layer has no operator. Names that TensorRT made up are left out.
    """
    name = name[:_MAX_NAME]
    if _REFORMAT.match(name):
        return ()
    nodes: list[str] = []
    for part in re.split(r" \+ | \|\| ", name):
        nodes += unwrap(part.strip())
    return tuple(dict.fromkeys(node for node in nodes if node and not _MADE_UP.search(node)))


def unwrap(part: str) -> list[str]:
    """The operators inside PWN(...) and {ForeignNode[a...b]}."""
    if part.startswith("PWN("):
        return [piece.strip(" ()") for piece in part.replace("PWN(", "").split(",")]
    if "ForeignNode[" in part:
        inner = part.split("ForeignNode[", 1)[1].rstrip("]}")
        return [piece for piece in inner.split("...") if piece]
    return [part]


def strip_reformat(name: str) -> str | None:
    """X of "Reformatting CopyNode for Input Tensor 0 to X", or None."""
    match = _REFORMAT.match(name)
    return name[match.end() :] if match else None
