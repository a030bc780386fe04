"""ONNX to plan through TensorRT's Python API, 8.6 to 11: what fails says why, in TensorRT's own words.

Names that a version lacks are asked for with `hasattr`; which those are, `tools/tensorrt_names.py` tells from a wheel.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from enginebench.backends.tensorrt_runtime import import_tensorrt, is_lean
from enginebench.backends.tensorrt_settings import BuildSettings
from enginebench.core.errors import ArtifactError, BackendUnavailable, EngineBenchError, UsageError
from enginebench.core.store import write_atomic

if TYPE_CHECKING:
    from enginebench.core.protocols import Array

trt = import_tensorrt()

# The first with tensors by name (`set_tensor_address`, `execute_async_v3`) and with plans for later versions.
OLDEST = (8, 6)
LAST_WEAK_MAJOR = 10
MIB = 1 << 20

# Builder flags that ask for a precision under weak typing; as in trtexec_command, FP16 is what INT8 falls back to.
WEAK_FLAGS = {"fp16": ("FP16",), "bf16": ("BF16",), "int8": ("INT8", "FP16"), "fp8": ("FP8", "FP16")}

# What a version without strongly typed networks must be told to take a typed graph as it is; as in trtexec_command.
GRAPH_FLAGS = {"fp16": ("FP16",), "bf16": ("BF16",), "int8": ("INT8",), "fp8": ("FP8",)}

HARDWARE = {"ampere+": "AMPERE_PLUS", "sameComputeCapability": "SAME_COMPUTE_CAPABILITY"}


class Log(trt.ILogger):  # type: ignore[misc, name-defined]
    """TensorRT's messages: errors are kept for the exception that explains them, warnings go to stderr."""

    def __init__(self) -> None:
        trt.ILogger.__init__(self)
        self.errors: list[str] = []

    def log(self, severity: Any, msg: str) -> None:
        if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
            self.errors.append(msg)
        if severity != trt.ILogger.INFO and severity != trt.ILogger.VERBOSE:
            print(f"TensorRT: {msg}", file=sys.stderr)

    def take(self) -> str:
        """The errors since the last call, as one text."""
        text = "; ".join(self.errors) or "TensorRT gave no message"
        self.errors.clear()
        return text


# The plugin registry keeps the first logger for as long as the process lives.
LOG = Log()


def require(value: Any, what: str, kind: type[EngineBenchError] = ArtifactError) -> Any:
    """`value`, unless it is the None or False by which TensorRT says that something failed.

    Raises:
        EngineBenchError: it is; of class `kind`, with TensorRT's messages.
    """
    if value is None or value is False:
        raise kind(f"{what}: {LOG.take()}")
    return value


def make_object(kind: Callable[[Log], Any], what: str) -> Any:
    """TensorRT's object of a class that takes a logger.

    Where CUDA fails the bindings hand out an object around nothing, and its first use ends the process: an error that
    was logged on the way is the only sign.

    Raises:
        BackendUnavailable: it cannot be made; with TensorRT's messages.
    """
    LOG.errors.clear()
    made = kind(LOG)
    return require(None if LOG.errors else made, what, BackendUnavailable)


def check_version() -> None:
    """Returns for a TensorRT whose bindings this file was written for.

    Raises:
        BackendUnavailable: it is older.
    """
    if read_version() < OLDEST:
        raise BackendUnavailable(
            f"the Python API of TensorRT {trt.__version__} has other names than that of 8.6 and later, which this "
            "engine uses; update TensorRT"
        )


def read_version() -> tuple[int, int]:
    """(major, minor) of the module."""
    major, minor = trt.__version__.split(".")[:2]
    return int(major), int(minor)


def require_builder() -> None:
    """Returns if the module can build plans.

    Raises:
        BackendUnavailable: it is the lean runtime.
    """
    if is_lean(trt):
        raise BackendUnavailable(
            f"the lean runtime cannot build ({trt.__name__} {trt.__version__}). Build the plan elsewhere with "
            "--version-compatible and give it as TARGET, or install all of it: pip install tensorrt"
        )


