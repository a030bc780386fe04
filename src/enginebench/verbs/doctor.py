"""`doctor`: list the engines that can run here, plug-ins included, each probed in its own process. Never fails."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from enginebench import door
from enginebench.core.entry import DeviceKind
from enginebench.core.errors import EngineBenchError, UsageError
from enginebench.core.features import SEPARATE, list_brought, require_hook
from enginebench.core.hooks import NodeQuery
from enginebench.core.records import Availability, EngineSpec, Machine
from enginebench.core.store import encode
from enginebench.core.text import count_of
from enginebench.core.warnings import format_warning
from enginebench.engines.registry import find_package, list_names, list_refused, list_unasked
from enginebench.measure.jetson import list_readings, read_tegrastats
from enginebench.measure.machine import describe_machine
from enginebench.options import Opt, Printed, Progress, Unpack, verb
from enginebench.report.table import Notes, Section
from enginebench.runs.child.environments import (
    OPTION,
    PROBE_TIMEOUT_S,
    describe_environment,
    list_versions,
    name_environments,
    probe_elsewhere,
)
from enginebench.runs.child.isolate import run_child
from enginebench.runs.child.jobs import ProbeJob
from enginebench.verbs.common import open_progress

MB = 1 << 20
# Each engine of a node is probed in a process of its own, one after the other, on all nodes at once.
FLEET_TIMEOUT_S = 600.0
# The extras that bring what `run` measures by default; with a GPU, its builds of ONNX Runtime and TensorRT.
EXTRAS: dict[DeviceKind, str] = {"cpu": "cpu", "cuda": "torch,cuda,openvino,tensorrt"}
# What has no package for a Python that EngineBench runs on. All versions: docs/engines.md.
LACKING = {
    (3, 10): "ONNX Runtime ends with 1.23 for it, and ort-openvino and ort-tensorrt-rtx need 1.24: use Python 3.11"
}


class FeaturePackage(Struct, frozen=True, kw_only=True):
    """A package with a feature: what it brings (`verb note`, `hook RunFinished`), and why some or all is not used."""

    package: str  # with its version, if it is installed
    brings: tuple[str, ...] = ()
    reason: str | None = None
    fix: str | None = None


class DoctorDocument(Struct, frozen=True, kw_only=True):
    schema: str = "enginebench.doctor/1"
    machine: Machine
    engines: tuple[Availability, ...]
    features: tuple[FeaturePackage, ...] = ()
    readings: dict[str, str] = {}  # of a Jetson, just now
    lacking: str | None = None  # engines that cannot be had for this Python
    install: str | None = None  # the command that adds the engines for such a machine; None: they are there


class NodeResponse(Struct, frozen=True, kw_only=True):
    """One node of a cluster: its own document, or the reason why there is none."""

    node: str
    document: DoctorDocument | None
    reason: str = ""


class FleetDoctorDocument(Struct, frozen=True, kw_only=True):
    schema: str = "enginebench.doctor-fleet/1"
    nodes: tuple[NodeResponse, ...]


class DoctorOptions(Progress, total=False):
    env: Annotated[str | None, Opt("Ask this environment instead of the current one.", metavar="NAME[=PATH]")]
    on: Annotated[
        str | None, Opt("Ask every node of this Ray cluster.", metavar="auto|ray://HOST:PORT", feature="sweep")
    ]


@verb(DoctorOptions)
def doctor(**options: Unpack[DoctorOptions]) -> DoctorDocument | FleetDoctorDocument:
    """Show the machine, and for every engine its version or what is missing and how to get it.

    Example: enginebench doctor

    It also shows what each engine was verified on. It never fails: an engine that cannot be imported is reported as
    unavailable.
    """
    environment = options["env"]
    if options["on"] is not None:
        if environment is not None:
            raise UsageError("--env asks an environment of this machine, --on the nodes of a cluster; give one")
        responses = require_hook(NodeQuery)(options["on"], examine_here, timeout_s=FLEET_TIMEOUT_S)
        return FleetDoctorDocument(nodes=tuple(read_response(name, response) for name, response in responses))
    if environment is not None and "=" in environment:
        name_environments((environment,))
        environment = environment.partition("=")[0]
    with open_progress(options["progress"]) as reporter:
        return examine(lambda name: reporter.step(f"checking {name}"), environment)


@door.command(doctor)
def command(shown: Printed, **options: Unpack[DoctorOptions]) -> None:
    door.show(doctor(**options), shown, door.tables(list_doctor))


def examine(on_engine: Callable[[str], None] = lambda name: None, environment: str | None = None) -> DoctorDocument:
    """Return the machine and every engine, here or in an environment; `on_engine` gets each name before its probe."""
    described_environment = describe_environment(environment) if environment else None
    availabilities = []
    for name in list_names():
        on_engine(name)
        elsewhere = EngineSpec(backend=name, options={OPTION: environment}) if environment else None
        availabilities.append(probe_elsewhere(elsewhere) if elsewhere else probe_apart(name))
    machine = describe_machine()
    if described_environment is not None:
        return DoctorDocument(
            machine=replace(machine, versions=list_versions(described_environment)), engines=tuple(availabilities)
        )
    return DoctorDocument(
        machine=machine,
        engines=(*availabilities, *list_refused()),
        features=tuple(list_feature_packages()),
        readings=dict(list_readings(read_tegrastats())) if machine.jetson else {},
        lacking=LACKING.get(sys.version_info[:2]),
        install=choose_install(machine, availabilities),
    )


def choose_install(machine: Machine, engines: Sequence[Availability]) -> str | None:
    """Return the command that adds what is missing of the engines for such a machine; None if nothing is.

    A Jetson gets its engines from JetPack, not from an index.
    """
    kind: DeviceKind = "cuda" if machine.gpus else "cpu"
    names = {text.partition(":")[0] for text in list_unasked(kind)}
    missing = [one for one in engines if one.engine in names and not one.available and one.version is None]
    return f'pip install "enginebench[{EXTRAS[kind]}]"' if missing and not machine.jetson else None


def list_feature_packages() -> Iterator[FeaturePackage]:
    """Yield every package with a feature, from what the packages' metadata say: nothing of them is imported."""
    brought = list_brought({f"verb.{name}" for name in door.VERBS})
    for package in dict.fromkeys(plugin.package for plugin in brought):
        own = [plugin for plugin in brought if plugin.package == package]
        faults = [plugin.fault for plugin in own if plugin.fault]
        names = tuple(plugin.name.replace(".", " ", 1) for plugin in own if not plugin.fault)
        yield FeaturePackage(package=package, brings=names, reason="; ".join(faults) or None)
    installed = {plugin.package.split()[0] for plugin in brought}
    for separate in SEPARATE:
        if separate.package not in installed:
            yield FeaturePackage(package=separate.package, reason="not installed", fix=separate.fix)


