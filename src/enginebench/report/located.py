"""The places where outputs leave their reference: part of the document of `drift --locate`."""

from typing import Literal

from msgspec import Struct

from enginebench.core.records import Estimate


class WayAround(Struct, frozen=True, kw_only=True):
    """An ENGINE, or a graph, with which the outputs keep to the reference. `slowdown`: its time over that of the faulty
    one. `change`: of the graph, which is in the file `graph`, or nowhere without --out."""

    engine: str
    change: str = ""
    graph: str = ""
    slowdown: Estimate | None = None
    command: str = ""  # measures it as a configuration


class Reproduction(Struct, frozen=True, kw_only=True):
    """The smallest graph that was found to show the fault; `folder` is empty where nothing was written."""

    nodes: int
    folder: str = ""
    hurried: bool = False  # there was no time to look for a smaller one
    shown: bool | None = None  # by its own program, in a process without EngineBench; None: it was not run


class FoundFault(Struct, frozen=True, kw_only=True):
    """The first node whose outputs leave the reference, and the nodes that it takes to show it."""

    node: str
    kind: str
    tensor: str
    nodes: tuple[str, ...]  # that show it together, fed with tensors of the reference
    within: tuple[str, ...] = ()  # the nodes that it is inside of, with the name of their graph
    hidden_by: tuple[str, ...] = ()  # tensors; with one of these as an output the fault is not there
    untried: int = 0  # tensors of which that is not known, for want of time
    snr_db: float | None = None
    largest: float | None = None  # difference
    nonfinite: int = 0  # values that are finite in the reference
    tamed: int = 0  # values that are not finite in the reference, and others here
    overflowed: str = ""  # where values that are not finite begin, and from which value
    optimizations: tuple[str, ...] = ()  # of the engine; without them these nodes are right
    unlike: str = ""  # how the node is not the same as its counterpart in the other graph
    layer: str = ""  # of the engine's own record, that has the node
    transformations: tuple[str, ...] = ()  # of OpenVINO, that change which operators these nodes are, in order
    reproduction: Reproduction | None = None
    ways: tuple[WayAround, ...] = ()


class LocatedSide(Struct, frozen=True, kw_only=True):
    """One side against its own graph as it is written. `why`: the reason of "unknown".

    `drawn`: nodes that draw random numbers; the engine was given those of the reference. `uncompared`: outputs that are
    no arrays. `further`: faults behind the first, each fed with tensors of the reference.
    """

    text: str
    state: Literal["keeps", "leaves", "unknown"]
    why: str = ""
    overflowed: str = ""  # where values that are not finite begin in its graph, as it is written
    fault: FoundFault | None = None
    further: tuple[FoundFault, ...] = ()
    drawn: tuple[str, ...] = ()
    uncompared: tuple[str, ...] = ()


class NodeNoise(Struct, frozen=True, kw_only=True):
    """The noise that one node adds; `share` is its part of the noise in the outputs, as far as that was measured."""

    node: str
    kind: str
    snr_in_db: float | None
    snr_out_db: float
    share: float | None = None


class Located(Struct, frozen=True, kw_only=True):
    """`between` is the first difference of the graphs themselves, where no engine is at fault; `further` are those
    behind it."""

    sides: tuple[LocatedSide, ...]
    between: FoundFault | None = None
    further: tuple[FoundFault, ...] = ()
    noise: tuple[NodeNoise, ...] = ()  # of a reduced precision, the most first
    excluded_snr_db: float | None = None  # of the outputs, with the noisiest nodes in the longer precision
    excluded: tuple[str, ...] = ()  # those nodes
    unpaired: str = ""  # why the two graphs were not held beside each other
    interrupted: bool = False
