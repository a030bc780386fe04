"""One group on this machine: continue from its results in the store, measure the rest, store each at once."""

import hashlib
import platform
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from enginebench.core.errors import DeviceBusy, EngineBenchError, MeasurementError, UsageError
from enginebench.core.features import require_hook
from enginebench.core.hooks import SettingsSearch
from enginebench.core.records import Artifact, Machine, Result
from enginebench.core.store import open_partial
from enginebench.features.sweep.document import Tuned
from enginebench.features.sweep.reading import describe_group, has_finished, read_group
from enginebench.features.sweep.records import (
    GIVEN,
    GROUPS,
    RECORD,
    SOURCES,
    Finished,
    GroupJob,
    SourcesJob,
    StoredSources,
    SweepRecord,
    name_result_file,
)
from enginebench.features.sweep.spec import format_model
from enginebench.features.sweep.store import Store, fetch_folder, open_store, read_document, send_files, store_document
from enginebench.measure.machine import describe_machine
from enginebench.measure.pin import default_threads
from enginebench.models.samples import SAMPLES
from enginebench.runs.folder import (
    ARTIFACTS,
    TUNE_FILE,
    TUNE_PAGE,
    RunFolder,
    RunRecord,
    RunRequest,
    allow_request,
    begin_record,
    check_named_files,
)
from enginebench.runs.main_job import list_changes, run_model
from enginebench.runs.progress import Reporter
from enginebench.runs.targets.scratch import scratch_for
from enginebench.runs.targets.sources import gather_sources


class GroupFolder(RunFolder):
    """A run's folder on this machine, whose files go to the store as they are written, measurements with its token."""

    def __init__(self, root: Path, store: Store, prefix: str, machine: str) -> None:
        super().__init__(root)
        self._store, self.prefix, self._machine = store, prefix, machine
        self._sent: set[Path] = set()

    def write_record(self, record: RunRecord) -> None:
        self._send(list_artifact_files(self.root, map(self.absolute, record.sources)) | list_sample_files(self))
        super().write_record(record)
        self._put("run.json")

    def write_result(self, result: Result) -> None:
        """Store the result, after its artifacts and outputs, so that another machine can continue."""
        stamped = tuple(m if m.machine else replace(m, machine=self._machine) for m in result.measurements)
        if stamped:
            files = list_artifact_files(self.root, result.artifacts)
            outputs = (self.outputs_path(result.id), self.labelled_path(result.id), self.recheck_path(result.id))
            self._send(files | {path.absolute() for path in outputs if path.is_file()})
        super().write_result(replace(result, measurements=stamped))
        self._put(f"rows/{result.id}.json")

    def _put(self, inner: str) -> None:
        self._store.write(f"{self.prefix}/{inner}", (self.root / inner).read_bytes())

    def _send(self, paths: set[Path]) -> None:
        send_files(self._store, self.prefix, self.root, paths - self._sent)
        self._sent |= paths


def list_sample_files(folder: RunFolder) -> set[Path]:
    return {path.absolute() for path in (folder.artifacts / SAMPLES).rglob("*") if path.is_file()}


def list_artifact_files(root: Path, artifacts: Iterable[Artifact]) -> set[Path]:
    files = set()
    for artifact in artifacts:
        path = Path(artifact.path)
        if artifact.path and path.is_absolute() and path.is_relative_to(root.absolute()):
            files |= {path.parent / file.path for file in artifact.files}
    return {path for path in files if path.is_file() and path.is_relative_to(root.absolute())}


def identify_machine(salt: str) -> str:
    """A token of this machine that reveals nothing about it: equal on the same machine and in the same sweep."""
    try:
        own = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        own = ""
    return hashlib.sha256(f"{salt} {own} {platform.node()}".encode()).hexdigest()[:16]


def measure_missing_cells(job: GroupJob, reporter: Reporter) -> int:
    """Measure what is missing of a group and return the number of its cells; each result is stored at once."""
    store = open_store(job.store)
    if read_document(store, RECORD, SweepRecord) is None:
        raise UsageError(
            f"this machine does not see the store {job.store}: all machines need the same folder, or use s3://"
        )
    if has_finished(store, job.group, reporter):
        return 0
    machine, name = describe_machine(), job.group.id
    begun = read_group(store, name)
    if begun is not None and (changed := list_changes(begun.record.machine, machine)):
        raise MeasurementError(
            f"{name} was begun on another machine, and the two cannot be compared: {'; '.join(changed)}. "
            "Continue it there, or measure it in another store"
        )
    with open_partial(scratch_for(f"sweep-{name}")) as scratch:
        folder = GroupFolder(scratch / name, store, f"{GROUPS}/{name}", identify_machine(job.salt))
        fetch_folder(store, folder.prefix, folder.root, ("run.json", "rows/", f"{ARTIFACTS}/"))
        request = replace(job.group.request, threads=job.group.request.threads or default_threads())
        if not (folder.root / "run.json").exists():
            _begin(job, store, folder, request, machine)
        allow_request(request)  # it was made where the sweep was begun
        check_named_files(request)
        locks = ("cuda:0",) if job.shared else None
        run_model(request, folder, reporter=reporter, resume=True, wait=job.wait, locks=locks)
    if job.group.tune_budget_s is not None:
        tune_group(job, store, machine, reporter)
    cells, machines = describe_group(job.group, read_group(store, name))
    store_document(store, f"{GROUPS}/{name}/done.json", Finished(cells=cells, machines=machines))
    return len(cells)


