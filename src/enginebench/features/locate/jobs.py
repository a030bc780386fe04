"""The job that `drift --locate` runs in a child process, for each side."""

from msgspec import Struct

from enginebench.core.records import Artifact, EngineSpec
from enginebench.report.located import FoundFault, LocatedSide, NodeNoise
from enginebench.runs.child.jobs import Job, KeepCall, NoteCall

# In the scratch folder of a job: what is known so far, for a search that ends early.
KNOWN = "known.json"


class SideJob(Job[LocatedSide], frozen=True, kw_only=True, tag="locate_side"):
    """Search one side for the first node that leaves the reference of its own graph."""

    text: str
    artifact: Artifact
    engine: EngineSpec
    calls: tuple[str, ...]  # files of the inputs of a call: each later one where those before show nothing
    out_dir: str  # scratch
    slice_mb: int
    repro_dir: str | None = None  # for a reproduction

    def perform(self, note: NoteCall, keep: KeepCall[LocatedSide]) -> LocatedSide:
        from enginebench.features.locate.sides import search_side

        return search_side(self, note)


class PairResponse(Struct, frozen=True, kw_only=True):
    """`excluded`: nodes of the first graph that add most of the noise, and the ratio that would leave, in dB."""

    between: FoundFault | None = None
    further: tuple[FoundFault, ...] = ()  # behind it
    noise: tuple[NodeNoise, ...] = ()
    excluded: tuple[str, ...] = ()
    excluded_snr_db: float | None = None


class PairJob(Job[PairResponse], frozen=True, kw_only=True, tag="locate_pair"):
    """Compare two graphs, each as it is written, node by node."""

    artifacts: tuple[Artifact, Artifact]
    engine: EngineSpec  # of the second; it measures a way around alone
    call: str
    out_dir: str
    slice_mb: int
    graph: str | None = None  # for the second graph with nodes in FP32

    def perform(self, note: NoteCall, keep: KeepCall[PairResponse]) -> PairResponse:
        from enginebench.features.locate.pairs import compare_graphs

        return compare_graphs(self, note)
