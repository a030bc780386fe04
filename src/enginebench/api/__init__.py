"""The public interface: functions for programs and notebooks, one for each verb, and what they return.

The package `enginebench` offers the same names, and imports this room when one of them is used for the first time.
"""

from __future__ import annotations

from enginebench.api.answers import accuracy, infer
from enginebench.api.benches import Bench, bench
from enginebench.api.deliveries import deliver
from enginebench.api.environments import bisect, list_environments, make_environment, remove_environment
from enginebench.api.graphs import build, calibrate, export, quantize
from enginebench.api.loads import load
from enginebench.api.machine import doctor, list_models, roofline
from enginebench.api.runs import Run, run
from enginebench.api.stored import (
    diff,
    history,
    list_baselines,
    parse_layers,
    parse_log,
    parse_profile,
    parse_times,
    read,
    remove_baseline,
    save_baseline,
    write_report,
)
from enginebench.api.sweeps import sweep
from enginebench.api.times import budget, profile, stages
from enginebench.api.tunes import tune
from enginebench.core.errors import (
    ArtifactError,
    BackendUnavailable,
    ChildFailed,
    DependencyError,
    DeviceBusy,
    EngineBenchError,
    FeedError,
    GateFailed,
    MeasurementError,
    MissingDependency,
    ModelError,
    ParseError,
    UnsupportedOperator,
    UsageError,
)
from enginebench.core.records import Result
from enginebench.verbs.drift import drift
from enginebench.workflow.targets.loading import load_engine
from enginebench.workflow.trust import allow_code

__all__ = [
    "ArtifactError",
    "BackendUnavailable",
    "Bench",
    "ChildFailed",
    "DependencyError",
    "DeviceBusy",
    "EngineBenchError",
    "FeedError",
    "GateFailed",
    "MeasurementError",
    "MissingDependency",
    "ModelError",
    "ParseError",
    "Result",
    "Run",
    "UnsupportedOperator",
    "UsageError",
    "accuracy",
    "allow_code",
    "bench",
    "bisect",
    "budget",
    "build",
    "calibrate",
    "deliver",
    "diff",
    "doctor",
    "drift",
    "export",
    "history",
    "infer",
    "list_baselines",
    "list_environments",
    "list_models",
    "load",
    "load_engine",
    "make_environment",
    "parse_layers",
    "parse_log",
    "parse_profile",
    "parse_times",
    "profile",
    "quantize",
    "read",
    "remove_baseline",
    "remove_environment",
    "roofline",
    "run",
    "save_baseline",
    "stages",
    "sweep",
    "tune",
    "write_report",
]
