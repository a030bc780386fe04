"""The job that `drift --locate` runs in a child process, for each side."""

from enginebench.core.records import Artifact, EngineSpec
from enginebench.report.located import LocatedSide
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
