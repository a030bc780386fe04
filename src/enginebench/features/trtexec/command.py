"""Compose command lines that a given version of trtexec accepts: to build a plan, and to time one."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from enginebench.core.errors import UsageError
from enginebench.core.records import Precision
from enginebench.core.shapes import format_shapes, quote_name
from enginebench.core.store import explain_reading
from enginebench.engines.backends.tensorrt.settings import BuildSettings, check_dla, refuse_half_floats
from enginebench.features.trtexec.executable import REPEATABLE, Trtexec

# The builder flags that ask for a precision under weak typing. Layers that the lower precision does not have fall back
# to FP16 rather than FP32: that is what every recipe of these versions means by INT8.
WEAK_FLAGS: dict[Precision, tuple[str, ...]] = {
    "fp32": (),
    "tf32": (),
    "fp16": ("fp16",),
    "bf16": ("bf16",),
    "int8": ("int8", "fp16"),
    "fp8": ("fp8", "fp16"),
}

# 8.6 has no strongly typed networks: a graph in this precision is built in it only under the flag.
GRAPH_FLAGS: dict[Precision, tuple[str, ...]] = {**WEAK_FLAGS, "int8": ("int8",), "fp8": ("fp8",)}

# What a plugin library for TensorRT's registry exports: of 8.6, and of 10 on.
CREATORS = (b"getPluginCreators", b"getCreators")

# trtexec's own option; nothing but a plan and its log is to be left behind.
BUILD_ONLY = "--skipInference"

# What to give in place of an option that is composed here.
OWN_OPTIONS = {
    "onnx": "give that file as F.onnx",
    "saveEngine": "--out",
    "loadEngine": "give that plan as TARGET",
    "device": "--device cuda:N",
    "useDLACore": "--use-dla N, or trtexec:dla=N",
    "allowGPUFallback": "--use-dla N, or trtexec:dla=N",
    "iterations": "--warmup and --iters",
    "warmUp": "--warmup and --iters",
    "duration": "--time-limit",
    "percentile": "--percentile",
    "infStreams": "trtexec:streams=N",
    "shapes": "--input-shape, or for a plan that is built --opt-shapes",
    **{f"{kind}Shapes": f"--{kind}-shapes" for kind in ("min", "opt", "max")},
    "useProfile": "--profile-index",
    "memPoolSize": "leave out --workspace-mb, and give all pools in one argument",
    "timingCacheFile": "--timing-cache",
    "builderOptimizationLevel": "--optimization-level",
    "profilingVerbosity": "trtexec:detailed=0 leaves it out",
    "noTF32": "--precision tf32 leaves it out",
}


class RunSettings(Struct, frozen=True, kw_only=True):
    """The settings with which trtexec times a plan. Every switch is stated, since the defaults changed in 11.0."""

    cuda_graph: bool = True
    transfers: bool = False
    spin_wait: bool = True
    streams: int = 1
    warmup_ms: int = 200  # trtexec's own default
    duration_s: float = 3.0  # likewise
    iterations: int = 10  # a minimum; likewise
    percentiles: tuple[float, ...] = (50.0, 90.0, 95.0, 99.0)
    shapes: dict[str, tuple[int, ...]] = {}
    profile_index: int = 0
    implicit_batch: int | None = None
    plugins: tuple[str, ...] = ()
    device: int = 0
    dla: int | None = None
    times: str | None = None
    profile: str | None = None
    layers: str | None = None
    output: str | None = None
    inputs: dict[str, str] = {}
    extra: tuple[str, ...] = ()


def compose_build(
    tool: Trtexec, onnx: str, plan: str, settings: BuildSettings, layers: str | None = None, extra: tuple[str, ...] = ()
) -> list[str]:
    check_dla(settings, tool.version)
    argv = [tool.path or "trtexec", f"--onnx={onnx}", f"--saveEngine={plan}", BUILD_ONLY]
    argv += _list_precision(tool, settings)
    for index, profile in enumerate(settings.profiles):
        if len(settings.profiles) > 1:
            tool.require("profile", f"{len(settings.profiles)} profiles")
            argv += [f"--profile={index}"]
        shapes = {"min": profile.smallest, "opt": profile.best, "max": profile.largest}
        argv += [f"--{kind}Shapes={format_shapes(shape)}" for kind, shape in shapes.items()]
    argv += _list_plan_kind(tool, settings)
    argv += list_dla(settings.dla, fallback=True)
    argv += map(_name_plugins, settings.plugins)
    argv += ["--profilingVerbosity=detailed"] if settings.detailed else []
    argv += [f"--exportLayerInfo={layers}"] if layers else []
    argv += [f"--device={settings.device}"]
    return [*argv, *keep_extra(tool, extra, argv)]


def compose_measure(tool: Trtexec, plan: str, settings: RunSettings) -> list[str]:
    argv = [tool.path or "trtexec", f"--loadEngine={plan}"]
    argv += _list_inputs(tool, settings)
    argv += list_switches(tool, settings)
    argv += list_dla(settings.dla)
    argv += [f"--warmUp={settings.warmup_ms}", f"--duration={settings.duration_s:g}"]
    argv += [f"--iterations={settings.iterations}", f"--percentile={','.join(f'{p:g}' for p in settings.percentiles)}"]
    argv += map(_name_plugins, settings.plugins)
    exports = {"Times": settings.times, "Profile": settings.profile, "LayerInfo": settings.layers}
    exports["Output"] = settings.output
    argv += [f"--export{what}={path}" for what, path in exports.items() if path]
    if settings.profile and not tool.accepts("noCudaGraph"):
        argv += ["--separateProfileRun"]  # else one run serves both: no times, and a profile that slows them
    argv += [f"--device={settings.device}"]
    return [*argv, *keep_extra(tool, settings.extra, argv)]


def _name_plugins(path: str) -> str:
    """Return the option for a plugin library.

    A library that exports its creators is loaded through TensorRT's registry; any other only needs to be opened: it
    registers its plugins by itself.
    """
    library = Path(path)
    with explain_reading(library):
        exports = library.is_file() and any(name in library.read_bytes() for name in CREATORS)
    return f"--{'dynamic' if exports else 'static'}Plugins={path}"


def list_dla(core: int | None, *, fallback: bool = False) -> list[str]:
    """List the options of a DLA core; with `fallback` the GPU takes what it does not run."""
    return [] if core is None else [f"--useDLACore={core}", *(["--allowGPUFallback"] if fallback else [])]


def list_switches(tool: Trtexec, settings: RunSettings) -> list[str]:
    """List CUDA graph, transfers, spin-wait and streams so that every version measures the same thing.

    Up to 10 `--useCudaGraph`, `--noDataTransfers` and `--useSpinWait` change the defaults of the first three; from 11.0
    on those are the defaults, and the opposite has the options.
    """
    usual = tool.accepts("noCudaGraph")
    switches = (
        (settings.cuda_graph, "--useCudaGraph", "--noCudaGraph"),
        (not settings.transfers, "--noDataTransfers", "--includeDataTransfers"),
        (settings.spin_wait, "--useSpinWait", "--noSpinWait"),
    )
    stated = [opposite if usual else flag for wanted, flag, opposite in switches if wanted != usual]
    return [*stated, f"--infStreams={settings.streams}"]


def keep_extra(tool: Trtexec, extra: tuple[str, ...], composed: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the user's own arguments, without those that the command has already, word for word."""
    seen = {_name_option(argument): argument for argument in composed}
    if "minShapes" in seen:  # trtexec would build for these, whatever --shapes says
        seen["shapes"] = seen["minShapes"]
    for argument in (extra := tuple(argument for argument in extra if argument not in composed)):
        name = _name_option(argument)
        if name:
            tool.check_argument(name, argument)
        if name and name in seen and (name not in REPEATABLE or name in OWN_OPTIONS):
            raise UsageError(
                f"argument {argument}: the command already has {seen[name]}, and trtexec accepts an option only once. "
                f"Instead: {OWN_OPTIONS.get(name, 'leave one of them out')}"
            )
        seen[name] = argument
    return extra


