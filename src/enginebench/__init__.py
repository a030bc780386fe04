"""EngineBench finds the fastest inference engine that still gives the same answers.

    import enginebench
    print(enginebench.run("digits-mlp", engines="pytorch,ort"))

Each verb of the command line is a function here; see docs/python.md. Importing the package imports nothing else: what a
name needs is loaded when the name is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from enginebench.api import (
        ArtifactError,
        BackendUnavailable,
        Bench,
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
        Result,
        Run,
        UnsupportedOperator,
        UsageError,
        accuracy,
        allow_code,
        bench,
        bisect,
        budget,
        build,
        calibrate,
        deliver,
        diff,
        doctor,
        drift,
        export,
        history,
        infer,
        list_baselines,
        list_environments,
        list_models,
        load,
        load_engine,
        make_environment,
        parse_layers,
        parse_log,
        parse_profile,
        parse_times,
        profile,
        quantize,
        read,
        remove_baseline,
        remove_environment,
        roofline,
        run,
        save_baseline,
        stages,
        sweep,
        tune,
        write_report,
    )

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


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module("enginebench.api"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
