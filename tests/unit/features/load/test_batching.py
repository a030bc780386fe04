"""Who is computed together, and who is turned away: decided by numbers alone."""

from enginebench.features.load.serving import Batcher, Waiting


def number(batch: list[Waiting]) -> list[int]:
    return [request.number for request in batch]


def test_a_batch_waits_until_it_is_full() -> None:
    batcher = Batcher(max_batch=3, max_wait_ns=100)
    batcher.add(Waiting(0, 10))
    batcher.add(Waiting(1, 20))
    assert batcher.take(50) == []
    batcher.add(Waiting(2, 60))
    assert number(batcher.take(60)) == [0, 1, 2]


def test_a_batch_is_taken_as_it_is_when_its_oldest_has_waited_long_enough() -> None:
    batcher = Batcher(max_batch=3, max_wait_ns=100)
    batcher.add(Waiting(0, 10))
    batcher.add(Waiting(1, 109))
    assert batcher.due_ns == 110
    assert batcher.take(109) == []
    assert number(batcher.take(110)) == [0, 1]
    assert batcher.due_ns is None


def test_only_requests_of_one_kind_are_computed_together_and_nobody_is_lost() -> None:
    batcher = Batcher(max_batch=4)
    for i, kind in enumerate("abaab"):
        batcher.add(Waiting(i, i, kind))
    assert number(batcher.take(9)) == [0, 2, 3]
    assert number(batcher.take(9)) == [1, 4]
    assert len(batcher) == 0


def test_a_full_queue_turns_away() -> None:
    batcher = Batcher(limit=2)
    assert [batcher.add(Waiting(i, i)) for i in range(3)] == [True, True, False]
    assert number(batcher.clear()) == [0, 1]
    assert len(batcher) == 0
