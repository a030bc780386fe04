"""Read the settings of a TensorRT build from the `key=value` options of ENGINE, for trtexec and the Python API."""

import shlex
from collections.abc import Iterable, Sequence
from ctypes import CDLL
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from enginebench.core.commands import Choice, advise_dynamic_batch, format_command
from enginebench.core.engine_api import read_index
from enginebench.core.errors import ArtifactError, UsageError, explaining
from enginebench.core.names import require_precision
from enginebench.core.records import Artifact, EngineSpec, Precision, ResultWarning
from enginebench.core.shapes import concrete_shape, join_axes, read_dims, read_shapes
from enginebench.core.store import explain_reading
from enginebench.core.text import count_of
from enginebench.core.warnings import make_warning
from enginebench.engines.request import read_number

LAST_WEAK_MAJOR = 10

# What a DLA core computes in, and the versions without it, each from one to before another. Source: "Working with DLA",
# TensorRT 11.4.1.
DLA_PRECISIONS = ("fp16", "int8")
WITHOUT_DLA = (((10, 8, 0), (11, 4, 1)),)
# Of layers in one warning.
MOST_NAMES = 10

# Of INT8 by builder flags, for which data of the run is never read.
INVENTED_RANGES = make_warning(
    "random_calibration",
    source="TensorRT, without calibration",
    cure="quantize the graph first, or give the engine a calibration cache: calib_cache=FILE",
)

# Names of plugin files may have commas and spaces; a line end cannot be typed in one.
SEPARATOR = "\n"

# Of the first line, `TRT-<version>-<algorithm>`.
CACHE_HEAD = b"TRT-"
_FROM_CACHE: tuple[Choice, ...] = (("--to", "int8"), ("--calib-cache", "FILE"))
_LET_CALIBRATE: tuple[Choice, ...] = (
    ("--engine", "tensorrt"),
    ("--weak-typing", None),
    ("--precision", "int8"),
    ("--calib", "F.npz"),
    ("--calib-cache", "NEW.cache"),
)
# What to do with ranges that TensorRT's calibrator does not take: it wants those of tensors that it makes up itself.
OTHER_RANGES = (
    "Ranges that were not written by TensorRT lack those of tensors that it makes up itself. Let it write the cache: "
    + format_command("build", "GRAPH", options=_LET_CALIBRATE)
    + "; or make Q/DQ nodes of the ranges: "
    + format_command("quantize", "GRAPH", options=_FROM_CACHE)
)


class ShapeProfile(Struct, frozen=True, kw_only=True):
    """The shapes of every input that one optimization profile allows, and those that it is tuned for."""

    smallest: dict[str, tuple[int, ...]]
    best: dict[str, tuple[int, ...]]
    largest: dict[str, tuple[int, ...]]


class BuildSettings(Struct, frozen=True, kw_only=True):
    """Every setting that affects what the builder makes of a graph."""

    precision: Precision = "fp32"
    weak_typing: bool = False
    half_floats: bool = False  # beside the Q/DQ nodes of a graph
    calib_cache: str | None = None
    workspace_mb: int | None = None
    profiles: tuple[ShapeProfile, ...] = ()
    timing_cache: str | None = None
    optimization_level: int | None = None
    version_compatible: bool = False
    hardware_compatibility: str = "none"
    plugins: tuple[str, ...] = ()
    exclude_lean: bool = False  # where there is no lean runtime to put in
    refit: bool = False
    strip: bool = False
    detailed: bool = True
    device: int = 0
    dla: int | None = None  # the core of a Jetson that runs what it can
    targets: tuple[str, ...] = ()  # compute capabilities, where the library builds for several
    flags: tuple[str, ...] = ()  # further builder flags, by name


def read_settings(spec: EngineSpec, options: dict[str, str], artifact: Artifact) -> BuildSettings:
    """The settings of a spec, its options read before."""
    weak = options["weak_typing"] == "1"
    if options["calib_cache"] and not weak:
        raise UsageError(
            "a calibration cache is read under weak typing only (--weak-typing, TensorRT 10 and older); for a graph "
            f"with Q/DQ nodes of the same ranges: {format_command('quantize', 'F.onnx', options=_FROM_CACHE)}"
        )
    return BuildSettings(
        precision=require_precision(spec.precision),
        weak_typing=weak,
        half_floats=options["floats"] == "fp16",
        calib_cache=_find_file(options["calib_cache"]),
        workspace_mb=_read_whole(spec, options, "workspace_mb"),
        profiles=read_profiles(spec, options, artifact),
        timing_cache=_find_file(options["timing_cache"]),
        optimization_level=_read_whole(spec, options, "optimization_level"),
        version_compatible=options["version_compatible"] == "1",
        hardware_compatibility=options["hardware_compatibility"],
        plugins=read_plugins(options),
        refit=options["refit"] == "1",
        strip=options["strip"] == "1",
        detailed=options["detailed"] == "1",
        device=read_index(spec),
        dla=_read_dla(spec, options),
    )


