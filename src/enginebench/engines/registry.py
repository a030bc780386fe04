"""Engines by name, our own and those of other packages. The file of an engine is imported on first use."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from enginebench.core.entry import DeviceKind, Entry
from enginebench.core.errors import BackendUnavailable, EngineBenchError, MissingDependency, UsageError, explaining
from enginebench.core.features import Plugin, check_separate, find_each, list_rivals, read_points
from enginebench.core.names import format_options, parse_engine, parse_engines
from enginebench.core.protocols import Backend, ModuleLoader
from enginebench.core.records import ArtifactKind, Availability, EngineSpec, Precision, Scope
from enginebench.core.shapes import LARGEST, PAD
from enginebench.core.text import list_or, name_type
from enginebench.engines.backends.onnxruntime.entries import ORT, ORT_CUDA, ORT_OPENVINO, ORT_TENSORRT, ORT_TENSORRT_RTX
from enginebench.engines.backends.openvino.entries import OPENVINO
from enginebench.engines.backends.tensorrt.entries import TENSORRT, TENSORRT_RTX
from enginebench.engines.backends.torch.entries import PYTORCH, PYTORCH_AOTI, PYTORCH_COMPILE, PYTORCH_CUDAGRAPH
from enginebench.engines.request import read_options
from enginebench.engines.simulated import FAKE
from enginebench.engines.verified import PADDING

GROUP = "enginebench.engines"
# Names of engines become parts of file names, and ENGINE gives `:`, `,`, `=` and `@` a meaning.
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def list_plugins(taken: Collection[str]) -> list[Plugin]:
    """Every engine that a package names, by name."""
    listed = []
    for plugin in (plugins := read_points(GROUP)):
        name, package, fault = plugin.name, plugin.package, None
        if name in taken:
            fault = f"{package} brings an engine {name}, which EngineBench has itself: it is not used"
        elif rivals := list_rivals(plugin, plugins):
            fault = f"{' and '.join(rivals)} each bring an engine {name}: none is used. Uninstall all but one"
        elif not NAME.fullmatch(name):
            expected = "a name of lower-case letters, digits and hyphens"
            fault = f"{package} brings an engine {name!r}: it is not used. Expected {expected}"
        listed.append(plugin._replace(fault=fault))
    return listed


def load_entry(plugin: Plugin) -> Entry:
    """The entry that a package has for its engine."""
    if plugin.fault:
        raise BackendUnavailable(f"engine {plugin.name}: {plugin.fault}")
    where = f"engine {plugin.name} of {plugin.package}: its entry point {plugin.place}"
    try:
        entry = plugin.load()
    except (Exception, SystemExit) as error:
        raise BackendUnavailable(f"{where} cannot be imported ({type(error).__name__}: {error})") from error
    if not isinstance(entry, Entry):
        raise BackendUnavailable(f"{where} is of type {type(entry).__name__}; expected an enginebench.core.entry.Entry")
    if entry.name != plugin.name:
        raise BackendUnavailable(f"{where} is the entry of an engine {entry.name!r}; expected {plugin.name!r}")
    with explaining(BackendUnavailable, f"{where} is an Entry with a field of a wrong type", msgspec.ValidationError):
        return msgspec.convert(_list_values(entry), Entry)  # a struct does not check the types of its fields


def _list_values(value: Any) -> Any:
    """Return a record as the dictionary of its fields, with every record in it (`Builder`, `OnDevice`, `Option`)."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    return {key: _list_values(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value


# Every engine that EngineBench comes with, by name, in the order of lists.
ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        *(PYTORCH, PYTORCH_COMPILE, PYTORCH_AOTI, PYTORCH_CUDAGRAPH),
        *(ORT, ORT_CUDA, ORT_TENSORRT, ORT_OPENVINO, ORT_TENSORRT_RTX),
        *(OPENVINO, TENSORRT, TENSORRT_RTX, *find_each("engines"), FAKE),
    )
}