def _name_option(argument: str) -> str:
    """Return the option of an argument, without hyphens and value; "" if it is no option."""
    return argument.removeprefix("--").partition("=")[0] if argument.startswith("--") else ""


def _list_precision(tool: Trtexec, settings: BuildSettings) -> Iterator[str]:
    if settings.weak_typing:
        if tool.typed_by_graph:
            tool.require("fp16", "--weak-typing")
        for flag in WEAK_FLAGS[settings.precision]:
            tool.require(flag, f"--weak-typing in {settings.precision}")
            yield f"--{flag}"
        if settings.calib_cache and settings.precision != "int8":
            raise UsageError(f"a calibration cache is for int8, not for {settings.precision}")
        yield from (f"--calib={path}" for path in [settings.calib_cache] if path)
    elif tool.typed_by_graph or tool.accepts("stronglyTyped"):
        refuse_half_floats(settings, tool.version_text)
        if not tool.typed_by_graph:  # else the types of the graph are the only ones
            yield "--stronglyTyped"
    else:
        for flag in (WEAK_FLAGS if settings.half_floats else GRAPH_FLAGS)[settings.precision]:
            tool.require(flag, f"a graph in {settings.precision}")
            yield f"--{flag}"
    if settings.precision == "fp32":
        yield "--noTF32"


def _list_plan_kind(tool: Trtexec, settings: BuildSettings) -> Iterator[str]:
    stated = {
        # Without a suffix the unit is MiB. "512MiB" would be read as 512 bytes: the last letter counts.
        f"--memPoolSize=workspace:{settings.workspace_mb}": settings.workspace_mb is not None,
        f"--timingCacheFile={settings.timing_cache}": settings.timing_cache,
        f"--builderOptimizationLevel={settings.optimization_level}": settings.optimization_level is not None,
        "--versionCompatible": settings.version_compatible,
        "--excludeLeanRuntime": settings.exclude_lean,
    }
    yield from (flag for flag, wanted in stated.items() if wanted)
    if settings.hardware_compatibility != "none":
        if settings.hardware_compatibility == "sameComputeCapability" and tool.version < (10, 9, 0):
            raise UsageError(
                f"sameComputeCapability needs TensorRT 10.9; this is {tool.version_text}. Instead: ampere+"
            )
        yield f"--hardwareCompatibilityLevel={settings.hardware_compatibility}"
    if settings.refit:
        yield "--refit"
    if settings.strip:
        flag = "weightless" if tool.accepts("weightless") and not tool.accepts("stripWeights") else "stripWeights"
        tool.require(flag, "--strip")
        yield f"--{flag}"


def _list_inputs(tool: Trtexec, settings: RunSettings) -> Iterator[str]:
    if settings.implicit_batch is not None:
        tool.require("batch", "a plan with an implicit batch")
        yield f"--batch={settings.implicit_batch}"
    if settings.shapes:
        yield f"--shapes={format_shapes(settings.shapes)}"
    if settings.profile_index:
        tool.require("useProfile", f"--profile-index {settings.profile_index}")
        yield f"--useProfile={settings.profile_index}"
    if settings.inputs:
        yield "--loadInputs=" + ",".join(f"{quote_name(name)}:{path}" for name, path in settings.inputs.items())
