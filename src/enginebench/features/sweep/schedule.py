"""The schedule of a sweep: graphs first, then groups; a job that is lost with its machine starts again."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from enginebench.core.errors import EngineBenchError
from enginebench.core.names import slug
from enginebench.features.sweep.group import make_group_sources, measure_missing_cells
from enginebench.features.sweep.reading import FINAL, has_finished, read_group
from enginebench.features.sweep.records import GIVEN, SOURCES, GroupJob, Job, JobEnd, SourcesJob, StoredSources
from enginebench.features.sweep.spec import Group
from enginebench.features.sweep.store import Store, read_document, send_files
from enginebench.runs.folder import RunRequest
from enginebench.runs.progress import Reporter, Silent

# A job that is lost so often without a further trial in the store is given up: it may itself bring machines down.
MOST_LOSSES = 3


# How a job ended, or why there is no response: its worker was killed, or its machine is gone.
Outcome: TypeAlias = JobEnd | str


class Fleet(Protocol):
    def refuse(self, group: Group) -> str:
        """Return why no machine here can measure this group; empty if one can."""

    def start(self, job: Job) -> None:
        """Give a job to a machine, now or once one is free."""

    def wait(self) -> list[tuple[Job, Outcome]]:
        """The jobs that have ended since; waits for the first one."""


class LocalFleet:
    def __init__(self, reporter: Reporter, kind: str | None = None) -> None:
        self._reporter, self._kind = reporter, kind
        self._waiting: list[Job] = []

    def refuse(self, group: Group) -> str:
        if self._kind in (None, group.machine.kind):
            return ""
        return f"this machine is measured as {self._kind}; run the same sweep on one of the kind {group.machine.kind}"

    def start(self, job: Job) -> None:
        self._waiting.append(job)

    def wait(self) -> list[tuple[Job, Outcome]]:
        job = self._waiting.pop(0)
        return [(job, perform(job, self._reporter))]


def perform(job: Job, reporter: Reporter) -> JobEnd:
    """Perform a job; an error is reported and ends this job only."""
    try:
        if isinstance(job, GroupJob):
            return JobEnd(ok=True, rows=measure_missing_cells(job, reporter))
        make_group_sources(job, reporter)
    except EngineBenchError as error:
        reporter.say(f"{job.group.id if isinstance(job, GroupJob) else job.request.model}: {error}")
        return JobEnd(ok=False, reason=str(error))
    return JobEnd(ok=True)


def run_job(data: bytes) -> bytes:
    """Perform the job in `data` (JSON) on a machine of a cluster; return its end, also of an error, as JSON."""
    try:
        ended = perform(msgspec.json.decode(data, type=Job), Silent())
    except Exception as error:  # sent to the driver as text, whatever its class
        ended = JobEnd(ok=False, reason=f"{type(error).__name__}: {error}")
    return msgspec.json.encode(ended)


class Schedule:
    """The jobs of a sweep: which are at work, which wait for graphs, and what was lost."""

    def __init__(
        self, store: Store, salt: str, fleet: Fleet, reporter: Reporter, *, shared: bool = False, wait: bool = True
    ) -> None:
        self._store, self._salt, self._fleet, self._reporter = store, salt, fleet, reporter
        self._shared, self._wait = shared, wait
        self._losses: Counter[str] = Counter()
        self._progress: dict[str, int] = {}
        self._blocked: dict[str, list[GroupJob]] = {}
        self._running = self._total = self._ended = 0
        self.refused: dict[str, str] = {}  # id of a group -> why it is not measured

    def run(self, groups: Sequence[Group]) -> None:
        """Run all jobs; return once every group has ended. The results are in the store."""
        unfinished = [group for group in groups if not has_finished(self._store, group, self._reporter)]
        self._total = len(unfinished)
        self._reporter.begin(self._total)
        self.refused = {group.id: reason for group in unfinished if (reason := self._fleet.refuse(group))}
        for name, reason in self.refused.items():
            self._reporter.say(f"{name}: {reason}")
        unfinished = [group for group in unfinished if group.id not in self.refused]
        for key in dict.fromkeys(slug(group.model) for group in unfinished):  # of the graphs that groups start from
            members = [group for group in unfinished if slug(group.model) == key]
            jobs = [
                GroupJob(
                    store=self._store.url,
                    group=group_of_model,
                    salt=self._salt,
                    sources=key,
                    shared=self._shared,
                    wait=self._wait,
                )
                for group_of_model in members
            ]
            if read_document(self._store, f"{SOURCES}/{key}.json", StoredSources) is not None:
                for ready in jobs:
                    self._start(ready)
            else:
                self._blocked[key] = jobs
                self._start(self._describe_sources(key, [group.request for group in members]))
        while self._running:
            for job, outcome in self._fleet.wait():
                self._running -= 1
                self._finish_job(job, outcome)

    def _describe_sources(self, key: str, requests: Sequence[RunRequest]) -> SourcesJob:
        """The job that makes a model's graphs; a model that is a file goes along, for machines that do not have it."""
        request = replace(
            requests[0],
            engines=tuple({str(pair): pair for r in requests for pair in r.engines}.values()),
            precisions=tuple(dict.fromkeys(p for r in requests for p in r.precisions)),
            batches=tuple(dict.fromkeys(b for r in requests for b in r.batches)),
            wanted=(),
        )
        path = Path(request.model)
        paths = [path, *path.parent.glob(f"{path.name}?data"), *path.parent.glob(f"{path.stem}?data")]
        files = [p.absolute() for p in paths if path.is_file() and p.is_file()]
        send_files(self._store, f"{SOURCES}/{key}/{GIVEN}", path.parent, files)
        return SourcesJob(store=self._store.url, key=key, request=request)

    def _start(self, job: Job) -> None:
        self._running += 1
        self._fleet.start(job)

    def _finish_job(self, job: Job, outcome: Outcome) -> None:
        name = job.key if isinstance(job, SourcesJob) else job.group.id
        if isinstance(outcome, str):
            self._reporter.say(f"{name} was lost: {outcome}")
            if self._may_try_again(job, name):
                self._start(job)
                return
            outcome = JobEnd(ok=False, reason=f"given up after {MOST_LOSSES} losses, at last: {outcome}")
        if isinstance(job, SourcesJob):
            # Without graphs for all, each group makes its own, and stores why it cannot.
            for blocked in self._blocked.pop(job.key):
                self._start(blocked if outcome.ok else replace(blocked, sources=""))
            return
        self._ended += 1
        self._reporter.begin(self._total)  # a group that was measured here has counted its own steps
        for _ in range(self._ended):
            self._reporter.advance()
        self._reporter.step(f"{name}: {outcome.rows} rows" if outcome.ok else f"{name}: {outcome.reason}")
        if not outcome.ok:
            self.refused[name] = outcome.reason

    def _may_try_again(self, job: Job, name: str) -> bool:
        """Whether a lost job starts again: as long as each attempt leaves something in the store."""
        measured = read_group(self._store, name) if isinstance(job, GroupJob) else None
        results = measured.results if measured else ()
        processes = sum(len(result.measurements) for result in results)
        without_processes = sum(1 for result in results if result.status in FINAL)
        now = processes + without_processes
        self._losses[name] = 0 if now > self._progress.get(name, 0) else self._losses[name]
        self._progress[name] = now
        self._losses[name] += 1
        return self._losses[name] <= MOST_LOSSES