def read_engine(text: str) -> tuple[str, dict[str, str]]:
    """Parse an ENGINE such as `pytorch-compile:mode=reduce-overhead` into (name, options); the name must be known."""
    name, options = parse_engine(text)
    return find_entry(name).name, options


def read_engines(engines: str | Iterable[str]) -> list[tuple[str, dict[str, str]]]:
    """The engines of a comma-separated list, as `read_engine` reads each."""
    return [(find_entry(name).name, options) for name, options in parse_engines(engines)]


def list_unasked(kind: DeviceKind, scope: Scope = "compute") -> tuple[str, ...]:
    """Return the ENGINEs that `run` takes where none is named. TensorRT must be named: its plans take minutes."""
    defaults = {entry.name: entry.describe_on(kind) for entry in ENTRIES.values()}
    defaults = {name: described for name, described in defaults.items() if described.default is not None}
    if scope == "pipelined":
        able = {name: described for name, described in defaults.items() if described.overlaps}
        defaults = able or defaults  # all: the refusal names one
    return tuple(format_options(name, described.default or {}) for name, described in defaults.items())


def choose_graph_engine(kind: DeviceKind) -> str:
    """Return the engine for models that have a graph, if none is named."""
    defaults = (entry for entry in ENTRIES.values() if entry.describe_on(kind).default is not None)
    return next(entry.name for entry in defaults if entry.takes == "onnx")


def choose_plan_builder() -> str:
    """Return the engine that builds a plan, if none is named: one that runs the vendor's tool, if there is one."""
    builders = [entry for entry in ENTRIES.values() if "plan" in entry.also_takes]
    return min(builders, key=lambda entry: entry.find_program is None).name


def name_library(made_by: dict[str, str]) -> str:
    """Return the name of the library that made a file to keep, the last of those that had a part in it."""
    names = {"tensorrt-rtx": "TensorRT for RTX", "torch": "PyTorch"}
    return next((names[name] for name in reversed(made_by) if name in names), "TensorRT")


def list_precisions(engine: str, device: str) -> tuple[Precision, ...]:
    """Return the precisions that an ENGINE runs on a device; () where only its backend knows."""
    entry = find_entry(parse_engine(engine)[0])
    return entry.describe_on(device).precisions or entry.precisions


def open_backend(name: str, loader: ModuleLoader | None = None, cache_dir: Path | None = None) -> Backend:
    """The backend of an engine name. It is handed what its `create_backend` names, and nothing else.

    Args:
        loader: rebuilds the module of a `torch` artifact.
        cache_dir: folder for what a compiler wants to find again in the next process. None: the compiler's own place.
    """
    entry = find_entry(name)
    if missing := find_absent_modules(entry.modules, entry.stand_ins):
        raise MissingDependency(f"what engine {name} needs ({' and '.join(missing)})", str(entry.fix))
    if entry.distributions and not list_installed(entry.distributions):
        raise MissingDependency(f"{entry.distributions[0]}, which engine {name} needs,", str(entry.fix))
    try:
        module = import_module(entry.module)
    except Exception as error:
        advice = f". Reinstall it: {entry.fix}" if entry.fix else ""
        raise BackendUnavailable(
            f"engine {name}: {(entry.distributions or (name,))[0]} is installed and cannot be imported ({error})"
            f"{advice}"
        ) from error
    create = getattr(module, "create_backend", None)
    if create is None:
        raise BackendUnavailable(f"engine {name}: its module {entry.module} has no create_backend")
    handed, wanted = {"loader": loader, "cache_dir": cache_dir}, signature(create).parameters
    backend = create(**{key: value for key, value in handed.items() if key in wanted})
    if not isinstance(backend, Backend):
        raise BackendUnavailable(
            f"engine {name}: create_backend of {entry.module} gives {name_type(backend)}; expected something "
            "with name, probe and build"
        )
    return backend


