"""The server in simulated time, against what queueing theory knows, and its promises when there is too much to do."""

import os

import numpy as np
import pytest

from enginebench.core.records import TrafficCell
from enginebench.features.load.arrivals import (
    DONE,
    DROPPED,
    READY,
    RELEASED,
    START,
    BoardSource,
    MemoryBoard,
    schedule_constant,
    schedule_poisson,
)
from enginebench.features.load.serving import Batcher, Span, Waiting
from enginebench.stats.queueing import Limit, LoadPoint, Stamps, describe_point, describe_shapes
from queues import mean_wait_md1, wait_quantile_md1
from simulated_load import simulate

MS = 1_000_000
ARRIVALS = 200_000
# Neighbours in a queue are alike: at utilisation 0.8 as many arrivals give p99 to about 3 %, one standard error.
ERRORS = {0.5: 0.03, 0.8: 0.10}


def read(board: MemoryBoard) -> Stamps:
    return Stamps(board.scheduled, board.released, board.started, board.computed, board.done, board.status)


def describe(board: MemoryBoard, busy_ns: int, rate: float) -> LoadPoint:
    return describe_point(read(board), qps=rate, busy_ns=busy_ns)


def test_each_shape_of_a_mix_has_the_latencies_of_its_own_requests() -> None:
    cells = (TrafficCell(weight=0.75, batch=1), TrafficCell(weight=0.25, batch=8))
    drawn = (np.arange(400) % 4 == 3).astype(np.int64)
    due = np.arange(1, 401) * 100 * MS
    done = due + np.where(drawn == 1, 40 * MS, 5 * MS)
    stamps = Stamps(due, due, due, done, done, np.full(400, DONE))
    small, large = describe_shapes(stamps, cells, drawn, Limit(ms=20))
    assert (small.offered, small.late, large.offered, large.late) == (300, 0, 100, 100)
    assert small.p50_ms == pytest.approx(5) and large.p99_ms == pytest.approx(40)


@pytest.mark.parametrize("rho", [0.5, 0.8])
def test_a_fixed_service_is_m_d_1(rho: float) -> None:
    rate = rho / 0.005
    board, busy_ns = simulate(schedule_poisson(rate, ARRIVALS, seed=1), lambda n: 5 * MS)
    point = describe(board, busy_ns, rate)
    assert point.queue_ms == pytest.approx(1e3 * mean_wait_md1(rate, 0.005), rel=ERRORS[rho])
    assert point.p99_ms == pytest.approx(1e3 * wait_quantile_md1(0.99, rate, 0.005), rel=ERRORS[rho])
    assert point.utilisation == pytest.approx(rho, rel=0.01)
    assert point.validity == "valid" and point.service_ms == 5.0


def test_littles_law_holds_for_a_steady_queue_and_one_that_grows_is_suspect() -> None:
    board, busy_ns = simulate(schedule_poisson(150, 20_000, seed=3), lambda n: 5 * MS)
    point = describe(board, busy_ns, 150)
    assert point.in_system == pytest.approx(point.little, rel=0.02)
    board, busy_ns = simulate(schedule_poisson(250, 5_000, seed=3), lambda n: 5 * MS)
    point = describe(board, busy_ns, 250)
    assert point.validity == "suspect"
    assert [warning.code for warning in point.warnings] == ["unsteady"]
    assert point.in_system is not None and point.little is not None and point.in_system < 0.9 * point.little


def test_latency_runs_from_the_scheduled_moment_whatever_the_generator_does() -> None:
    on_time, _ = simulate(schedule_constant(10, 100), lambda n: MS)
    late, _ = simulate(schedule_constant(10, 100), lambda n: MS, late_ns=20 * MS)
    first, second = describe(on_time, 0, 10), describe(late, 0, 10)
    assert (first.p50_ms, second.p50_ms) == (1.0, 21.0)
    assert second.generator_late_ms == 20.0
    assert second.validity == "suspect" and second.warnings[0].code == "generator_late"


def test_a_stall_of_the_engine_is_seen_by_all_who_came_meanwhile() -> None:
    """A closed loop would have asked once during the stall, and called the other ninety-nine fast."""
    times = iter([100 * MS, *[MS] * 200])
    board, _ = simulate(schedule_constant(1000, 101), lambda n: next(times))
    latency = (board.done - board.scheduled)[:100]
    assert latency.min() > 80 * MS and (latency > 50 * MS).all()


