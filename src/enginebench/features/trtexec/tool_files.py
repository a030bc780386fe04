"""Reads what trtexec leaves of one run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from enginebench.core.caveats import make_caveat
from enginebench.core.errors import MeasurementError
from enginebench.core.records import Block, Caveat, Gpu, Measurement
from enginebench.stats.plans.layers import NS_PER_MS, PlanFiles, parse_layers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from enginebench.features.trtexec.records import LogRun, Stat, TimesDocument

# A printed median has six digits and comes from 32-bit floats; beyond this the log and the times are of two runs.
# Source: operator<< of C++ prints six significant digits; rounding twice moves the last one.
MEDIAN_TOLERANCE = 2e-5


class ToolFiles(PlanFiles):
    """Also reads the times and the log."""

    def read_times(self, times: Path, log: Path, *, batch: int, drop: int, keep: int | None, gpu: int) -> Measurement:
        """The raw times of one run; what its log says otherwise is a caveat."""
        from enginebench.features.trtexec.log import parse_log
        from enginebench.features.trtexec.times import select_timed, summarize_trace
        from enginebench.features.trtexec.trace import read_trace

        trace, run = read_trace(times), parse_log(log).choose_run()
        columns = select_timed(trace, times, None, run).columns
        document = summarize_trace(trace, times, batch=batch, log=run, intervals=False)
        n = len(columns["latency"])
        start = max(drop, n - keep if keep is not None else 0)
        if start >= n or (keep is not None and n < keep):
            raise MeasurementError(f"{times} holds {n} queries; expected {drop + (keep or 1)} or more")
        mib = run.device_info.get("Device Global Memory", "").partition(" ")[0]
        memory_bytes = int(mib) << 20 if mib.isdecimal() else 0
        return make_measurement(
            {name: _to_ns(columns[name][start:]) for name in columns if name in FIELDS},
            warmup_dropped=document.warmup_dropped + (run.warmup_queries or 0) + start,
            throughput_pipelined_per_s=document.images_per_s,
            gpu=Gpu(index=gpu, name=run.device, driver="", memory_bytes=memory_bytes) if run.device else None,
            caveats=tuple(compare_with_log(document, run)),
        )

    def read_switches(self, log: Path) -> dict[str, bool | int | None]:
        from enginebench.features.trtexec.log import parse_log

        run = parse_log(log).choose_run()
        return {name: getattr(run, name) for name in ("cuda_graph", "data_transfers", "spin_wait", "streams")}

    def read_types(self, layers: Path) -> dict[str, str]:
        return {tensor.name: tensor.dtype for tensor in parse_layers(layers).io if tensor.dtype}


# Column of a trace -> field of a Measurement.
FIELDS = {"latency": "latency_ns", "compute": "device_ns", "enqueue": "enqueue_ns", "h2d": "h2d_ns", "d2h": "d2h_ns"}


def make_measurement(
    columns: dict[str, list[int]],
    *,
    warmup_dropped: int,
    throughput_pipelined_per_s: float | None,
    gpu: Gpu | None = None,
    caveats: tuple[Caveat, ...],
) -> Measurement:
    """One process of a tool that times itself: its own clock, all samples in one block that nobody watched."""
    latency = columns["latency"]
    return Measurement(
        clock="tool",
        blocks=(Block(start=0, stop=len(latency), duration_ns=sum(latency)),),
        stop_rule="time_limit",
        warmup_dropped=warmup_dropped,
        throughput_pipelined_per_s=throughput_pipelined_per_s,
        gpu=gpu,
        caveats=caveats,
        **{FIELDS[name]: values for name, values in columns.items()},  # type: ignore[arg-type]
    )


def compare_with_log(document: TimesDocument, run: LogRun) -> list[Caveat]:
    """A doubt for each median that the log prints otherwise than the times give it, and what trtexec warned about."""
    found = []
    for name in ("latency_ms", "gpu_compute_ms"):
        printed: Stat | None = getattr(run, name)
        computed = document.trtexec.get(name)
        if printed is None or computed is None or printed.median is None or computed.median is None:
            continue
        if abs(printed.median - computed.median) > MEDIAN_TOLERANCE * abs(computed.median):
            what = name.removesuffix("_ms")
            figures = {"printed_ms": printed.median, "computed_ms": computed.median}
            found.append(make_caveat("log_disagrees.median", what=what, **figures))
    for text in run.warnings:
        if "bound by Enqueue Time" in text:
            found.append(make_caveat("enqueue_bound.tool", warning=text.lstrip("* ")))
        elif "GPU compute time is unstable" in text:
            found.append(make_caveat("not_settled.tool", warning=text.lstrip("* ")))
    return found


def _to_ns(milliseconds: NDArray[np.floating]) -> list[int]:
    import numpy as np

    return [int(v) for v in np.rint(np.asarray(milliseconds, np.float64) * NS_PER_MS)]
