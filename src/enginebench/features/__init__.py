"""What can be lifted out: each folder has its verbs, the jobs of its children, its statistics and its sections.

The kernel finds a verb of a feature by this list; a feature imports the kernel, and no other feature.
"""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    """What `--help` prints of a verb, so that it imports none."""

    name: str
    group: str
    sentence: str
    file: str = ""  # of a feature

    @property
    def module(self) -> str:
        """Imported when the verb is called."""
        return f"enginebench.features.{self.file}" if self.file else f"enginebench.verbs.{self.name}"


VERBS = (
    Verb("tune", "Find", "Search engine settings for the fastest with the same outputs.", "tune.verb"),
    Verb("load", "Find", "Measure latency under request load, and capacity within an SLO.", "load.verb"),
    Verb("deliver", "Deploy", "Deploy a configuration: a folder that runs without EngineBench.", "deliver.verb"),
    Verb("roofline", "Understand", "Measure this machine's roofline: peak compute and bandwidth.", "roofline.verb"),
    Verb("bisect", "Guard (CI)", "Find the package version that made it slower or changed outputs.", "versions.bisect"),
    Verb("env", "Guard (CI)", "Make environments with other runtime versions, to compare them.", "versions.env"),
    Verb("sweep", "Many machines", "Measure many models on many machines, here or on a Ray cluster.", "sweep.verb"),
    Verb("parse", "TensorRT files", "Read the logs, times, profiles and layers of trtexec 8 to 11.", "trtexec.verb"),
    Verb("fpga", "FPGA", "Simulate, synthesize or serve an INT8 network behind a UART.", "fpga.verb"),
    Verb("budget", "FPGA", "Estimate the speed-up of an accelerator behind a link.", "fpga.budget_verb"),
)


def find_verb(name: str) -> str:
    """The module of a verb, inside the package."""
    known = next((verb for verb in VERBS if verb.name == name), Verb(name, "", ""))
    return known.module.removeprefix("enginebench.")
