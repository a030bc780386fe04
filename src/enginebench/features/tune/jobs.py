"""The jobs that `tune` runs in child processes."""

from msgspec import Struct

from enginebench.core.records import Artifact, EngineSpec, Estimate
from enginebench.runs.child.jobs import Job, KeepCall, NoteCall


class NodeGroup(Struct, frozen=True, kw_only=True):
    """A convolution or matrix product with the nodes after it up to the next one; `name` is that of its first node."""

    name: str
    kind: str  # operator type of the first node
    nodes: tuple[str, ...]  # of the prepared graph
    originals: tuple[str, ...]  # of the exported graph: the names in a list of excluded nodes
    macs: int = 0  # multiply-accumulates of its products, at batch 1


class GroupHarm(Struct, frozen=True, kw_only=True):
    """One group, and the harm of quantizing it alone: the power of the difference over that of the outputs about their
    mean (0.1 is 10 dB); None where time ran out before."""

    group: NodeGroup
    noise: float | None = None


class SensitivityResponse(Struct, frozen=True, kw_only=True):
    groups: tuple[GroupHarm, ...]
    samples: int
    seconds: float


class SensitivityJob(Job[SensitivityResponse], frozen=True, kw_only=True, tag="sensitivity"):
    """Quantize one group of nodes at a time, and measure the effect on the outputs.

    After `time_limit_s` the groups that are left go without a figure.
    """

    model: str
    artifact: Artifact  # the FP32 graph
    quantized: Artifact  # what a recipe made of it
    data: str
    seed: int
    threads: int
    samples: int = 16
    time_limit_s: float = 300.0
    input_size: int | None = None
    inputs: str | None = None  # folder of the user's inputs, which take the place of `data`

    def perform(self, note: NoteCall, keep: KeepCall[SensitivityResponse]) -> SensitivityResponse:
        from enginebench.features.tune.sensitivity import measure_sensitivity

        return measure_sensitivity(self, note)


class Region(Struct, frozen=True, kw_only=True):
    """Groups of nodes between two cuts; `name` is that of its first node."""

    name: str
    nodes: tuple[str, ...]  # of the prepared graph
    originals: tuple[str, ...]  # of the exported graph
    macs: int = 0


class RegionTime(Struct, frozen=True, kw_only=True):
    """Neighbouring regions, by index, and how much faster the graph is with their Q/DQ pairs than without.

    `changed`: they were left as the comparison had them, in 8 bits or in floats, since it gained enough.
    """

    first: int
    last: int
    speedup: Estimate
    changed: bool


class RegionsResponse(Struct, frozen=True, kw_only=True):
    regions: tuple[Region, ...]
    inside: tuple[int, ...]  # indices of those that stay in 8 bits
    comparisons: tuple[RegionTime, ...]
    throughout: Estimate  # speed of 8 bits throughout over that of none
    gain: Estimate | None  # of the regions over the faster of both; None: nothing gained
    seconds: float


class RegionsJob(Job[RegionsResponse], frozen=True, kw_only=True, tag="regions"):
    """Time regions of a graph with and without their Q/DQ pairs, and keep the pairs that pay.

    After `time_limit_s` the regions that are left stay as they are.
    """

    artifact: Artifact  # the FP32 graph
    quantized: Artifact  # what a recipe made of it
    engine: EngineSpec
    seed: int
    out_dir: str
    time_limit_s: float = 300.0

    def perform(self, note: NoteCall, keep: KeepCall[RegionsResponse]) -> RegionsResponse:
        from enginebench.features.tune.regions import choose_regions

        return choose_regions(self, note)
