"""How right `load` is, and what it finds: queueing theory, the generator, configurations, false alarms.

python benchmarks/load.py theory            # simulated engines against M/D/1 and M/M/1; a few minutes
python benchmarks/load.py alarms            # the same simulated engine twice, 20 times, and one that is faster
python benchmarks/load.py generator         # 20,000 requests a second against `fake`
python benchmarks/load.py configurations    # resnet18 on all cores: streams x threads x batch; half an hour

The claims of docs/load.md rest on this.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT / "src")]

from enginebench.core.errors import EngineBenchError  # noqa: E402
from enginebench.core.names import parse_engine, parse_precision  # noqa: E402
from enginebench.core.records import Artifact, EngineSpec, MeasureSpec  # noqa: E402
from enginebench.features.load.arrivals import MemoryBoard, schedule_poisson  # noqa: E402
from enginebench.features.load.document import LoadDocument, LoadSettings, format_row  # noqa: E402
from enginebench.features.load.jobs import ServeJob  # noqa: E402
from enginebench.features.load.probe import Plan  # noqa: E402
from enginebench.features.load.rates import LoadCandidate, Prober, name_row  # noqa: E402
from enginebench.features.load.verb import LoadOptions, load_target  # noqa: E402
from enginebench.measure.pin import count_stream_threads  # noqa: E402
from enginebench.options import fill  # noqa: E402
from enginebench.report.progress import PlainReporter  # noqa: E402
from enginebench.stats.capacity import CapacitySearch  # noqa: E402
from enginebench.stats.queueing import Limit, LoadPoint, Stamps, describe_point, meets_limit  # noqa: E402
from enginebench.verbs.requests import make_request  # noqa: E402
from queues import wait_quantile_md1  # noqa: E402
from simulated_load import simulate  # noqa: E402

SERVICE_S = 0.005
SERVICE_NS = 5_000_000
Draw = Callable[[int], Callable[[int], int]]
Quantile = Callable[[float, float, float], float]


def system_quantile_mm1(q: float, arrivals_per_s: float, service_s: float) -> float:
    """The q-quantile of the time in the system of M/M/1 in seconds: one server, exponential service of that mean."""
    return -math.log(1 - q) / (1 / service_s - arrivals_per_s)


def draw_fixed(seed: int) -> Callable[[int], int]:
    """5 ms each."""
    return lambda requests: SERVICE_NS


def draw_exponential(seed: int) -> Callable[[int], int]:
    """Exponential with a mean of 5 ms."""
    rng = np.random.default_rng(seed)

    def draw() -> Iterator[int]:
        while True:
            yield from rng.exponential(SERVICE_NS, 1 << 16).astype(np.int64).tolist()

    services = draw()
    return lambda requests: next(services)


KINDS: dict[str, tuple[Draw, Quantile]] = {
    "M/D/1": (draw_fixed, wait_quantile_md1),
    "M/M/1": (draw_exponential, system_quantile_mm1),
}


def read(board: MemoryBoard) -> Stamps:
    return Stamps(board.scheduled, board.released, board.started, board.computed, board.done, board.status)


# Neighbours in a queue are alike, the more the busier it is: so many simulations give p99 to about one per cent.
REPEATS = {0.5: 1, 0.8: 6, 0.9: 16}


def compare_with_theory(arrivals: int) -> None:
    """p99 at three utilisations, and the capacity under a limit, each with what theory says."""
    for name, (draw, quantile) in KINDS.items():
        for rho, repeats in REPEATS.items():
            rate = rho / SERVICE_S
            points = []
            for seed in range(repeats):
                board, busy_ns = simulate(schedule_poisson(rate, arrivals, seed=seed), draw(1000 + seed))
                points.append(describe_point(read(board), qps=rate, busy_ns=busy_ns))
            found, wanted = mean(point.p99_ms for point in points), 1e3 * quantile(0.99, rate, SERVICE_S)
            print(
                f"{name} at {rho}: p99 {found:.2f} ms, theory {wanted:.2f} ms ({found / wanted - 1:+.1%}), "
                f"busy {mean(point.utilisation for point in points):.4f}, "
                f"L over lambda W {mean(point.in_system / point.little for point in points):.5f}",
                flush=True,
            )
        for rho in (0.5, 0.8, 0.9):
            limit = Limit(ms=1e3 * quantile(0.99, rho / SERVICE_S, SERVICE_S))
            search = CapacitySearch(0.6 / SERVICE_S, limit, resolution=1.02)
            while (rate := search.next_rate()) is not None:
                seed = len(search.probes)
                board, _ = simulate(schedule_poisson(rate, arrivals // 4, seed=seed), draw(100 + seed))
                held = meets_limit(describe_point(read(board), qps=rate, limit=limit), limit)
                search.add(rate, bool(held))
            found = search.describe(ended_early=False)
            middle = math.sqrt(found.passes_qps * found.fails_qps)
            true = rho / SERVICE_S
            print(
                f"{name}: p99 <= {limit.ms:.1f} ms passes at {found.passes_qps:.1f}, fails at {found.fails_qps:.1f}; "
                f"theory {true:.1f} ({middle / true - 1:+.1%} of the middle)",
                flush=True,
            )


class Silent(PlainReporter):
    def __init__(self) -> None: ...

    def step(self, text: str) -> None: ...


def count_alarms(times: int, process_sd: float) -> None:
    """Verdicts on one simulated engine against itself, and against one that is a tenth faster.

    Every process has a speed of its own, as real ones have. All but the engine is what `load --rounds 6` runs.
    """
    for faster in (1.0, 1.1):
        counts: dict[str, int] = {}
        for time in range(times):
            rng = np.random.default_rng([time, round(100 * faster)])

            def probe(plan: Plan, offsets: Any, samples: Any, rng: Any = rng, faster: float = faster) -> LoadPoint:
                speed = math.exp(process_sd * rng.standard_normal()) * (
                    faster if plan.row.startswith("second") else 1.0
                )
                board, busy_ns = simulate(offsets, lambda requests: round(SERVICE_NS / speed))
                return describe_point(read(board), qps=plan.qps, limit=plan.limit, busy_ns=busy_ns, row=plan.row)

            settings = LoadSettings(limit_ms=30.0, find_capacity=True, rounds=6)
            prober = Prober(settings, seed=time, timeout_s=1.0, reporter=Silent(), probe=probe)
            benches = [make_bench(name) for name in ("first", "second")]
            prober.rows = {bench.row.id: bench.row for bench in benches}
            prober.find_capacities(benches)
            verdict = prober.verdicts[0].verdict
            counts[verdict] = counts.get(verdict, 0) + 1
        print(
            f"an engine {faster:.1f} times as fast, {times} times, speeds of processes {process_sd:.0%}: {counts}",
            flush=True,
        )


def make_bench(name: str) -> LoadCandidate:
    row = name_row(EngineSpec(backend=name), streams=1, max_batch=1, max_wait_ms=0.0)
    artifact = Artifact(kind="onnx", model="m", path="", sha256="", files=(), inputs=(), outputs=())
    job = ServeJob(model="m", artifact=artifact, engine=row.engine, out_dir="")
    return LoadCandidate(row=row, job=job)


def run(
    engines: str, precisions: str, settings: LoadSettings, *, model: str, threads: int, **shared: str
) -> LoadDocument:
    """What `load` finds."""
    names = [parse_engine(text) for text in engines.split(" ")]
    options: Any = fill(LoadOptions, {"threads": threads or count_stream_threads(1), **shared})
    request = make_request(
        model,
        options,
        engines=names,
        precisions=[parse_precision(text) for text in precisions.split(",")],
        batches=(1,),
        measure=MeasureSpec(processes=1),
    )
    with TemporaryDirectory() as folder:
        return load_target(request, settings, Path(folder), reporter=PlainReporter())


def time_generator() -> None:
    """How late the generator is at rising rates, against an engine that takes no time."""
    for rate in (1_000.0, 5_000.0, 10_000.0, 20_000.0, 40_000.0):
        settings = LoadSettings(qps=rate, duration_s=5.0, max_batches=(64,))
        (point,) = run("fake", "fp32", settings, model="digits-mlp", threads=1).points
        print(
            f"{rate:.0f}/s: {point.completed} of {point.offered} answered, {point.achieved_per_s:.0f}/s, generator "
            f"late p99 {1e3 * point.generator_late_ms:.0f} us, latency p50 {1e3 * (point.p50_ms or 0):.0f} us, "
            f"batches of {point.batch:.1f}",
            flush=True,
        )


# Engines, precision, streams, threads of each, largest batch. The first line of each precision are the defaults.
TABLE = (
    ("ort openvino", "int8", 1, 2, 1),
    ("ort openvino", "int8", 2, 1, 1),
    ("ort openvino", "int8", 1, 2, 4),
    ("openvino:hint=throughput", "int8", 2, 1, 1),
    ("ort:sessions=one", "int8", 2, 1, 1),
    ("ort openvino", "fp32", 1, 2, 1),
    ("ort openvino", "fp32", 2, 1, 1),
    ("openvino:hint=throughput", "fp32", 2, 1, 1),
)
# A probe lasts as long as its requests take to come: of a slower row fewer fit into the same time.
PATIENCE = {"int8": 1.0, "fp32": 2.0}


# On a GPU each batch is a graph or a session of its own: without a quick search for kernels they take minutes to load.
GPU_ENGINES = "pytorch pytorch-cudagraph ort-cuda:conv_search=heuristic"


def list_on_gpu(limit_ms: float, seconds: float, engines: str) -> None:
    """Capacities of resnet50 in FP16, two streams with batches up to 32, and their share of what comes all at once."""
    for engine in engines.split(" "):
        settings = LoadSettings(
            limit_ms=limit_ms,
            find_capacity=True,
            duration_s=1.0,
            streams=(2,),
            max_batches=(32,),
            time_budget_s=seconds,
            resolution=1.1,
        )
        try:
            document = run(engine, "fp16", settings, model="resnet50", threads=4, device="cuda:0", weights="random")
        except EngineBenchError as error:
            print(f"{engine}: {error}", flush=True)
            continue
        show_rows(document)
        for point in document.points:
            print(
                f"  {point.qps:.0f}/s: p50 {point.p50_ms} p99 {point.p99_ms} ms, batches of {point.batch}, busy "
                f"{point.utilisation}, generator late {point.generator_late_ms} ms, {point.energy_mj} mJ a request, "
                f"{point.validity}",
                flush=True,
            )


def show_rows(document: LoadDocument) -> None:
    """The capacity of each row, and its share of what the engine computes when everything is there at once."""
    for row in document.rows:
        found = row.capacity
        if found is None or row.offline_per_s is None:
            print(f"{format_row(row)}: {row.reason}", flush=True)
            continue
        warnings = {c.code for point in document.points if point.row == row.id for c in point.warnings}
        warning = f", suspect: {', '.join(sorted(warnings))}" if found.suspect else ""
        share = f"{found.passes_qps / row.offline_per_s:.0%} of it" if found.passes_qps else "none of it"
        print(
            f"{format_row(row)}: p{found.percentile:g} <= {found.limit_ms:g} ms passes at {show(found.passes_qps)}, "
            f"fails at {show(found.fails_qps)} ({found.ended}{warning}, {len(found.probes)} probes); at once "
            f"{row.offline_per_s:.1f}/s, {share}",
            flush=True,
        )


def show(rate: float | None) -> str:
    return "none" if rate is None else f"{rate:.1f}/s"


def list_configurations(limit_ms: float, seconds: float) -> None:
    """Capacities of resnet18 under the limit; each search may take so many seconds, of FP32 twice as many."""
    for engines, precision, streams, threads, batch in TABLE:
        settings = LoadSettings(
            limit_ms=limit_ms,
            find_capacity=True,
            streams=(streams,),
            max_batches=(batch,),
            time_budget_s=seconds * len(engines.split(" ")) * PATIENCE[precision],
            resolution=1.08,
        )
        document = run(engines, precision, settings, model="resnet18", threads=threads)
        show_rows(document)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["theory", "alarms", "generator", "configurations", "gpu"])
    parser.add_argument("--arrivals", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--process-sd", type=float, default=0.02)
    parser.add_argument("--limit-ms", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--engines", default=GPU_ENGINES, help="of gpu, separated by spaces")
    asked = parser.parse_args()
    if asked.what == "theory":
        compare_with_theory(asked.arrivals)
    elif asked.what == "alarms":
        count_alarms(asked.times, asked.process_sd)
    elif asked.what == "generator":
        time_generator()
    elif asked.what == "gpu":
        list_on_gpu(asked.limit_ms, asked.seconds, asked.engines)
    else:
        list_configurations(asked.limit_ms, asked.seconds)


if __name__ == "__main__":
    main()
