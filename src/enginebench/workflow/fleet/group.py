"""One group on this machine: what the store has of it is taken up, the rest measured, everything kept there at once."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import tempfile
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from enginebench.backends.registry import find_installed, takes
from enginebench.core.errors import ArtifactError, EngineBenchError, MeasurementError, UsageError
from enginebench.core.records import Artifact, Machine, Result
from enginebench.measure.machine import describe_machine
from enginebench.measure.pin import default_threads
from enginebench.models.samples import SAMPLES
from enginebench.workflow.fleet.parts import Part, covers, describe_group, has_finished, is_final, list_parts, name_part
from enginebench.workflow.fleet.records import (
    GROUPS,
    RECORD,
    SOURCES,
    Claim,
    Ended,
    FileList,
    Finished,
    GroupJob,
    SourcesJob,
    StoredSources,
    SweepRecord,
)
from enginebench.workflow.fleet.spec import Group
from enginebench.workflow.fleet.store import (
    Store,
    check_name,
    keep_content,
    open_store,
    read_document,
    take_content,
    write_document,
)
from enginebench.workflow.fleet.tuning import tune_group
from enginebench.workflow.folder import ARTIFACTS, RunFolder, RunRecord, RunRequest, Wanted
from enginebench.workflow.main_job import list_changes, run_model
from enginebench.workflow.plan import plan_rows
from enginebench.workflow.progress import Reporter
from enginebench.workflow.targets.sources import gather_sources


class GroupFolder(RunFolder):
    """A run's folder on this machine, whose files go to the store as they are written.

    Args:
        root: the folder here.
        store: where the files go.
        prefix: of their names there.
        machine: token of this machine, which each measurement carries.
        attempt: whose claim must still be in the store.
    """

    def __init__(self, root: Path, store: Store, prefix: str, machine: str, attempt: str) -> None:
        super().__init__(root)
        self._store = store
        self._prefix = prefix
        self._machine = machine
        self._attempt = attempt
        self._known: set[str] = set()
        self._stored: dict[str, str] = {}  # what stands in files.json
        self._kept_rows: set[str] = set()

    def begin(self) -> None:
        """Claims the group, and fetches what the store has of it."""
        write_document(self._store, f"{self._prefix}/claim.json", Claim(attempt=self._attempt))
        for name, _ in self._store.names(self._prefix):
            inner = name.removeprefix(f"{self._prefix}/")
            if inner == "run.json" or (inner.startswith("rows/") and inner.endswith(".json")):
                self._store.fetch(name, self.root / inner)
        listed = read_document(self._store, f"{self._prefix}/files.json", FileList)
        if listed is not None:
            self.bring(listed.files)
            self._stored = dict(listed.files)

    def bring(self, files: dict[str, str]) -> None:
        """Fetches contents to their places in this folder."""
        for place, sha256 in files.items():
            if not check_name(place).startswith(f"{ARTIFACTS}/"):
                raise ArtifactError(f"{self._prefix}: {place!r} is no place of an artifact; it is not written")
            take_content(self._store, sha256, self.root / place)
            self._known.add(sha256)

    def write_record(self, record: RunRecord) -> None:
        paths = list_files(self.root, map(self.absolute, record.sources))
        self._keep_paths(paths | {path for path in (self.artifacts / SAMPLES).rglob("*") if path.is_file()})
        super().write_record(record)
        self._send("run.json")

    def write_result(self, result: Result) -> None:
        stamped = tuple(m if m.machine else replace(m, machine=self._machine) for m in result.measurements)
        result = replace(result, measurements=stamped)
        if stamped and result.id not in self._kept_rows:
            self._keep_files(result)
        super().write_result(result)
        self._send(f"rows/{result.id}.json")

    def _send(self, inner: str) -> None:
        """Puts a file of this folder into the store."""
        self._check_claim()
        self._store.write(f"{self._prefix}/{inner}", (self.root / inner).read_bytes())

    def _check_claim(self) -> None:
        """Checks that nobody else has taken the group over, ahead of whatever is written.

        Raises:
            MeasurementError: another attempt has.
        """
        claim = read_document(self._store, f"{self._prefix}/claim.json", Claim)
        if claim is None or claim.attempt != self._attempt:
            raise MeasurementError(f"{self._prefix} was taken over by another attempt; this one writes nothing more")

    def _keep_files(self, result: Result) -> None:
        """Puts what the row was measured on, and its answers, into the store: it can go on elsewhere."""
        found = list_files(self.root, result.artifacts)
        found |= {path for path in (self.outputs_path(result.id), self.answers_path(result.id)) if path.is_file()}
        self._keep_paths(found)
        self._kept_rows.add(result.id)

    def _keep_paths(self, paths: Iterable[Path]) -> None:
        files = keep_files(self._store, self.root, paths, self._known)
        if files.items() - self._stored.items():
            self._check_claim()
            self._stored |= files
            write_document(self._store, f"{self._prefix}/files.json", FileList(files=self._stored))


def list_files(root: Path, artifacts: Iterable[Artifact]) -> set[Path]:
    """The files of the artifacts that lie in `root`."""
    found = set()
    for artifact in artifacts:
        path = Path(artifact.path)
        if artifact.path and path.is_absolute() and path.is_relative_to(root.absolute()):
            found |= {path.parent / file.path for file in artifact.files}
    return {path for path in found if path.is_file() and path.is_relative_to(root.absolute())}


def keep_files(store: Store, root: Path, paths: Iterable[Path], known: set[str]) -> dict[str, str]:
    """{place below `root`: SHA-256} of files whose contents are in the store afterwards."""
    return {str(path.relative_to(root.absolute())): keep_content(store, path, known) for path in sorted(paths)}


def identify_machine(salt: str) -> str:
    """A token of this machine that tells nothing about it: equal on the same machine and in the same sweep."""
    try:
        own = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        own = ""
    return hashlib.sha256(f"{salt} {own} {platform.node()}".encode()).hexdigest()[:16]


def choose_part(parts: Sequence[Part], group: Group, machine: Machine) -> tuple[str, tuple[Wanted, ...]]:
    """(the folder that this machine goes on in, what is left for it to measure).

    Rows that another environment finished are not measured again; rows that it left begin anew here.
    """
    mine = next((part.name for part in parts if not list_changes(part.record.machine, machine)), None)
    name = mine or name_part(group.id, len(parts) + 1)
    done = [row for part in parts if part.name != name for row in part.results if is_final(row)]
    return name, tuple(w for w in group.request.wanted if not any(covers(w, row) for row in done))


def run_group(job: GroupJob, reporter: Reporter) -> Ended:
    """Measures what is missing of a group; how it ended. Rows lie in the store, whatever happens."""
    try:
        return Ended(ok=True, rows=_run_group(job, reporter))
    except EngineBenchError as error:
        reporter.say(f"{job.group.id}: {error}")
        return Ended(ok=False, reason=str(error), kind=type(error).__name__)


def _run_group(job: GroupJob, reporter: Reporter) -> int:
    store = open_store(job.store)
    if read_document(store, RECORD, SweepRecord) is None:
        raise UsageError(
            f"this machine does not see the store {job.store}: all machines need the same folder, or use s3://"
        )
    if has_finished(store, job.group, reporter):
        return 0
    machine = describe_machine()
    parts = list_parts(store, job.group.id)
    name, wanted = choose_part(parts, job.group, machine)
    if wanted:
        with tempfile.TemporaryDirectory(prefix="enginebench-sweep-") as scratch:
            folder = GroupFolder(
                Path(scratch) / name, store, f"{GROUPS}/{name}", identify_machine(job.salt), job.attempt
            )
            folder.begin()
            _measure(job, folder, replace(job.group.request, wanted=wanted), machine, reporter)
        parts = list_parts(store, job.group.id)
    if job.group.tune_budget_s is not None:
        tune_group(job, store, machine, reporter)
    return finish_group(store, job.group, parts)


def _measure(job: GroupJob, folder: GroupFolder, request: RunRequest, machine: Machine, reporter: Reporter) -> None:
    request = replace(request, threads=request.threads or default_threads())
    if not (folder.root / "run.json").exists():
        _begin(job, folder, request, machine)
    else:
        record = folder.read_record()
        if record.request.wanted != request.wanted:
            folder.write_record(replace(record, request=replace(record.request, wanted=request.wanted)))
    run_model(request, folder, reporter=reporter, resume=True, locks=name_locks() if job.shared else None)


def name_locks() -> tuple[str, ...]:
    """The GPU that this process was given, by its number on the machine: others measure on the others."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0]
    return (f"cuda:{given if re.fullmatch('[0-9]{1,3}', given) else 0}",)


