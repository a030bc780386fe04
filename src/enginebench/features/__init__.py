"""What can be lifted out: each folder has its verbs, the jobs of its children, its statistics and its sections.

The kernel finds the folders and what they bring (`core/features.py`); a feature imports the kernel, and no other
feature. To lift one out, delete its folder, and run `make tables`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what type checkers see of `Feature.functions`; written by tools/option_tables.py
    from enginebench.features.deliver.verb import deliver as deliver
    from enginebench.features.fpga.budget import budget as budget
    from enginebench.features.load.verb import load as load
    from enginebench.features.roofline.verb import roofline as roofline
    from enginebench.features.sweep.verb import sweep as sweep
    from enginebench.features.trtexec.verb import parse_layers as parse_layers
    from enginebench.features.trtexec.verb import parse_log as parse_log
    from enginebench.features.trtexec.verb import parse_profile as parse_profile
    from enginebench.features.trtexec.verb import parse_times as parse_times
    from enginebench.features.tune.verb import tune as tune
    from enginebench.features.versions.bisect import bisect as bisect
    from enginebench.features.versions.env import list_environments as list_environments
    from enginebench.features.versions.env import make_environment as make_environment
    from enginebench.features.versions.env import remove_environment as remove_environment
