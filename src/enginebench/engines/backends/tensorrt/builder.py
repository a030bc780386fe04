"""Build plans from ONNX through TensorRT's Python API, 8.6 to 11, and TensorRT for RTX; errors carry its own words.

Names that some versions lack are looked up with `hasattr`; `tools/tensorrt_names.py` lists them from a wheel.
"""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from enginebench.core.array_files import read_array_file
from enginebench.core.commands import format_command
from enginebench.core.errors import ArtifactError, BackendUnavailable, UsageError
from enginebench.core.protocols import Array
from enginebench.core.store import write_atomic
from enginebench.core.text import count_of
from enginebench.engines.backends.tensorrt.settings import (
    LAST_WEAK_MAJOR,
    OTHER_RANGES,
    BuildSettings,
    adapt_cache,
    check_dla,
    refuse_half_floats,
)
from enginebench.engines.tensorrt_library import NOISE, Library, is_lean

# The first with tensors by name (`set_tensor_address`, `execute_async_v3`) and with plans for later versions.
OLDEST = (8, 6)
MIB = 1 << 20
# Between two notes from the phases within a phase: a large graph has thousands of their steps.
QUIET_S = 1.0
# The parser's node of an error that is about the whole file.
NO_NODE = re.compile(r"In node -1 with name:\s+and operator:\s+\(\w*\): \w+: ")

# Builder flags that ask for a precision under weak typing; as in trtexec_command, FP16 is what INT8 falls back to.
WEAK_FLAGS = {"fp16": ("FP16",), "bf16": ("BF16",), "int8": ("INT8", "FP16"), "fp8": ("FP8", "FP16")}

# The flags with which a version without strongly typed networks keeps a graph's types; as in trtexec_command.
GRAPH_FLAGS = {"fp16": ("FP16",), "bf16": ("BF16",), "int8": ("INT8",), "fp8": ("FP8",)}

HARDWARE = {"ampere+": "AMPERE_PLUS", "sameComputeCapability": "SAME_COMPUTE_CAPABILITY"}


def check_version(library: Library) -> None:
    """Check that this file was written for the bindings of this TensorRT."""
    if read_version(library) < OLDEST:
        raise BackendUnavailable(
            f"the Python API of TensorRT {library.version} has other names than that of 8.6 and later, which this "
            "engine uses; update TensorRT"
        )


def read_version(library: Library) -> tuple[int, ...]:
    """(major, minor, patch) of the module."""
    return tuple(map(int, library.version.split(".")[:3]))


def require_builder(library: Library) -> None:
    if is_lean(library.trt):
        raise BackendUnavailable(
            f"the lean runtime cannot build ({library.trt.__name__} {library.version}). Build the plan elsewhere with "
            "--version-compatible and give it as TARGET, or install all of it: pip install tensorrt"
        )