def examine_here(_: bytes) -> bytes:
    """Return the JSON of this machine's document, for a request from another machine."""
    return encode(examine())


def read_response(name: str, response: bytes | str) -> NodeResponse:
    """Return a node's document; if its response is none, the reason."""
    if isinstance(response, str):
        return NodeResponse(node=name, document=None, reason=response)
    try:
        return NodeResponse(node=name, document=msgspec.json.decode(response, type=DoctorDocument))
    except msgspec.DecodeError as error:
        return NodeResponse(node=name, document=None, reason=f"its response cannot be read: {error}")


def probe_apart(name: str) -> Availability:
    """Probe an engine in a process of its own, since a broken runtime may kill its process."""
    try:
        return run_child(ProbeJob(engine=name), timeout_s=PROBE_TIMEOUT_S)
    except EngineBenchError as error:
        reason = f"its runtime cannot be imported: {error}"
        return Availability(engine=name, available=False, reason=reason, package=find_package(name))


def list_doctor(document: DoctorDocument | FleetDoctorDocument) -> list[Section]:
    """Return the sections of the machine and of every engine; in a cluster those of each node below its name."""
    if isinstance(document, DoctorDocument):
        return list_machine(document)
    sections: list[Section] = []
    for node in document.nodes:
        reason = Notes(lines=(("no response", node.reason),), kind="facts")
        inner = list_machine(node.document) if node.document else [Section(parts=(reason,))]
        sections += [replace(inner[0], title=f"node {node.node}"), *inner[1:]]
    return sections


