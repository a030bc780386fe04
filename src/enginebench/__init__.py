"""EngineBench finds the fastest inference engine that still gives the same outputs.

    import enginebench
    print(enginebench.run("digits-mlp", engines="pytorch,ort"))

Each verb of the command line is a function here; see docs/python.md. Importing the package imports nothing else: what a
name needs is loaded when the name is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from enginebench.core.errors import ArtifactError as ArtifactError
    from enginebench.core.errors import BackendUnavailable as BackendUnavailable
    from enginebench.core.errors import ChildFailed as ChildFailed
    from enginebench.core.errors import DependencyError as DependencyError
    from enginebench.core.errors import DeviceBusy as DeviceBusy
    from enginebench.core.errors import EngineBenchError as EngineBenchError
    from enginebench.core.errors import FeedError as FeedError
    from enginebench.core.errors import GateFailed as GateFailed
    from enginebench.core.errors import MeasurementError as MeasurementError
    from enginebench.core.errors import MissingDependency as MissingDependency
    from enginebench.core.errors import ModelError as ModelError
    from enginebench.core.errors import ParseError as ParseError
    from enginebench.core.errors import TimedOut as TimedOut
    from enginebench.core.errors import UnsupportedOperator as UnsupportedOperator
    from enginebench.core.errors import UsageError as UsageError
    from enginebench.core.records import Result as Result
    from enginebench.features import *  # noqa: F403 - those that are there
    from enginebench.runs.targets.bundles import load_engine as load_engine
    from enginebench.runs.trust import allow_code as allow_code
    from enginebench.verbs.accuracy import accuracy as accuracy
    from enginebench.verbs.baseline import list_baselines as list_baselines
    from enginebench.verbs.baseline import remove_baseline as remove_baseline
    from enginebench.verbs.baseline import save_baseline as save_baseline
    from enginebench.verbs.bench import bench as bench
    from enginebench.verbs.benches import Bench as Bench
    from enginebench.verbs.build import build as build
    from enginebench.verbs.calibrate import calibrate as calibrate
    from enginebench.verbs.diff import diff as diff
    from enginebench.verbs.doctor import doctor as doctor
    from enginebench.verbs.drift import drift as drift
    from enginebench.verbs.export import export as export
    from enginebench.verbs.history import history as history
    from enginebench.verbs.infer import infer as infer
    from enginebench.verbs.models import list_models as list_models
    from enginebench.verbs.profile import profile as profile
    from enginebench.verbs.quantize import quantize as quantize
    from enginebench.verbs.read import read as read
    from enginebench.verbs.report import write_report as write_report
    from enginebench.verbs.run import run as run
    from enginebench.verbs.runs import Run as Run
    from enginebench.verbs.stages import stages as stages

__version__ = "0.1.0"

# The module of each name; features declare those of their verbs.
_HOMES = {
    "Result": "core.records",
    "load_engine": "runs.targets.bundles",
    "allow_code": "runs.trust",
    "Bench": "verbs.benches",
    "Run": "verbs.runs",
    "list_models": "verbs.models",
    "write_report": "verbs.report",
    **dict.fromkeys(("list_baselines", "remove_baseline", "save_baseline"), "verbs.baseline"),
}
_ERRORS = (
    *("ArtifactError", "BackendUnavailable", "ChildFailed", "DependencyError", "DeviceBusy", "EngineBenchError"),
    *("FeedError", "GateFailed", "MeasurementError", "MissingDependency", "ModelError", "ParseError", "TimedOut"),
    *("UnsupportedOperator", "UsageError"),
)
_VERBS = (
    *("accuracy", "bench", "build", "calibrate", "diff", "doctor", "drift", "export", "history", "infer", "profile"),
    *("quantize", "read", "run", "stages"),
)
_HOMES |= dict.fromkeys(_ERRORS, "core.errors") | {verb: f"verbs.{verb}" for verb in _VERBS}


def __getattr__(name: str) -> object:
    from importlib import import_module

    value: object = None
    if name == "__all__":
        value = sorted([*_HOMES, *import_module("enginebench.core.features").list_offered("functions")])
    elif name in _HOMES:
        value = getattr(import_module(f"enginebench.{_HOMES[name]}"), name)
    elif not name.startswith("_"):
        value = import_module("enginebench.core.features").find("functions", name)
    if value is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})  # type: ignore[misc]