def build_plan(
    library: Library,
    onnx: Path,
    settings: BuildSettings,
    plan: Path,
    *,
    batches: list[dict[str, Array]] | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> None:
    check_flags(library, settings)
    builder = library.make(library.trt.Builder, "a builder")
    library.load_plugins(settings.plugins)  # their messages reach the log only while there is a builder
    network = library.require(builder.create_network(make_network_flags(library, settings)), "cannot create a network")
    parser = library.trt.OnnxParser(network, library.log)
    if not parser.parse_from_file(str(onnx)):
        errors = [parser.get_error(i) for i in range(parser.num_errors)]
        messages = [format_error(error) for error in errors]
        # What is wrong with the file itself (weights that lie elsewhere, an unknown type) is in the log alone; so is
        # each error of the parser, once more.
        if not errors or any(error.node() < 0 for error in errors):
            messages += [text for text in library.log.errors if not any(e.desc().strip() in text for e in errors)]
        raise ArtifactError(f"{library.title} cannot read {onnx}: {'; '.join(messages) or library.log.take()}")
    if not network.num_outputs:
        raise ArtifactError(f"{library.title} finds no output in {onnx}: it is empty, or no ONNX model")
    config = make_config(library, builder, settings, note)
    calibrator = attach_calibrator(library, builder, config, settings, batches or [])
    library.log.errors.clear()  # what a stored timing cache of elsewhere had to say
    data = builder.build_serialized_network(network, config)
    if data is None and calibrator is not None and any("_Map_base::at" in text for text in library.log.errors):
        raise ArtifactError(
            f"{library.title} does not take the calibration cache: {library.log.take()}. {OTHER_RANGES}"
        )
    library.require(data, f"cannot build {onnx}")
    write_atomic(plan, bytes(data))
    if settings.timing_cache and (cache := config.get_timing_cache()) is not None:
        write_atomic(Path(settings.timing_cache), bytes(cache.serialize()))
    del calibrator  # TensorRT holds no reference to it; it must live until here


def check_flags(library: Library, settings: BuildSettings) -> None:
    """Check that this version has every flag that the settings need, before anything is built."""
    require_builder(library)
    check_dla(settings, read_version(library))
    make_network_flags(library, settings)
    for flag in choose_flags(library, settings):
        library.find_member(library.trt.BuilderFlag, flag)


def make_network_flags(library: Library, settings: BuildSettings) -> int:
    """Return the network's flags: strongly typed unless weak typing was chosen; for 8.6, an explicit batch."""
    flags, precision = library.trt.NetworkDefinitionCreationFlag, settings.precision
    if settings.weak_typing and read_version(library)[0] > LAST_WEAK_MAJOR:
        missing = (name for name in WEAK_FLAGS.get(precision, ()) if not hasattr(library.trt.BuilderFlag, name))
        raise UsageError(
            f"--weak-typing in {precision}: TensorRT {library.version} builds strongly typed networks only "
            f"(no BuilderFlag.{next(missing, 'FP16')}). Instead: "
            + format_command("quantize", "F.onnx", options=[("--to", precision)])
        )
    if not hasattr(flags, "STRONGLY_TYPED"):
        return 1 << int(flags.EXPLICIT_BATCH)
    refuse_half_floats(settings, library.version)
    return 0 if settings.weak_typing else 1 << int(flags.STRONGLY_TYPED)


def format_error(error: Any) -> str:
    """Format one error of the parser; 8.6 numbers the node and does not name it, -1 means the whole file."""
    text = "".join(line for line in error.desc().splitlines(keepends=True) if NOISE not in line).strip()
    if error.node() < 0:
        return NO_NODE.sub("", text)
    name = f" ({error.node_operator()} {error.node_name()!r})" if hasattr(error, "node_operator") else ""
    return f"node {error.node()}{name}: {text}"


def make_config(library: Library, builder: Any, settings: BuildSettings, note: Callable[[str], None]) -> Any:
    trt = library.trt
    config = library.require(builder.create_builder_config(), "cannot create a builder configuration")
    if hasattr(trt, "IProgressMonitor"):
        config.progress_monitor = make_progress(trt, note)
    if settings.workspace_mb is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, settings.workspace_mb * MIB)
    if settings.optimization_level is not None:
        config.builder_optimization_level = settings.optimization_level
    if settings.detailed:
        config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if settings.hardware_compatibility != "none":
        level = library.find_member(trt.HardwareCompatibilityLevel, HARDWARE[settings.hardware_compatibility])
        config.hardware_compatibility_level = level
    if settings.dla is not None:
        if settings.dla >= builder.num_DLA_cores:
            raise BackendUnavailable(
                f"dla={settings.dla}: {library.title} finds {count_of(builder.num_DLA_cores, 'DLA cores')} here"
            )
        config.default_device_type, config.DLA_core = trt.DeviceType.DLA, settings.dla
    for flag in choose_flags(library, settings):
        config.set_flag(library.find_member(trt.BuilderFlag, flag))
    if settings.precision == "fp32":
        config.clear_flag(trt.BuilderFlag.TF32)  # on by default
    if settings.targets:  # only TensorRT for RTX builds for several
        config.num_compute_capabilities = len(settings.targets)
    for index, target in enumerate(settings.targets):
        member = library.find_member(trt.ComputeCapability, f"SM{target.replace('.', '')}")
        library.require(config.set_compute_capability(member, index), f"refuses compute capability {target}")
    for shapes in settings.profiles:
        profile = builder.create_optimization_profile()
        for name in shapes.best:
            profile.set_shape(name, shapes.smallest[name], shapes.best[name], shapes.largest[name])
        if config.add_optimization_profile(profile) < 0:
            raise ArtifactError(f"{library.title} refuses the profile {shapes}: {library.log.take()}")
    if settings.timing_cache:  # one of another version or GPU is ignored by TensorRT
        path = Path(settings.timing_cache)
        cache = config.create_timing_cache(path.read_bytes() if path.is_file() else b"")
        if cache is None or not config.set_timing_cache(cache, False):
            empty = library.require(config.create_timing_cache(b""), "cannot create a timing cache")
            config.set_timing_cache(empty, False)
    return config


