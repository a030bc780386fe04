"""Measure a machine's peaks: repeat probes of known work, and keep the best of each.

A rate that was reached once can be reached: noise only lowers it. So a peak is the best value, never a mean, and the
spread of the bests over trials shows how reproducible it is.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.errors import MissingDependency, UsageError
from enginebench.core.peaks import UNITS, Peak, PeakKind
from enginebench.core.records import Precision
from enginebench.features.roofline.jobs import PeaksJob, PeaksResponse
from enginebench.measure.machine import describe_machine
from enginebench.runs.child.jobs import NoteCall

# Returns the seconds of so many consecutive calls.
Timer: TypeAlias = Callable[[Callable[[], object], int], float]
# A measured span must be this long: reading the clock costs some tens of nanoseconds, less than 1 % of it.
SHORTEST_S = 20e-6
# At most so many calls are timed together: a probe that needs more would take too long.
MOST_CALLS = 1 << 16


class PeakProbe(Struct, frozen=True, kw_only=True):
    """One way to reach a peak. `call` does `work`: multiply-accumulates, bytes, or a number of launches or calls."""

    kind: PeakKind
    call: Callable[[], object]
    work: float
    precision: Precision | None = None
    method: str = ""
    capacity_bytes: int | None = None


def time_host_calls(call: Callable[[], object], count: int) -> float:
    """Time `count` calls by the host's clock, in seconds: for work that is complete when the call returns."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - start


def observe(
    probes: Iterable[PeakProbe],
    *,
    device: str,
    threads: int | None,
    budget_s: float,
    timer: Timer = time_host_calls,
    clock: Callable[[], float] = time.perf_counter,
    trials: int = 1,
) -> list[Peak]:
    """Measure each peak for `budget_s` in each trial, and return the best value over all of its probes.

    Probes of one kind and precision are ways to the same peak. They are interleaved within a trial, so that none of
    them gets all of the quiet moments.
    """
    groups: dict[tuple[PeakKind, Precision | None], list[PeakProbe]] = {}
    for probe in probes:
        groups.setdefault((probe.kind, probe.precision), []).append(probe)
    counts = {id(probe): count_calls(probe, timer) for group in groups.values() for probe in group}
    best = [_time_group(group, counts, budget_s, timer, clock) for _ in range(trials) for group in groups.values()]
    return [
        Peak(
            kind=probe.kind,
            precision=probe.precision,
            threads=threads,
            value=value,
            unit=UNITS[probe.kind],
            low=value,
            high=value,
            device=device,
            capacity_bytes=probe.capacity_bytes,
            method=probe.method,
        )
        for value, probe in best
    ]


def count_calls(probe: PeakProbe, timer: Timer) -> int:
    """Warm up, and return the number of calls to time together, so that they take long enough for the clock."""
    timer(probe.call, 1)
    count = 1
    while count < MOST_CALLS and timer(probe.call, count) < SHORTEST_S:
        count *= 2
    return count


def _time_group(
    group: Sequence[PeakProbe], counts: dict[int, int], budget_s: float, timer: Timer, clock: Callable[[], float]
) -> tuple[float, PeakProbe]:
    best: dict[int, float] = {}
    end = clock() + budget_s
    while not best or clock() < end:
        for probe in group:
            count = counts[id(probe)]
            seconds = timer(probe.call, count) / count
            best[id(probe)] = min(seconds, best.get(id(probe), seconds))
    values = [(scale_to_unit(probe, best[id(probe)]), probe) for probe in group]
    if _is_cost(group[0].kind):
        return min(values, key=lambda pair: pair[0])
    return max(values, key=lambda pair: pair[0])


def scale_to_unit(probe: PeakProbe, seconds: float) -> float:
    """Convert the seconds of one call into the unit of the probe's kind: microseconds, GMAC/s or GB/s."""
    if _is_cost(probe.kind):
        return 1e6 * seconds / probe.work
    return probe.work / max(seconds, 1e-12) / 1e9


