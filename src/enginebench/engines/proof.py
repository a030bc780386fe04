"""Precision verification from a runtime's own record: fractions of time, layers, and kernels by name."""

import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from statistics import fmean, median
from typing import Any, Literal, NamedTuple

from enginebench.core.errors import MeasurementError
from enginebench.core.names import require_precision
from enginebench.core.precisions import OTHER, REORDER, UNKNOWN, classify_kernel
from enginebench.core.protocols import RunCall
from enginebench.core.recipes import quantizes_weights_only
from enginebench.core.records import Artifact, LayerProfile, LayerTime
from enginebench.core.text import count_of

# Eight bits that are data and no numbers to compute with.
BYTES = "bytes"

# What ONNX Runtime, OpenVINO and PyTorch call the element types, in lower case, whole: a part of a name proves nothing.
# What is not here is "unknown", as is what the record gives no type to (code that a compiler generated).
NAMES = {
    **dict.fromkeys(("float", "float32", "f32", "fp32"), "fp32"),
    **dict.fromkeys(("float16", "f16", "fp16", "half", "c10::half"), "fp16"),
    **dict.fromkeys(("bfloat16", "bf16", "c10::bfloat16"), "bf16"),
    **dict.fromkeys(("int8", "uint8", "i8", "u8", "qint8", "quint8"), "int8"),
    **dict.fromkeys(("fp8", "float8e4m3fn", "float8e5m2", "f8e4m3", "f8e5m2"), "fp8"),
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

# The span around each run that PyTorch's profiler watches.
WATCHED_RUN = "enginebench run"
CUPTI = "CUPTI, through PyTorch's profiler"
KERNELS = "layers are GPU kernels: all launches of one kernel are one layer"


class Operator(NamedTuple):
    """One operator in one run, as a runtime recorded it."""

    dtype: str  # the runtime's name of the element type in which it computed
    time_ns: float
    name: str = ""
    kind: str = ""  # operator type, as the runtime calls it
    nodes: tuple[str, ...] = ()  # of the graph that was loaded: those that it stands for, where the runtime says so
    kernel: str = ""  # of a GPU that did it, where that is not its name already


def relabel_moves(run: Sequence[Operator]) -> list[Operator]:
    """The run with bytes that are only moved under "other", unless something in it computes in INT8.

    In a quantized network they are its values; in any other one they are pictures, masks and the like.
    """
    moved = [o.kind.lower() in MOVES and name_precision(o.dtype) == "int8" for o in run]
    if any(name_precision(o.dtype) == "int8" and not only for o, only in zip(run, moved, strict=True)):
        return list(run)
    return [o._replace(dtype=BYTES) if only else o for o, only in zip(run, moved, strict=True)]


def relabel_weights(run: Sequence[Operator], artifact: Artifact) -> list[Operator]:
    """The run with the kernels of weight-only graphs under the precision of the weights.

    They take and give floats, and the records give no type to weights that were packed.
    """
    if not quantizes_weights_only(artifact.recipe):
        return list(run)
    return [o._replace(dtype=require_precision(artifact.precision)) if o.kind in WEIGHT_KERNELS else o for o in run]


def count_watched_runs(first_run_s: float) -> int:
    """Return the number of runs to watch, from the time of the first one."""
    return max(FEWEST_RUNS, min(MOST_RUNS, int(WATCH_BUDGET_S / max(first_run_s, 1e-9))))


def choose_calm_runs(runs: Sequence[Sequence[Operator]]) -> list[Sequence[Operator]]:
    """The faster half of the runs.

    An interruption falls into one operator and can be a hundred times as long: shares over all runs would be its.
    """
    ranked = sorted(runs, key=lambda operators: sum(operator.time_ns for operator in operators))
    return ranked[: (len(ranked) + 1) // 2]


def prove_precision(runs: Sequence[Sequence[Operator]]) -> dict[str, float]:
    """Return the fraction of time of each precision over the calm runs."""
    return share_times(operator for run in choose_calm_runs(runs) for operator in run)


def share_times(operators: Iterable[Operator]) -> dict[str, float]:
    """Fraction of the total time of each precision, largest first; they add up to 1. Empty if no time was recorded."""
    sums = sum_by_name((name_precision(o.dtype), o.time_ns) for o in operators)
    total = sum(sums.values())
    return {name: sums[name] / total for name in sums if sums[name] > 0}


def sum_by_name(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    """{name: the sum of its times}, largest first."""
    sums: defaultdict[str, float] = defaultdict(float)
    for name, time_ns in pairs:
        sums[name] += time_ns
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def name_precision(dtype: str) -> str:
    """Return the precision of a runtime's name of an element type, "other" or "unknown"."""
    return NAMES.get(dtype.lower(), UNKNOWN)


def summarize_layers(runs: Sequence[Sequence[Operator]], profiler: str, notes: tuple[str, ...] = ()) -> LayerProfile:
    """A runtime's record as layers, of the calm ones of the runs; operators of one name are one layer."""
    calm = choose_calm_runs(runs)
    layers: dict[str, list[Operator]] = {}
    for operator in (operator for run in calm for operator in run if operator.name):
        layers.setdefault(operator.name, []).append(operator)
    if not layers:
        raise MeasurementError(f"{profiler} recorded no layer in {count_of(len(runs), 'runs')}")
    times = [sum_by_name((o.name, o.time_ns) for o in run) for run in calm]
    layers_timed = tuple(_summarize(own, [run.get(name, 0.0) for run in times]) for name, own in layers.items())
    return LayerProfile(layers=layers_timed, runs=len(calm), profiler=profiler, notes=notes)


def _summarize(operators: Sequence[Operator], times_ns: Sequence[float]) -> LayerTime:
    """Summarize one layer; without a precision if its record has no type that computes.

    A layer that also brings values from one layout to another is one that computes, however long that takes.
    """
    sums = sum_by_name((name_precision(o.dtype), o.time_ns) for o in operators)
    longest = next((precision for precision in sums if precision != REORDER), REORDER)
    return LayerTime(
        name=operators[0].name,
        mean_ns=fmean(times_ns),
        median_ns=median(times_ns),
        precision=None if longest in (OTHER, UNKNOWN) else longest,
        kind=max(operators, key=lambda operator: operator.time_ns).kind or None,
        onnx_nodes=operators[0].nodes,
        kernels=tuple(sum_by_name((o.kernel, o.time_ns) for o in operators if o.kernel)),
    )


def can_watch() -> bool:
    """Whether kernels can be recorded here: PyTorch is installed and finds the GPU."""
    if find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def watch_kernels(run: RunCall) -> list[list[Operator]]:
    """Record the kernels of a few runs with CUPTI; needs PyTorch, whatever launches the kernels."""
    return [list_kernel_times(events) for events in record_profile(run, use_device="cuda")]


def summarize_kernels(runs: Sequence[Sequence[Operator]]) -> LayerProfile:
    """The kernels as layers: launches of one kernel are one layer."""
    return summarize_layers(runs, CUPTI, (f"{KERNELS}, since a GPU knows no others",))


def record_profile(
    run: RunCall, *, use_device: Literal["cuda"] | None = None, record_shapes: bool = False
) -> list[list[Any]]:
    """Return the events of each of a few runs, as PyTorch's profiler (Kineto) recorded them; a first run is left out.

    Args:
        use_device: the device whose kernels are recorded, beside what the CPU does.
        record_shapes: whether each event holds the shapes of its inputs.
    """
    import torch

    start = time.perf_counter()
    run()
    count = count_watched_runs(time.perf_counter() - start)
    # What torch.profiler wraps; the wrapper imports the whole of torch.compile, which takes a second or more.
    watched = torch.autograd.profiler.profile(use_kineto=True, use_device=use_device, record_shapes=record_shapes)
    with watched as profiler:
        for _ in range(count):
            with torch.profiler.record_function(WATCHED_RUN):
                run()
    return split_watched_runs(list(profiler.kineto_results.events()))


def split_watched_runs(events: Sequence[Any]) -> list[list[Any]]:
    """The events of each watched run. A run waits for its kernels, so that they start within its span."""
    starts = sorted(e.start_ns() for e in events if e.name() == WATCHED_RUN and not is_device_event(e))
    runs: list[list[Any]] = [[] for _ in starts]
    for event in events:
        run = bisect_right(starts, event.start_ns()) - 1
        if run >= 0 and event.name() != WATCHED_RUN:
            runs[run].append(event)
    return runs


def is_device_event(event: Any) -> bool:
    """Whether an event of the profiler ran on the GPU."""
    return str(event.device_type()).endswith("CUDA")


def list_kernel_times(events: Sequence[Any]) -> list[Operator]:
    """Every kernel among the events, named as it was launched."""
    device = (e for e in events if is_device_event(e))
    return [Operator(classify_kernel(e.name()), float(e.duration_ns()), e.name(), "kernel") for e in device]
