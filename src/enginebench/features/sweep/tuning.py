"""The step `tune`: a search over the settings of a group's engines, on the machine that has just measured its rows."""

import tempfile
from pathlib import Path

from msgspec.structs import replace

from enginebench.core.errors import EngineBenchError
from enginebench.core.features import find
from enginebench.core.records import Machine
from enginebench.features.sweep.document import Tuned
from enginebench.features.sweep.records import GROUPS, SOURCES, GroupJob, StoredSources
from enginebench.features.sweep.spec import show_model
from enginebench.features.sweep.store import Store, fetch_folder, read_document, write_document
from enginebench.measure.pin import default_threads
from enginebench.runs.folder import ARTIFACTS, TUNE_FILE, TUNE_PAGE, RunFolder, RunRequest, begin_record
from enginebench.runs.progress import Reporter

# Called so in the document of a search, too.
_SHARED = ("beaten", "finished", "verdict", "ratio", "processes", "spent_s")


def tune_group(job: GroupJob, store: Store, machine: Machine, reporter: Reporter) -> None:
    """Searches for each batch of a group, and stores the answer; one that is in the store already stays.

    A search that fails costs itself: its reason stands where its answer would. One that was lost with its machine
    begins anew, since its rows are of one sitting.
    """
    group = job.group
    assert group.tune_budget_s is not None
    for batch in group.request.batches or (1,):
        name = name_answer(group.id, batch)
        if read_document(store, name, Tuned) is not None:
            continue
        threads = group.request.threads
        request = replace(group.request, batches=(batch,), wanted=(), threads=threads or default_threads())
        blank = Tuned(model=show_model(group.model), machine_kind=group.machine.kind, batch=batch)
        with tempfile.TemporaryDirectory(prefix="enginebench-sweep-") as scratch:
            root = Path(scratch) / "tune"
            try:
                _fetch_sources(job, store, request, root, machine)
                given = {"threads": threads or None, "budget_s": group.tune_budget_s, "reporter": reporter}
                document = find("offers", "tune_run")(request, root, **given)
            except EngineBenchError as error:
                reporter.say(f"{group.id}: tune: {error}")
                answer = replace(blank, reason=str(error))
            else:
                folder = f"{GROUPS}/{group.id}/tune-b{batch}"
                for file in (TUNE_FILE, TUNE_PAGE):
                    store.write(f"{folder}/{file}", (root / file).read_bytes())
                named = {name: getattr(document, name) for name in ("winner", "default", "challenger")}
                answer = replace(
                    blank,
                    **{name: str(ref.candidate) if ref else "" for name, ref in named.items()},
                    **{name: getattr(document, name) for name in _SHARED},
                    page=f"{folder}/{TUNE_PAGE}",
                )
        write_document(store, name, answer)


def name_answer(group: str, batch: int) -> str:
    return f"{GROUPS}/{group}/tuned-b{batch}.json"


def _fetch_sources(job: GroupJob, store: Store, request: RunRequest, root: Path, machine: Machine) -> None:
    """The graphs that were made for the whole fleet, as if the search had made them and been interrupted."""
    made = read_document(store, f"{SOURCES}/{job.sources}.json", StoredSources) if job.sources else None
    if made is not None:
        fetch_folder(store, f"{SOURCES}/{job.sources}", root, (ARTIFACTS,))
        record = begin_record(request, machine, verb="tune", sources=made.artifacts, problems=made.problems)
        RunFolder(root).create(record)