def test_overload_ends_in_time_with_a_bounded_queue_and_counts_who_was_turned_away() -> None:
    offsets = schedule_poisson(400, 4_000, seed=5)  # twice what the engine computes
    deadline = int(offsets[-1]) + 1_000 * MS
    board, busy_ns = simulate(offsets, lambda n: 5 * MS, batcher=Batcher(limit=50), deadline_ns=deadline)
    point = describe(board, busy_ns, 400)
    waiting = [
        int(((board.scheduled <= moment) & (board.started > moment) & (board.status == DONE)).sum())
        for moment in board.scheduled[::97]
    ]
    assert max(waiting) <= 50
    assert board.done.max() <= deadline
    assert point.completed + point.dropped == point.offered == 4_000
    assert point.dropped == pytest.approx(2_000, rel=0.1)
    assert point.p99_ms is None and "overload" in [warning.code for warning in point.warnings]


def test_what_still_waits_at_the_deadline_is_dropped_not_served() -> None:
    offsets = schedule_constant(1000, 1000)
    board, _ = simulate(offsets, lambda n: 10 * MS, deadline_ns=int(offsets[-1]) + 100 * MS)
    assert board.done.max() <= offsets[-1] + 110 * MS
    assert set(board.status.tolist()) == {DONE, DROPPED}


def test_streams_and_batches_share_the_work() -> None:
    offsets = schedule_poisson(350, 20_000, seed=6)  # more than one stream carries
    two, busy = simulate(offsets, lambda n: 5 * MS, streams=2)
    point = describe_point(read(two), qps=350, busy_ns=busy, streams=2)
    assert point.validity == "valid" and point.utilisation == pytest.approx(0.875, rel=0.02)
    batched, _ = simulate(offsets, lambda n: 5 * MS, batcher=Batcher(max_batch=4))
    joined = describe_point(read(batched), qps=350)
    assert joined.validity == "valid" and joined.batch is not None and 1.3 < joined.batch < 4


def test_servers_share_requests_out_in_turns() -> None:
    """Whatever comes at once: each request goes to one server, with the sample that it asks for."""
    board = MemoryBoard(np.arange(10))
    board.head[START], board.sample[:] = 1, np.arange(10) % 3
    sources = [BoardSource(board, os.open("/dev/null", os.O_RDONLY), "abc", lambda: 0, (i, 3)) for i in range(3)]
    for source in sources:
        source.begin()
    assert board.head[READY : READY + 4].tolist() == [1, 1, 1, 0]
    taken: list[list[tuple[int, object]]] = [[], [], []]
    for released in (1, 5, 5, 10):
        board.head[RELEASED] = released
        for found, source in zip(taken, sources, strict=True):
            found += [(request.number, request.kind) for request in source.take()]
    assert taken == [
        [(0, "a"), (3, "a"), (6, "a"), (9, "a")],
        [(1, "b"), (4, "b"), (7, "b")],
        [(2, "c"), (5, "c"), (8, "c")],
    ]
    assert all(source.exhausted for source in sources)


def test_a_part_is_at_work_once_however_many_batches_are_in_it() -> None:
    span = Span()
    for start, end in ((10, 30), (20, 40), (25, 35), (50, 60)):
        span.add(start, end)
    assert span.total_ns == 40


def number(batch: list[Waiting]) -> list[int]:
    return [request.number for request in batch]


def test_a_batch_waits_until_it_is_full_or_its_oldest_has_waited_long_enough() -> None:
    batcher = Batcher(max_batch=3, max_wait_ns=100)
    for i, since_ns in enumerate((10, 20, 60, 65, 109)):
        assert batcher.take(since_ns) == []
        batcher.add(Waiting(i, since_ns))
        assert number(batcher.take(since_ns)) == ([0, 1, 2] if i == 2 else [])
    assert batcher.due_ns == 165 and batcher.take(164) == []
    assert number(batcher.take(165)) == [3, 4] and batcher.due_ns is None


def test_only_requests_of_one_kind_are_computed_together_and_nobody_is_lost() -> None:
    batcher = Batcher(max_batch=4)
    for i, kind in enumerate("abaab"):
        batcher.add(Waiting(i, i, kind))
    assert number(batcher.take(9)) == [0, 2, 3]
    assert number(batcher.take(9)) == [1, 4]
    assert len(batcher) == 0
