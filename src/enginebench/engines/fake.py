"""`fake`: an engine that needs only NumPy, computes by a fixed rule, takes the requested time and fails on request.

It is public: tests of every layer, simulations of verdicts and users' own tests run on it.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import NoReturn

import numpy as np

from enginebench import __version__
from enginebench.core.engine_api import Closing
from enginebench.core.errors import MeasurementError, UsageError
from enginebench.core.feeds import check_feeds
from enginebench.core.names import require_precision
from enginebench.core.protocols import Array, Feeds, RunCall
from enginebench.core.records import Artifact, ArtifactKind, Availability, EngineSpec, LayerProfile, TensorSpec
from enginebench.core.shapes import concrete_shape
from enginebench.core.store import derive
from enginebench.engines.proof import Operator, summarize_layers
from enginebench.engines.request import check_request, check_state, read_number, read_options
from enginebench.engines.simulated import FAKE

NAME, OPTIONS = FAKE.name, FAKE.options
KINDS: tuple[ArtifactKind, ...] = ("onnx", "torch")

# Environment variables with the trial of the process (its speed is drawn from it) and the descriptor of its response.
TRIAL_VARIABLE = "ENGINEBENCH_REPETITION"
RESULT_FD_VARIABLE = "ENGINEBENCH_RESULT_FD"

# No UTF-8, no JSON, no text: what a native library may print over a response.
GARBAGE = b"\xff\xfe{not json]\x00"

# Factors drawn ahead for `run_sd`.
DRAWS = 4096

# How a trick changes the time of a run, and other options.
PACES = {"fast": 0.8, "slow": 1.25}
TRICKS = {"wrong": {"bias": "1"}, "crash": {"fault": "segfault", "at": "load"}}


class FakeClock:
    """A clock that stands still until it is moved: call it for nanoseconds, as `time.perf_counter_ns`.

    Args:
        tick_ns: how far each reading moves it, for clocks that cost something.
    """

    def __init__(self, tick_ns: int = 0) -> None:
        self.now_ns = 0
        self._tick_ns = tick_ns

    def __call__(self) -> int:
        self.now_ns += self._tick_ns
        return self.now_ns

    def advance(self, duration_ns: int) -> None:
        self.now_ns += duration_ns


class FakeBackend:
    """Engines made of options alone.

    Args:
        clock: moved on by each run in place of real waiting; None waits for real, busily.
        trial: which process this is, for `process_sd`; None takes it from the environment, else the process id.
    """

    name = NAME

    def __init__(self, clock: FakeClock | None = None, trial: int | None = None) -> None:
        self._clock = clock
        self._trial = trial

    def probe(self) -> Availability:
        return Availability(engine=NAME, available=True, version=__version__, devices=("cpu",))

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        """Return the artifact as it is, unless a fault was requested; with `build_sd` a file with this build's speed.

        That is a factor on its times, drawn from the seed and the name of the folder.
        """
        check_request(artifact, spec, KINDS, FAKE.precisions)
        options = read_options(spec, OPTIONS)
        if options["fault"] == "slow_build":
            time.sleep(read_number(spec, "build_s", options["build_s"]))
        _fail_at("build", options)
        deviation, seed = (read_number(spec, key, options[key]) for key in ("build_sd", "seed"))
        if not deviation:
            return artifact
        rng = np.random.default_rng((int(seed), zlib.crc32("/".join(out_dir.parts[-2:]).encode())))
        out_dir.mkdir(parents=True, exist_ok=True)
        path = out_dir / f"fake-{int(seed)}-{deviation:g}.speed"  # several configurations build in one folder
        path.write_text(repr(math.exp(deviation * rng.standard_normal())))
        return derive(artifact, [path], out_dir)

    def load(self, artifact: Artifact, spec: EngineSpec) -> FakeEngine:
        check_request(artifact, spec, KINDS, FAKE.precisions)
        options = read_options(spec, OPTIONS)
        options |= TRICKS.get(options["trick"], {})
        numbers = {k: read_number(spec, k, options[k]) for k in ("run_sd", "seed", "latency_us", "process_sd", "after")}
        speed = float(Path(artifact.path).read_text()) if float(options["build_sd"]) else 1.0
        latencies = draw_latencies(
            latency_ns=numbers["latency_us"] * 1000 * PACES.get(options["trick"], 1.0) * speed,
            run_sd=numbers["run_sd"],
            process_sd=numbers["process_sd"],
            seed=int(numbers["seed"]),
            trial=self._find_trial(),
        )
        _fail_at("load", options)
        return FakeEngine(
            inputs=artifact.inputs,
            outputs=artifact.outputs,
            threads=spec.threads,
            wait=make_wait(latencies, self._clock, asleep=options["waiting"] == "asleep"),
            bias=read_number(spec, "bias", options["bias"], signed=True),
            # Building slowly is over once it is built.
            fault=options["fault"] if options["at"] == "run" and options["fault"] != "slow_build" else "none",
            after=int(numbers["after"]),
            record=make_record(spec, options),
            latency_ns=numbers["latency_us"] * 1000,
            before_record=lambda: _fail_at("proof", options),
        )

    def _find_trial(self) -> int:
        if self._trial is not None:
            return self._trial
        return int(os.environ.get(TRIAL_VARIABLE) or os.getpid())


create_backend = FakeBackend


def make_record(spec: EngineSpec, options: dict[str, str]) -> dict[str, float]:
    """Make the record of precision that the engine will report."""
    share = read_number(spec, "ran_share", options["ran_share"])
    if share > 1:
        raise UsageError(f"option ran_share={share:g} of engine {NAME} must be between 0 and 1")
    requested = require_precision(spec.precision)
    ran = requested if options["ran"] == "as asked" else options["ran"]
    shares = {ran: share, requested: 1 - share} if ran != requested else {ran: 1.0}
    return {name: value for name, value in shares.items() if value > 0}


def draw_latencies(latency_ns: float, run_sd: float, process_sd: float, seed: int, trial: int) -> tuple[int, ...]:
    """Return the times of a process's runs in nanoseconds, to be repeated for ever: one if they are all alike.

    A process has one log-normal factor, drawn from seed and trial, and each run another; both have median 1.
    """
    rng = np.random.default_rng((seed, trial))
    process_factor = math.exp(process_sd * rng.standard_normal())
    if run_sd == 0:
        return (round(latency_ns * process_factor),)
    factors = np.exp(run_sd * rng.standard_normal(DRAWS))
    return tuple(round(latency_ns * process_factor * factor) for factor in factors)


def make_wait(
    latencies_ns: tuple[int, ...], clock: FakeClock | None, asleep: bool = False
) -> Callable[[], None] | None:
    """Make a wait for one run's time, on the given clock or the real one; None if the time is zero."""
    if latencies_ns == (0,):
        return None
    wait = (lambda ns: time.sleep(ns / 1e9)) if asleep else _wait_busily
    pass_time = wait if clock is None else clock.advance
    if len(latencies_ns) == 1:
        return partial(pass_time, latencies_ns[0])
    ahead = cycle(latencies_ns)
    return lambda: pass_time(next(ahead))


