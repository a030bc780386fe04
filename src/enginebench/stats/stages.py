"""File to label: times of every stage to shares, rates, and what bounds them. Pure numbers."""

from msgspec import Struct

from enginebench.core.records import Caveat

STAGES = ("decode", "preprocess", "copy_in", "compute", "copy_out", "postprocess")

NS_PER_MS = 1e6


class StageTime(Struct, frozen=True, kw_only=True):
    """One stage over a whole batch, by the host's clock; `share` is of the sum of all stages' means."""

    name: str
    p50_ms: float
    p99_ms: float
    mean_ms: float
    share: float


class DeviceTimes(Struct, frozen=True, kw_only=True):
    """Medians by the device's own clock: both copies and the computation."""

    h2d_ms: float
    compute_ms: float
    d2h_ms: float


class StagesDocument(Struct, frozen=True, kw_only=True):
    """The JSON document of `stages`. `bounds_per_s` is what each side could do if the other took no time."""

    schema: str = "enginebench.stages/1"
    model: str
    engine: str
    precision: str
    device: str
    batch: int
    threads: int
    images: str
    n_images: int
    image_bytes: dict[str, int]
    batches: int
    stages: tuple[StageTime, ...]
    total_p50_ms: float
    total_p99_ms: float
    serial_per_s: float
    overlapped_per_s: float
    overlap_gain: float
    decoders: int
    lanes: int
    bounds_per_s: dict[str, float]
    device_times: DeviceTimes | None
    top_classes: tuple[int, ...]
    engine_version: str | None = None
    takes_bytes: bool = False  # its first nodes normalise, in `compute`
    caveats: tuple[Caveat, ...] = ()
    others: tuple["StagesDocument", ...] = ()  # the other engines of the same call, in the order given
