"""The contract suite says yes to an engine that keeps its promises, and no to one that breaks any."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from enginebench import testing
from enginebench.core.entry import Entry, Option
from enginebench.core.errors import FeedError
from enginebench.core.feeds import check_feeds
from enginebench.core.records import Availability, BlockReading
from enginebench.engines.request import check_request, check_state, read_options
from enginebench.testing import CHECKS, DEEP, LAYERS, check_backend, expect_scores, make_weights

ENTRY = Entry(name="sound", module="nowhere", takes="onnx", options={"size": Option(default="1", meaning="nothing")})


BIAS = make_weights()["head.bias"]


class SoundEngine:
    """Answers with NumPy; every promise is a method of its own, for an engine below to break."""

    shared: dict[str, Any] = {}  # where one engine below keeps what it should not

    def __init__(self, artifact: Any, threads: int) -> None:
        self.inputs, self.outputs, self.threads = artifact.inputs, artifact.outputs, threads
        self.layers = LAYERS if artifact.model == DEEP else 0
        self.workers = [ThreadPoolExecutor(1) for _ in range(self.count_workers() - 1)]  # each has a part of its own
        self.feeds: Any = None
        self.answer: Any = None
        self.closed = False

    def count_workers(self) -> int:
        return self.threads if self.threads in (1, 2) else 1

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
        image = self.feeds["image"]
        first, *others = np.array_split(image, min(len(image), len(self.workers) + 1))
        begun = [w.submit(expect_scores, p, self.layers) for w, p in zip(self.workers, others, strict=False)]
        found = [expect_scores(first, self.layers), *(part.result() for part in begun)]
        return np.concatenate(found).astype(np.float32)

    def fetch(self) -> Any:
        self.require_bound()
        return self.name_outputs(self.copy_out(self.answer))

    def name_outputs(self, answer: Any) -> Any:
        return {"scores": answer, "twin": answer - BIAS} if self.layers else {"scores": answer}

    def copy_out(self, answer: Any) -> Any:
        return answer.copy()

    def require_open(self) -> None:
        check_state("sound", closed=self.closed)

    def require_bound(self) -> None:
        check_state("sound", closed=self.closed, bound=self.feeds is not None)

    def close(self) -> None:
        self.closed = True
        for worker in self.workers:
            worker.shutdown()

    def __enter__(self) -> "SoundEngine":
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


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody else takes CPU time: the cheats here are as plain among others, and no check is to be inconclusive.

    NumPy's matrix library has threads of its own, as many as cores: the engines here would share their work whatever
    they were asked for.
    """
    monkeypatch.setattr(testing.BlockWatch, "end", lambda self: BlockReading(foreign_cpu_cores=0.0))
    monkeypatch.setattr(testing, "read_allowed_cpus", lambda: (0, 1))
    with threadpool_limits(1, "blas"):
        yield


@pytest.mark.usefixtures("quiet")
def test_a_sound_engine_passes() -> None:
    check_backend(SoundBackend(), entry=ENTRY)


def test_others_on_the_machine_make_a_check_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing.BlockWatch, "end", lambda self: BlockReading(foreign_cpu_cores=3.0))
    monkeypatch.setattr(testing, "CHECKS", [testing.check_two_threads_share_the_work])
    with pytest.warns(UserWarning, match="engine sound, two threads share the work: inconclusive: of two threads"):
        check_backend(backend_with(engine=LonelyEngine), entry=ENTRY)


def test_an_engine_needs_no_options_and_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(SoundEngine):
        def __init__(self, artifact: Any, threads: int) -> None:
            super().__init__(artifact, threads)
            del self.threads

    class Backend(SoundBackend):
        engine = Plain

        def check(self, artifact: Any, spec: Any) -> None:
            check_request(artifact, spec, ("onnx",), ("fp32",))

    asked = [check for check in CHECKS if {"options", "threads"} & {*testing.name_check(check).split()}]
    monkeypatch.setattr(testing, "CHECKS", asked)
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
    return self.name_outputs(self.shared["answer"].copy())


