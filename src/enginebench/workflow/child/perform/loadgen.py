"""The child's part of LoadGen: MLPerf's load generator asks, and the same server answers."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from enginebench.core.errors import MissingDependency
from enginebench.core.streams import Ended
from enginebench.measure.batching import Batcher, Waiting
from enginebench.measure.pin import pin_to
from enginebench.measure.serving import serve
from enginebench.workflow.child.jobs import LoadgenAnswer, LoadgenJob, NoteCall
from enginebench.workflow.child.opening import open_for
from enginebench.workflow.child.perform.load import (
    CLOCK,
    find_kind_of,
    open_streams,
    read_samples,
    rest_collector,
    warm_up,
)

SCENARIOS = {"single": "SingleStream", "multi": "MultiStream", "server": "Server", "offline": "Offline"}


class LoadgenSource:
    """Queries as LoadGen issues them, from a thread of its own."""

    def __init__(self, kinds: Sequence[Hashable]) -> None:
        self._kinds = kinds
        self._fresh: list[Waiting] = []
        self._came = threading.Condition()
        self._over = False
        self.queries: list[tuple[int, int]] = []  # (LoadGen's id, sample) by our number

    def issue(self, samples: Sequence[Any]) -> None:
        """Takes what LoadGen asks."""
        now = CLOCK()
        with self._came:
            for sample in samples:
                self._fresh.append(Waiting(len(self.queries), now, self._kinds[sample.index]))
                self.queries.append((sample.id, sample.index))
            self._came.notify()

    def end(self) -> None:
        """No more will come."""
        with self._came:
            self._over = True
            self._came.notify()

    def take(self) -> list[Waiting]:
        with self._came:
            fresh, self._fresh = self._fresh, []
            return fresh

    def wait(self, until_ns: int | None) -> None:
        with self._came:
            if not self._fresh and not self._over:
                self._came.wait(None if until_ns is None else max(0.0, (until_ns - CLOCK()) / 1e9))

    @property
    def exhausted(self) -> bool:
        return self._over and not self._fresh


class LoadgenSink:
    """Tells LoadGen what has ended. It knows no failures: a query that failed has ended, and is counted here."""

    def __init__(self, source: LoadgenSource, loadgen: Any) -> None:
        self._source, self._loadgen = source, loadgen
        self.reasons: dict[str, int] = {}

    def finish(self, batch: Sequence[Waiting], ended: Ended) -> None:
        respond = self._loadgen.QuerySampleResponse
        self._loadgen.QuerySamplesComplete([respond(self._source.queries[r.number][0], 0, 0) for r in batch])
        if ended.error is not None:
            self.reasons[ended.error] = self.reasons.get(ended.error, 0) + len(batch)

    def drop(self, request: Waiting) -> None:
        """Nothing is dropped: the queue has no end."""


def drive_loadgen(job: LoadgenJob, note: NoteCall) -> LoadgenAnswer:
    """Has LoadGen drive the engine by its own rules; its logs lie in `job.log_dir` afterwards."""
    loadgen = import_loadgen()
    if job.serve.cpus:
        pin_to(job.serve.cpus)
    samples = read_samples(job.serve)
    with ExitStack() as stack:
        backend = open_for(job.serve.engine, job.serve.out_dir)
        streams = open_streams(backend, job.serve)
        stack.callback(streams.close)
        warm_up(streams, samples, job.serve.max_batch)
        source = LoadgenSource([find_kind_of(sample) for sample in samples])
        sink = LoadgenSink(source, loadgen)

        def answer() -> None:
            batcher = Batcher(job.serve.max_batch, round(1e6 * job.serve.max_wait_ms))
            try:
                serve(source, sink, streams, batcher, find_sample=lambda n: samples[source.queries[n][1]], clock=CLOCK)
            except BaseException:  # LoadGen would wait for its answers for ever
                traceback.print_exc()
                os._exit(1)

        server = threading.Thread(target=answer, daemon=True)
        rest_collector()
        note("LoadGen is asking")
        server.start()
        run_test(loadgen, job, source, len(samples))
        source.end()
        server.join()
        return LoadgenAnswer(engine_version=backend.probe().version, reasons=sink.reasons)


def import_loadgen() -> Any:
    """The module of LoadGen.

    Raises:
        MissingDependency: it is not installed.
    """
    try:
        import mlperf_loadgen
    except ModuleNotFoundError as error:
        raise MissingDependency("MLPerf LoadGen", 'pip install "enginebench[load]"') from error
    return mlperf_loadgen


def run_test(loadgen: Any, job: LoadgenJob, source: LoadgenSource, count: int) -> None:
    """One test of LoadGen, from its first query to its last log."""
    folder = Path(job.log_dir)
    folder.mkdir(parents=True, exist_ok=True)
    output = loadgen.LogOutputSettings()
    output.outdir, output.copy_summary_to_stdout = str(folder), False
    logs = loadgen.LogSettings()
    logs.log_output, logs.enable_trace = output, False
    sut = loadgen.ConstructSUT(source.issue, lambda: None)
    library = loadgen.ConstructQSL(count, count, lambda indices: None, lambda indices: None)
    try:
        loadgen.StartTestWithLogSettings(sut, library, make_settings(loadgen, job), logs)
    finally:
        loadgen.DestroyQSL(library)
        loadgen.DestroySUT(sut)


def make_settings(loadgen: Any, job: LoadgenJob) -> Any:
    """LoadGen's settings; of a scenario only those that it reads."""
    settings = loadgen.TestSettings()
    settings.scenario = getattr(loadgen.TestScenario, SCENARIOS[job.scenario])
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.min_duration_ms = round(1000 * job.duration_s)
    settings.min_query_count = job.min_queries
    if job.scenario == "server":
        settings.server_target_qps = job.qps
        settings.server_target_latency_ns = round(1e6 * job.limit_ms)
        settings.server_target_latency_percentile = job.percentile / 100
    elif job.scenario == "offline":
        settings.offline_expected_qps = job.qps
    elif job.scenario == "single":
        settings.single_stream_expected_latency_ns = round(1e9 / job.qps)
    else:
        settings.multi_stream_expected_latency_ns = round(8e9 / job.qps)
    seeds = ("qsl_rng_seed", "sample_index_rng_seed", "schedule_rng_seed")
    for i, name in enumerate(seeds, 1):
        setattr(settings, name, job.serve.seed + i)
    return settings
