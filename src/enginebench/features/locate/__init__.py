"""Location of faults: the first node that leaves the reference, the optimization, a reproduction, a way around."""

from enginebench.core.features import Feature
from enginebench.core.hooks import DriftSections, FaultLocator

FEATURE = Feature(
    jobs={"locate_side": "jobs:SideJob", "locate_pair": "jobs:PairJob"},
    hooks={FaultLocator: "locating:locate_faults", DriftSections: "sections:list_located"},
)
