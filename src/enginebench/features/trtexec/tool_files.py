"""Read what trtexec leaves of one run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from enginebench.core.errors import MeasurementError
from enginebench.core.records import Block, Gpu, Measurement, ResultWarning
from enginebench.core.warnings import make_warning
from enginebench.stats.plans.layers import NS_PER_MS, PlanFiles, read_layer_info

if TYPE_CHECKING:
    from enginebench.features.trtexec.command import RunSettings
    from enginebench.features.trtexec.records import LogRun, Stat, TimesDocument

# A printed median has six digits and comes from 32-bit floats; beyond this the log and the times are of two runs.
# Source: operator<< of C++ prints six significant digits; rounding twice moves the last one.
MEDIAN_TOLERANCE = 2e-5
# Column of a trace -> field of a Measurement.
FIELDS = {"latency": "latency_ns", "compute": "device_ns", "enqueue": "enqueue_ns", "h2d": "h2d_ns", "d2h": "d2h_ns"}


class ToolFiles(PlanFiles):
    """Reads the times and the log, too."""

    def read_times(
        self, times: Path, log: Path, settings: RunSettings, *, batch: int, drop: int, keep: int | None
    ) -> Measurement:
        """Read one process of a tool that times itself: its own clock, all samples in one unobserved block.

        Differences of its log from the times, or from the requested settings, are warnings.
        """
        import numpy as np

        from enginebench.features.trtexec.log import read_trtexec_log
        from enginebench.features.trtexec.times import summarize_trace
        from enginebench.features.trtexec.trace import read_trace

        run = read_trtexec_log(log).choose_run()
        document, (columns, *_) = summarize_trace(read_trace(times), times, batch=batch, log=run, intervals=False)
        n = len(columns["latency"])
        start = max(drop, n - keep if keep is not None else 0)
        if start >= n or (keep is not None and n < keep):
            raise MeasurementError(f"{times} holds {n} queries; expected {drop + (keep or 1)} or more")
        mib = run.device_info.get("Device Global Memory", "").partition(" ")[0]
        memory_bytes = int(mib) << 20 if mib.isdecimal() else 0
        device = settings.device
        samples = {
            field: [int(v) for v in np.rint(columns[name][start:] * NS_PER_MS)]
            for name, field in FIELDS.items()
            if name in columns
        }
        return Measurement(
            clock="tool",
            blocks=(Block(start=0, stop=n - start, duration_ns=sum(samples["latency_ns"])),),
            stop_rule="time_limit",
            warmup_dropped=document.warmup_dropped + (run.warmup_queries or 0) + start,
            throughput_pipelined_per_s=document.images_per_s,
            gpu=Gpu(index=device, name=run.device, driver="", memory_bytes=memory_bytes) if run.device else None,
            warnings=(*compare_with_log(document, run), *check_switches(run, settings)),
            **samples,  # type: ignore[arg-type]
        )

    def read_types(self, layers: Path) -> dict[str, str]:
        return {tensor.name: tensor.dtype for tensor in read_layer_info(layers).io if tensor.dtype}


def compare_with_log(document: TimesDocument, run: LogRun) -> Iterator[ResultWarning]:
    """Warn of each median that the log prints otherwise than the times give it, and repeat trtexec's own warnings."""
    for name in ("latency_ms", "gpu_compute_ms"):
        printed: Stat | None = getattr(run, name)
        computed = document.trtexec.get(name)
        if printed is None or computed is None or printed.median is None or computed.median is None:
            continue
        if abs(printed.median - computed.median) > MEDIAN_TOLERANCE * abs(computed.median):
            figures = {"printed_ms": printed.median, "computed_ms": computed.median}
            yield make_warning("log_disagrees.median", what=name.removesuffix("_ms"), **figures)
    for text in run.warnings:
        if "bound by Enqueue Time" in text:
            yield from _make_enqueue_warning(document, run)
        elif "GPU compute time is unstable" in text:
            yield make_warning("not_settled", when=f"by trtexec's own warning: {text.lstrip('* ').rstrip('.')}")


def _make_enqueue_warning(document: TimesDocument, run: LogRun) -> Iterator[ResultWarning]:
    """Yield trtexec's warning with the log's medians, of times without enqueue times; others are judged by their own.

    `stats/validity.py: list_enqueue_warnings` does that by the same rule, which is trtexec's.
    """
    enqueue, compute = run.enqueue_ms, run.gpu_compute_ms
    if "enqueue_ms" not in document.trtexec and enqueue and enqueue.median and compute and compute.median:
        yield make_warning("enqueue_bound", share=enqueue.median / compute.median)


def check_switches(run: LogRun, settings: RunSettings) -> Iterator[ResultWarning]:
    """Warn of each switch that the log shows set differently from the request."""
    requested: dict[str, bool | int] = {"cuda_graph": settings.cuda_graph, "data_transfers": settings.transfers}
    requested |= {"spin_wait": settings.spin_wait, "streams": settings.streams}
    for name, value in requested.items():
        seen = getattr(run, name)
        if seen not in (None, value):
            switch = name.replace("_", " ")
            yield make_warning("log_disagrees.switch", switch=switch, asked=_show(value), seen=_show(seen))


def _show(value: bool | int) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
