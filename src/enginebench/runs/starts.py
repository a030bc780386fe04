"""Starts with files that are not in the page cache, as of a machine that has just been switched on."""

import os
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from enginebench.core.errors import EngineBenchError
from enginebench.core.records import ColdStart, Result
from enginebench.models.samples import find_samples
from enginebench.runs.child.isolate import run_child
from enginebench.runs.child.jobs import StartJob
from enginebench.runs.folder import RunFolder, RunRecord
from enginebench.runs.progress import Reporter
from enginebench.stats.assessment import name_result


def add_cold_starts(folder: RunFolder, record: RunRecord, results: dict[str, Result], reporter: Reporter) -> None:
    """Add to each configuration that was measured the start of a process whose files are read from the disk.

    It stays without one where the files cannot be dropped from the cache, or where the engine times itself.
    """
    for result in [*results.values()]:
        if result.cold_start is None and result.status == "ok" and any(m.load_s for m in result.measurements):
            reporter.step(f"{name_result(result)} · start without the page cache")
            start = _time_cold_start(folder, record, result)
            if start is not None:
                results[result.id] = replace(result, cold_start=start)
                folder.write_result(results[result.id])


def _time_cold_start(folder: RunFolder, record: RunRecord, result: Result) -> ColdStart | None:
    job = StartJob(
        model=result.model,
        artifact=result.artifacts[-1],
        engine=result.engine,
        out_dir=str(folder.artifacts.absolute()),
        seed=result.measure.seed,
        inputs=find_samples(folder.artifacts),
    )
    try:
        warm = run_child(job, timeout_s=record.request.timeout_s)
        _drop_from_cache(warm.files)
        cold = run_child(job, timeout_s=record.request.timeout_s)
    except EngineBenchError:  # its trials have shown that it starts; what fails here costs this figure alone
        return None
    return cold.start if cold.start.read_bytes > warm.start.read_bytes else None


def _drop_from_cache(files: Iterable[str]) -> None:
    """Ask the system to forget what it has cached of these files; those that are in use stay.

    Unlike /proc/sys/vm/drop_caches this needs no rights, and costs the other programs of the machine nothing.
    Source: posix_fadvise(2), POSIX_FADV_DONTNEED.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    for name in files:
        if Path(name).is_file():
            try:
                descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
