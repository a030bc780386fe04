"""`load` beside MLPerf LoadGen: one engine, driven by either, in all four scenarios.

    pip install mlcommons-loadgen
    python benchmarks/loadgen.py                       # `fake`, which sleeps 10 ms for each request
    python benchmarks/loadgen.py --engine ort --qps 200

LoadGen's generator is a thread of the engine's own process; it knows no failures and turns nobody away. Half of the
requests of `server` and all of the others meet no other, so that the medians (of `offline` the rates) have to agree.

The claims of docs/load.md rest on this.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import traceback
from collections.abc import Hashable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mlperf_loadgen

import enginebench
from enginebench.core.names import parse_engine
from enginebench.core.records import EngineSpec
from enginebench.core.streams import Ended
from enginebench.features.load.child import CLOCK, find_kind_of, open_streams, read_request_samples, warm_up
from enginebench.features.load.jobs import ServeJob
from enginebench.features.load.serving import Batcher, Waiting, serve
from enginebench.models.onnx.source import read_packaged_onnx
from enginebench.runs.child.opening import open_for

MODEL = "digits-mlp"
SCENARIOS = {"single": "SingleStream", "multi": "MultiStream", "server": "Server", "offline": "Offline"}
# Of a query of several samples the whole query counts.
MEDIANS = ("result_50.00_percentile_per_query_latency_ns", "result_50.00_percentile_latency_ns")


class Queries:
    """Where our server gets LoadGen's queries from, and where it says which have ended."""

    def __init__(self, kinds: Sequence[Hashable]) -> None:
        self._kinds = kinds
        self._fresh: list[Waiting] = []
        self._came = threading.Condition()
        self._over = False
        self.queries: list[tuple[int, int]] = []  # (LoadGen's id, sample) by our number

    def issue(self, samples: Sequence[Any]) -> None:
        now = CLOCK()
        with self._came:
            for sample in samples:
                self._fresh.append(Waiting(len(self.queries), now, self._kinds[sample.index]))
                self.queries.append((sample.id, sample.index))
            self._came.notify()

    def end(self) -> None:
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

    def finish(self, batch: Sequence[Waiting], ended: Ended) -> None:
        respond = mlperf_loadgen.QuerySampleResponse
        mlperf_loadgen.QuerySamplesComplete([respond(self.queries[r.number][0], 0, 0) for r in batch])

    def drop(self, request: Waiting) -> None:
        """The queue has no end."""


def ask_loadgen(engine: EngineSpec, scenario: str, qps: float, seconds: float, folder: Path) -> dict[str, Any]:
    """Every key of LoadGen's detail log with its last value."""
    job = ServeJob(model=MODEL, artifact=read_packaged_onnx(MODEL), engine=engine, out_dir=str(folder))
    samples = read_request_samples(job)
    streams = open_streams(open_for(engine, str(folder)), job)
    warm_up(streams, samples, job.max_batch)
    queries = Queries([find_kind_of(sample) for sample in samples])

    def answer() -> None:
        try:
            find = lambda n: samples[queries.queries[n][1]]  # noqa: E731
            serve(queries, queries, streams, Batcher(1, 0), find_sample=find, clock=CLOCK)
        except BaseException:  # LoadGen would wait for its answers for ever
            traceback.print_exc()
            os._exit(1)

    server = threading.Thread(target=answer, daemon=True)
    server.start()
    run_test(queries, make_settings(scenario, qps, seconds), len(samples), folder)
    queries.end()
    server.join()
    streams.close()
    lines = (folder / "mlperf_log_detail.txt").read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines if line.startswith(":::MLLOG ")]
    return {entry["key"]: entry["value"] for entry in entries}


def run_test(queries: Queries, settings: Any, count: int, folder: Path) -> None:
    """One test of LoadGen, from its first query to its last log."""
    logs = mlperf_loadgen.LogSettings()
    logs.log_output.outdir, logs.log_output.copy_summary_to_stdout, logs.enable_trace = str(folder), False, False
    sut = mlperf_loadgen.ConstructSUT(queries.issue, lambda: None)
    library = mlperf_loadgen.ConstructQSL(count, count, lambda indices: None, lambda indices: None)
    mlperf_loadgen.StartTestWithLogSettings(sut, library, settings, logs)
    mlperf_loadgen.DestroyQSL(library)
    mlperf_loadgen.DestroySUT(sut)


def make_settings(scenario: str, qps: float, seconds: float) -> Any:
    settings = mlperf_loadgen.TestSettings()
    settings.scenario = getattr(mlperf_loadgen.TestScenario, SCENARIOS[scenario])
    settings.mode = mlperf_loadgen.TestMode.PerformanceOnly
    settings.min_duration_ms, settings.min_query_count = round(1000 * seconds), 1
    settings.server_target_qps, settings.server_target_latency_ns = qps, 10**10
    settings.offline_expected_qps = qps
    settings.single_stream_expected_latency_ns = settings.multi_stream_expected_latency_ns = round(1e9 / qps)
    return settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="fake:latency_us=10000,waiting=asleep")
    parser.add_argument("--qps", type=float, default=20.0, help="of the scenario server")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--seconds", type=float, default=5.0)
    asked = parser.parse_args()
    backend, options = parse_engine(asked.engine)
    for scenario in asked.scenarios.split(","):
        rate = asked.qps if scenario == "server" else None
        with TemporaryDirectory() as folder:
            theirs = ask_loadgen(
                EngineSpec(backend=backend, options=options), scenario, asked.qps, asked.seconds, Path(folder)
            )
            shared: dict[str, Any] = {"qps": rate, "duration": asked.seconds, "threads": 1, "out": f"{folder}/load"}
            (ours,) = enginebench.load(MODEL, [asked.engine], scenario=scenario, **shared).points
        if scenario == "offline":
            unit, found, wanted = "a second", ours.achieved_per_s, theirs["result_samples_per_second"]
        else:
            unit, found = "ms, p50", ours.p50_ms
            wanted = next(theirs[key] for key in MEDIANS if key in theirs) / 1e6
        assert found is not None
        print(f"{scenario}: LoadGen {wanted:.4g} {unit}, load {found:.4g} ({found / wanted - 1:+.1%})", flush=True)


if __name__ == "__main__":
    main()