def _is_cost(kind: PeakKind) -> bool:
    return UNITS[kind] == "us"


def join_best(peaks: Iterable[Peak]) -> tuple[Peak, ...]:
    """Return the best of each peak over trials or processes, with the range of these."""
    groups: dict[tuple[PeakKind, Precision | None], list[Peak]] = {}
    for peak in peaks:
        groups.setdefault((peak.kind, peak.precision), []).append(peak)
    joined: list[Peak] = []
    for (kind, _), group in groups.items():
        choose = min if _is_cost(kind) else max
        best = choose(group, key=lambda peak: peak.value)
        low, high = min(peak.low for peak in group), max(peak.high for peak in group)
        joined.append(replace(best, low=low, high=high, n=sum(peak.n for peak in group)))
    return tuple(joined)


def perform_peaks(job: PeaksJob, note: NoteCall) -> PeaksResponse:
    note(f"peaks of {job.device}" + (f", {job.threads} threads" if job.device == "cpu" else ""))
    return _observe_cpu(job) if job.device == "cpu" else _observe_gpu(job)


def _observe_cpu(job: PeaksJob) -> PeaksResponse:
    from enginebench.measure.pin import pin_process

    pinned = pin_process(job.threads)
    import torch

    from enginebench.features.roofline.trials_cpu import list_cpu_probes, list_multiplied
    from enginebench.measure.caches import read_caches

    torch.set_num_threads(job.threads)
    possible = list_multiplied(describe_machine().cpu_flags)
    why = "no instructions of this CPU multiply in"
    precisions = _choose(job.precisions, possible, why)
    caches = read_caches(pinned[0] if pinned else 0)
    with torch.inference_mode():
        probes = list(list_cpu_probes(precisions, caches, job.threads))
        with suppress(MissingDependency):  # ONNX Runtime and OpenVINO: a peak is the best that any library reaches
            from enginebench.features.roofline import trials_graph

            probes += trials_graph.list_graph_probes(precisions, job.threads)
        peaks = observe(probes, device="cpu", threads=job.threads, budget_s=job.budget_s, trials=job.trials)
    notes = () if caches else ("the system does not list the caches of this CPU: only memory was measured",)
    notes = (*notes, *_note_missing(job.precisions, precisions, why))
    return PeaksResponse(peaks=join_best(peaks), notes=notes)


def _observe_gpu(job: PeaksJob) -> PeaksResponse:
    import torch

    from enginebench.core.errors import BackendUnavailable
    from enginebench.features.roofline.trials_gpu import PRECISIONS, list_gpu_probes, list_host_trials, make_timer

    if not torch.cuda.is_available():
        raise BackendUnavailable(f"PyTorch {torch.__version__} sees no GPU, so that {job.device} has no roofline")
    timer = make_timer(job.device)
    wanted = _choose(job.precisions, PRECISIONS, "a GPU's peaks are not known in")
    with torch.inference_mode():
        observe_gpu = partial(observe, device=job.device, threads=None, budget_s=job.budget_s, trials=job.trials)
        peaks = observe_gpu(list_gpu_probes(wanted, quick=job.quick), timer=timer)
        peaks += observe_gpu(list_host_trials())  # by the host's clock: what its copies and launches take
    seen = [one.precision for one in peaks if one.precision]
    notes = _note_missing(wanted, seen, "neither this GPU nor this build of PyTorch multiplies in")
    return PeaksResponse(peaks=join_best(peaks), notes=notes)


def _choose(requested: tuple[Precision, ...], possible: tuple[Precision, ...], why: str) -> tuple[Precision, ...]:
    chosen = tuple(precision for precision in requested or possible if precision in possible)
    if not chosen:
        raise UsageError(f"--precisions {','.join(requested)}: {why} it. Possible: {', '.join(possible)}")
    return chosen


def _note_missing(requested: Sequence[Precision], seen: Sequence[Precision], why: str) -> tuple[str, ...]:
    missing = [precision for precision in requested if precision not in seen]
    return (f"{why} {', '.join(missing)}",) if missing else ()