def build_plan(
    onnx: Path,
    settings: BuildSettings,
    plan: Path,
    *,
    batches: list[dict[str, Array]] | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> None:
    """Writes the plan of a graph.

    Args:
        onnx: the graph; external weights beside it are found.
        settings: how to build.
        plan: where to write it.
        batches: arrays to calibrate on, for weak typing in INT8.
        note: called with progress.

    Raises:
        ArtifactError: the graph cannot be parsed (names every error of the parser) or built.
        UsageError: this version has no flag for what was asked for.
    """
    check_version()
    require_builder()
    LOG.errors.clear()
    load_plugins(settings.plugins)
    builder = make_object(trt.Builder, "no builder can be made")
    network = require(builder.create_network(make_network_flags(settings)), "no network can be made")
    parse_graph(network, onnx)
    config = make_config(builder, settings, note)
    calibrator = attach_calibrator(config, settings, batches or [])
    if calibrator is not None:
        set_calibration_profile(builder, config, settings, batches or [])
    data = require(builder.build_serialized_network(network, config), f"TensorRT cannot build {onnx}")
    write_atomic(plan, bytes(data))
    keep_timing_cache(config, settings)
    del calibrator  # TensorRT holds no reference to it; it must live until here


def make_network_flags(settings: BuildSettings) -> int:
    """Strongly typed, where it can be chosen and weak typing was not; 8.6 must be told that the batch is explicit.

    Raises:
        UsageError: weak typing is asked of a version that has none.
    """
    flags = trt.NetworkDefinitionCreationFlag
    if settings.weak_typing:
        require_weak(settings)
    if not hasattr(flags, "STRONGLY_TYPED"):
        return 1 << int(flags.EXPLICIT_BATCH)
    return 0 if settings.weak_typing else 1 << int(flags.STRONGLY_TYPED)


def require_weak(settings: BuildSettings) -> None:
    """Returns if this version still builds weakly typed networks in the precision asked for.

    Raises:
        UsageError: it does not; names the version and the way that it has.
    """
    missing = [name for name in WEAK_FLAGS.get(settings.precision, ()) if not hasattr(trt.BuilderFlag, name)]
    if read_version()[0] > LAST_WEAK_MAJOR:
        raise UsageError(
            f"--weak-typing in {settings.precision}: TensorRT {trt.__version__} builds strongly typed networks only "
            f"(no BuilderFlag.{(missing or ['FP16'])[0]}). Instead: enginebench quantize --to {settings.precision}"
        )


def parse_graph(network: Any, onnx: Path) -> None:
    """Fills the network from the file.

    Raises:
        ArtifactError: names each error of the parser: node, operator, what is wrong.
    """
    parser = trt.OnnxParser(network, LOG)
    if not parser.parse_from_file(str(onnx)):
        errors = [describe_error(parser.get_error(i)) for i in range(parser.num_errors)]
        raise ArtifactError(f"TensorRT cannot read {onnx}: {'; '.join(errors) or LOG.take()}")


def describe_error(error: Any) -> str:
    """One error of the parser in words; 8.6 numbers the node and does not name it."""
    name = f" ({error.node_operator()} {error.node_name()!r})" if hasattr(error, "node_operator") else ""
    return f"node {error.node()}{name}: {error.desc()}"


def make_config(builder: Any, settings: BuildSettings, note: Callable[[str], None]) -> Any:
    """The builder's configuration."""
    config = require(builder.create_builder_config(), "no configuration can be made")
    if hasattr(trt, "IProgressMonitor"):
        config.progress_monitor = Progress(note)
    if settings.workspace_mb is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings.workspace_mb * MIB)
    if settings.optimization_level is not None:
        config.builder_optimization_level = settings.optimization_level
    if settings.detailed:
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if settings.hardware_compatibility != "none":
        level = require_member(trt.HardwareCompatibilityLevel, HARDWARE[settings.hardware_compatibility])
        config.hardware_compatibility_level = level
    for flag in choose_flags(settings):
        config.set_flag(require_member(trt.BuilderFlag, flag))
    if settings.precision == "fp32":
        config.clear_flag(trt.BuilderFlag.TF32)  # on by default
    add_profiles(builder, config, settings)
    load_timing_cache(config, settings)
    return config


def require_member(kind: Any, name: str) -> Any:
    """The member of one of TensorRT's enumerations.

    Raises:
        UsageError: this version has none of that name.
    """
    if not hasattr(kind, name):
        raise UsageError(f"TensorRT {trt.__version__} has no {kind.__name__}.{name}, which an option asks for")
    return getattr(kind, name)


def choose_flags(settings: BuildSettings) -> Iterator[str]:
    """Names of the builder flags to set."""
    if settings.weak_typing:
        yield from WEAK_FLAGS.get(settings.precision, ())
    elif not hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED"):
        yield from GRAPH_FLAGS.get(settings.precision, ())
    if settings.version_compatible:
        yield "VERSION_COMPATIBLE"
    if settings.refit:
        yield "REFIT"
    if settings.strip:
        yield "STRIP_PLAN"


def add_profiles(builder: Any, config: Any, settings: BuildSettings) -> None:
    """Adds every optimization profile, in order."""
    for shapes in settings.profiles:
        profile = builder.create_optimization_profile()
        for name in shapes.best:
            profile.set_shape(name, shapes.smallest[name], shapes.best[name], shapes.largest[name])
        if config.add_optimization_profile(profile) < 0:
            raise ArtifactError(f"TensorRT refuses the profile {shapes}: {LOG.take()}")


