"""The contract suite says yes to an engine that keeps its promises, and no to one that breaks any."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enginebench.backends.request import check_request, explain_closed, explain_unbound, read_options
from enginebench.core.entry import Entry, Option
from enginebench.core.errors import FeedError
from enginebench.core.feeds import check_feeds
from enginebench.core.records import Availability
from enginebench.testing import CHECKS, check_backend, expect_scores

ENTRY = Entry(name="sound", module="nowhere", takes="onnx", options={"size": Option(default="1", meaning="nothing")})


class SoundEngine:
    """Answers with NumPy; every promise is a method of its own, for an engine below to break."""

    shared: dict[str, Any] = {}  # where one engine below keeps what it should not

    def __init__(self, artifact: Any, threads: int) -> None:
        self.inputs, self.outputs, self.threads = artifact.inputs, artifact.outputs, threads
        self.feeds: Any = None
        self.answer: Any = None
        self.closed = False

    def bind(self, feeds: Any) -> None:
        self.require_open()
        self.check(feeds)
        self.feeds = self.copy_in(feeds)

    def check(self, feeds: Any) -> None:
        check_feeds(self.inputs, feeds)

    def copy_in(self, feeds: Any) -> Any:
        return {name: np.array(array) for name, array in feeds.items()}

    @property
    def run(self) -> Callable[[], object]:
        self.require_bound()
        return self.compute

    def compute(self) -> None:
        self.answer = self.infer()

    def infer(self) -> Any:
        return expect_scores(self.feeds["image"]).astype(np.float32)

    def fetch(self) -> Any:
        self.require_bound()
        return {"scores": self.copy_out(self.answer)}

    def copy_out(self, answer: Any) -> Any:
        return answer.copy()

    def require_open(self) -> None:
        if self.closed:
            raise explain_closed("sound")

    def require_bound(self) -> None:
        self.require_open()
        if self.feeds is None:
            raise explain_unbound("sound")

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> SoundEngine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class SoundBackend:
    name = "sound"
    engine: type[SoundEngine] = SoundEngine

    def probe(self) -> Availability:
        return Availability(engine="sound", available=True)

    def build(self, artifact: Any, spec: Any, out_dir: Path) -> Any:
        return artifact

    def load(self, artifact: Any, spec: Any) -> SoundEngine:
        self.check(artifact, spec)
        return self.engine(artifact, self.count_threads(spec))

    def check(self, artifact: Any, spec: Any) -> None:
        check_request(artifact, spec, ("onnx",), ("fp32",))
        read_options(spec, ENTRY.options)

    def count_threads(self, spec: Any) -> int:
        return int(spec.threads)


def test_a_sound_engine_passes() -> None:
    check_backend(SoundBackend(), entry=ENTRY)


def test_an_engine_needs_no_options_and_no_threads() -> None:
    class Plain(SoundEngine):
        def __init__(self, artifact: Any, threads: int) -> None:
            super().__init__(artifact, threads)
            del self.threads

    class Backend(SoundBackend):
        engine = Plain

        def check(self, artifact: Any, spec: Any) -> None:
            check_request(artifact, spec, ("onnx",), ("fp32",))

    check_backend(Backend(), entry=Entry(name="sound", module="nowhere", takes="onnx"))


def engine_with(**methods: Any) -> SoundBackend:
    backend = SoundBackend()
    backend.engine = type("FaultyEngine", (SoundEngine,), methods)
    return backend


def backend_with(**methods: Any) -> Any:
    return type("FaultyBackend", (SoundBackend,), methods)()


def compute_late(self: Any) -> None:
    """Starts the work and returns; the answer of the run before stands there meanwhile."""
    if self.answer is None:
        self.answer = np.zeros((len(self.feeds["image"]), 5), np.float32)
    threading.Timer(0.2, SoundEngine.compute, (self,)).start()


def compute_once(self: Any) -> None:
    if self.answer is None:
        SoundEngine.compute(self)


def compute_in_place(self: Any) -> None:
    SoundEngine.compute(self)
    self.feeds["image"] *= 2


def compute_together(self: Any) -> None:
    """Works in a place that all engines have in common."""
    self.shared["answer"] = self.infer()


def fetch_together(self: Any) -> Any:
    self.require_bound()
    return {"scores": self.shared["answer"].copy()}


def refuse_second_close(self: Any) -> None:
    self.require_open()
    self.closed = True


def check_names_alone(self: Any, feeds: Any) -> None:
    if set(feeds) != {"image"}:
        check_feeds(self.inputs, feeds)


def drop_then_check(self: Any, feeds: Any) -> None:
    kept, self.feeds = self.feeds, {"image": np.zeros((1, 3, 8, 8), np.float32)}
    check_feeds(self.inputs, feeds)
    self.feeds = kept


def count_wrongly(self: Any, spec: Any) -> int:
    return 4


def check_all_but(**allowed: Any) -> Callable[..., None]:
    """A check of requests that passes over one thing."""
    from msgspec.structs import replace

    def check(self: Any, artifact: Any, spec: Any) -> None:
        changes = {key: value for key, value in allowed.items() if hasattr(spec, key)}
        there = {key: value for key, value in allowed.items() if hasattr(artifact, key)}
        SoundBackend.check(self, replace(artifact, **there), replace(spec, **changes))

    return check


def explode(self: Any) -> None:
    raise OSError("no devices")


def fill(self: Any) -> None:
    """Computes into the buffer of the run before, where that has room."""
    answer = self.infer()
    if self.answer is None or self.answer.shape != answer.shape:
        self.answer = answer
    self.answer[...] = answer


def freeze(answer: Any) -> Any:
    answer = answer.copy()
    answer.flags.writeable = False
    return answer


def ignore_strides(self: Any, feeds: Any) -> Any:
    """Reads the memory as it lies."""
    image = feeds["image"]
    return {"image": np.frombuffer(image.tobytes("A"), np.float32).reshape(image.shape)}


FAULTS: dict[str, tuple[Any, str, str]] = {
    "late": (engine_with(compute=compute_late), "outputs are complete when run returns", "is off by up to"),
    "stale": (engine_with(compute=compute_once), "outputs are complete when run returns", "run 2: scores is off"),
    "wrong": (
        engine_with(infer=lambda self: SoundEngine.infer(self) + 1e-2),
        "outputs are complete",
        "off by up to 0.01",
    ),
    "aliased outputs": (
        engine_with(copy_out=lambda self, answer: answer, compute=fill),
        "outputs belong to the caller",
        "changed in a later run",
    ),
    "one buffer for all fetches": (
        engine_with(copy_out=lambda self, answer: answer),
        "outputs belong to the caller",
        "wrote into what fetch gave",
    ),
    "aliased inputs": (engine_with(copy_in=lambda self, feeds: dict(feeds)), "inputs are copied", "what bind took"),
    "inputs spoiled": (engine_with(compute=compute_in_place), "run leaves its inputs", "answers otherwise"),
    "strides ignored": (
        engine_with(copy_in=ignore_strides),
        "odd arrays are taken",
        "Fortran's order",
    ),
    "read-only outputs": (engine_with(copy_out=lambda self, answer: freeze(answer)), "outputs are as", "writeable"),
    "another output type": (
        engine_with(copy_out=lambda self, answer: answer.astype(np.float64)),
        "outputs are as the artifact says",
        "fetch gives float64",
    ),
    "batch ignored": (
        engine_with(infer=lambda self: np.repeat(SoundEngine.infer(self)[:1], 2, axis=0)),
        "batch may change",
        "batch 2: scores is off",
    ),
    "engines that meet": (
        engine_with(compute=compute_together, fetch=fetch_together),
        "two engines do not meet",
        "first",
    ),
    "any array": (engine_with(check=check_names_alone), "wrong feeds are refused", "an input with other channels"),
    "refused and spoiled": (engine_with(check=drop_then_check), "wrong feeds are refused", "then answers otherwise"),
    "run before bind": (
        engine_with(run=property(lambda self: self.compute)),
        "want inputs first",
        "run before the first",
    ),
    "use after close": (engine_with(close=lambda self: None), "close is final", "run after close is accepted"),
    "one close": (engine_with(close=refuse_second_close), "close is final", "UsageError"),
    "open after the block": (engine_with(__exit__=lambda self, *error: None), "context manager closes", "accepted"),
    "own threads": (backend_with(count_threads=count_wrongly), "threads are those", "asked for 2 threads, it has 4"),
    "any option": (backend_with(check=check_all_but(options={})), "unknown options", "is accepted"),
    "any device": (backend_with(check=check_all_but(device="cpu")), "other devices", "device tpu:0 is accepted"),
    "no threads": (
        backend_with(check=check_all_but(threads=1)),
        "other devices and no threads",
        "no threads is accepted",
    ),
    "any kind": (backend_with(check=check_all_but(kind="onnx")), "another kind", "does not take is accepted"),
    "any path": (backend_with(check=check_all_but(path="")), "missing file", "not there is accepted"),
    "no probe": (backend_with(probe=explode), "probe says", "OSError: no devices"),
    "absent": (
        backend_with(probe=lambda self: Availability(engine="sound", available=False, reason="no licence")),
        "probe says",
        "no licence",
    ),
    "another name": (backend_with(name="noise"), "follows the seam", "its name is 'noise', its entry's 'sound'"),
    "no load": (backend_with(load=None), "follows the seam", ""),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_engine_is_told_what_it_breaks(fault: str) -> None:
    backend, promise, words = FAULTS[fault]
    with pytest.raises(AssertionError) as caught:
        check_backend(backend, entry=ENTRY)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("engine sound breaks ") and lines[0].endswith(f" of {len(CHECKS)} promises:")
    assert any(line.startswith("- ") and promise in line and words in line for line in lines[1:]), caught.value


def test_every_promise_is_broken_by_some_engine_here() -> None:
    broken = [promise for _, promise, _ in FAULTS.values()]
    for check in CHECKS:
        name = check.__name__.removeprefix("check_").replace("_", " ")
        assert any(promise in name for promise in broken), name


def test_an_error_of_another_kind_is_no_refusal() -> None:
    def check(self: Any, feeds: Any) -> None:
        try:
            check_feeds(self.inputs, feeds)
        except FeedError as error:
            raise ValueError(str(error)) from error

    with pytest.raises(AssertionError, match=r"raises ValueError .*; expected FeedError"):
        check_backend(engine_with(check=check), entry=ENTRY)
