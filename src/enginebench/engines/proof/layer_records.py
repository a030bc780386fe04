"""A runtime's record of its operators as layers: one line a name, in one vocabulary for every engine."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, median

from enginebench.core.errors import MeasurementError
from enginebench.core.precisions import OTHER, REORDER, UNKNOWN
from enginebench.core.records import LayerProfile, LayerTime
from enginebench.core.text import count_of
from enginebench.engines.proof.precision import Operator, choose_calm_runs, name_precision


def summarize_layers(runs: Sequence[Sequence[Operator]], profiler: str, notes: tuple[str, ...] = ()) -> LayerProfile:
    """The layers of the calm ones of the runs; operators of one name are one layer."""
    calm = choose_calm_runs(runs)
    layers: dict[str, list[Operator]] = {}
    for operator in (operator for run in calm for operator in run if operator.name):
        layers.setdefault(operator.name, []).append(operator)
    if not layers:
        raise MeasurementError(f"{profiler} recorded no layer in {count_of(len(runs), 'runs')}")
    times = [_add_times(run) for run in calm]
    return LayerProfile(
        layers=tuple(
            _summarize(name, operators, [run.get(name, 0.0) for run in times]) for name, operators in layers.items()
        ),
        runs=len(calm),
        profiler=profiler,
        notes=notes,
    )


def _add_times(run: Sequence[Operator]) -> dict[str, float]:
    sums: defaultdict[str, float] = defaultdict(float)
    for operator in run:
        sums[operator.name] += operator.time_ns
    return sums


def _summarize(name: str, operators: Sequence[Operator], times_ns: Sequence[float]) -> LayerTime:
    return LayerTime(
        name=name,
        mean_ns=fmean(times_ns),
        median_ns=median(times_ns),
        precision=_find_precision(operators),
        kind=max(operators, key=lambda operator: operator.time_ns).kind or None,
        onnx_nodes=operators[0].nodes,
        kernels=_list_kernels(operators),
    )


def _list_kernels(operators: Sequence[Operator]) -> tuple[str, ...]:
    sums: defaultdict[str, float] = defaultdict(float)
    for operator in operators:
        if operator.kernel:
            sums[operator.kernel] += operator.time_ns
    return tuple(sorted(sums, key=lambda kernel: -sums[kernel]))


def _find_precision(operators: Sequence[Operator]) -> str | None:
    """The precision of most of a layer's time; None where its record has no type that computes.

    A layer that also brings values from one layout to another is one that computes, however long that takes.
    """
    sums: defaultdict[str, float] = defaultdict(float)
    for operator in operators:
        sums[name_precision(operator.dtype)] += operator.time_ns
    working = {precision: time_ns for precision, time_ns in sums.items() if precision != REORDER} or sums
    longest = max(working, key=lambda precision: working[precision])
    return None if longest in (OTHER, UNKNOWN) else longest
