"""The fake: exact answers, exact times, and faults that are real."""

import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from calls import run_on
from enginebench.core.errors import UsageError
from enginebench.core.feeds import random_feeds
from enginebench.core.records import Artifact, EngineSpec, TensorSpec
from enginebench.engines import fake
from enginebench.engines.fake import DRAWS, FakeBackend, FakeClock, draw_latencies, fail

INPUT = TensorSpec(name="x", dtype="float32", shape=("batch", 4))
OUTPUT = TensorSpec(name="y", dtype="float32", shape=("batch", 2))
ARTIFACT = Artifact(kind="onnx", model="m", path="", sha256="", files=(), inputs=(INPUT,), outputs=(OUTPUT,))
FEEDS = {"x": np.array([[1, 3, 5, 9]], np.float32)}


def load(clock: FakeClock | None = None, trial: int = 0, **options: str) -> fake.FakeEngine:
    return FakeBackend(clock, trial).load(ARTIFACT, EngineSpec(backend="fake", options=options))


def time_runs(count: int, trial: int = 0, **options: str) -> list[int]:
    clock = FakeClock()
    engine = load(clock, trial, **options)
    engine.bind(FEEDS)
    times = []
    for _ in range(count):
        start = clock()
        engine.run()
        times.append(clock() - start)
    return times


def run_in_child(**options: str) -> subprocess.CompletedProcess[bytes]:
    """Runs the engine three times in a process of its own, which reports each run on its stdout."""
    code = (
        "import sys, numpy as np; from test_fake import ARTIFACT, FEEDS, load\n"
        f"engine = load(**{options!r}); engine.bind(FEEDS)\n"
        "for i in range(3): engine.run(); print(i, flush=True)"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    return subprocess.run([sys.executable, "-c", code], capture_output=True, env={**os.environ, "PYTHONPATH": path})


def test_real_time_passes_without_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock(tick_ns=100)
    engine = load(latency_us="3")
    engine.bind(FEEDS)
    with monkeypatch.context() as patch:
        patch.setattr(fake.time, "perf_counter_ns", clock)
        engine.run()
    assert clock.now_ns == 100 + 3000


def test_runs_vary_around_the_latency() -> None:
    times = time_runs(DRAWS, latency_us="1000", run_sd="0.1")
    logs = np.log(np.array(times) / 1e6)
    assert abs(statistics.median(times) / 1e6 - 1) < 0.01  # 4 standard errors of a median of 4096
    assert abs(logs.std() - 0.1) < 0.005
    assert times == time_runs(DRAWS, latency_us="1000", run_sd="0.1")
    assert times != time_runs(DRAWS, latency_us="1000", run_sd="0.1", seed="1")
    # Draws start over when used up.
    times = time_runs(DRAWS + 2, latency_us="10", run_sd="0.1")
    assert times[DRAWS:] == times[:2]


def test_processes_have_speeds_of_their_own() -> None:
    factors = [draw_latencies(1e9, 0, 0.01, 0, trial)[0] / 1e9 for trial in range(400)]
    assert abs(np.log(factors).std() - 0.01) < 0.0015  # 4 standard errors
    assert abs(np.log(factors).mean()) < 0.002
    assert time_runs(1, 3, latency_us="9", process_sd="0.2") == time_runs(1, 3, latency_us="9", process_sd="0.2")
    assert time_runs(1, 3, latency_us="9", process_sd="0.2") != time_runs(1, 4, latency_us="9", process_sd="0.2")


@pytest.mark.parametrize(
    "options", [{"latency_us": "fast"}, {"after": "-1"}, {"bias": "x"}, {"fault": "flood"}, {"at": "dawn"}]
)
def test_bad_values_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=f"option {next(iter(options))}="):
        load(**options)


@pytest.mark.parametrize(
    ("fault", "code"), [("segfault", -signal.SIGSEGV), ("oom", -signal.SIGKILL), ("exit", 3), ("raise", 1)]
)
def test_faults_end_the_process(fault: str, code: int) -> None:
    child = run_in_child(fault=fault, after="2")
    assert child.returncode == code
    assert child.stdout == b"0\n1\n"
    assert f"fault {fault}".encode() in child.stderr


def test_garbage_is_answered_with_success() -> None:
    child = run_in_child(fault="garbage")
    assert (child.returncode, child.stdout) == (0, fake.GARBAGE)


def test_hang_never_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    class Woken(BaseException):
        pass

    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            raise Woken

    monkeypatch.setattr(fake.time, "sleep", nap)
    with pytest.raises(Woken):
        fail("hang")


def test_slow_build_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    naps: list[float] = []
    monkeypatch.setattr(fake.time, "sleep", naps.append)
    options = {"fault": "slow_build", "build_s": "40"}
    assert FakeBackend().build(ARTIFACT, EngineSpec(backend="fake", options=options), tmp_path) == ARTIFACT
    assert naps == [40.0]


@pytest.mark.parametrize("stage", ["build", "load"])
def test_faults_come_at_their_stage(stage: str, tmp_path: Any) -> None:
    spec = EngineSpec(backend="fake", options={"fault": "raise", "at": stage})
    backend = FakeBackend()
    other = {"build": lambda: backend.load(ARTIFACT, spec), "load": lambda: backend.build(ARTIFACT, spec, tmp_path)}
    other[stage]()
    with pytest.raises(RuntimeError, match="as requested"):
        backend.build(ARTIFACT, spec, tmp_path) if stage == "build" else backend.load(ARTIFACT, spec)


def test_nan_comes_after_good_outputs() -> None:
    engine = load(fault="nan", after="1")
    for good in (True, False):
        assert np.isfinite(run_on(engine, FEEDS)["y"]).all() == good


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        ({}, {"int8": 1.0}),
        ({"ran": "fp32"}, {"fp32": 1.0}),
        ({"ran": "fp32", "ran_share": "0.6"}, {"fp32": 0.6, "int8": 0.4}),
        ({"ran": "int8", "ran_share": "0.6"}, {"int8": 1.0}),
    ],
)
def test_its_record_has_what_its_options_say(
    load_engine: Any, options: dict[str, str], shares: dict[str, float]
) -> None:
    with load_engine("fake", precision="int8", options=options) as engine:
        with pytest.raises(UsageError, match="call bind first"):
            engine.effective_precision()
        engine.bind(random_feeds(engine.inputs, 1, 0))
        assert engine.effective_precision() == pytest.approx(shares)
    with pytest.raises(UsageError, match="between 0 and 1"):
        load_engine("fake", options={"ran_share": "2"})
