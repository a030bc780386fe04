"""Engines that cheat, as plug-ins: ONNX Runtime with its work in the wrong place, or left out.

`write_plugin` makes them known to processes that have the folder on their path, as the engines `cheat:kind=KIND`.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from enginebench.core.entry import Entry, choice
from enginebench.core.feeds import check_feeds
from enginebench.core.records import Availability
from enginebench.engines.request import check_request, check_state, read_options


class Honest(AbstractContextManager):
    """Computes what is bound in each run."""

    def __init__(self, session: Any, artifact: Any) -> None:
        self.inputs, self.outputs = artifact.inputs, artifact.outputs
        self.session, self.feeds, self.answers = session, None, {}
        self.calls = 0  # of run, in all
        self.calls_bound = 0  # since the last bind

    def bind(self, feeds: Any) -> None:
        check_state("cheat", closed=self.session is None)
        check_feeds(self.inputs, feeds)
        self.feeds = {name: array.copy() for name, array in feeds.items()}
        self.calls_bound = 0
        self.after_bind()

    @property
    def run(self) -> Callable[[], None]:
        check_state("cheat", closed=self.session is None, bound=self.feeds is not None)
        return self._run

    def _run(self) -> None:
        self.calls += 1
        self.calls_bound += 1
        self.work()

    def fetch(self) -> dict[str, Any]:
        _ = self.run
        self.before_fetch()
        return {name: array.copy() for name, array in self.answers.items()}

    def close(self) -> None:
        self.session = self.feeds = None

    def __exit__(self, *error: object) -> None:
        self.close()

    def ask(self, feeds: Any) -> dict[str, Any]:
        names = [spec.name for spec in self.outputs]
        return dict(zip(names, self.session.run(names, feeds), strict=True))

    def compute(self) -> None:
        self.answers = self.ask(self.feeds)

    def after_bind(self) -> None: ...

    def work(self) -> None:
        self.compute()

    def before_fetch(self) -> None: ...


class InBind(Honest):
    def after_bind(self) -> None:
        self.compute()

    def work(self) -> None: ...


class InBindAndWaits(InBind):
    """A run that takes a fifth of the time, so that it looks like a fast one."""

    wait_s = 1.0

    def after_bind(self) -> None:
        begin = time.perf_counter()
        self.compute()
        self.wait_s = min(self.wait_s, (time.perf_counter() - begin) / 5)

    def work(self) -> None:
        end = time.perf_counter() + self.wait_s
        while time.perf_counter() < end:
            pass


class InThread(Honest):
    """`run` returns at once; `fetch` waits."""

    def work(self) -> None:
        self.thread = threading.Thread(target=self.compute)
        self.thread.start()

    def before_fetch(self) -> None:
        self.thread.join()


class InThreadUnjoined(InThread):
    """One thread at a time, and nobody waits for it."""

    thread: threading.Thread | None = None

    def work(self) -> None:
        if self.thread is None or not self.thread.is_alive():
            super().work()

    def before_fetch(self) -> None:
        if not self.answers:
            self.thread.join()


class InQueue(Honest):
    """One thread works off what `run` asks for, call by call, and `fetch` waits until it is through."""

    queue: queue.Queue[None] | None = None

    def work(self) -> None:
        if self.queue is None:
            self.queue = queue.Queue()
            threading.Thread(target=self.work_off, args=(self.queue,)).start()
        self.queue.put(None)

    def work_off(self, calls: queue.Queue[None]) -> None:
        while True:
            calls.get()
            self.compute()
            calls.task_done()

    def before_fetch(self) -> None:
        self.queue.join()


class InFetch(Honest):
    def work(self) -> None: ...

    def before_fetch(self) -> None:
        self.compute()


class InFirstFetch(Honest):
    """`fetch` computes once for each run, as a lazy tensor would."""

    def work(self) -> None:
        self.stale = True

    def before_fetch(self) -> None:
        if self.stale:
            self.compute()
        self.stale = False


class CachedByContent(Honest):
    def after_bind(self) -> None:
        self.known = getattr(self, "known", {})
        self.key = hashlib.sha256(b"".join(array.tobytes() for array in self.feeds.values())).digest()

    def work(self) -> None:
        if self.key not in self.known:
            self.known[self.key] = self.ask(self.feeds)
        self.answers = self.known[self.key]


class CachedInRun(CachedByContent):
    """Looks at the content in each run: slow, and still no inference."""

    def work(self) -> None:
        CachedByContent.after_bind(self)
        super().work()


class FirstCallOnly(Honest):
    def work(self) -> None:
        if not self.answers:
            self.compute()


class CachedByFirstValue(CachedByContent):
    def after_bind(self) -> None:
        super().after_bind()
        self.key = next(iter(self.feeds.values())).ravel()[:1].tobytes()


class CachedByShape(CachedByContent):
    def after_bind(self) -> None:
        super().after_bind()
        self.key = repr([array.shape for array in self.feeds.values()]).encode()


class CachedByExtremes(CachedByContent):
    """What the order of the values does not change."""

    def after_bind(self) -> None:
        super().after_bind()
        self.key = repr([(array.min(), array.max()) for array in self.feeds.values()]).encode()


class CachedByAddress(CachedByContent):
    """A program that reuses its arrays gets the outputs of what lay in them before."""

    def bind(self, feeds: Any) -> None:
        super().bind(feeds)
        self.key = repr([array.ctypes.data for array in feeds.values()]).encode()


class OneCallLate(Honest):
    """Hands out what the call before computed, as a thread that nobody waits for would."""

    def work(self) -> None:
        computed = self.ask(self.feeds)
        self.answers = getattr(self, "next", computed)
        self.next = computed


class FirstCallOfEachBind(Honest):
    def work(self) -> None:
        if self.calls_bound == 1:
            self.compute()


class FirstCalls(Honest):
    def work(self) -> None:
        if self.calls <= 50:
            self.compute()


class SkipsAndWaits(Honest):
    """A call that skips its work takes a fifth of the time, so that it looks like a fast one."""

    work_s = 1.0

    def work(self) -> None:
        begin = time.perf_counter()
        if self.calls_bound > 1 and self.is_timed():
            while time.perf_counter() < begin + min(self.work_s / 5, 2e-4):
                pass
            return
        self.compute()
        self.work_s = min(self.work_s, time.perf_counter() - begin)

    def is_timed(self) -> bool:
        raise NotImplementedError


class SkipsAtOnce(SkipsAndWaits):
    """Skips what follows the call before at once, as timed calls do."""

    ended = 0.0

    def work(self) -> None:
        super().work()
        self.ended = time.perf_counter()

    def is_timed(self) -> bool:
        return time.perf_counter() - self.ended < 2e-5


class SkipsUnfetched(SkipsAndWaits):
    """Skips where nobody fetched the outputs of the call before."""

    fetched = True

    def is_timed(self) -> bool:
        fetched, self.fetched = self.fetched, False
        return not fetched

    def before_fetch(self) -> None:
        self.fetched = True


class First500Calls(Honest):
    def work(self) -> None:
        if self.calls <= 500:
            self.compute()


class First5000Calls(Honest):
    def work(self) -> None:
        if self.calls <= 5000:
            self.compute()


class EveryTenthIsSkipped(Honest):
    def work(self) -> None:
        if self.calls % 10:
            self.compute()


class FirstCallsOfEachBind(Honest):
    def work(self) -> None:
        if self.calls_bound <= 5:
            self.compute()


class EverySecond(Honest):
    def work(self) -> None:
        if self.calls % 2:
            self.compute()


class EverySecondOfEachBind(Honest):
    def work(self) -> None:
        if self.calls_bound % 2:
            self.compute()


class HalfOfTheBatch(Honest):
    after = 0

    def work(self) -> None:
        if self.calls <= self.after:
            self.compute()
            return
        length = len(next(iter(self.feeds.values())))
        half = self.ask({name: array[: max(1, length // 2)] for name, array in self.feeds.items()})
        self.answers = {name: np.resize(array, (length, *array.shape[1:])) for name, array in half.items()}


class HalfOfTheBatchLater(HalfOfTheBatch):
    after = 60


class ShortenedInputs(Honest):
    """The second half of the last axis is not looked at."""

    after = 0

    def work(self) -> None:
        if self.calls <= self.after:
            self.compute()
            return
        feeds = {name: array.copy() for name, array in self.feeds.items()}
        for array in feeds.values():
            array[..., array.shape[-1] // 2 :] = 0
        self.answers = self.ask(feeds)


class ShortenedInputsLater(ShortenedInputs):
    after = 60


class SkipsAfter200(Honest):
    def work(self) -> None:
        if self.calls <= 200:
            self.compute()


class SkipsAfter200OfEachBind(Honest):
    def work(self) -> None:
        if self.calls_bound <= 200:
            self.compute()


class Random(Honest):
    """No cheat: its outputs have noise, as of dropout that is left on."""

    def work(self) -> None:
        rng = np.random.default_rng()
        self.answers = {
            name: a + rng.normal(0, a.std(), a.shape).astype(a.dtype) for name, a in self.ask(self.feeds).items()
        }


class Counting(Honest):
    """No cheat: a state that changes with each call is in its outputs."""

    def work(self) -> None:
        self.answers = {name: a + a.dtype.type(self.calls) for name, a in self.ask(self.feeds).items()}


HONEST: dict[str, type[Honest]] = {"honest": Honest, "random": Random, "counting": Counting}
KINDS: dict[str, type[Honest]] = {
    "bind": InBind,
    "bind-waits": InBindAndWaits,
    "thread": InThread,
    "thread-unjoined": InThreadUnjoined,
    "queue": InQueue,
    "fetch": InFetch,
    "fetch-once": InFirstFetch,
    "cached": CachedByContent,
    "cached-in-run": CachedInRun,
    "cached-by-value": CachedByFirstValue,
    "cached-by-shape": CachedByShape,
    "cached-by-extremes": CachedByExtremes,
    "cached-by-address": CachedByAddress,
    "one-late": OneCallLate,
    "first": FirstCallOnly,
    "first-of-bind": FirstCallOfEachBind,
    "first-50": FirstCalls,
    "skip-at-once": SkipsAtOnce,
    "skip-unfetched": SkipsUnfetched,
    "first-500": First500Calls,
    "first-5000": First5000Calls,
    "skip-tenth": EveryTenthIsSkipped,
    "first-5-of-bind": FirstCallsOfEachBind,
    "second": EverySecond,
    "second-of-bind": EverySecondOfEachBind,
    "half": HalfOfTheBatch,
    "half-later": HalfOfTheBatchLater,
    "short": ShortenedInputs,
    "short-later": ShortenedInputsLater,
    "skip-200": SkipsAfter200,
    "skip-200-of-bind": SkipsAfter200OfEachBind,
}
ENTRY = Entry(
    name="cheat",
    module=__name__,
    takes="onnx",
    distributions=("onnxruntime",),
    options={"kind": choice("|".join((*HONEST, *KINDS)), "what it does with the work")},
    axes="open",
)


class CheatBackend:
    name = ENTRY.name

    def probe(self) -> Availability:
        return Availability(engine=self.name, available=True, version=version("onnxruntime"), devices=("cpu",))

    def build(self, artifact: Any, spec: Any, out_dir: Path) -> Any:
        return artifact

    def load(self, artifact: Any, spec: Any) -> Honest:
        import onnxruntime

        check_request(artifact, spec, kinds=("onnx",), precisions=("fp32",))
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads, settings.log_severity_level = spec.threads, 4
        session = onnxruntime.InferenceSession(artifact.path, settings, providers=["CPUExecutionProvider"])
        return (HONEST | KINDS)[read_options(spec, ENTRY.options)["kind"]](session, artifact)


create_backend = CheatBackend


def write_plugin(folder: Path) -> Path:
    """Write what makes this file a plug-in into `folder`, which then belongs on PYTHONPATH beside this one."""
    info = folder / "enginebench_cheats-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: enginebench-cheats\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[enginebench.engines]\ncheat = cheats:ENTRY\n")
    return folder


def save_stack(path: Path, side: int = 24, channels: int = 24) -> Path:
    """Write a graph of three convolutions on images of `side`, about a millisecond of work for a batch of eight."""
    from onnx import TensorProto, helper, numpy_helper, save

    rng = np.random.default_rng(3)
    shapes = {"a": (channels, 3, 3, 3), "b": (channels, channels, 3, 3), "c": (8, channels, 3, 3)}
    weights = {
        name: rng.standard_normal(s).astype(np.float32) * (2 / np.prod(s[1:])) ** 0.5 for name, s in shapes.items()
    }
    names = ["x", "p", "q", "y"]
    nodes = [
        helper.make_node("Conv", [before, weight], [after], name=after, pads=[1, 1, 1, 1])
        for before, weight, after in zip(names, weights, names[1:], strict=False)
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", depth, side, side])
        for name, depth in (("x", 3), ("y", 8))
    ]
    tensors = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "stack", [ends[0]], [ends[1]], tensors)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path