class LateEngine(SoundEngine):
    """Answers right, and works wherever nobody times it: what its subclasses are for."""

    def compute(self) -> None:
        self.answer = None

    def copy_out(self, answer: Any) -> Any:
        if self.answer is None:
            self.answer = self.infer()
        return super().copy_out(self.answer)


class ThreadedEngine(LateEngine):
    """Starts the work, returns, and waits for it in fetch."""

    def compute(self) -> None:
        self.begun = ThreadPoolExecutor(1).submit(self.infer)
        self.answer = None

    def copy_out(self, answer: Any) -> Any:
        self.answer = self.begun.result()
        return super().copy_out(self.answer)


class EarlyEngine(SoundEngine):
    """Has its answer before anybody asks for it."""

    def bind(self, feeds: Any) -> None:
        super().bind(feeds)
        self.ready = self.infer()

    def compute(self) -> None:
        self.answer = self.ready


class HastyEngine(SoundEngine):
    """Hands out its answer as soon as the inputs are bound."""

    def bind(self, feeds: Any) -> None:
        super().bind(feeds)
        self.answer = self.infer()

    def compute(self) -> None: ...


class LazyEngine(SoundEngine):
    """Computes whenever its outputs are fetched."""

    def compute(self) -> None: ...

    def copy_out(self, answer: Any) -> Any:
        return self.infer()


class TiredEngine(SoundEngine):
    """Computes the first two hundred times."""

    calls = 0

    def compute(self) -> None:
        self.calls += 1
        if self.calls <= 200:
            super().compute()


class OnceABindEngine(SoundEngine):
    """Computes in the first call on new inputs, and has the outputs in the others."""

    def bind(self, feeds: Any) -> None:
        super().bind(feeds)
        self.fresh = True

    def compute(self) -> None:
        if self.fresh:
            super().compute()
        self.fresh = False


class SwappingEngine(SoundEngine):
    def name_outputs(self, answer: Any) -> Any:
        found = super().name_outputs(answer)
        return {"scores": found["twin"], "twin": found["scores"]} if self.layers else found


class LonelyEngine(SoundEngine):
    """Says that it has the threads that it was asked for, and uses one."""

    def count_workers(self) -> int:
        return 1


class GreedyEngine(SoundEngine):
    """Uses two, however many it was asked for."""

    def count_workers(self) -> int:
        return 2