def _wait_busily(duration_ns: int) -> None:
    end_ns = time.perf_counter_ns() + duration_ns
    while time.perf_counter_ns() < end_ns:
        pass


@dataclass(kw_only=True, eq=False)
class FakeEngine(Closing):
    """`bind` computes the outputs and `run` publishes them, so that a run takes the requested time and no more."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    threads: int
    wait: Callable[[], None] | None
    bias: float
    fault: str
    after: int
    record: dict[str, float]
    latency_ns: float
    before_record: Callable[[], None]
    runs: int = 0
    _pending: dict[str, Array] | None = None
    _computed: dict[str, Array] = field(default_factory=dict)
    _closed: bool = False

    @property
    def run(self) -> RunCall:
        self._check_bound()
        return self._run

    def bind(self, feeds: Feeds) -> None:
        """Take the arrays and compute the outputs of the next run."""
        check_state(NAME, closed=self._closed)
        check_feeds(self.inputs, feeds)
        self._pending = project_feeds(self.inputs, self.outputs, feeds, self.bias)

    def fetch(self) -> dict[str, Array]:
        self._check_bound()
        return {name: array.copy() for name, array in self._computed.items()}

    def effective_precision(self) -> dict[str, float]:
        """Return fractions of time by precision, as the options set them: the record of a runtime, true or false."""
        self._check_bound()
        self.before_record()
        return dict(self.record)

    def profile_layers(self) -> LayerProfile:
        """A layer for each precision of its record, which takes its share of the time of a run."""
        shares = self.effective_precision()
        run = [Operator(name, share * self.latency_ns, f"slices in {name}", "mean") for name, share in shares.items()]
        return summarize_layers([run], "the engine's options")

    def close(self) -> None:
        self._closed = True
        self._pending, self._computed = None, {}

    def _check_bound(self) -> None:
        check_state(NAME, closed=self._closed, bound=self._pending is not None)

    def _run(self) -> None:
        if self.fault != "none" and self.runs >= self.after:
            if self.fault != "nan":
                fail(self.fault)
            pending = (self._pending or {}).items()
            self._pending = {k: np.full_like(a, np.nan) if a.dtype.kind == "f" else a for k, a in pending}
        self.runs += 1
        if self.wait is not None:
            self.wait()
        if self._pending is not None:
            self._computed = self._pending


def project_feeds(
    inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], feeds: Feeds, bias: float = 0.0
) -> dict[str, Array]:
    """Compute the fake's outputs: each value is the mean of one slice of a sample's input values, plus `bias`.

    The first axis is the batch. Inputs are flattened and joined, in order, then cut into as many slices as a sample
    of the output has values; where there are fewer inputs than that, they are repeated.
    """
    batch = feeds[inputs[0].name].shape[0] if inputs and feeds[inputs[0].name].ndim else 1
    joined = np.concatenate([feeds[s.name].reshape(batch, -1).astype(np.float64) for s in inputs], axis=1)
    projected: dict[str, Array] = {}
    for spec in outputs:
        shape = concrete_shape(spec, batch)
        samples = joined if shape[:1] == (batch,) else joined.reshape(1, -1)  # without a batch axis all are one
        width = math.prod(shape) // samples.shape[0]
        slices = max(1, samples.shape[1] // width)
        columns = np.arange(width * slices) % samples.shape[1]
        means = samples[:, columns].reshape(samples.shape[0], width, slices).mean(axis=2) + bias
        projected[spec.name] = np.asarray(means.reshape(shape).astype(spec.dtype))
    return projected


def _fail_at(stage: str, options: dict[str, str]) -> None:
    if options["at"] == stage and options["fault"] not in ("none", "nan", "slow_build"):
        fail(options["fault"])


def fail(fault: str) -> NoReturn:
    """Fail for real: the process crashes, is killed, hangs, sends an invalid response or exits silently."""
    print(f"enginebench fake engine: fault {fault}", file=sys.stderr, flush=True)
    match fault:
        case "segfault":
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGSEGV)
        case "oom":  # filling the memory would take the neighbours along; the kernel's killer ends a process like this
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            while True:
                time.sleep(3600)
        case "garbage":  # exit status 0: only the response itself shows the failure
            os.write(int(os.environ.get(RESULT_FD_VARIABLE) or 1), GARBAGE)
            os._exit(0)
        case "raise":
            raise RuntimeError("the fake engine raised an error, as requested")
        case "exit":
            os._exit(3)
    raise MeasurementError(f"the fault {fault} was requested")
