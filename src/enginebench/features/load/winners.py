"""Configurations of a run under load, on the artifacts that they were timed on."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from enginebench.core.errors import EngineBenchError
from enginebench.core.records import Capacity, Result
from enginebench.core.shapes import free_batch
from enginebench.features.load.document import LoadSettings
from enginebench.features.load.rates import LoadCandidate, Prober, make_bench, name_row
from enginebench.runs.folder import RunFolder, RunRecord
from enginebench.runs.progress import Reporter
from enginebench.runs.reporting import describe_stored
from enginebench.stats.capacity import LoadOutcome
from enginebench.stats.queueing import assess_search


def load_winners(folder: RunFolder, record: RunRecord, results: dict[str, Result], reporter: Reporter) -> None:
    """Find the capacity of the winners, if `load_p99_ms` of `run` was given, and store it with their results.

    They are loaded one after another in one stream, with the threads that they were timed with; requests are joined up
    to the batch of the configuration.
    """
    limit_ms = record.request.load_p99_ms
    if limit_ms is None:
        return
    document = describe_stored(record, list(results.values()))
    winners = {ref.id for ref in (document.fastest, document.recommended) if ref is not None}
    if not winners:
        reporter.say("no configuration won, so none was put under load")
    settings = LoadSettings(limit_ms=limit_ms, find_capacity=True)
    prober = Prober(settings, seed=record.request.measure.seed, timeout_s=record.request.timeout_s, reporter=reporter)
    for name in winners:
        capacity = results[name].capacity
        if capacity is not None and capacity.limit_ms == limit_ms:  # of the run that is continued
            continue
        try:
            bench = bench_configuration(folder, results[name])
            prober.rows[bench.row.id] = bench.row
            prober.find_capacities([bench])
        except EngineBenchError as error:
            reporter.say(f"{name} was not put under load: {error}")
            continue
        results[name] = replace(results[name], capacity=prober.rows[bench.row.id].capacity)
        folder.write_result(results[name])


def bench_configuration(
    folder: RunFolder, result: Result, streams: int = 1, max_batch: int | None = None, max_wait_ms: float = 0.0
) -> LoadCandidate:
    """Make the candidate of a timed configuration, on its artifact, each stream with its threads.

    Raises UsageError if its batch is fixed, so that requests cannot be joined. `max_batch`: its own by default.
    """
    engine = replace(result.engine, batch=1)
    configuration = name_row(
        engine, streams=streams, max_batch=max_batch or result.engine.batch, max_wait_ms=max_wait_ms
    )
    artifact = free_batch(folder.absolute(result.artifacts[-1]))
    return make_bench(configuration, artifact, model=result.model, out_dir=folder.artifacts, seed=result.measure.seed)


def load_row(
    folder: RunFolder,
    result: Result,
    streams: int,
    max_batch: int,
    settings: Mapping[str, Any],  # fields of `LoadSettings`
    *,
    name: str,
    earlier: Sequence[Capacity],  # of searches before
    seed: int,
    timeout_s: float,
    reporter: Reporter,
) -> LoadOutcome:
    """Measure the capacity of a timed configuration by one search; without a limit, by requests that arrive at once."""
    load_settings = LoadSettings(**settings)
    bench = bench_configuration(folder, result, streams, max_batch, load_settings.max_wait_ms)
    bench = replace(bench, row=replace(bench.row, id=name))
    prober = Prober(load_settings, seed=seed, timeout_s=timeout_s, reporter=reporter)
    prober.rows[name] = bench.row
    if load_settings.limit is None:
        per_s, capacity = prober.measure_offline(bench).achieved_per_s, None
    else:
        per_s, capacity = None, prober.search_capacity(bench, earlier)
    validity, warnings = assess_search([*prober.pilots, *prober.points])
    return LoadOutcome(per_s=per_s, capacity=capacity, validity=validity, warnings=warnings)