def refuse_second_close(self: Any) -> None:
    self.require_open()
    SoundEngine.close(self)


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
    "wrong": (engine_with(infer=lambda self: SoundEngine.infer(self) + 1e-2),
        "outputs are complete", "off by up to 0.01"),
    "aliased outputs": (engine_with(copy_out=lambda self, answer: answer, compute=fill),
        "outputs belong to the caller", "changed in a later run"),
    "one buffer for all fetches": (engine_with(copy_out=lambda self, answer: answer),
        "outputs belong to the caller", "wrote into what fetch gave"),
    "aliased inputs": (engine_with(copy_in=lambda self, feeds: dict(feeds)), "inputs are copied", "what bind took"),
    "inputs spoiled": (engine_with(compute=compute_in_place), "run leaves its inputs", "gives other outputs"),
    "strides ignored": (engine_with(copy_in=ignore_strides), "odd arrays are taken", "Fortran's order"),
    "read-only outputs": (engine_with(copy_out=lambda self, answer: freeze(answer)), "outputs are as", "writeable"),
    "another output type": (engine_with(copy_out=lambda self, answer: answer.astype(np.float64)),
        "outputs are as the artifact says", "fetch gives float64"),
    "batch ignored": (engine_with(infer=lambda self: np.repeat(SoundEngine.infer(self)[:1], 2, axis=0)),
        "batch may change", "batch 2: scores is off"),
    "engines that meet": (engine_with(compute=compute_together, fetch=fetch_together),
        "two engines do not meet", "first"),
    "any array": (engine_with(check=check_names_alone), "wrong feeds are refused", "an input with other channels"),
    "refused and spoiled": (engine_with(check=drop_then_check), "wrong feeds are refused", "then gives other outputs"),
    "run before bind": (engine_with(run=property(lambda self: self.compute)),
        "want inputs first", "run before the first"),
    "use after close": (engine_with(close=lambda self: None), "close is final", "run after close is accepted"),
    "one close": (engine_with(close=refuse_second_close), "close is final", "UsageError"),
    "open after the block": (engine_with(__exit__=lambda self, *error: None), "context manager closes", "accepted"),
    "own threads": (backend_with(count_threads=count_wrongly), "threads are those", "asked for 2 threads, it has 4"),
    "any option": (backend_with(check=check_all_but(options={})), "unknown options", "is accepted"),
    "any device": (backend_with(check=check_all_but(device="cpu")), "other devices", "device tpu:0 is accepted"),
    "no threads": (backend_with(check=check_all_but(threads=1)),
        "other devices and no threads", "no threads is accepted"),
    "any kind": (backend_with(check=check_all_but(kind="onnx")), "another kind", "does not take is accepted"),
    "any path": (backend_with(check=check_all_but(path="")), "missing file", "not there is accepted"),
    "no probe": (backend_with(probe=explode), "probe says", "OSError: no devices"),
    "absent": (backend_with(probe=lambda self: Availability(engine="sound", available=False, reason="no licence")),
        "probe says", "no licence"),
    "another name": (backend_with(name="noise"), "follows the seam", "its name is 'noise', its entry's 'sound'"),
    "work in fetch": (backend_with(engine=LateEngine), "leaves no work to fetch", "the first fetch after a run does"),
    "a thread of its own": (backend_with(engine=ThreadedEngine), "leaves no work to fetch", "of the work"),
    "work in bind": (backend_with(engine=EarlyEngine), "takes longer on a larger graph", "done elsewhere"),
    "outputs before run": (backend_with(engine=HastyEngine), "outputs are made by run", "before run is called"),
    "outputs without run": (backend_with(engine=LazyEngine), "outputs are made by run", "before run is called"),
    "skips after 200 calls": (backend_with(engine=TiredEngine), "right after many calls", "scores is off by up to"),
    "one call a bind": (backend_with(engine=OnceABindEngine), "every call does the work", "repeated ones"),
    "swapped outputs": (backend_with(engine=SwappingEngine),
        "keep their names", "of two outputs of one shape scores is"),
    "one thread": (backend_with(engine=LonelyEngine), "two threads share the work", "they are ignored"),
    "always two threads": (backend_with(engine=GreedyEngine), "two threads share the work", "they are ignored"),
    "no load": (backend_with(load=None), "follows the seam", ""),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.usefixtures("quiet")
def test_a_faulty_engine_is_reported_with_what_it_breaks(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, promise, words = FAULTS[fault]
    checks = [check for check in CHECKS if promise in testing.name_check(check)]
    monkeypatch.setattr(testing, "CHECKS", checks)
    with pytest.raises(AssertionError) as caught:
        check_backend(backend, entry=ENTRY)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("engine sound breaks ") and lines[0].endswith(f" of {len(checks)} promises:")
    assert any(line.startswith("- ") and promise in line and words in line for line in lines[1:]), caught.value


def test_every_promise_is_broken_by_some_engine_here() -> None:
    broken = [promise for _, promise, _ in FAULTS.values()]
    for check in CHECKS:
        name = check.__name__.removeprefix("check_").replace("_", " ")
        assert any(promise in name for promise in broken), name


def test_an_error_of_another_kind_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "CHECKS", [testing.check_wrong_feeds_are_refused])

    def check(self: Any, feeds: Any) -> None:
        try:
            check_feeds(self.inputs, feeds)
        except FeedError as error:
            raise ValueError(str(error)) from error

    with pytest.raises(AssertionError, match=r"raises ValueError .*; expected FeedError"):
        check_backend(engine_with(check=check), entry=ENTRY)
