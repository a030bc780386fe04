"""EngineBench finds the fastest inference engine that still gives the same outputs.

    import enginebench
    print(enginebench.run("digits-mlp", engines="pytorch,ort"))

Each verb of the command line is a function here; see docs/python.md. Importing the package imports nothing else: what a
name needs is loaded when the name is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    from enginebench.features.deliver.verb import deliver
    from enginebench.features.fpga.budget_verb import budget
    from enginebench.features.load.verb import load
    from enginebench.features.roofline.verb import roofline
    from enginebench.features.sweep.verb import sweep
    from enginebench.features.trtexec.verb import parse_layers, parse_log, parse_profile, parse_times
    from enginebench.features.tune.verb import tune
    from enginebench.features.versions.bisect import bisect
    from enginebench.features.versions.env import list_environments, make_environment, remove_environment
    from enginebench.runs.targets.loading import load_engine
    from enginebench.runs.trust import allow_code
    from enginebench.verbs.accuracy import accuracy
    from enginebench.verbs.baseline import list_baselines, remove_baseline, save_baseline
    from enginebench.verbs.bench import bench
    from enginebench.verbs.benches import Bench
    from enginebench.verbs.build import build
    from enginebench.verbs.calibrate import calibrate
    from enginebench.verbs.diff import diff
    from enginebench.verbs.doctor import doctor
    from enginebench.verbs.drift import drift
    from enginebench.verbs.export import export
    from enginebench.verbs.history import history
    from enginebench.verbs.infer import infer
    from enginebench.verbs.models import list_models
    from enginebench.verbs.profile import profile
    from enginebench.verbs.quantize import quantize
    from enginebench.verbs.read import read
    from enginebench.verbs.report import write_report
    from enginebench.verbs.run import run
    from enginebench.verbs.runs import Run
    from enginebench.verbs.stages import stages

__version__ = "0.1.0"

__all__ = [  # a test holds it to that of the room
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


# Where names lie that are neither errors nor functions of a verb of that name.
_HOMES = {
    "core.records": ("Result",),
    "runs.targets.loading": ("load_engine",),
    "runs.trust": ("allow_code",),
    "verbs.benches": ("Bench",),
    "features.versions.env": ("list_environments", "make_environment", "remove_environment"),
    "verbs.models": ("list_models",),
    "verbs.runs": ("Run",),
    "verbs.report": ("write_report",),
    "verbs.baseline": ("list_baselines", "remove_baseline", "save_baseline"),
    "features.trtexec.verb": ("parse_layers", "parse_log", "parse_profile", "parse_times"),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from enginebench.features import find_verb

    usual = find_verb(name) if name.islower() else "core.errors"
    home = next((home for home, names in _HOMES.items() if name in names), usual)
    value: object = getattr(import_module(f"enginebench.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
