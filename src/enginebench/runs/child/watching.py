"""An engine timed under watch: what others took of its cores and its GPU, at which clock, and for how much energy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from enginebench.core.protocols import Engine, Feeds
from enginebench.core.records import EngineSpec, Measurement, MeasureSpec, ResultWarning
from enginebench.engines.abilities import CountsWork

if TYPE_CHECKING:
    from enginebench.measure.mix import MixPart
    from enginebench.measure.watch import DeviceWatch


def open_gpu(spec: EngineSpec) -> DeviceWatch | None:
    """The watch on an engine's GPU, to be opened before anything lies in its memory; None of an engine on the CPU."""
    if spec.device == "cpu":
        return None
    from enginebench.measure import jetson, nvml

    gpu: DeviceWatch | None = jetson.open_jetson_watch() or nvml.open_gpu_watch(spec.device)
    if gpu is not None:
        gpu.watch_energy_counter()
    return gpu


def time_watched(
    engine: Engine,
    feeds: Sequence[Feeds],
    measure: MeasureSpec,
    spec: EngineSpec,
    *,
    pinned: tuple[int, ...] | None,
    gpu: DeviceWatch | None,
    others: Sequence[Engine] = (),
    mix: Sequence[MixPart] = (),
) -> Measurement:
    """The measurement, its blocks marked where something disturbed them."""
    from enginebench.measure import watch
    from enginebench.measure.loop import measure_engine
    from enginebench.measure.topology import whole_cores

    # Elsewhere others may work as they like; on these cores they take time away.
    cpu = watch.BlockWatch(whole_cores(pinned) if pinned else None)
    measured = measure_engine(
        engine,
        feeds,
        measure,
        others=others,
        mix=mix,
        watch=watch.JointWatch(cpu, gpu) if gpu else cpu,
        read_clock_mhz=gpu.read_clock_mhz if gpu else lambda: None,
    )
    if measure.scope == "pipelined":
        seconds = sum(block.duration_ns for block in measured.blocks) / 1e9
        measured = replace(measured, throughput_pipelined_per_s=spec.batch * len(measured.latency_ns) / seconds)
    return add_telemetry(measured, spec, measure, gpu)


def add_telemetry(
    measured: Measurement, spec: EngineSpec, measure: MeasureSpec, gpu: DeviceWatch | None
) -> Measurement:
    """The measurement with memory and energy of the GPU, or with the warning that nothing was watched."""
    measured = replace(measured, warnings=(*measured.warnings, *list_telemetry_warnings(spec, gpu)))
    if gpu is None:
        return measured
    images = (len(measured.latency_ns) + measured.untimed_calls) * spec.batch
    # A cold call also pays for the flush before it, which belongs to no image; and of a mix every shape is called as
    # often, whatever its weight.
    energy = gpu.energy_per_image(images) if measure.cache == "hot" and not spec.traffic else None
    return replace(
        measured,
        peak_device_memory_bytes=gpu.peak_memory_bytes(),
        energy_mj=energy[0] if energy else None,
        energy_resolution_mj=energy[1] if energy else None,
    )


def add_least(measured: Measurement, spec: EngineSpec, engine: object) -> Measurement:
    """The measurement with what a call takes at least, if most of it was made beside others on the same CPU."""
    busy = sum("foreign_cpu" in block.marks for block in measured.blocks)
    if spec.device != "cpu" or 2 * busy <= len(measured.blocks) or not isinstance(engine, CountsWork):
        return measured
    return replace(measured, least_ns=engine.count_least_ns())


def list_telemetry_warnings(spec: EngineSpec, gpu: DeviceWatch | None) -> tuple[ResultWarning, ...]:
    from enginebench.measure.nvml import HIDDEN_PROCESSES, NO_TELEMETRY

    if spec.device == "cpu":
        return ()
    if gpu is None:
        return (NO_TELEMETRY,)
    return (HIDDEN_PROCESSES,) if gpu.hides_processes else ()