def check_options(spec: EngineSpec) -> None:
    """Check that every option of an ENGINE is one of those that its entry lists, with a value that it may have."""
    entry = find_entry(spec.backend)
    for key in sorted(spec.options.keys() & entry.refuses.keys()):
        raise UsageError(f"engine {spec.backend} takes no {key}: {entry.refuses[key]}")
    read_options(spec, {**entry.describe_on("cuda").options, **entry.options})
    pad = spec.options.get(PAD, "") if entry.options.get(PAD) is PADDING else ""
    if pad not in ("", LARGEST) and not re.fullmatch(r"[1-9]\d{0,5}", pad):
        raise UsageError(f"option {PAD}={pad!r} of engine {spec.backend}: expected a multiple, as in 32, or {LARGEST}")


def check_overlap(name: str, device: str) -> None:
    """Check that an engine can have its copies overlap with its computation, as scope `pipelined` asks."""
    if find_entry(name).describe_on(device).overlaps:
        return
    able = ", ".join(entry.name for entry in ENTRIES.values() if entry.describe_on("cuda").overlaps)
    own = "; trtexec has copies of its own overlap, and says its throughput in any scope" if name == "trtexec" else ""
    raise UsageError(
        f"--scope pipelined: engine {name} on {device} does not overlap copies with computing{own}. Engines that do, "
        f"with --device cuda:N: {able}. Use one of them, or --scope io"
    )


def complete_options(spec: EngineSpec) -> dict[str, str]:
    """Every option of an engine with its value on the device of a spec: the one of the spec, else the default."""
    entry = find_entry(spec.backend)
    return read_options(spec, entry.list_options(spec.device))


def probe(name: str) -> Availability:
    """Whether an engine can run here, with version, devices, reason and fix. Never raises.

    What is not installed is found without an import; what is installed is imported, since only that proves it.
    """
    package = None
    try:
        package = find_package(name)
        entry = find_entry(name)
    except EngineBenchError as error:
        return Availability(engine=name, available=False, reason=str(error), package=package)
    versions = list_installed(entry.distributions)
    try:
        availability = open_backend(name).probe()
        if not isinstance(availability, Availability):  # of a plug-in, which no type checker has seen
            raise BackendUnavailable(f"its probe gives {name_type(availability)}; expected an Availability")
        if len(versions) > 1:  # distributions that share one import name: the last one installed wins
            both = " and ".join(
                f"{distribution} {installed_version}" for distribution, installed_version in versions.items()
            )
            keep, drop = tuple(versions)[:2]
            availability = replace(
                availability,
                reason=f"{both} are both installed and overwrite each other's files; "
                f"{availability.version or versions[keep]} is what replies",
                fix=f"pip uninstall -y {keep} {drop} && pip install {keep}",
            )
    except EngineBenchError as error:
        lacks = error.what if isinstance(error, MissingDependency) else None  # `fix` has the rest
        lacks = entry.distributions[0] if entry.distributions and not versions else lacks
        reason = f"{lacks} is not installed" if lacks else str(error)
        availability = Availability(engine=name, available=False, reason=reason, fix=entry.fix)
    except Exception as error:  # a probe that breaks is an engine that does not work here
        availability = Availability(
            engine=name, available=False, reason=f"{type(error).__name__}: {error}", fix=entry.fix
        )
    version = availability.version or next(iter(versions.values()), None)
    return replace(availability, version=version, verified_on=entry.verified_on, package=package)


def find_package(name: str) -> str | None:
    """The package that brings an engine, with its version; None for one of ours."""
    plugin = None if name in ENTRIES else _find_plugin(name)
    return plugin.package if plugin else None


