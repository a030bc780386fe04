"""The JSON document of `tune`."""

from msgspec import Struct

from enginebench.core.records import Caveat, Estimate, Machine, RatioValidity, Validity, Verdict

TUNE_SCHEMA = "enginebench.tune/1"


class TuneRef(Struct, frozen=True, kw_only=True):
    """A setting that an answer names. `id`: its row in the final; None before that."""

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
    """Who was dropped, when and why. `round` 0: before it raced. `ratio`: its speed over that of the leader then."""

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
    validity: Validity = "valid"  # of its laps in the race
    graph: str = ""  # of mixed precision: its name; "": the model as a whole


class Finalist(Struct, frozen=True, kw_only=True):
    """A row of the final. `ratio`: the challenger's speed over this one's; None for the challenger itself."""

    candidate: str
    id: str
    default: bool
    cost: Estimate | None
    verdict: Verdict | None
    ratio: Estimate | None
    reason: str | None = None  # why it was not measured, or why there is no verdict
    validity: Validity = "valid"
    caveats: tuple[Caveat, ...] = ()


class FrontierPoint(Struct, frozen=True, kw_only=True):
    """A setting that no other beats in both speed and quality."""

    candidate: str
    id: str
    speed: float
    quality: float


class TuneDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `tune`.

    `winner` is the default itself where the challenger is not significantly faster: then `beaten` is false, and the
    verdict says whether the two are equivalent or more processes would tell.
    """

    schema: str = TUNE_SCHEMA
    model: str
    machine: Machine
    goal: str
    unit: str  # of `cost`
    winner: TuneRef | None
    default: TuneRef | None  # the best of the defaults in the final
    challenger: TuneRef | None  # who won the race
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
    validity: Validity = "valid"  # the worst of the final
    caveats: tuple[Caveat, ...] = ()  # of the machine
    started_utc: str = ""
