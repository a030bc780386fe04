"""Groups of nodes that change their precision together, and what each costs in outputs."""

from msgspec import Struct


class NodeGroup(Struct, frozen=True, kw_only=True):
    """A convolution or matrix product with what follows it up to the next one; `name` is that of its first node."""

    name: str
    kind: str  # operator type of the first node
    nodes: tuple[str, ...]  # of the prepared graph
    originals: tuple[str, ...]  # of the exported graph: what a list of excluded nodes says
    macs: int = 0  # multiply-accumulates of its products, at batch 1


class GroupHarm(Struct, frozen=True, kw_only=True):
    """One group, and the harm where it alone is quantized: the power of the difference over that of the answers about
    their mean (0.1 is 10 dB); None where time ran out before."""

    group: NodeGroup
    noise: float | None = None