def list_machine(document: DoctorDocument) -> list[Section]:
    lines: list[tuple[str, str]] = []
    for engine in document.engines:
        facts = {"from": engine.package, "why": engine.reason, "to add": engine.fix, "verified on": engine.verified_on}
        lines.append((engine.engine, format_state(engine)))
        lines += [("", f"{name}: {fact}") for name, fact in facts.items() if fact]
    features: list[tuple[str, str]] = []
    for feature in document.features:
        facts = {"why": feature.reason, "to add": feature.fix}
        features.append((feature.package, ", ".join(feature.brings) or ("missing" if feature.fix else "not used")))
        features += [("", f"{name}: {fact}") for name, fact in facts.items() if fact]
    install = (("to add", f"{document.install} brings the engines for this machine"),) if document.install else ()
    readings = tuple((f"Jetson {name}", value) for name, value in document.readings.items())
    lacking = (("Python", document.lacking),) if document.lacking else ()
    parts = (*list_machine_facts(document.machine), *lacking, *readings), tuple(lines), tuple(features), install
    return [Section(parts=(Notes(lines=part, kind="facts"),)) for part in parts if part]


def list_machine_facts(machine: Machine) -> Iterator[tuple[str, str]]:
    counts = count_of(machine.cores_physical, "cores"), count_of(machine.cores_logical, "threads")
    cores = f"{', '.join(counts)}, {len(machine.cpus_allowed)} allowed"
    quota = f", quota {machine.cpu_quota_cores:g}" if machine.cpu_quota_cores else ""
    yield "CPU", machine.cpu_model
    yield "cores", f"{cores}{quota}; default: {count_of(machine.default_threads, 'threads')}"
    yield "flags", " ".join(machine.cpu_flags) or "none that matters"
    now = f"{machine.cpu_mhz:.0f} MHz now" if machine.cpu_mhz else "frequency not reported"
    top = f", {machine.cpu_max_mhz:.0f} MHz at most" if machine.cpu_max_mhz else ""
    load = f", load {machine.load_1m:.2f}" if machine.load_1m is not None else ""
    yield "clock", f"{now}{top}, governor {machine.governor or 'not reported'}{load}"
    yield "memory", f"{machine.memory_bytes // MB} MiB"
    yield "system", ", ".join(filter(None, (machine.os, machine.arch, machine.virtual)))
    for gpu in machine.gpus:
        details = f"{gpu.memory_bytes // MB} MiB, driver {gpu.driver}" if gpu.driver else "by CUDA; NVML shows none"
        yield f"GPU {gpu.index}", f"{gpu.name}, {details}"
    if not machine.gpus:
        yield "GPU", "none visible to NVML"
    for key, value in (machine.jetson or {}).items():
        yield f"Jetson {key}", value
    yield "versions", ", ".join(f"{k} {v}" for k, v in machine.versions.items())
    for warning in machine.warnings:
        yield "warning", format_warning(warning)


def format_state(engine: Availability) -> str:
    """`ready` with version and devices; `not ready`: installed, but this machine cannot run it; else `missing`."""
    if engine.available:
        return f"ready   {engine.version or ''} {' '.join(engine.devices)}".rstrip()
    return f"not ready   {engine.version}" if engine.version else "missing"
