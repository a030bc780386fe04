"""NVIDIA's modules with the names of TensorRT, and what they log: TensorRT, its lean runtime, TensorRT for RTX.

Bundles hold a copy of this file.
"""

import re
import sys
from ctypes import CDLL
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from ..core.engine_api import ArtifactError, BackendUnavailable, EngineBenchError, UsageError

# Errors of 8.6 after which it builds on, timing every kernel anew.
TIMING_CACHE_LOST = re.compile(r"myelinCache\.h::deserialize|The timing cache will not be used")

# In the order of what they can do. The wheels of the lean runtime hold its bindings under the last name, which is all
# that an install of them without the package that gathers them brings (seen in 11.4).
MODULES = ("tensorrt", "tensorrt_lean", "tensorrt_lean_bindings")
RTX_MODULE = "tensorrt_rtx_bindings"

LEAN_NOTE = (
    "the lean runtime: it runs plans that were built with --version-compatible, and cannot build; its plans list no "
    "layers, so no precision is verified"
)

# Warnings of a layer that a DLA core does not run, in the words of 7 to 10.
ON_GPU = (
    re.compile(r"Layer '(.+?)' \([A-Z_]+\): Unsupported on DLA\. Switching"),
    re.compile(r"Default DLA is enabled but layer (.+?) is not (?:supported|running) on DLA, falling back to GPU"),
    re.compile(r"Switching to GPU for layer (.+?)\s*$", re.MULTILINE),
    re.compile(r"DLA only supports FP16 and Int8 precision type\. Switching (.+?) device type to GPU"),
    re.compile(r"Validation failed for DLA layer: (.+?)\. Switching to GPU"),
)

# How the builder's description of the layers begins: one message, with a level of detail that shows their types.
LAYERS = "Layers:\n"
# Without a driver nearly every error of TensorRT for RTX has a second line with this, whatever the first one is about.
NOISE = "catchCudaError"


# Where JetPack's packages put the bindings: for the system's own Python, outside of every environment.
SYSTEM_FOLDER = Path("/usr/lib") / "python{}.{}".format(*sys.version_info) / "dist-packages"


class SystemFinder:
    """Finds TensorRT's bindings in `SYSTEM_FOLDER` where this environment has none, and nothing else of that folder."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(SYSTEM_FOLDER)]) if name == MODULES[0] else None


# The last to be asked: what is installed in the environment goes first.
sys.meta_path.append(SystemFinder)


def is_of_system(trt: Any) -> bool:
    """Whether a module was found by `SystemFinder`."""
    return str(getattr(trt, "__file__", "")).startswith(f"{SYSTEM_FOLDER}/")


def find_other_system_folder(root: Path = Path("/usr/lib")) -> Path | None:
    """Return the folder in which bindings are for another Python than this one; None where there is none."""
    return next((path.parent for path in sorted(root.glob("python3.*/dist-packages/tensorrt"))), None)


def import_tensorrt() -> Any:
    """The first of `MODULES` that is installed. A broken installation is not skipped.

    Raises:
        ImportError: none is installed, or the first cannot be imported.
    """
    for name in MODULES:
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
    raise ModuleNotFoundError(f"none of {', '.join(MODULES)} is installed", name=MODULES[0])


def find_layers_on_gpu(text: str) -> list[str]:
    """The layers of a build for a DLA core that TensorRT moved to the GPU, by its messages."""
    return list(dict.fromkeys(match[1] for pattern in ON_GPU for match in pattern.finditer(text)))


def is_lean(trt: Any) -> bool:
    """Whether a module can run plans and not build them."""
    return not hasattr(trt, "Builder")


class Library:
    """One of NVIDIA's modules, and the log of everything that is made with it in this process.

    The plugin registry keeps the first logger for as long as the process lives, so there is one for each module.
    """

    def __init__(self, trt: Any, title: str = "TensorRT") -> None:
        self.trt = trt
        self.title = title
        self.log = make_log(trt, title)
        self._loaded: set[str] = set()

    @property
    def version(self) -> str:
        return str(self.trt.__version__)

    def require(self, value: Any, what: str, kind: type[EngineBenchError] = ArtifactError) -> Any:
        """Return `value`, unless it is the None or False by which the library reports a failure."""
        if value is None or value is False:
            raise kind(f"{self.title} {what}: {self.log.take()}")
        return value

    def make(self, kind: Any, what: str) -> Any:
        """The library's object of a class that takes a logger.

        Where CUDA fails the bindings hand out an object around nothing, and its first use ends the process: an error
        that was logged on the way is the only sign.
        """
        self.log.errors.clear()
        try:
            made = kind(self.log)
        except TypeError:  # of 8.6, whose warning has the reason
            raise BackendUnavailable(f"{self.title} cannot create {what}: {self.log.last or self.log.take()}") from None
        return self.require(None if self.log.errors else made, f"cannot create {what}", BackendUnavailable)

    def find_member(self, kind: Any, name: str) -> Any:
        """The member of one of the library's enumerations."""
        if not hasattr(kind, name):
            raise UsageError(f"{self.title} {self.version} has no {kind.__name__}.{name}, which an option asks for")
        return getattr(kind, name)

    def load_plugins(self, paths: tuple[str, ...]) -> None:
        """Register the library's own plugins (the lean runtime has none), and load libraries of others.

        8.6.0 unloads one that registers its plugins by itself, as most do, and then crashes: so it is loaded first.
        """
        if hasattr(self.trt, "init_libnvinfer_plugins"):
            self.trt.init_libnvinfer_plugins(self.log, "")
        registry = self.trt.get_plugin_registry()
        kind = "all_creators" if hasattr(registry, "all_creators") else "plugin_creator_list"  # of 8.6
        for path in [path for path in paths if path not in self._loaded]:
            count_before = len(getattr(registry, kind))
            try:
                CDLL(path)
            except OSError as error:
                raise ArtifactError(f"{self.title} cannot load the plugin library {path}: {error}") from None
            if registry.load_library(path) is None and len(getattr(registry, kind)) == count_before:
                raise ArtifactError(f"{self.title} finds no plugin in the library {path} that it does not have")
            self._loaded.add(path)


def make_log(trt: Any, title: str) -> Any:
    """A logger: errors are kept for the exception that explains them, warnings go to stderr, as do errors."""

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []
            self.layers = ""
            self.last = ""  # warning or error
            self.on_gpu: dict[str, None] = {}  # layers that a DLA core does not run

        def log(self, severity: Any, msg: str) -> None:
            if msg.startswith(LAYERS):
                self.layers = msg
            if severity in (trt.ILogger.INFO, trt.ILogger.VERBOSE) or NOISE in msg:
                return
            if TIMING_CACHE_LOST.search(msg):
                print(f"{title} goes on without the timing cache: {msg.strip()}", file=sys.stderr)
                return
            self.on_gpu |= dict.fromkeys(find_layers_on_gpu(msg))
            self.last = msg.strip()
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self.errors.append(msg.strip())
            print(f"{title}: {msg}", file=sys.stderr)

        def take(self) -> str:
            """The errors since the last call, as one text."""
            text = "; ".join(self.errors) or f"{title} gave no message"
            self.errors.clear()
            return text

    return Log()
