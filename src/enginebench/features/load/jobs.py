"""The jobs of `load` for child processes: serve the requests of a board, and release them."""

from msgspec import Struct, field

from enginebench.core.records import Artifact, BlockReading, EngineSpec, ResultWarning
from enginebench.runs.child.jobs import Job, KeepCall, NoteCall


class ServeResponse(Struct, frozen=True, kw_only=True):
    """The figures of a server that are not on the board."""

    busy_ns: int  # summed over all streams
    stages: dict[str, int]  # nanoseconds by part of the server
    depth: int
    reasons: dict[str, int] = {}  # why requests failed -> how many
    energy_mj: float | None = None  # of the device, in all
    gpu: BlockReading | None = None  # what was seen of an engine's GPU meanwhile
    warnings: tuple[ResultWarning, ...] = field(default=(), name="caveats")


class ServeJob(Job[ServeResponse], frozen=True, kw_only=True, tag="serve"):
    """Serve the requests of a board with one engine, and stamp them; with `query` one query after another."""

    model: str
    artifact: Artifact
    engine: EngineSpec
    out_dir: str
    share: tuple[int, int] = (0, 1)  # (i, n): of n servers this is the one numbered i, which takes every n-th request
    board: int = -1  # inherited descriptors: the memory of board and ring, and the end of the pipe that wakes this side
    ring: int = -1
    wakeup: int = -1
    streams: int = 1
    max_batch: int = 1
    compiled_for: tuple[int, ...] = ()  # batches; (): as many as an engine with fixed ones needs
    max_wait_ms: float = 0.0
    queue_limit: int | None = None
    samples: int = 1  # of each cell of a mix
    inputs: str | None = None  # the folder of the user's inputs
    seed: int = 0
    cpus: tuple[int, ...] = ()
    query: int = 0  # samples of a query of a closed loop; 0: the generator's schedule
    duration_s: float = 0.0  # of a closed loop
    grace_s: float = 1.0  # after the last arrival, for what still waits

    def perform(self, note: NoteCall, keep: KeepCall[ServeResponse]) -> ServeResponse:
        from enginebench.features.load.child import serve_board

        return serve_board(self, note)


class ArriveResponse(Struct, frozen=True, kw_only=True):
    released: int


class ArriveJob(Job[ArriveResponse], frozen=True, kw_only=True, tag="arrive"):
    """Release the requests of a board when they are due; all but `cpus` and `spin` are descriptors."""

    board: int
    ring: int
    wakeups: tuple[int, ...]  # one a server
    cpus: tuple[int, ...] = ()
    spin: bool = True

    def perform(self, note: NoteCall, keep: KeepCall[ArriveResponse]) -> ArriveResponse:
        from enginebench.features.load.child import release_board

        return release_board(self)
