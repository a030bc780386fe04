"""Another engine that is called without a pause while one is timed: in a process of its own, or in a thread."""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from enginebench.core.errors import ChildFailed, UsageError
from enginebench.core.protocols import Loadable, RunCall
from enginebench.core.shapes import list_cells, size_artifact
from enginebench.runs.child.isolate import Child, find_variables
from enginebench.runs.child.jobs import Neighbour, NoteCall
from enginebench.runs.child.opening import open_cells, open_for
from enginebench.runs.child.other_jobs import BusyJob

# Seconds in which another engine must have loaded and run once.
START_S = 300.0
# Between two looks for what a process has sent; the engine that is timed is not called yet.
LOOK_S = 0.01


@contextmanager
def keep_busy(neighbour: Neighbour) -> Iterator[None]:
    """Call another engine without a pause, from its first output until the block ends.

    Raises:
        UsageError: it times itself.
        ChildFailed: it ended, or failed, before the block was over: then it was no neighbour.
    """
    with _run_process(neighbour) if neighbour.placing == "process" else _run_thread(neighbour):
        yield


@contextmanager
def open_bound(neighbour: Neighbour) -> Iterator[RunCall]:
    """Yield what calls the engine on its inputs, after its first output; of a mix the next of its requests."""
    from enginebench.measure.mix import plan_round, shuffle_round
    from enginebench.runs.child.perform.recheck import sample_rechecked

    backend, spec = open_for(neighbour.engine, neighbour.out_dir), neighbour.engine
    if not isinstance(backend, Loadable):
        raise UsageError(f"{spec.backend} times itself: nothing can be measured beside it")
    with open_cells(backend, neighbour.artifact, spec) as engines:
        for engine, cell in zip(engines, list_cells(spec), strict=True):
            sized = size_artifact(neighbour.artifact, cell)
            engine.bind(sample_rechecked(sized, neighbour.model, cell, neighbour.seed, neighbour.inputs)[0])
            engine.run()
        runs, orders = [engine.run for engine in engines], shuffle_round(plan_round([c.weight for c in spec.traffic]))
        order = itertools.chain.from_iterable(itertools.cycle(orders))
        yield runs[0] if len(runs) == 1 else lambda: runs[next(order)]()


@contextmanager
def _run_process(neighbour: Neighbour) -> Iterator[None]:
    """The process is one of this process's children, so that its work is not taken for that of other programs."""
    job, begun = BusyJob(neighbour=neighbour), threading.Event()
    with Child(find_variables(job)) as child:
        work = child.start(job, timeout_s=START_S, on_note=lambda _: begun.set())
        while not begun.is_set() and not child.lost:
            work.listen()
            time.sleep(LOOK_S)
        if child.lost:
            work.finish()  # raises why
        yield
        if not child.alive:
            raise ChildFailed(f"{neighbour.engine.backend}, beside which this was to be timed, ended before")


@contextmanager
def _run_thread(neighbour: Neighbour) -> Iterator[None]:
    failures: list[Exception] = []
    with open_bound(neighbour) as run:
        stopped = threading.Event()

        def call() -> None:
            try:
                _call_until(stopped, run)
            except Exception as error:  # each runtime has its own; it is raised where it is waited for
                failures.append(error)

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()
    if failures:
        raise ChildFailed(f"{neighbour.engine.backend}, beside which this was timed, failed: {failures[0]}")


def _call_until(stopped: threading.Event, run: RunCall) -> None:
    while not stopped.is_set():
        run()


def call_forever(job: BusyJob, note: NoteCall) -> int:
    """Call the engine until this process is ended, on the cores that it has when it is timed itself."""
    from enginebench.measure.pin import pin_process

    pin_process(job.neighbour.engine.threads)
    with suppress(KeyboardInterrupt), open_bound(job.neighbour) as run:
        note("busy")
        _call_until(threading.Event(), run)
    return 0
