"""The promises of engines under load: every request gets the answer of depth 1, and one that fails fails alone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enginebench.core.engine_api import DeviceTimes, PaddedEngine, fill_entries
from enginebench.core.errors import UsageError
from enginebench.core.feeds import choose_buckets, drop_filling, fill_batch, sum_entries
from enginebench.core.names import parse_engine
from enginebench.core.records import Artifact, EngineSpec, TrafficCell
from enginebench.core.streams import Ended, Streams
from enginebench.engines.fake import project_feeds
from enginebench.engines.registry import open_backend, takes
from enginebench.features.load.child import OverlappedStreams, open_streams, warm_up
from enginebench.features.load.jobs import ServeJob
from enginebench.testing import ATOL, INPUT, OUTPUT, RTOL

# Each as it is opened under load, with the batches that requests may be joined to.
ENGINES = [
    ("fake", 3, 4),
    ("fake:waiting=asleep,latency_us=200", 3, 1),
    ("ort", 1, 1),
    ("ort", 2, 4),
    ("ort:sessions=one", 2, 1),
    ("ort:sessions=async", 2, 4),
    ("ort:arena=shared", 2, 1),
    ("openvino", 2, 4),
    ("openvino:shapes=dynamic", 2, 4),
    ("openvino:hint=throughput", 2, 1),
    ("openvino:pad=largest", 2, 1),
    ("pytorch", 1, 4),
    ("pytorch", 2, 1),
]
Open = Callable[[str, int, int], Streams]


@pytest.fixture
def open_engine(
    onnx_artifact: Artifact, torch_artifact: Artifact, loader: Callable[[Artifact], Any], tmp_path: Path
) -> Any:
    opened: list[Streams] = []

    def open_one(engine: str, streams: int, max_batch: int) -> Streams:
        name, options = parse_engine(engine)
        backend = open_backend(name, loader, tmp_path)
        cells = (TrafficCell(weight=0.5, batch=1), TrafficCell(weight=0.5, batch=4)) if "pad" in options else ()
        spec = EngineSpec(backend=name, options=options, traffic=cells)
        built = backend.build(torch_artifact if takes(name) == "torch" else onnx_artifact, spec, tmp_path)
        given = {"model": "small", "artifact": built, "engine": spec, "out_dir": str(tmp_path)}
        job = ServeJob(**given, streams=streams, max_batch=max_batch)
        opened.append(open_streams(backend, job))
        return opened[-1]

    yield open_one
    for streams in opened:
        streams.close()
        streams.close()  # may be called twice


def make_samples(count: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(5)
    return [{"image": rng.standard_normal((1, 3, 8, 8), dtype=np.float32)} for _ in range(count)]


def answer_all(streams: Streams, batches: list[list[Any]]) -> dict[int, Ended]:
    """What came of each submission, never more of them on their way than the depth."""
    ended: dict[int, Ended] = {}
    flying = 0
    for ticket, batch in enumerate(batches):
        while flying >= streams.depth:
            found = streams.collect(wait=True)
            assert found
            flying -= len(found)
            ended |= {one.ticket: one for one in found}
        streams.submit(ticket, batch)
        flying += 1
    while flying:
        found = streams.collect(wait=True)
        flying -= len(found)
        ended |= {one.ticket: one for one in found}
    assert streams.collect(wait=False) == []
    return ended


@pytest.mark.parametrize(("engine", "streams", "max_batch"), ENGINES)
def test_every_request_gets_the_answer_of_depth_1(engine, streams, max_batch, open_engine, expect) -> None:
    opened = open_engine(engine, streams, max_batch)
    batches, left = [], make_samples(24)
    warm_up(opened, left[:1], max_batch)
    while left:
        batches.append(left[: 1 + len(batches) % max_batch])
        left = left[len(batches[-1]) :]
    ended = answer_all(opened, batches)
    assert sorted(ended) == list(range(len(batches)))
    for ticket, batch in enumerate(batches):
        one = ended[ticket]
        assert one.error is None and one.outputs is not None
        assert one.started_ns <= one.computed_ns <= one.done_ns
        images = np.concatenate([sample["image"] for sample in batch])
        right = project_feeds((INPUT,), (OUTPUT,), {"image": images})["scores"] if "fake" in engine else expect(images)
        assert one.outputs["scores"].shape == right.shape
        np.testing.assert_allclose(one.outputs["scores"], right, rtol=RTOL, atol=ATOL)


def test_an_engine_that_pads_is_loaded_for_each_stream_and_padded(open_engine, monkeypatch) -> None:
    bound: list[tuple[int, ...]] = []
    bind = PaddedEngine.bind
    monkeypatch.setattr(
        PaddedEngine, "bind", lambda self, feeds: [bound.append(feeds["image"].shape), bind(self, feeds)]
    )
    ended = answer_all(open_engine("openvino:pad=largest", 2, 1), [[sample] for sample in make_samples(3)])
    assert len(bound) == 3 and not any(one.error for one in ended.values())


@pytest.mark.parametrize(("engine", "streams", "max_batch"), [e for e in ENGINES if "asleep" not in e[0]])
def test_a_request_that_fails_is_one_failed_request(engine, streams, max_batch, open_engine) -> None:
    opened = open_engine(engine, streams, max_batch)
    good = make_samples(6)
    bad = [{"image": np.zeros((1, 3, 9, 8), np.float32)}, {"image": np.zeros((1, 3, 8, 8), np.float64)}]
    bad.append({"photo": good[0]["image"]})
    ended = answer_all(opened, [[good[0]], [bad[0]], [good[1]], [bad[1]], [good[2]], [bad[2]], [good[3]]])
    assert [ticket for ticket in sorted(ended) if ended[ticket].error] == [1, 3, 5]
    assert all(ended[ticket].outputs is None for ticket in (1, 3, 5))
    assert "image" in str(ended[1].error)
    assert all(ended[ticket].outputs for ticket in (0, 2, 4, 6))


class Device:
    """An engine whose batches end when the test says so; it doubles its input."""

    overlaps = True

    def __init__(self, size: int) -> None:
        self.held, self.done, self.begun = np.zeros((size, 1)), False, 0

    def begin(self, samples: Sequence[Any]) -> None:
        fill_entries({"x": self.held}, samples)
        self.begun, self.done = self.begun + 1, False

    def is_done(self) -> bool:
        if self.held[0] < 0:
            raise RuntimeError("an illegal address")
        return self.done

    def finish(self) -> tuple[dict[str, np.ndarray], DeviceTimes]:
        return {"y": 2 * self.held}, DeviceTimes(1, 5, 2)


def test_overlapped_streams_take_a_batch_while_others_are_computed() -> None:
    """`submit` returns before anything is computed, answers come in any order, and one that fails fails alone."""
    now = iter(range(100, 1000, 100))
    lanes = [{1: Device(1), 4: Device(4)} for _ in range(3)]
    streams = OverlappedStreams(lanes, lambda: None, lambda: next(now))
    samples = [{"x": np.full((1, 1), value)} for value in (1.0, 2.0, 3.0, -1.0)]
    streams.submit(0, samples[:3])
    streams.submit(1, samples[:1])
    assert streams.depth == 3 and streams.collect(wait=False) == []
    assert [(lane[1].begun, lane[4].begun) for lane in lanes] == [(0, 0), (1, 0), (0, 1)]
    streams.submit(2, samples[3:])
    (failed,) = streams.collect(wait=True)
    assert failed.ticket == 2 and failed.error == "an illegal address"
    lanes[1][1].done = lanes[2][4].done = True
    three, one = streams.collect(wait=True)
    assert (three.ticket, three.started_ns, three.computed_ns, three.done_ns) == (0, 100, 498, 600)
    assert three.outputs is not None and three.outputs["y"].tolist() == [[2.0], [4.0], [6.0]]
    assert one.outputs is not None and one.outputs["y"].tolist() == [[2.0]]
    assert one.device_ns == DeviceTimes(1, 5, 2)


def test_async_sessions_need_a_thread_that_computes(open_engine: Open) -> None:
    with pytest.raises(UsageError, match="two threads in all"):
        open_engine("ort:sessions=async", 1, 1)


def test_buckets_are_few_and_a_batch_is_filled_up_and_cut() -> None:
    assert [choose_buckets(n) for n in (1, 2, 6, 8)] == [(1,), (1, 2), (1, 2, 4, 6), (1, 2, 4, 8)]
    assert [choose_buckets(n, few=True) for n in (1, 2, 6, 32)] == [(1,), (1, 2), (1, 3, 6), (1, 8, 16, 32)]
    samples = make_samples(3)
    joined = fill_batch(samples, 4)
    assert sum_entries(samples) == 3 and joined["image"].shape == (4, 3, 8, 8)
    np.testing.assert_array_equal(joined["image"][3], joined["image"][2])
    outputs = drop_filling({"scores": np.arange(8).reshape(4, 2), "count": np.array(4)}, 3, 4)
    assert outputs["scores"].shape == (3, 2) and outputs["count"] == 4
