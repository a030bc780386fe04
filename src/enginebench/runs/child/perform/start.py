"""The child's part of a start: import, load, first output; and which files that took."""

import re
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from enginebench.core.errors import UsageError
from enginebench.core.protocols import Loadable
from enginebench.core.records import ColdStart
from enginebench.engines.abilities import ImportsLate
from enginebench.measure.topology import read_system_file
from enginebench.runs.child.jobs import StartJob, StartResponse
from enginebench.runs.child.opening import open_cells, open_for


def time_start(job: StartJob) -> StartResponse:
    """Time the start of an engine in this process, which has imported nothing of it yet.

    The caller decides what is in the page cache.
    """
    from enginebench.measure.pin import pin_process

    pin_process(job.engine.threads)
    begin = time.perf_counter()
    backend = open_for(job.engine, job.out_dir)
    if not isinstance(backend, Loadable):
        raise UsageError(f"{job.engine.backend} times itself: its start is not that of a process of ours")
    if isinstance(backend, ImportsLate):
        backend.import_ahead()
    imported = time.perf_counter()
    with ExitStack() as stack:
        engine = stack.enter_context(open_cells(backend, job.artifact, job.engine))[0]
        loaded = time.perf_counter()
        from enginebench.runs.child.perform.recheck import sample_rechecked

        engine.bind(sample_rechecked(job.artifact, job.model, job.engine, job.seed, job.inputs)[0])
        bound = time.perf_counter()
        engine.run()
        done = time.perf_counter()
        start = ColdStart(
            import_s=round(imported - begin, 9),
            load_s=round(loaded - imported, 9),
            first_run_s=round(done - bound, 9),
            read_bytes=_count_read_bytes(),
        )
        return StartResponse(start=start, files=tuple(sorted({*_list_files(), job.artifact.path})))


def _count_read_bytes() -> int:
    """Return what this process had to read from the disk. Source: `io` in Documentation/filesystems/proc.rst."""
    match = re.search(r"^read_bytes: (\d+)$", read_system_file(Path("/proc/self/io")) or "", re.MULTILINE)
    return int(match[1]) if match else 0


def _list_files() -> set[str]:
    """List the files of modules and of mapped libraries."""
    maps = read_system_file(Path("/proc/self/maps")) or ""
    mapped = {line.split(maxsplit=5)[5] for line in maps.splitlines() if len(line.split(maxsplit=5)) == 6}
    files = {path for path in mapped if path.startswith("/") and not path.startswith("/dev/")}
    for module in [*sys.modules.values()]:
        files |= {path for name in ("__file__", "__cached__") if isinstance(path := getattr(module, name, None), str)}
    return files
