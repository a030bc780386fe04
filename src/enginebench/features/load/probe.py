"""One probe of `load`: an engine and a generator in fresh processes, and the point from their board."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.entry import find_kind
from enginebench.core.errors import ChildFailed, EngineBenchError
from enginebench.core.records import ResultWarning
from enginebench.core.warnings import make_warning
from enginebench.features.load.arrivals import FEEDING, RELEASED, RELEASING, START, WRITTEN, MemoryBoard, create_board
from enginebench.features.load.jobs import ArriveJob, ServeJob, ServeResponse
from enginebench.measure.pin import share_cpus
from enginebench.measure.topology import whole_cores
from enginebench.measure.watch import BlockWatch, join_readings, list_block_warnings, make_block
from enginebench.runs.child.isolate import Child, child_environment, wait_until_sure
from enginebench.stats.queueing import INTERRUPTED, Limit, LoadPoint, Stamps, describe_point, describe_shapes

if TYPE_CHECKING:
    from enginebench.features.load.arrivals import Times

# Loading an engine and warming it up; a compiler may take minutes.
LOAD_TIMEOUT_S = 900.0
# Of the cores, for what feeds an engine on a GPU, whose own threads have little to do.
FEEDING_SHARE = 0.25


class Plan(Struct, frozen=True, kw_only=True):
    job: ServeJob
    row: str
    qps: float | None
    devices: tuple[str, ...] = ()  # one server on each; none: the engine's own
    limit: Limit | None = None


@contextmanager
def open_memory() -> Iterator[int]:
    """An empty file in memory where the system has that: a disk that writes a page back would hold up who stamps it.

    It has no name, so that it is gone with the last process that holds it, however that ends.
    """
    in_memory = hasattr(os, "memfd_create")
    with os.fdopen(os.memfd_create("load"), "r+b") if in_memory else tempfile.TemporaryFile() as file:
        yield file.fileno()


def probe_open(plan: Plan, offsets: Times, samples: Times) -> LoadPoint:
    count = max(1, len(plan.devices))
    share = 0.0 if find_kind(plan.job.engine.device) == "cpu" else FEEDING_SHARE
    engine_cpus, own_cpus = share_cpus(count * plan.job.streams * plan.job.engine.threads, share)
    alone = not set(engine_cpus) & set(own_cpus)
    warnings = () if alone else (make_warning("shared_cores", cores=len(engine_cpus)),)
    watch = BlockWatch(whole_cores((*engine_cpus, *own_cpus)))
    timeout_s = LOAD_TIMEOUT_S + 2 * (float(offsets[-1]) / 1e9 + plan.job.grace_s)
    with open_memory() as memory, open_memory() as ring, ExitStack() as stack:
        board, pipes = create_board(memory, offsets, samples), [os.pipe() for _ in range(count)]
        for descriptor in (end for pipe in pipes for end in pipe):
            stack.callback(os.close, descriptor)
        wakeups = tuple(ring for _, ring in pipes)
        arrive = ArriveJob(board=memory, ring=ring, wakeups=wakeups, cpus=own_cpus, spin=alone)
        environment = child_environment(plan.job.engine.threads)
        engines = [stack.enter_context(Child(environment, pass_fds=(memory, ring, hear))) for hear, _ in pipes]
        generator = stack.enter_context(Child(child_environment(1), pass_fds=(memory, ring, *wakeups)))

        def serve() -> ServeResponse:
            serving = []
            for i, (engine, (hear, _)) in enumerate(zip(engines, pipes, strict=True)):
                spec = replace(plan.job.engine, device=plan.devices[i]) if plan.devices else plan.job.engine
                cpus = engine_cpus[i::count] or engine_cpus
                job = replace(plan.job, engine=spec, board=memory, ring=ring, wakeup=hear, cpus=cpus, share=(i, count))
                serving.append(engine.start(job, timeout_s=timeout_s, on_note=lambda note: watch.begin()))
            arriving = generator.start(arrive, timeout_s=timeout_s)
            wait_until_sure(serving, helpers=[arriving, *serving])
            if arriving.lost and not any(work.lost for work in serving) and board.head[RELEASED] < board.count:
                with _name_child("generator of requests"):
                    arriving.finish()  # raises what ended it
            with _name_child("engine"):
                return join_outputs([work.finish() for work in sorted(serving, key=lambda work: not work.lost)])

        return _measure(plan, board, warnings, watch, serve)


def join_outputs(responses: Sequence[ServeResponse]) -> ServeResponse:
    """Join the responses of several servers: times by stage are means over the servers."""
    first, count = responses[0], len(responses)
    reasons: Counter[str] = Counter()
    for response in responses:
        reasons.update(response.reasons)
    energy = [response.energy_mj for response in responses if response.energy_mj is not None]
    return replace(
        first,
        busy_ns=sum(response.busy_ns for response in responses),
        stages={name: sum(response.stages.get(name, 0) for response in responses) // count for name in first.stages},
        depth=sum(response.depth for response in responses),
        reasons=dict(reasons),
        energy_mj=sum(energy) if len(energy) == count else None,
        warnings=tuple(warning for response in responses for warning in response.warnings),
    )


@contextmanager
def _name_child(name: str) -> Iterator[None]:
    try:
        yield
    except ChildFailed as error:
        raise ChildFailed(f"the {name}: {error.reason}", error.stderr_tail) from error


class Interrupted(KeyboardInterrupt):
    """The user interrupted a probe; `point` is what it had measured."""

    def __init__(self, point: LoadPoint) -> None:
        super().__init__()
        self.point = point


def probe_closed(plan: Plan, samples: Times) -> LoadPoint:
    cpus, _ = share_cpus(plan.job.streams * plan.job.engine.threads)
    watch, timeout_s = BlockWatch(whole_cores(cpus)), LOAD_TIMEOUT_S + 2 * plan.job.duration_s
    with open_memory() as memory:
        board = create_board(memory, [0] * len(samples), samples)
        job = replace(plan.job, board=memory, cpus=cpus)
        with Child(child_environment(job.engine.threads), pass_fds=[memory]) as child:
            serve = partial(child.perform, job, timeout_s=timeout_s, on_note=lambda note: watch.begin())
            return _measure(plan, board, (), watch, serve)


def copy_stamps(board: MemoryBoard) -> Stamps:
    """The stamps of all requests as they are now, while others may be written.

    The columns are copied in the opposite of the order in which they are written: a request whose status says that it
    has ended when that is copied has all its times by then.
    """
    status = board.status.copy()
    done, computed, started = board.done.copy(), board.computed.copy(), board.started.copy()
    scheduled = board.scheduled
    return Stamps(scheduled, board.released.copy(), started, computed, done, status)


def _measure(
    plan: Plan,
    board: MemoryBoard,
    warnings: Sequence[ResultWarning],
    watch: BlockWatch,
    serve: Callable[[], ServeResponse],
) -> LoadPoint:
    failure: BaseException | None = None
    response: ServeResponse | None = None
    try:
        response = serve()
    except (EngineBenchError, KeyboardInterrupt) as error:
        failure = error
    reading, came = watch.end(), int(board.head[RELEASED])
    if failure is not None and not (came and board.done.any()):
        raise failure
    if response is not None and response.gpu is not None:
        reading = join_readings(reading, response.gpu)
    stamps = copy_stamps(board)  # of an interrupted probe the server may still be at work
    window_ns = max(0, int(stamps.done.max()) - int(board.head[START]))
    block = make_block(0, 1, window_ns, reading)
    warnings = [*warnings, *(response.warnings if response else ()), *list_block_warnings([block])]
    if failure is not None:
        planned = came if plan.job.query else board.count
        reason = failure.reason if isinstance(failure, ChildFailed) else str(failure)
        reason = INTERRUPTED if isinstance(failure, KeyboardInterrupt) else reason
        warnings.append(make_warning("cut_short", came=came, planned=planned, reason=reason))
    reasons = response.reasons if response else {}
    point = describe_point(
        stamps,
        qps=plan.qps,
        limit=plan.limit,
        busy_ns=response.busy_ns if response else None,
        streams=response.depth if response else plan.job.streams,
        open_loop=not plan.job.query,
        query=max(1, plan.job.query),
        row=plan.row,
        energy_mj=response.energy_mj if response else None,
        reason=max(reasons, key=lambda text: reasons[text], default=""),
        warnings=tuple(warnings),
        block=block,
    )
    if cells := plan.job.engine.traffic:
        drawn = board.sample // plan.job.samples
        point = replace(point, by_shape=describe_shapes(stamps, cells, drawn, plan.limit))
    if response is not None and window_ns:
        parts = response.stages
        if not plan.job.query:
            feeders = int(np.count_nonzero(board.head[WRITTEN:FEEDING]))
            own = {"feeders": int(board.head[FEEDING:].sum()) // feeders} if feeders else {}
            parts = {"generator": int(board.head[RELEASING]), **own, **parts}
            point = replace(point, feeders=feeders)
        point = replace(point, stages={name: ns / window_ns for name, ns in parts.items()})
    if isinstance(failure, KeyboardInterrupt):
        raise Interrupted(point)
    return point