def find_installed(name: str) -> Availability:
    """Find whether an engine is here without importing its runtime: enough for planning.

    An installation that is broken shows when the engine is built, in a process of its own.
    """
    entry = find_entry(name)
    absent = partial(Availability, engine=name, available=False, fix=entry.fix)
    if entry.find_program is not None:  # which is not started
        try:
            path = entry.find_program()
        except UsageError as error:
            return absent(reason=str(error))
        return Availability(engine=name, available=True) if path else absent(reason=f"no {name} is installed")
    if missing := find_absent_modules(entry.modules, entry.stand_ins):
        return absent(reason=f"{' and '.join(missing)} cannot be found")
    versions = list_installed(entry.distributions)
    if entry.distributions and not versions:
        return absent(reason=f"{entry.distributions[0]} is not installed")
    return Availability(engine=name, available=True, version=next(iter(versions.values()), None))


def takes(name: str) -> ArtifactKind:
    """The kind of artifact that an engine is built from: `torch` or `onnx`."""
    return find_entry(name).takes


def accepts(name: str) -> tuple[ArtifactKind, ...]:
    """Every kind of artifact that an engine can start from, the usual one first."""
    return find_entry(name).accepts


def find_device(name: str, device: str) -> str:
    """Return the device that an engine runs on: the requested one, or a GPU engine's own in place of the CPU."""
    return find_entry(name).device or device if device == "cpu" else device


def list_names() -> tuple[str, ...]:
    """The name of every engine, our own first; nothing of a package that brings one is imported."""
    return (*ENTRIES, *(plugin.name for plugin in list_plugins(ENTRIES) if plugin.fault is None))


def list_refused() -> list[Availability]:
    """List the engines of packages that are never used, each with the reason."""
    return [
        Availability(engine=plugin.name, available=False, reason=plugin.fault, package=plugin.package)
        for plugin in list_plugins(ENTRIES)
        if plugin.fault is not None
    ]


def is_simulated(name: str) -> bool:
    """Whether the engine is `fake`, whose times are those that its options ask for."""
    return name == FAKE.name


def has_engine(name: str) -> bool:
    return name in ENTRIES or _find_plugin(name) is not None


def _find_plugin(name: str) -> Plugin | None:
    return next((plugin for plugin in list_plugins(ENTRIES) if plugin.name == name), None)


# What packages are called, and how the names of the engines that run on them begin.
PACKAGE_NAMES = {"onnxruntime": "ort", "onnx": "ort", "torch": "pytorch", "trt": "tensorrt", "ov": "openvino"}


def find_entry(name: str) -> Entry:
    if name in ENTRIES:
        return ENTRIES[name]
    if plugin := _find_plugin(name):
        return load_entry(plugin)
    check_separate("engine", name)
    from difflib import get_close_matches  # needed only for a mistyped name

    # Engines whose names begin with what the package is called here, then those that are spelled alike.
    begin = PACKAGE_NAMES.get(name.lower())
    near = [other for other in list_names() if begin is not None and other.startswith(begin)]
    near = near or get_close_matches(name, list_names(), len(list_names()))
    hint = f". Did you mean {list_or(near)}?" if near else ""
    names = (f"{other} ({package})" if (package := find_package(other)) else other for other in list_names())
    raise UsageError(f"unknown engine {name!r}; known: {', '.join(names)}{hint}")


def find_absent_modules(modules: tuple[str, ...], stand_ins: tuple[str, ...] = ()) -> list[str]:
    """Return the modules that cannot be found; the first is present if any of its substitutes is.

    Only their parent packages are imported.
    """
    missing = [module for module in modules if not _can_find(module)]
    if missing[:1] == list(modules[:1]) and any(map(_can_find, stand_ins)):
        del missing[0]
    return missing


def _can_find(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ImportError:
        return False


def list_installed(distributions: tuple[str, ...]) -> dict[str, str]:
    """Return {distribution: version} of those that are installed."""
    from importlib import metadata  # a dry run has no use for it, and would pay for its import

    installed = {}
    for distribution in distributions:
        with suppress(metadata.PackageNotFoundError):
            installed[distribution] = metadata.version(distribution)
    return installed
