"""Groups of nodes that change their precision together: what each costs in answers, and what it saves in time."""

from msgspec import Struct


class NodeGroup(Struct, frozen=True, kw_only=True):
    """A convolution or matrix product with what follows it up to the next one; `name` is that of its first node."""

    name: str
    kind: str  # operator type of the first node
    nodes: tuple[str, ...]  # of the prepared graph
    originals: tuple[str, ...]  # of the exported graph: what a list of excluded nodes says
    macs: int = 0  # multiply-accumulates of its products, at batch 1


class Harm(Struct, frozen=True, kw_only=True):
    """What lower precision does to the answers, measured over some samples.

    `noise` is the power of the difference over that of the answers about their mean: 0.1 is 10 dB. `kl_nats` is the
    mean Kullback-Leibler divergence between the classes' probabilities before and after, where the answers are logits;
    to second order it is half the difference weighed by the Fisher information of those probabilities.
    """

    noise: float
    kl_nats: float | None = None


class GroupHarm(Struct, frozen=True, kw_only=True):
    """One group, and the harm where it alone is quantized; None where time ran out before."""

    group: NodeGroup
    harm: Harm | None = None
