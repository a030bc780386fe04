"""What can be lifted out: each folder has its verbs, the jobs of its children, its statistics and its sections.

The kernel finds a verb of a feature by this list; a feature imports the kernel, and no other feature.
"""

from __future__ import annotations

# verb -> its file
VERBS = {
    "deliver": "deliver.verb",
    "tune": "tune.verb",
    "load": "load.verb",
    "budget": "fpga.budget_verb",
    "fpga": "fpga.verb",
    "roofline": "roofline.verb",
    "env": "versions.env",
    "bisect": "versions.bisect",
    "sweep": "sweep.verb",
    "parse": "trtexec.verb",
}


def find_verb(verb: str) -> str:
    """The module of a verb, inside the package."""
    return f"features.{VERBS[verb]}" if verb in VERBS else f"verbs.{verb}"