def load_timing_cache(config: Any, settings: BuildSettings) -> None:
    """Gives the timings of earlier builds to this one; one of another version or GPU is ignored by TensorRT."""
    if not settings.timing_cache:
        return
    path = Path(settings.timing_cache)
    cache = config.create_timing_cache(path.read_bytes() if path.is_file() else b"")
    if cache is None or not config.set_timing_cache(cache, False):
        LOG.errors.clear()
        config.set_timing_cache(require(config.create_timing_cache(b""), "no timing cache can be made"), False)


def keep_timing_cache(config: Any, settings: BuildSettings) -> None:
    """Stores the timings for the next build."""
    cache = config.get_timing_cache() if settings.timing_cache else None
    if cache is not None and settings.timing_cache:
        write_atomic(Path(settings.timing_cache), bytes(cache.serialize()))


def load_plugins(paths: tuple[str, ...]) -> None:
    """Registers TensorRT's own plugins, which the lean runtime has none of, and loads libraries of others.

    Raises:
        ArtifactError: a library cannot be loaded.
    """
    if hasattr(trt, "init_libnvinfer_plugins"):
        trt.init_libnvinfer_plugins(LOG, "")
    registry = trt.get_plugin_registry()
    for path in paths:
        require(registry.load_library(path), f"TensorRT cannot load the plugin library {path}")


class Progress(getattr(trt, "IProgressMonitor", object)):  # type: ignore[misc]
    """Tells which phase the builder is in, and how far; 8.6 has nobody to tell it."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self._note = note
        self._steps: dict[str, int] = {}

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        self._steps[phase_name] = num_steps
        if not parent_phase:
            self._note(f"building: {phase_name}")

    def step_complete(self, phase_name: str, step: int) -> bool:
        total = self._steps.get(phase_name, 0)
        if total > 1:
            self._note(f"building: {phase_name}, {step + 1} of {total}")
        return True

    def phase_finish(self, phase_name: str) -> None:
        self._steps.pop(phase_name, None)


def attach_calibrator(config: Any, settings: BuildSettings, batches: list[dict[str, Array]]) -> Any:
    """The calibrator for INT8 under weak typing, given to `config`; None where there is nothing to calibrate with.

    Raises:
        UsageError: this version has no calibrators.
    """
    if not settings.weak_typing or settings.precision != "int8" or not (batches or settings.calib_cache):
        return None
    if not hasattr(trt, "IInt8EntropyCalibrator2"):
        raise UsageError(
            f"TensorRT {trt.__version__} has no calibrators. Instead: enginebench quantize --to int8 --calib-cache F"
        )
    from enginebench.backends.tensorrt_calibrator import make_calibrator

    calibrator = make_calibrator(batches, Path(settings.calib_cache) if settings.calib_cache else None)
    config.int8_calibrator = calibrator
    return calibrator


def set_calibration_profile(
    builder: Any, config: Any, settings: BuildSettings, batches: list[dict[str, Array]]
) -> None:
    """Fixes open axes for calibration to those of the arrays.

    Without it TensorRT takes the first profile's optimum, and reads past the end of smaller arrays.

    Raises:
        ArtifactError: TensorRT refuses the shapes.
    """
    if not settings.profiles:
        return
    profile = builder.create_optimization_profile()
    first = batches[0] if batches else {}
    for name, best in settings.profiles[0].best.items():
        shape = first[name].shape if name in first else best
        profile.set_shape(name, shape, shape, shape)
    if not config.set_calibration_profile(profile):
        raise ArtifactError(f"TensorRT refuses the shapes of the calibration arrays: {LOG.take()}")


def read_batches(path: Path, batch: int) -> list[dict[str, Array]]:
    """The arrays of an .npz file, cut into whole batches along their first axis.

    Raises:
        ArtifactError: the file cannot be read, its arrays differ in length, or hold less than one batch.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            # Entries with such names are what `calibrate --keep-batches` tells of itself.
            arrays = {name: archive[name] for name in archive.files if not name.startswith("__")}
    except (OSError, ValueError, EOFError) as error:
        raise ArtifactError(f"{path}: {error}; expected an .npz file with one array for each input") from error
    lengths = {array.shape[0] if array.ndim else 0 for array in arrays.values()}
    if len(lengths) != 1 or min(lengths) < batch:
        raise ArtifactError(f"{path}: arrays of {sorted(lengths)} samples; expected the same number, {batch} or more")
    count = min(lengths) // batch
    return [{name: a[i * batch : (i + 1) * batch] for name, a in arrays.items()} for i in range(count)]