def choose_flags(library: Library, settings: BuildSettings) -> Iterator[str]:
    if settings.weak_typing:
        yield from WEAK_FLAGS.get(settings.precision, ())
    elif not hasattr(library.trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED"):
        yield from (WEAK_FLAGS if settings.half_floats else GRAPH_FLAGS).get(settings.precision, ())
    flags = {
        "VERSION_COMPATIBLE": settings.version_compatible,
        "EXCLUDE_LEAN_RUNTIME": settings.exclude_lean,
        "REFIT": settings.refit,
        "STRIP_PLAN": settings.strip,
        "GPU_FALLBACK": settings.dla is not None,
    }
    yield from (flag for flag, enabled in flags.items() if enabled)
    yield from settings.flags


def make_progress(trt: Any, note: Callable[[str], None]) -> Any:
    """Make a monitor that notes the builder's phases and steps; of inner phases at most one step a second."""

    class Progress(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._steps: dict[str, int] = {}
            self._inner: set[str] = set()
            self._noted_s = time.monotonic()

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._steps[phase_name] = num_steps
            if parent_phase:
                self._inner.add(phase_name)
            else:
                self._note(f"building: {phase_name}")

        def step_complete(self, phase_name: str, step: int) -> bool:
            total = self._steps.get(phase_name, 0)
            due = phase_name not in self._inner or time.monotonic() - self._noted_s >= QUIET_S
            if total > 1 and due:
                self._note(f"building: {phase_name}, {step + 1} of {total}")
            return True

        def phase_finish(self, phase_name: str) -> None:
            self._steps.pop(phase_name, None)
            self._inner.discard(phase_name)

        def _note(self, text: str) -> None:
            self._noted_s = time.monotonic()
            note(text)

    return Progress()


def attach_calibrator(
    library: Library, builder: Any, config: Any, settings: BuildSettings, batches: list[dict[str, Array]]
) -> Any:
    """The calibrator for INT8 under weak typing, given to `config`; None where there is nothing to calibrate with.

    Open axes are fixed to those of the arrays: else TensorRT takes the first profile's optimum, and reads past the end
    of smaller arrays.
    """
    if not settings.weak_typing or settings.precision != "int8" or not (batches or settings.calib_cache):
        return None
    if not hasattr(library.trt, "IInt8EntropyCalibrator2"):
        raise UsageError(
            f"TensorRT {library.version} has no calibrators. Instead: "
            + format_command("quantize", "F.onnx", options=[("--to", "int8"), ("--calib-cache", "FILE")])
        )
    calibrator = make_calibrator(library.trt, batches, Path(settings.calib_cache) if settings.calib_cache else None)
    config.int8_calibrator = calibrator
    if settings.profiles:
        profile = builder.create_optimization_profile()
        first = batches[0] if batches else {}
        for name, best in settings.profiles[0].best.items():
            shape = first[name].shape if name in first else best
            profile.set_shape(name, shape, shape, shape)
        if not config.set_calibration_profile(profile):
            raise ArtifactError(f"TensorRT refuses the shapes of the calibration arrays: {library.log.take()}")
    return calibrator


def make_calibrator(trt: Any, batches: list[dict[str, Array]], cache: Path | None) -> Any:
    """A calibrator by entropy on these batches that reads and writes `cache`; without them the cache is all it has."""
    from enginebench.engines import cuda

    class Calibrator(trt.IInt8EntropyCalibrator2):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IInt8EntropyCalibrator2.__init__(self)
            self._left = list(batches)
            self._stream = cuda.Stream()
            self._buffers: dict[str, tuple[cuda.PinnedArray, cuda.DeviceBuffer]] = {}

        def get_batch_size(self) -> int:
            return len(next(iter(batches[0].values()))) if batches else 1

        def get_batch(self, names: Sequence[str]) -> list[int] | None:
            if not self._left:
                return None
            batch = self._left.pop(0)
            for name in names:
                array = batch[name]
                if name not in self._buffers:
                    pinned = cuda.PinnedArray(array.shape, array.dtype.name)
                    self._buffers[name] = pinned, cuda.DeviceBuffer(array.nbytes)
                pinned, buffer = self._buffers[name]
                np.copyto(pinned.array, array)
                cuda.copy_to_device(buffer, pinned, self._stream)
            self._stream.synchronize()
            return [self._buffers[name][1].address for name in names]

        def read_calibration_cache(self) -> bytes | None:
            if cache is None or not cache.is_file():
                return None
            return adapt_cache(cache.read_bytes(), tuple(map(int, trt.__version__.split(".")[:3])))

        def write_calibration_cache(self, data: Any) -> None:
            if cache is not None:
                write_atomic(cache, bytes(data))

    return Calibrator()


def read_batches(path: Path, batch: int) -> list[dict[str, Array]]:
    """The arrays of an .npz file, cut into whole batches along their first axis."""
    stored = read_array_file(path, "an .npz file with one array per input")
    # Entries with such names are the facts that `calibrate --keep-batches` stores about itself.
    arrays = {name: array for name, array in stored.items() if not name.startswith("__")}
    lengths = {array.shape[0] if array.ndim else 0 for array in arrays.values()}
    if len(lengths) != 1 or min(lengths) < batch:
        raise ArtifactError(f"{path}: arrays of {sorted(lengths)} samples; expected the same number, {batch} or more")
    count = min(lengths) // batch
    return [{name: a[i * batch : (i + 1) * batch] for name, a in arrays.items()} for i in range(count)]