def _read_dla(spec: EngineSpec, options: dict[str, str]) -> int | None:
    core = options["dla"]
    if core and spec.precision not in DLA_PRECISIONS:
        raise UsageError(
            f"dla={core}: a DLA core computes in {' and '.join(DLA_PRECISIONS)}, not in {spec.precision}; "
            "give --precision fp16"
        )
    return int(core) if core else None


def check_dla(settings: BuildSettings, version: Sequence[int]) -> None:
    """Check that a version of TensorRT builds for DLA cores at all."""
    if settings.dla is not None and any(first <= tuple(version)[:3] < last for first, last in WITHOUT_DLA):
        raise UsageError(
            f"dla={settings.dla}: TensorRT {'.'.join(map(str, version))} has no DLA; 10.7 and older have, and 11.4.1 "
            "and later on a Jetson AGX Orin with JetPack 7.2.2 or later"
        )


def list_dla_warnings(settings: BuildSettings, on_gpu: Iterable[str]) -> tuple[ResultWarning, ...]:
    """Return the warning of layers that run on the GPU beside a DLA core, by name."""
    if settings.dla is None or not (names := list(on_gpu)):
        return ()
    more = f" and {len(names) - MOST_NAMES} more (all are in the log)" if len(names) > MOST_NAMES else ""
    return (
        make_warning(
            "environment.setting",
            setting=f"device of {count_of(len(names), 'layers')}",
            value=f"the GPU, not DLA core {settings.dla}",
            effect=f"{', '.join(names[:MOST_NAMES])}{more}",
            cure="replace what DLA lacks, or leave out dla: data goes back and forth between the two",
        ),
    )


def refuse_half_floats(settings: BuildSettings, version: str) -> None:
    """Check that a graph has floats of its own precision, if its types are used as they are."""
    if settings.half_floats and not settings.weak_typing:
        raise UsageError(f"floats=fp16: TensorRT {version} takes the types of the graph as they are; leave it out")


def read_plugins(options: dict[str, str]) -> tuple[str, ...]:
    """The plugin libraries. A file is named by its whole path, since trtexec runs in a folder of its own.

    A name that is no file here is left to the loader, which looks through its own folders.
    """
    names = filter(None, options["plugins"].split(SEPARATOR))
    return tuple(str(Path(name).absolute()) if Path(name).is_file() else name for name in names)


def check_calib_cache(path: Path) -> None:
    """Check that the file begins like a calibration cache of TensorRT.

    TensorRT ignores ranges that it cannot read, and invents others.
    """
    with explain_reading(path), path.open("rb") as file:
        head = file.read(len(CACHE_HEAD))
    if head != CACHE_HEAD:
        raise ArtifactError(
            f"{path} is not a calibration cache: it begins with {head!r}, expected a line like "
            "TRT-8601-EntropyCalibration2"
        )


def adapt_cache(data: bytes, version: Sequence[int]) -> bytes:
    """A calibration cache under the first line of the one calibrator that reads it here: by entropy, of this version.

    TensorRT passes over any other, and calibrates on nothing; scales mean the same in all.
    """
    major, minor, patch = (*version, 0, 0)[:3]
    number = major * (10_000 if major >= LAST_WEAK_MAJOR else 1_000) + 100 * minor + patch
    return b"TRT-%d-EntropyCalibration2\n" % number + data.partition(b"\n")[2]


def fit_to_version(settings: BuildSettings, version: Sequence[int]) -> BuildSettings:
    """The settings of a version-compatible plan as this installation can build it; others as they are.

    Such a plan carries the library of the lean runtime, which not every installation has.
    """
    if not settings.version_compatible:
        return settings
    if settings.refit and version[0] < LAST_WEAK_MAJOR:
        raise UsageError(
            f"TensorRT {'.'.join(map(str, version))} builds no plan that is both --refit and --version-compatible "
            "(kREFIT can not be set if kVERSION_COMPATIBLE is set); leave out one of them"
        )
    try:
        CDLL(f"libnvinfer_lean.so.{version[0]}")
    except OSError:
        return replace(settings, exclude_lean=True)
    return settings


def read_profiles(spec: EngineSpec, options: dict[str, str], artifact: Artifact) -> tuple[ShapeProfile, ...]:
    """Return the requested profiles; for dynamic inputs without any, one for exactly `spec.batch`.

    With a profile for one shape the builder need not compromise: that batch gets its best plan.
    """
    texts = [options[key] for key in ("min_shapes", "opt_shapes", "max_shapes")]
    profiles = [make_profile(*map(read_shapes, texts))] if any(texts) else []
    profiles += [read_shape_profile(line) for line in filter(None, options["profiles"].split(SEPARATOR))]
    dynamic = [s for s in artifact.inputs if any(isinstance(axis, str) for axis in s.shape)]
    if not profiles and dynamic:
        only = {s.name: concrete_shape(s, spec.batch) for s in dynamic}
        profiles = [ShapeProfile(smallest=only, best=only, largest=only)]
    for profile in profiles:
        check_profile(profile, artifact)
    if profiles and artifact.inputs and not dynamic:
        raise UsageError(f"the graph has no dynamic axis and takes no shapes; export it with {advise_dynamic_batch()}")
    return tuple(profiles)


