"""Points from stamps, the rule that believes a percentile, and queueing theory against what is known of it."""

import numpy as np
import pytest

from enginebench.core.warnings import make_warning
from enginebench.stats.queueing import (
    DONE,
    DROPPED,
    FAILED,
    Limit,
    Stamps,
    describe_point,
    join_queries,
    meets_limit,
    seems_to_meet,
)

MS = 1_000_000


def make_stamps(latencies_ms: list[float], *, gap_ms: float = 10.0, status: list[int] | None = None) -> Stamps:
    """Requests at equal distances, half of whose latency is waiting."""
    n = len(latencies_ms)
    scheduled = (np.arange(1, n + 1) * gap_ms * MS).astype(np.int64)
    latency = (np.asarray(latencies_ms) * MS).astype(np.int64)
    done = scheduled + latency
    ends = np.asarray(status or [DONE] * n)
    return Stamps(scheduled, scheduled.copy(), scheduled + latency // 2, done - 1, done, ends)


@pytest.mark.parametrize(("late", "needed"), [(0, 459), (1, 662), (10, 2010), (50, 6898)])
def test_early_stopping_asks_for_as_many_requests_as_loadgen(late: int, needed: int) -> None:
    limit = Limit(ms=5.0)
    enough = describe_point(make_stamps([10.0] * late + [1.0] * (needed - late)), qps=100, limit=limit)
    short = describe_point(make_stamps([10.0] * late + [1.0] * (needed - late - 1)), qps=100, limit=limit)
    assert enough.late == short.late == late
    assert meets_limit(enough, limit) is True
    assert meets_limit(short, limit) is not True


def test_a_limit_fails_where_more_are_late_than_the_percentile_leaves_and_is_open_between() -> None:
    limit = Limit(ms=5.0)
    point = describe_point(make_stamps([10.0] * 7 + [1.0] * 655), qps=100, limit=limit)
    assert meets_limit(point, limit) is False
    assert meets_limit(describe_point(make_stamps([10.0] * 4 + [1.0] * 658), qps=100, limit=limit), limit) is None


def test_an_engine_that_was_lost_on_the_way_has_held_nothing() -> None:
    """660 of 1,000 requests in time, then it died with one under way: enough for p99 as far as it came."""
    stamps = make_stamps([1.0] * 661 + [0.0] * 339, status=[DONE] * 660 + [0] * 340)
    stamps.released[661:] = 0
    limit = Limit(ms=5.0)
    whole = describe_point(make_stamps([1.0] * 1000), qps=100, limit=limit)
    lost = make_warning("cut_short", came=661, planned=1000, reason="SIGSEGV")
    point = describe_point(stamps, qps=100, limit=limit, warnings=(lost,))
    assert meets_limit(whole, limit) is True and seems_to_meet(whole, limit, 1000)
    assert meets_limit(point, limit) is None and not seems_to_meet(point, limit, 661)
    assert [warning.code for warning in point.warnings] == ["cut_short"]  # the rate is not what it died of


def test_requests_that_never_ended_are_later_than_any() -> None:
    status = [DONE] * 90 + [DROPPED] * 6 + [FAILED] * 4
    point = describe_point(make_stamps([1.0] * 100, status=status), qps=100, limit=Limit(ms=5.0), reason="no memory")
    assert (point.completed, point.dropped, point.failed, point.late) == (90, 6, 4, 10)
    assert point.p50_ms == point.p90_ms == 1.0
    assert point.p99_ms is None and point.max_ms is None
    assert {warning.code for warning in point.warnings} == {"overload", "failed_requests", "too_few_samples"}
    assert "no memory" in next(c for c in point.warnings if c.code == "failed_requests").message
    overload = next(c for c in point.warnings if c.code == "overload")
    assert overload.message.startswith("of 100 requests, 6 were") and overload.message.endswith(" 10 were late in all")


def test_requests_that_were_not_released_do_not_count_nor_does_the_last_of_few() -> None:
    stamps = make_stamps([1.0] * 10)
    stamps.released[6:] = 0
    assert describe_point(stamps, qps=100).offered == 6
    few = describe_point(make_stamps([5.0] * 6), qps=100)  # the last does not make a queue unsteady
    assert few.in_system == few.little == pytest.approx(0.5)
    assert "unsteady" not in [warning.code for warning in few.warnings]


def test_a_late_generator_makes_a_point_suspect_only_against_the_limit() -> None:
    stamps = make_stamps([30.0] * 500)
    stamps.released[:] += MS // 2
    assert describe_point(stamps, qps=100, limit=Limit(ms=100.0)).validity == "valid"
    suspect = describe_point(stamps, qps=100, limit=Limit(ms=40.0))
    assert suspect.validity == "suspect" and suspect.generator_late_ms == 0.5
    assert [warning.code for warning in suspect.warnings] == ["generator_late"]


def test_nothing_is_said_of_late_requests_where_there_is_no_limit() -> None:
    point = describe_point(make_stamps([1.0] * 500, status=[DONE] * 490 + [DROPPED] * 10), qps=100)
    told = next(warning.message for warning in point.warnings if warning.code == "overload")
    assert "10" in told and "late" not in told


def test_a_query_of_several_samples_ends_with_its_last() -> None:
    stamps = make_stamps([1.0, 9.0, 2.0, 3.0, 7.0], gap_ms=0.0, status=[DONE, DONE, DONE, FAILED, DONE])
    joined = join_queries(stamps, 2)
    assert (joined.done - joined.scheduled).tolist() == [9 * MS, 3 * MS]
    assert joined.status.tolist() == [DONE, FAILED]


def test_a_query_of_which_a_request_is_still_on_its_way_has_not_ended() -> None:
    """An interrupt cuts the last query in the middle: it has neither a start nor an end that could be averaged."""
    stamps = make_stamps([5.0] * 6, status=[1, 1, 1, 1, 1, 0])
    for column in (stamps.started, stamps.computed, stamps.done):
        column[-1] = 0
    whole, cut = (describe_point(each, qps=None, query=3, open_loop=False) for each in (make_stamps([5.0] * 3), stamps))
    assert (cut.offered, cut.completed, cut.dropped) == (2, 1, 1)
    assert (cut.queue_ms, cut.service_ms, cut.mean_ms) == (whole.queue_ms, whole.service_ms, whole.mean_ms)


@pytest.mark.parametrize("missing", ["started", "computed", "done"])
def test_a_request_that_lacks_a_time_is_averaged_nowhere(missing: str) -> None:
    stamps = make_stamps([5.0] * 100)
    getattr(stamps, missing)[7] = 0
    point = describe_point(stamps, qps=100)
    assert (point.completed, point.dropped) == (99, 1)
    for figure in (point.queue_ms, point.service_ms, point.compute_ms, point.mean_ms):
        assert figure is not None and 0 <= figure <= 5
