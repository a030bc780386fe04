"""Probe points at given rates, and search for the highest rate within a limit."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.commands import advise_dynamic_batch
from enginebench.core.errors import EngineBenchError, MeasurementError, UsageError
from enginebench.core.feeds import choose_buckets
from enginebench.core.names import escape_precision, format_engine, format_precision, slug
from enginebench.core.records import Artifact, Capacity, EngineSpec
from enginebench.core.shapes import concrete_shape, find_batch_axes, format_shapes, list_cells
from enginebench.engines.registry import find_entry
from enginebench.features.load.arrivals import (
    count_arrivals,
    count_fullest,
    read_arrivals,
    schedule_constant,
    schedule_poisson,
)
from enginebench.features.load.document import LoadDocument, LoadRow, LoadSettings, format_row
from enginebench.features.load.jobs import ServeJob
from enginebench.features.load.probe import Interrupted, Plan, probe_closed, probe_open
from enginebench.models.samples import find_samples, list_samples
from enginebench.runs.progress import Reporter
from enginebench.stats.capacity import (
    LOWEST_SHARE,
    RESOLUTION,
    SHORT_STRIDE,
    VOTES,
    CapacitySearch,
    CapacityVerdict,
    compare_capacities,
    find_middle,
    join_capacities,
)
from enginebench.stats.queueing import (
    Limit,
    LoadPoint,
    is_interfered,
    meets_limit,
    seems_to_meet,
    strict_min_samples,
    was_cut_short,
    was_interrupted,
)

if TYPE_CHECKING:
    from enginebench.features.load.arrivals import Times

# Samples that requests draw from: together larger than the last cache for images, so that inputs come from memory.
POOL = 64
# Samples of a query of the scenario `multi`. Source: MLPerf Inference rules, MultiStream.
MULTI_QUERY = 8
# A queue longer than the arrivals of this time, or of ten limits, is dropped: no client would wait for its end.
QUEUE_S = 1.0
# After the last arrival, what still waits is served for so long, or for two limits.
GRACE_S = 1.0
# Seconds of a point, and the least of a probe of the search.
POINT_S, PROBE_S = 10.0, 3.0
# A probe lasts so many limits: at a rate 3 % beyond what the engine computes, nearly half of its requests are late.
LIMITS_A_PROBE = 60
# A probe has requests for one late among them; if that does not decide, for ten.
PROBE_LATE = (1, 10)
# In a search that need not be strict, each rate is probed once, with requests for so many late ones at the limit.
ROUGH_LATE = 2
# It also gives up earlier: at a tenth of the first rate nearly every request finds the engine idle.
ROUGH_LOWEST_SHARE = 0.1
# The search begins at this share of what the engine computes when all requests are there at once.
FIRST_SHARE = 0.6
# Finding that takes at most this share of the time that searches have: an engine may take seconds for each request.
OFFLINE_SHARE = 0.1
# Batches on each stream by which that is found.
OFFLINE_BATCHES = 16
# The most requests of a closed loop that the board has room for, each second.
CLOSED_RATE = 100_000


class BudgetSpent(MeasurementError):
    """The next probe does not fit into the remaining time budget of all searches."""


class LoadCandidate(Struct, frozen=True, kw_only=True):
    row: LoadRow
    job: ServeJob


def name_row(engine: EngineSpec, *, streams: int, max_batch: int, max_wait_ms: float) -> LoadRow:
    """Describe a configuration: engine with its options, precision, streams, threads of each, batch."""
    name = slug(format_engine(engine)) if engine.options else engine.backend
    precision = escape_precision(format_precision(engine.precision, engine.recipe)).replace("@", ".")
    entry = find_entry(engine.backend)
    # Every batch costs a compilation, and on a GPU filling one up costs little beside that.
    few = max_batch > 1 and engine.device != "cpu" and entry.builder.tunes and "max_shapes" not in entry.options
    return LoadRow(
        id=f"{name}-{precision}-s{streams}-t{engine.threads}-b{max_batch}",
        engine=engine,
        streams=streams,
        max_batch=max_batch,
        max_wait_ms=max_wait_ms,
        compiled_for=choose_buckets(max_batch, few) if few else (),
    )


def make_bench(configuration: LoadRow, artifact: Artifact, *, model: str, out_dir: Path, seed: int) -> LoadCandidate:
    """Make a candidate that probes the configuration on the artifact; the user's inputs are in `out_dir`."""
    if configuration.max_batch > 1 and not has_open_batch(artifact):
        raise UsageError(
            f"{configuration.engine.backend} on {model} has a fixed batch, so requests cannot be joined: leave "
            f"--max-batch out, or export the model with {advise_dynamic_batch()}"
        )
    inputs_folder = find_samples(out_dir)
    job = ServeJob(
        model=model,
        artifact=artifact,
        engine=configuration.engine,
        out_dir=str(out_dir.absolute()),
        streams=configuration.streams,
        max_batch=configuration.max_batch,
        max_wait_ms=configuration.max_wait_ms,
        compiled_for=configuration.compiled_for,
        samples=len(list_samples(inputs_folder))
        if inputs_folder
        else -(-POOL // len(list_cells(configuration.engine))),
        inputs=inputs_folder,
        seed=seed,
    )
    return LoadCandidate(row=configuration, job=job)


def widen_profile(engine: EngineSpec, source: Artifact, max_batch: int) -> EngineSpec:
    """Widen the spec so that its plan takes every batch up to the largest, tuned for that; others stay unchanged.

    Shapes that the user named stay as they are.
    """
    options = find_entry(engine.backend).options
    if max_batch == 1 or "max_shapes" not in options or source.kind == "plan" or not has_open_batch(source):
        return engine
    shapes = {b: format_shapes({s.name: concrete_shape(s, b) for s in source.inputs}) for b in (1, max_batch)}
    profile = {"min_shapes": shapes[1], "opt_shapes": shapes[max_batch], "max_shapes": shapes[max_batch]}
    named = any(engine.options.get(key) for key in (*profile, "profiles"))
    return engine if named else replace(engine, options={**engine.options, **profile})


def has_open_batch(artifact: Artifact) -> bool:
    """Whether the first axis of every input is the batch, and open."""
    axes = find_batch_axes(artifact.inputs)
    return all(axes[spec.name] == 0 and isinstance(spec.shape[0], str) for spec in artifact.inputs)


def draw_samples(engine: EngineSpec, samples: int, count: int, seed: int) -> Times:
    """Draw the sample of each request: of a mix first its cell, by the weights, then one of so many in it."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, samples, count)
    if engine.traffic:
        drawn += samples * rng.choice(len(engine.traffic), count, p=[cell.weight for cell in engine.traffic])
    return drawn


class Prober:
    """Probes in progress, with their `rows`, `points` and `pilots` so far.

    The next probe depends on the points alone, their seconds included. So an interrupted load is repeated from its
    stored points, and nothing is measured twice; `keep` is called after each measured point.
    """

    def __init__(
        self,
        settings: LoadSettings,
        *,
        seed: int,
        timeout_s: float,
        reporter: Reporter,
        probe: Callable[[Plan, Times, Times], LoadPoint] = probe_open,
        clock: Callable[[], float] = time.monotonic,
        earlier: LoadDocument | None = None,
        keep: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings, self._seed, self._timeout_s = settings, seed, timeout_s
        self._probe_open = probe
        self._reporter, self._clock, self._keep = reporter, clock, keep
        self._artifacts = {row.id: row.artifact for row in earlier.rows} if earlier else {}
        stored = (earlier.points, earlier.pilots) if earlier else ((), ())
        # (points, pilots) of the interrupted load that were not used again yet
        self.earlier = tuple([point for point in points if not was_interrupted(point)] for points in stored)
        self._scheduled: Counter[str] = Counter()  # row -> its probes
        self._spent_s = 0.0
        self.preparation_s = (earlier.preparation_s or 0.0) if earlier else 0.0  # before anything was probed
        self._start_s: dict[str, float] = {}  # row -> seconds that its last probe took beside serving
        self._seconds = settings.duration_s or POINT_S
        self.rows: dict[str, LoadRow] = {}
        self.points: list[LoadPoint] = []
        self.pilots: list[LoadPoint] = []
        self.verdicts: tuple[CapacityVerdict, ...] = ()
        self.failures: dict[str, EngineBenchError] = {}  # id of a configuration -> the error that ended it

    @contextmanager
    def time_preparing(self) -> Iterator[None]:
        """Count the block as preparation, which is not part of the searches' time budget."""
        start_s = self._clock()
        try:
            yield
        finally:
            self.preparation_s += self._clock() - start_s

    def probe(self, bench: LoadCandidate) -> LoadPoint:
        settings = self._settings
        if settings.scenario in ("single", "multi"):
            query = 1 if settings.scenario == "single" else MULTI_QUERY
            samples = self._draw(bench, math.ceil(CLOSED_RATE * self._seconds))
            job = replace(bench.job, query=query, duration_s=self._seconds)
            plan = Plan(job=job, row=bench.row.id, qps=None, limit=settings.limit)
            progress = f"{query} at a time for {self._seconds:g} s"
            return self._take(self.points, plan, progress, None, partial(probe_closed, plan, samples))
        if settings.scenario == "offline":
            pilot = self.measure_offline(bench)
            count = max(self._count_offline(bench), math.ceil(self._seconds * (pilot.achieved_per_s or 0.0)))
            return self._probe_offline(bench, count, series=self.points)
        return self._probe_rate(bench, self._schedule(bench, settings.qps), settings.qps)

    def _take(
        self, series: list[LoadPoint], plan: Plan, progress: str, planned: int | None, probe: Callable[[], LoadPoint]
    ) -> LoadPoint:
        """Add a point to `series`: that of the interrupted load if it had the same request, else a new probe's."""
        points, pilots = self.earlier
        waiting = pilots if series is self.pilots else points
        stored = [point for point in waiting if point.row == plan.row]
        same = stored and self._artifacts.get(plan.row) == self.rows[plan.row].artifact and stored[0].qps == plan.qps
        # `planned` is a number of requests; None: it is not known before.
        if same and (planned in (None, stored[0].offered) or was_cut_short(stored[0].warnings)):
            waiting.remove(stored[0])
            self._spent_s += stored[0].seconds
            self._start_s[plan.row] = _measure_start_s(stored[0])
            series.append(stored[0])
            return stored[0]
        waiting[:] = [point for point in waiting if point.row != plan.row]
        self._reporter.step(f"{format_row(self.rows[plan.row])}: {progress}")
        start_s = self._clock()
        try:
            point = probe()
        except Interrupted as stopped:
            series.append(stopped.point)
            raise
        finally:
            seconds = self._clock() - start_s
            self._spent_s += seconds
        series.append(replace(point, seconds=seconds))
        self._start_s[plan.row] = _measure_start_s(series[-1])
        self._keep()
        return series[-1]

    def _schedule(self, bench: LoadCandidate, qps: float | None, count: int | None = None) -> Times:
        settings = self._settings
        if settings.arrivals not in ("poisson", "constant"):
            return read_arrivals(Path(settings.arrivals))
        assert qps is not None
        n = count or count_arrivals(qps, self._seconds)
        self._scheduled[bench.row.id] += 1
        if settings.arrivals == "constant":
            return schedule_constant(qps, n)
        return schedule_poisson(qps, n, self._seed + self._scheduled[bench.row.id])

    def _probe_rate(self, bench: LoadCandidate, offsets: Times, qps: float | None) -> LoadPoint:
        """Probe these arrivals, each with a sample that is drawn from the pool."""
        limit_s = self._settings.limit.ms / 1e3 if self._settings.limit else 0.0
        seconds = _last_s(offsets)
        rate = qps or (len(offsets) / seconds if seconds else None)
        most = count_fullest(offsets, max(QUEUE_S, 10 * limit_s))
        job = replace(bench.job, queue_limit=most, grace_s=self._find_grace())
        progress = f"{len(offsets)} requests at once"
        if rate:
            progress = f"{rate:{'.0f' if rate >= 1e4 else '.4g'}} requests a second for {seconds:.3g} s"
        plan = self._plan(job, bench, rate, self._settings.limit)
        probe = partial(self._probe_open, plan, offsets, self._draw(bench, len(offsets)))
        return self._take(self.points, plan, progress, len(offsets), probe)

    def _probe_offline(
        self, bench: LoadCandidate, count: int, grace_s: float = math.inf, series: list[LoadPoint] | None = None
    ) -> LoadPoint:
        """Probe requests that all arrive at once; none is begun after `grace_s`."""
        job = replace(bench.job, queue_limit=None, grace_s=min(grace_s, self._timeout_s))
        plan = self._plan(job, bench)
        probe = partial(self._probe_open, plan, np.zeros(count, np.int64), self._draw(bench, count))
        return self._take(self.pilots if series is None else series, plan, f"{count} requests at once", count, probe)

    def _find_grace(self) -> float:
        """Seconds after the last arrival in which waiting requests are still begun."""
        limit = self._settings.limit
        return max(GRACE_S, 2 * limit.ms / 1e3 if limit else 0.0)

    def _plan(self, job: ServeJob, bench: LoadCandidate, qps: float | None = None, limit: Limit | None = None) -> Plan:
        return Plan(job=job, row=bench.row.id, qps=qps, limit=limit, devices=bench.row.devices)

    def _draw(self, bench: LoadCandidate, count: int) -> Times:
        return draw_samples(bench.job.engine, bench.job.samples, count, self._seed)

    def measure_offline(self, bench: LoadCandidate) -> LoadPoint:
        """Measure the highest throughput, by requests that all arrive at once."""
        return self._probe_offline(bench, self._count_offline(bench))

    def search_capacity(self, bench: LoadCandidate, earlier: Sequence[Capacity] = ()) -> Capacity:
        """Search once, within the time budget of searches, beginning where the last of the earlier ones ended.

        Raises MeasurementError if the budget is too short for a single probe.
        """
        end_s = self._spent_s + self._settings.time_budget_s
        search = self._begin_search(bench, earlier, end_s)
        while self._go_on(search, bench, end_s):
            pass
        return search.describe(ended_early=search.next_rate() is not None)

    def find_capacities(self, benches: Sequence[LoadCandidate]) -> None:
        """Search every configuration for all rounds, interleaved, until it is settled or the time budget is spent.

        The order is reversed from round to round, and from probe to probe within a round, so that a machine that
        becomes slower favours none. A configuration that fails keeps its results until then, and the others go on.
        """
        end_s = self._spent_s + self._settings.time_budget_s
        capacities: dict[str, list[Capacity]] = {bench.row.id: [] for bench in benches}
        for number in range(self._settings.rounds):
            before = len(self.points)
            remaining = [bench for bench in benches if bench.row.id not in self.failures]
            self._search_round(remaining[::-1] if number % 2 else remaining, capacities, end_s)
            if len(self.points) == before:  # no probe fits into what is left of the time
                break
        if self._settings.rounds > 1 or len(benches) > 1:
            names = [bench.row.id for bench in benches]
            pairs = [(names[0], name) for name in names[1:]]
            self.verdicts = tuple(
                compare_capacities(capacities[base], capacities[name], (base, name)) for base, name in pairs
            )
        self.raise_failure(benches)

    def _search_round(
        self, benches: Sequence[LoadCandidate], capacities: dict[str, list[Capacity]], end_s: float
    ) -> None:
        searches: dict[str, CapacitySearch] = {}
        try:
            for bench in benches:
                earlier = capacities[bench.row.id]
                with self.catch_failure(bench), self._end_in_time(has_evidence=bool(earlier)):
                    searches[bench.row.id] = self._begin_search(bench, earlier, end_s)
            going = [bench for bench in benches if bench.row.id in searches]
            while going:
                going = [bench for bench in going if self._try(searches[bench.row.id], bench, end_s, capacities)][::-1]
        finally:
            for name, search in searches.items():
                if search.probes:
                    capacities[name].append(search.describe(ended_early=search.next_rate() is not None))
            for name, ended in capacities.items():
                capacity = join_capacities(ended)
                self.rows[name] = replace(self.rows[name], capacity=capacity, rounds=tuple(ended))

    def _go_on(self, search: CapacitySearch, bench: LoadCandidate, end_s: float, has_evidence: bool = False) -> bool:
        """Probe one more rate, if there is one; `has_evidence`: an earlier search has probed the configuration."""
        with self._end_in_time(has_evidence=has_evidence or bool(search.probes)):
            if self._probe_next(search, bench, end_s):
                return True
        return False

    def _try(
        self, search: CapacitySearch, bench: LoadCandidate, end_s: float, capacities: Mapping[str, Sequence[Capacity]]
    ) -> bool:
        with self.catch_failure(bench):
            if self._go_on(search, bench, end_s, has_evidence=bool(capacities[bench.row.id])):
                return True
        return False

    @contextmanager
    def _end_in_time(self, *, has_evidence: bool) -> Iterator[None]:
        """End the block when the time budget is spent; BudgetSpent is raised if there is no evidence yet."""
        try:
            yield
        except BudgetSpent as spent:
            if not has_evidence:
                advice = "Give them more with load --time-budget, or ask for a lower --percentile"
                raise BudgetSpent(f"{spent}. {advice}") from None
            self._reporter.say(f"{spent}; the search ends here")

    @contextmanager
    def catch_failure(self, bench: LoadCandidate) -> Iterator[None]:
        """Keep an error of the block as the reason of this configuration; the others go on."""
        try:
            yield
        except UsageError:
            raise
        except EngineBenchError as error:
            self.failures[bench.row.id] = error
            self.rows[bench.row.id] = replace(self.rows[bench.row.id], reason=str(error))

    def raise_failure(self, benches: Sequence[LoadCandidate]) -> None:
        if benches and all(bench.row.id in self.failures for bench in benches):
            raise self.failures[benches[0].row.id]

    def _begin_search(self, bench: LoadCandidate, earlier: Sequence[Capacity], end_s: float) -> CapacitySearch:
        """Begin a search at `FIRST_SHARE` of the highest throughput, or where the last of the earlier ones ended.

        A later one begins at a slightly different rate: with equal rates all would end at the same ones.
        """
        limit = self._settings.limit
        assert limit is not None
        if earlier and (middle := find_middle(earlier[-1])):
            rng = np.random.default_rng([self._seed, len(earlier), self._scheduled[bench.row.id]])
            begin = middle * RESOLUTION ** rng.uniform(-1, 1)
            return CapacitySearch(begin, limit, resolution=self._settings.resolution, stride=SHORT_STRIDE, votes=1)
        serving_s = self._find_serving_s(bench, end_s)
        if serving_s <= 0:
            raise BudgetSpent(f"{bench.row.id}: {self._format_left(end_s)}, and starting the engine takes them")
        grace_s = min(OFFLINE_SHARE * self._settings.time_budget_s, serving_s)
        point = self._probe_offline(bench, self._count_offline(bench), grace_s=grace_s)
        self.rows[bench.row.id] = replace(self.rows[bench.row.id], offline_per_s=point.achieved_per_s)
        if point.achieved_per_s is None:
            raise MeasurementError(f"{bench.row.id} completed none of {point.offered} requests that came at once")
        return CapacitySearch(
            FIRST_SHARE * point.achieved_per_s,
            limit,
            resolution=self._settings.resolution,
            votes=VOTES if self._settings.strict else 1,
            lowest_share=LOWEST_SHARE if self._settings.strict else ROUGH_LOWEST_SHARE,
        )

    def _count_offline(self, bench: LoadCandidate) -> int:
        """The number of requests that keep all streams at full batches for a while."""
        return max(4 * POOL, OFFLINE_BATCHES * bench.row.max_batch * bench.row.streams)

    def _probe_next(self, search: CapacitySearch, bench: LoadCandidate, end_s: float) -> bool:
        """Probe the next rate of the search and add the result to it; False if it has no further rate.

        It is probed again with more requests if the first are too few to decide. Raises BudgetSpent if there is no time
        for that.
        """
        limit, rate = self._settings.limit, search.next_rate()
        assert limit is not None
        if rate is None:
            return False
        meets, suspect = None, False
        least_s = max(self._settings.duration_s or PROBE_S, LIMITS_A_PROBE * limit.ms / 1e3)
        wanted = [math.ceil(ROUGH_LATE / (1 - limit.share))]
        if self._settings.strict:
            wanted = [strict_min_samples(limit.share, late) for late in PROBE_LATE]
        for count in [max(least, count_arrivals(rate, least_s)) for least in wanted]:
            offsets = self._schedule(bench, rate, count)
            self._check_time(_last_s(offsets), bench, rate, end_s)
            point = self._probe_rate(bench, offsets, rate)
            meets = meets_limit(point, limit) if self._settings.strict else seems_to_meet(point, limit, count)
            suspect = is_interfered(point)
            if meets is not None:
                break
        search.add(rate, passed=bool(meets), suspect=suspect)
        return True

    def _check_time(self, seconds: float, bench: LoadCandidate, rate: float, end_s: float) -> None:
        """Raise BudgetSpent if a probe whose requests arrive within so many seconds may end after `end_s`."""
        start_s = self._find_start_s(bench)
        needed_s = start_s + seconds + self._find_grace()
        if self._spent_s + needed_s > end_s:
            needs = f"{bench.row.id}: probing {rate:.3g} requests a second may take {needed_s:.1f} s"
            raise BudgetSpent(f"{needs}, {start_s:.1f} of them to start the engine; {self._format_left(end_s)}")

    def _find_serving_s(self, bench: LoadCandidate, end_s: float) -> float:
        """Seconds that are left for requests until `end_s`, if the engine starts now."""
        return end_s - self._spent_s - self._find_start_s(bench)

    def _find_start_s(self, bench: LoadCandidate) -> float:
        """Seconds that starting its processes takes: as last time; before the first time, as the slowest of the others.

        An engine that compiles when it is loaded takes most of a probe for that.
        """
        return self._start_s.get(bench.row.id, max(self._start_s.values(), default=0.0))

    def _format_left(self, end_s: float) -> str:
        left_s = max(0.0, end_s - self._spent_s)
        return f"{left_s:.1f} of the {self._settings.time_budget_s:g} s that all searches may take are left"


def _last_s(offsets: Times) -> float:
    """Seconds from the beginning to the last arrival."""
    return float(offsets[-1]) / 1e9


def _measure_start_s(point: LoadPoint) -> float:
    """Seconds that the probe took beside serving: from the first request until the last one that ended."""
    serving_s = point.completed / point.achieved_per_s if point.achieved_per_s else 0.0
    return max(0.0, point.seconds - serving_s)
