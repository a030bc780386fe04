"""The records of a sweep: what its store holds beside results, and what is sent to a machine and returned."""

from typing import TypeAlias

from msgspec import Struct

from enginebench.core.records import Artifact
from enginebench.features.sweep.document import Environment, SweepCell
from enginebench.features.sweep.spec import Cell, Group, SweepSpec
from enginebench.runs.folder import RunRequest

SWEEP_RECORD_SCHEMA = "enginebench.sweep-record/2"
# The one before kept contents by their hashes, and a folder for each environment: it can be read, not continued.
EARLIER_SCHEMA = "enginebench.sweep-record/1"
# Files of a store. `GROUPS` holds one folder for each group, laid out as a run's.
RECORD = "sweep.json"
GROUPS = "groups"
SOURCES = "sources"
# Below `sources/KEY/`: the model itself, where it is a file.
GIVEN = "given"


def name_result_file(group: str, batch: int) -> str:
    return f"{GROUPS}/{group}/tuned-b{batch}.json"


class SweepRecord(Struct, frozen=True, kw_only=True):
    """`sweep.json`: the request, and the salt that hides which machine a token means."""

    schema: str = SWEEP_RECORD_SCHEMA
    spec: SweepSpec
    salt: str
    started_utc: str
    command: tuple[str, ...] = ()
    shared: bool = False  # several measuring tasks on a machine of several GPUs


class KindPlan(Struct, frozen=True, kw_only=True):
    machine_kind: str
    groups: int
    rows: int
    processes: int
    at_most_s: float  # timed calls, searches, and the starts of processes; imports and builds of engines come on top


class SweepPlan(Struct, frozen=True, kw_only=True):
    schema: str = "enginebench.sweep-plan/1"
    cells: tuple[Cell, ...]
    kinds: tuple[KindPlan, ...]
    start_s: float  # of an empty child here and now


class StoredSources(Struct, frozen=True, kw_only=True):
    """The artifacts made of one model, once for the whole fleet; their files are beside it, in `sources/KEY/`."""

    artifacts: tuple[Artifact, ...]
    problems: dict[str, str] = {}


class Finished(Struct, frozen=True, kw_only=True):
    """`done.json`: how a group ended, with the figures of its configurations at that time."""

    cells: tuple[SweepCell, ...]
    machines: tuple[Environment, ...] = ()


class GroupJob(Struct, frozen=True, kw_only=True, tag="group"):
    """The job of a machine: measure this group, and store everything in that store."""

    store: str
    group: Group
    salt: str
    sources: str = ""  # key of the graphs that were made for the whole fleet
    shared: bool = False  # one of several GPUs of its machine, which others measure on meanwhile
    wait: bool = True  # where another run measures on its device; else it fails


class SourcesJob(Struct, frozen=True, kw_only=True, tag="sources"):
    store: str
    key: str
    request: RunRequest


Job: TypeAlias = GroupJob | SourcesJob


class JobEnd(Struct, frozen=True, kw_only=True):
    """The result of a job: only how it ended; everything else is in the store."""

    ok: bool
    reason: str = ""
    rows: int = 0