def _begin(
    job: GroupJob, store: Store, folder: RunFolder, request: RunRequest, machine: Machine, verb: str = "run"
) -> None:
    """Write the record of a new run, with the graphs that were made for the whole fleet, if there are any.

    A search gets one with graphs alone: as if it had made them, and been interrupted.
    """
    made = read_document(store, f"{SOURCES}/{job.sources}.json", StoredSources) if job.sources else None
    if made is not None:
        fetch_folder(store, f"{SOURCES}/{job.sources}", folder.root, (ARTIFACTS,))
    if made is not None or verb == "run":
        sources = made or StoredSources(artifacts=())
        folder.create(begin_record(request, machine, verb=verb, sources=sources.artifacts, problems=sources.problems))


def make_group_sources(job: SourcesJob, reporter: Reporter) -> None:
    store = open_store(job.store)
    if read_document(store, f"{SOURCES}/{job.key}.json", StoredSources) is not None:
        return
    with open_partial(scratch_for(f"sweep-{job.key}")) as scratch:
        folder = RunFolder(scratch)
        request = replace(job.request, threads=job.request.threads or default_threads())
        model_file = folder.root / GIVEN / Path(job.request.model).name
        fetch_folder(store, f"{SOURCES}/{job.key}", folder.root, (f"{GIVEN}/",))
        if model_file.is_file():
            request = replace(request, model=str(model_file))
        sources = gather_sources(request, folder.artifacts, reporter)
        paths = list_artifact_files(folder.root, sources.artifacts) | list_sample_files(folder)
        send_files(store, f"{SOURCES}/{job.key}", folder.root, paths)
        stored = tuple(folder.relative(a) for a in sources.artifacts)
        store_document(store, f"{SOURCES}/{job.key}.json", StoredSources(artifacts=stored, problems=sources.problems))


# Called so in the document of a search, too.
_SHARED = ("beaten", "finished", "verdict", "ratio", "processes", "spent_s")


def tune_group(job: GroupJob, store: Store, machine: Machine, reporter: Reporter) -> None:
    """Search the settings for each batch of a group, and store the result; one that is stored already stays.

    A search that fails is stored with its reason. One that was lost with its machine begins again, since its results
    must come from one session.
    """
    group = job.group
    assert group.tune_budget_s is not None
    for batch in group.request.batches or (1,):
        name = name_result_file(group.id, batch)
        if read_document(store, name, Tuned) is not None:
            continue
        threads = group.request.threads
        request = replace(group.request, batches=(batch,), wanted=(), threads=threads or default_threads())
        blank = Tuned(model=format_model(group.model), machine_kind=group.machine.kind, batch=batch)
        with open_partial(scratch_for(f"sweep-tune-{group.id}")) as scratch:
            root = scratch / "tune"
            try:
                _begin(job, store, RunFolder(root), request, machine, verb="tune")
                document = require_hook(SettingsSearch)(
                    request,
                    root,
                    threads=threads or None,
                    budget_s=group.tune_budget_s,
                    reporter=reporter,
                    wait=job.wait,
                )
            except DeviceBusy:  # the next attempt may find it free: nothing is kept in place of the search
                raise
            except EngineBenchError as error:
                reporter.say(f"{group.id}: tune: {error}")
                tuned = replace(blank, reason=str(error))
            else:
                folder = f"{GROUPS}/{group.id}/tune-b{batch}"
                for file in (TUNE_FILE, TUNE_PAGE):
                    store.write(f"{folder}/{file}", (root / file).read_bytes())
                named = {name: getattr(document, name) for name in ("winner", "default", "challenger")}
                tuned = replace(
                    blank,
                    **{name: str(ref.candidate) if ref else "" for name, ref in named.items()},
                    **{name: getattr(document, name) for name in _SHARED},
                    page=f"{folder}/{TUNE_PAGE}",
                )
        store_document(store, name, tuned)
