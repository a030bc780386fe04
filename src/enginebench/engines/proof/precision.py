"""Shares of time by precision, from what a runtime recorded about its own operators."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from enginebench.core.names import known
from enginebench.core.precisions import OTHER, REORDER, UNKNOWN
from enginebench.core.recipes import quantizes_weights_only
from enginebench.core.records import Artifact

# Eight bits that are data and no numbers to compute with.
BYTES = "bytes"

# What ONNX Runtime, OpenVINO and PyTorch call the element types, in lower case, whole: a part of a name proves nothing.
# What is not here is "unknown", as is what the record gives no type to (code that a compiler generated).
NAMES = {
    **dict.fromkeys(("float", "float32", "f32", "fp32"), "fp32"),
    **dict.fromkeys(("float16", "f16", "fp16", "half", "c10::half"), "fp16"),
    **dict.fromkeys(("bfloat16", "bf16", "c10::bfloat16"), "bf16"),
    **dict.fromkeys(("int8", "uint8", "i8", "u8", "qint8", "quint8"), "int8"),
    **dict.fromkeys(("float8e4m3fn", "float8e5m2", "f8e4m3", "f8e5m2"), "fp8"),
    **dict.fromkeys(("int4", "uint4", "i4", "u4"), "int4"),
    "tf32": "tf32",
    **dict.fromkeys((f"{kind}{bits}" for kind in ("int", "uint", "i", "u") for bits in (16, 32, 64)), OTHER),
    **dict.fromkeys(("bool", "boolean", "string", "double", "float64", "f64"), OTHER),
    **dict.fromkeys(("int", "long", "long int", "long long", "short", "signed char", "unsigned char"), OTHER),
    BYTES: OTHER,
    REORDER: REORDER,
}

# Operators, as ONNX Runtime and OpenVINO call them, that put values elsewhere and compute nothing with them; also what
# turns bytes into floats: of a fused "subgraph" OpenVINO records the type of what goes in.
MOVES = frozenset(
    (
        *("concat", "concatenation", "split", "slice", "stridedslice", "pad", "tile", "expand", "broadcast", "gather"),
        *("gatherelements", "gathernd", "scatterelements", "scatternd", "where", "transpose", "depthtospace"),
        *("spacetodepth", "reshape", "flatten", "squeeze", "unsqueeze", "identity", "shape", "shapeof"),
        *("subgraph", "convert", "cast"),
    )
)

# Kernels on weights of few bits, as ONNX Runtime and OpenVINO call them. Where a graph is not fused, there are none.
WEIGHT_KERNELS = frozenset(("MatMulNBits", "FullyConnectedCompressed"))

# Runs watched for a proof, after one that is not counted: as many as fit into a second. The counters tick in whole
# microseconds, so that operators of a small network need many; five show a large one well enough.
WATCH_BUDGET_S = 1.0
FEWEST_RUNS, MOST_RUNS = 5, 50


class Operator(NamedTuple):
    """One operator in one run, as a runtime recorded it."""

    dtype: str  # the runtime's name of the element type in which it computed
    time_ns: float
    name: str = ""
    kind: str = ""  # operator type, as the runtime calls it
    nodes: tuple[str, ...] = ()  # of the graph that was loaded: those that it stands for, where the runtime says so
    kernel: str = ""  # of a GPU that did it, where that is not its name already


def settle_moves(run: Sequence[Operator]) -> list[Operator]:
    """The run with bytes that are only moved under "other", unless something in it computes in INT8.

    In a quantized network they are its values; in any other one they are pictures, masks and the like.
    """
    moved = [o.kind.lower() in MOVES and name_precision(o.dtype) == "int8" for o in run]
    if any(name_precision(o.dtype) == "int8" and not only for o, only in zip(run, moved, strict=True)):
        return list(run)
    return [o._replace(dtype=BYTES) if only else o for o, only in zip(run, moved, strict=True)]


def settle_weights(run: Sequence[Operator], artifact: Artifact) -> list[Operator]:
    """The run with the kernels of weight-only graphs under the precision of the weights.

    They take and give floats, and the records give no type to weights that were packed.
    """
    if not quantizes_weights_only(artifact.recipe):
        return list(run)
    return [o._replace(dtype=known(artifact.precision)) if o.kind in WEIGHT_KERNELS else o for o in run]


def count_watched_runs(first_run_s: float) -> int:
    """How many runs to watch, by how long the first one took."""
    return max(FEWEST_RUNS, min(MOST_RUNS, int(WATCH_BUDGET_S / max(first_run_s, 1e-9))))


def choose_calm_runs(runs: Sequence[Sequence[Operator]]) -> list[Sequence[Operator]]:
    """The faster half of the runs.

    An interruption falls into one operator and can be a hundred times as long: shares over all runs would be its.
    """
    ranked = sorted(runs, key=lambda operators: sum(operator.time_ns for operator in operators))
    return ranked[: (len(ranked) + 1) // 2]


def prove_precision(runs: Sequence[Sequence[Operator]]) -> dict[str, float]:
    """Share of time of each precision over the calm ones of the runs."""
    return share_times(operator for run in choose_calm_runs(runs) for operator in run)


def share_times(operators: Iterable[Operator]) -> dict[str, float]:
    """Fraction of the total time of each precision, largest first; they add up to 1. Empty if no time was recorded."""
    sums: defaultdict[str, float] = defaultdict(float)
    for operator in operators:
        sums[name_precision(operator.dtype)] += operator.time_ns
    total = sum(sums.values())
    ranked = sorted(sums.items(), key=lambda item: -item[1])
    return {name: time / total for name, time in ranked if time > 0}


def name_precision(dtype: str) -> str:
    """The precision that a runtime's name of an element type stands for, "other" or "unknown"."""
    return NAMES.get(dtype.lower(), UNKNOWN)