def _begin(job: GroupJob, folder: GroupFolder, request: RunRequest, machine: Machine) -> None:
    """Writes the record of a new part, with the graphs that were made for the whole fleet."""
    record = RunRecord(
        request=request,
        machine=machine,
        started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        rows=(),
    )
    store = open_store(job.store)
    made = read_document(store, f"{SOURCES}/{job.sources}.json", StoredSources) if job.sources else None
    if made is not None:
        folder.bring(made.files)
        sources = tuple(folder.absolute(a) for a in made.artifacts)
        rows = plan_rows(request, sources, probe=find_installed, takes=takes, problems=made.problems)
        record = replace(record, rows=tuple(row.id for row in rows), sources=made.artifacts, problems=made.problems)
    folder.create(record)


def finish_group(store: Store, group: Group, parts: Sequence[Part]) -> int:
    """Stores the figures of a group beside its rows; the number of its cells."""
    cells, machines = describe_group(group, parts)
    write_document(store, f"{GROUPS}/{group.id}/done.json", Finished(cells=cells, machines=machines))
    return len(cells)


def bring_model(store: Store, job: SourcesJob, place: Path) -> Path:
    """The model's file, in `place`, with what lies beside it."""
    for name, sha256 in job.files.items():
        if check_name(name) != Path(name).name:
            raise ArtifactError(f"{name!r} is no plain file name; the model is not fetched")
        take_content(store, sha256, place / name)
    return place / Path(job.request.model).name


def make_sources(job: SourcesJob, reporter: Reporter) -> Ended:
    """Exports and quantizes one model for the whole fleet; how it ended."""
    try:
        store = open_store(job.store)
        if read_document(store, f"{SOURCES}/{job.key}.json", StoredSources) is not None:
            return Ended(ok=True)
        with tempfile.TemporaryDirectory(prefix="enginebench-sweep-") as scratch:
            folder = RunFolder(Path(scratch))
            request = replace(job.request, threads=job.request.threads or default_threads())
            if job.files:
                request = replace(request, model=str(bring_model(store, job, folder.root / "given")))
            found = gather_sources(request, folder.artifacts, reporter)
            paths = list_files(folder.root, found.artifacts)
            paths |= {path for path in (folder.artifacts / SAMPLES).rglob("*") if path.is_file()}
            files = keep_files(store, folder.root, paths, set())
            stored = tuple(folder.relative(a) for a in found.artifacts)
            write_document(
                store,
                f"{SOURCES}/{job.key}.json",
                StoredSources(artifacts=stored, problems=found.problems, files=files),
            )
    except EngineBenchError as error:
        reporter.say(f"{job.request.model}: {error}")
        return Ended(ok=False, reason=str(error), kind=type(error).__name__)
    return Ended(ok=True)
