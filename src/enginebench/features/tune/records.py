"""The request of a search, its progress (`search.json`, from which it continues), and its JSON document."""

import math
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from enginebench.core.errors import UsageError
from enginebench.core.records import Estimate, Machine, RatioValidity, ResultWarning, Validity, Verdict
from enginebench.core.store import encode, read_record, write_atomic
from enginebench.features.tune.space import Goal, Setting
from enginebench.runs.folder import RunRequest, check_inside, hide_paths

SEARCH_SCHEMA = "enginebench.search/1"
SEARCH_FILE = "search.json"
# The share of the budget that one process of a candidate may take, the share that building the first known combination
# may take, or the default of an engine that times kernels meanwhile (TensorRT takes two to three times as long for FP16
# as for FP32, and that is most often the best), and the seconds that a process has in any case, if they are left.
MOST_FOR_ONE, MOST_FOR_FIRST, LEAST_CHILD_S = 0.2, 0.5, 30.0


class SearchRequest(Struct, frozen=True, kw_only=True):
    run: RunRequest  # model, engines, precisions, data, limits; how the final is measured
    goal: Goal = "latency"
    budget_s: float = 1200.0
    limits: dict[str, float] | None = None  # of drift; None: those of each precision
    threads: int | None = None  # requested; None: the search chooses
    p99_limit_ms: float | None = None  # of the goal `capacity`
    candidates: int = 12  # that are proposed at a time
    # No engine was named: one that can never run is reported only for precisions that no other engine runs.
    any_engine: bool = False
    fp32_only_judges: bool = False  # FP32 was not requested: one default in it gives the outputs to compare with

    @property
    def child_s(self) -> float:
        """The seconds that one process of a candidate may take, so that a hanging one does not use up the whole
        search."""
        return self.limit_child(MOST_FOR_ONE)

    def limit_child(self, share: float, seen_s: float = 0.0) -> float:
        """Return the seconds of a process that may take this fraction of the budget; or half as long again as its
        like."""
        return min(self.run.timeout_s, max(LEAST_CHILD_S, share * self.budget_s, 1.5 * seen_s))


class Generation(Struct, frozen=True, kw_only=True):
    """Settings that race together, the number of their first round, their proposer, and how many were checked."""

    settings: tuple[Setting, ...]
    first_round: int
    proposer: str = ""
    checked: int = 0


class SearchRecord(Struct, frozen=True, kw_only=True):
    """The state of a search. Measurements are stored with the configurations; which ones are dropped follows from
    these."""

    schema: str = SEARCH_SCHEMA
    request: SearchRequest
    generations: tuple[Generation, ...] = ()
    finalists: tuple[Setting, ...] = ()  # the challenger first; none: the final has not begun
    spent_s: float = 0.0
    lap_s: tuple[float, ...] = ()  # seconds of each trial
    build_s: dict[str, float] = {}  # the longest of each engine, beside others
    untried: tuple[str, ...] = ()  # that were to be tried, had there been time
    finished: bool = False


class Budget:
    """The seconds of a search, over all its sessions."""

    def __init__(self, total_s: float, spent_s: float = 0.0, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._total_s, self._before_s, self._clock = total_s, spent_s, clock
        self._start_s = clock()
        self.child_s = math.inf  # what the process that runs now may take at most

    @property
    def spent_s(self) -> float:
        return self._before_s + self._clock() - self._start_s

    @property
    def left_s(self) -> float:
        return self._total_s - self.spent_s

    def limit_child(self) -> float:
        """Return the seconds that a process which starts now may take: none outlasts the budget."""
        return max(0.1, min(self.child_s, self.left_s))


def write_search(root: Path, record: SearchRecord) -> None:
    request = replace(record.request, run=hide_paths(record.request.run))
    write_atomic(root / SEARCH_FILE, encode(replace(record, request=request), indent=2))


def read_search(root: Path) -> SearchRecord:
    path = root / SEARCH_FILE
    check_inside(root, path)
    if not path.exists():
        raise UsageError(f"{root} holds no search to continue: there is no {SEARCH_FILE}. Leave --resume out to begin")
    return read_record(path, SearchRecord, SEARCH_SCHEMA)


TUNE_SCHEMA = "enginebench.tune/1"


class TuneRef(Struct, frozen=True, kw_only=True):
    """A setting that a document names. `id`: its configuration in the final; None before that."""

    id: str | None
    candidate: str
    engine: str
    precision: str
    batch: int
    threads: int
    streams: int = 1
    max_batch: int = 1
    max_wait_ms: float = 0.0
    method: str = ""
    graph: str = ""
    speedup: float | None = None  # over the best default, in the final


class Dropped(Struct, frozen=True, kw_only=True):
    """A dropped candidate, when and why. `round` 0: before it raced. `ratio`: its speed over that of the leader
    then."""

    candidate: str
    generation: int
    round: int
    reason: str
    leader: str | None = None
    ratio: Estimate | None = None


class Candidate(Struct, frozen=True, kw_only=True):
    """A setting that was tried. `speed`: over that of the leader of the race, by all rounds that it took part in."""

    candidate: str
    id: str
    default: bool
    speed: float | None
    processes: int
    quality: float | None  # by `quality_of` of the document
    validity: Validity = "valid"  # of its trials in the race
    graph: str = ""  # of mixed precision: its name; "": the model as a whole


class Finalist(Struct, frozen=True, kw_only=True):
    """A configuration of the final. `ratio`: the challenger's speed over this one's; None for the challenger itself."""

    candidate: str
    id: str
    default: bool
    cost: Estimate | None
    verdict: Verdict | None
    ratio: Estimate | None
    reason: str | None = None  # why it was not measured, or why there is no verdict
    validity: Validity = "valid"
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")


class FrontierPoint(Struct, frozen=True, kw_only=True):
    """A setting that no other beats in both speed and quality."""

    candidate: str
    id: str
    speed: float
    quality: float


class TuneDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `tune`.

    `winner` is the default itself where the challenger is not significantly faster: then `beaten` is false, and the
    verdict is that the two are equivalent, or that more processes would show a difference.
    """

    schema: str = TUNE_SCHEMA
    model: str
    machine: Machine
    device: str = "cpu"
    goal: str
    unit: str  # of `cost`
    winner: TuneRef | None
    default: TuneRef | None  # the best of the defaults in the final
    challenger: TuneRef | None  # the winner of the race
    beaten: bool
    verdict: Verdict | None  # on the challenger against the best default
    ratio: Estimate | None  # of the challenger's speed over that of the best default
    ratio_validity: RatioValidity | None = None  # `not_given`: `ratio` is None for that
    dropped: tuple[Dropped, ...]
    frontier: tuple[FrontierPoint, ...]
    final: tuple[Finalist, ...]
    candidates: tuple[Candidate, ...]
    quality_of: str  # what `quality` is
    generations: int
    processes: int
    budget_s: float
    spent_s: float
    finished: bool
    proposed_by: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    locating: str = ""  # the command that finds where the first outputs that changed leave the reference
    validity: Validity = "valid"  # the worst of the final
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")  # of the machine
    started_utc: str = ""