def check_profile(profile: ShapeProfile, artifact: Artifact) -> None:
    """Check that the graph has inputs of these names, that the shapes fit, and that no open input was left out."""
    input_shapes = {s.name: s.shape for s in artifact.inputs}
    if not input_shapes:
        return
    for name, shape in (*profile.smallest.items(), *profile.best.items(), *profile.largest.items()):
        if (axes := input_shapes.get(name)) is None:
            raise UsageError(f"shapes are given for {name}; the graph's inputs: {', '.join(sorted(input_shapes))}")
        if len(axes) != len(shape) or any(isinstance(a, int) and a != d for a, d in zip(axes, shape, strict=True)):
            expected = "x".join(str(axis) for axis in axes)
            raise UsageError(f"shape {'x'.join(map(str, shape))} of {name} does not fit the graph's {expected}")
    if missing := [
        n for n, axes in input_shapes.items() if n not in profile.best and any(isinstance(a, str) for a in axes)
    ]:
        raise UsageError(f"shapes are needed for every input with a dynamic axis; none for {', '.join(missing)}")


def read_shape_profile(text: str) -> ShapeProfile:
    """The profile of `NAME:1x3x8x8/4x3x8x8/16x3x8x8` (min, opt, max), several inputs separated by commas."""
    sides: tuple[dict[str, tuple[int, ...]], ...] = ({}, {}, {})
    for piece in filter(None, join_axes(text).split(",")):
        name, _, dims = piece.rpartition(":")
        parts = dims.split("/")
        if not name or len(parts) != len(sides):
            raise UsageError(
                f"profile {piece!r}: expected NAME:MIN/OPT/MAX, for example input:1x3x224x224/8x3x224x224/32x3x224x224"
            )
        for side, part in zip(sides, parts, strict=True):
            side[name.strip().strip("'")] = read_dims(part, piece)
    return make_profile(*sides)


def make_profile(
    smallest: dict[str, tuple[int, ...]], best: dict[str, tuple[int, ...]], largest: dict[str, tuple[int, ...]]
) -> ShapeProfile:
    """A profile; what is not given is taken from its neighbour, as trtexec does."""
    optimum = best or largest or smallest
    profile = ShapeProfile(smallest=smallest or optimum, best=optimum, largest=largest or best or smallest)
    if not (profile.smallest.keys() == profile.best.keys() == profile.largest.keys()):
        raise UsageError("min, opt and max shapes must name the same inputs")
    for name, best_shape in profile.best.items():
        low, high = profile.smallest[name], profile.largest[name]
        if not len(low) == len(best_shape) == len(high):
            raise UsageError(f"min, opt and max shapes of {name} have different numbers of axes")
        if any(not a <= b <= c for a, b, c in zip(low, best_shape, high, strict=True)):
            raise UsageError(f"shapes of {name} must ascend from min over opt to max: {low}, {best_shape}, {high}")
    return profile


def split_argv(text: str) -> tuple[str, ...]:
    """The arguments of one option's text, quoted as for a shell."""
    with explaining(UsageError, f"arguments {text!r}", ValueError):
        return tuple(shlex.split(text))


def _find_file(text: str) -> str | None:
    """The whole path of a file, from the folder in which it was named."""
    return str(Path(text).absolute()) if text else None


def _read_whole(spec: EngineSpec, options: dict[str, str], key: str) -> int | None:
    if not options[key]:
        return None
    number = read_number(spec, key, options[key])
    if number != int(number):
        raise UsageError(f"option {key}={options[key]!r} of engine {spec.backend} must be a whole number")
    return int(number)


# Which ONNX operator sets a version of TensorRT reads; of newer graphs 8.6 silently makes another network.
# The first version that reads each. Sources: docs/operators.md of onnx-tensorrt, 8.6, 9.0, 10.0, 10.15; release notes
# of 10.6 (ONNX 1.17) and 11.5. Seen in 8.6.0: the axes input of ReduceMean is not read, so that it runs over all axes.
NEWEST_OPSETS = {(8, 6): 17, (9, 0): 19, (10, 0): 20, (10, 6): 22, (10, 15): 24, (11, 5): 25}


def find_newest_opset(version: str) -> int:
    """The newest operator set that this version (`8.6.1`) reads."""
    major, minor = (int(part) for part in version.split(".")[:2])
    readable = [opset for first, opset in NEWEST_OPSETS.items() if first <= (major, minor)]
    return max(readable, default=min(NEWEST_OPSETS.values()))
