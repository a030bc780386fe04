"""`pytorch-compile`: the module through `torch.compile` and its C++ code generator, compiled before the first run."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch._inductor.config as inductor

from enginebench.backends.request import Option
from enginebench.backends.torch_cast import CAST_OPTIONS, cast_module, check_torch_request
from enginebench.backends.torch_engine import TorchEngine, load_module, prepare_torch
from enginebench.core.errors import BackendUnavailable, ModelError
from enginebench.core.records import Artifact, Availability, EngineSpec

if TYPE_CHECKING:
    from enginebench.core.protocols import ModuleLoader, RunCall

NAME = "pytorch-compile"
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
CACHE_NAME = "inductor-cache"

OPTIONS = {
    "mode": Option(
        default="default", choices=("default", "reduce-overhead", "max-autotune"), meaning="as in torch.compile"
    ),
    "channels_last": Option(default="0", choices=("0", "1"), meaning="images and weights with their channels last"),
    "fullgraph": Option(
        default="1", choices=("0", "1"), meaning="0 lets parts that cannot be compiled run eagerly, unseen"
    ),
    **CAST_OPTIONS,
}


class PytorchCompileBackend:
    """`torch` artefacts, compiled for the shapes that are bound.

    Args:
        loader: rebuilds the module.
        cache_dir: where compiled code is kept, so that the next process starts warm; None: PyTorch's own place.
    """

    name = NAME

    def __init__(self, loader: ModuleLoader | None, cache_dir: Path | None) -> None:
        self._loader = loader
        self._cache_dir = cache_dir

    def probe(self) -> Availability:
        """Available where PyTorch, a C++ compiler and Python's headers are; says which is missing."""
        missing = find_missing_tools()
        if not missing:
            return Availability(engine=NAME, available=True, version=str(torch.__version__), devices=("cpu",))
        return Availability(
            engine=NAME,
            available=False,
            version=str(torch.__version__),
            reason=f"torch.compile needs {' and '.join(missing)}",
            fix=f"{' && '.join(missing.values())} (Debian, Ubuntu; other systems have them by like names)",
        )

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        """The artefact as it is: `load` compiles, and what it compiled waits in the cache for the next process.

        Refuses what `load` would refuse, before a minute of compiling.
        """
        check_torch_request(artifact, spec, OPTIONS)
        check_tools()
        return artifact

    def load(self, artifact: Artifact, spec: EngineSpec) -> TorchEngine:
        """An engine on `spec.threads` threads, compiled for `spec.batch`; another batch compiles again, in `bind`.

        Raises:
            BackendUnavailable: a compiler, Python's headers, strict FP32 or the precision cannot be had.
            ModelError: the module cannot be compiled; names the reason.
            UsageError: an option is unknown, or there is no loader.
        """
        options = check_torch_request(artifact, spec, OPTIONS)
        check_tools()
        prepare_torch(spec)
        # Compiling in this process leaves no worker processes behind that would share the cores with the timed loop.
        inductor.compile_threads = 1
        channels_last = options["channels_last"] == "1"
        module = load_module(artifact, self._loader)
        if channels_last:
            module = module.to(memory_format=torch.channels_last)
        module = cast_module(module, artifact, spec.precision, autocast=options["cast"] == "autocast")
        return TorchEngine(
            compile_module(module, options),
            artifact.inputs,
            artifact.outputs,
            name=NAME,
            batch=spec.batch,
            channels_last=channels_last,
            prepare=self._compile,
        )

    def _compile(self, run: RunCall) -> None:
        """Runs once, and thereby compiles, with the cache in its place."""
        with use_cache(self._cache_dir):
            try:
                run()
            except Exception as error:
                reason = " ".join(str(error).split("\n\n")[0].split()) or type(error).__name__
                raise ModelError(
                    f"torch.compile cannot take the module: {reason}. With {NAME}:fullgraph=0 what it cannot compile "
                    "runs eagerly"
                ) from error


def create_backend(loader: ModuleLoader | None, cache_dir: Path | None) -> PytorchCompileBackend:
    """The backend, keeping compiled code in `cache_dir`."""
    return PytorchCompileBackend(loader, cache_dir)


def compile_module(module: Any, options: dict[str, str]) -> Any:
    """The module as `torch.compile` wraps it; nothing is compiled before its first call."""
    mode = None if options["mode"] == "default" else options["mode"]
    return torch.compile(module, mode=mode, dynamic=False, fullgraph=options["fullgraph"] == "1")


@contextmanager
def use_cache(cache_dir: Path | None) -> Iterator[None]:
    """PyTorch's compiler keeps its files in a folder of `cache_dir` meanwhile.

    The environment variable is its only setting for this; the old value is back afterwards.
    """
    before = os.environ.get(CACHE_VARIABLE)
    if cache_dir is not None:
        os.environ[CACHE_VARIABLE] = str(cache_dir / CACHE_NAME)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(CACHE_VARIABLE, None)
        else:
            os.environ[CACHE_VARIABLE] = before


def check_tools() -> None:
    """Returns if code can be compiled here.

    Raises:
        BackendUnavailable: names what is missing and what adds it.
    """
    missing = find_missing_tools()
    if missing:
        fix = " && ".join(missing.values())
        raise BackendUnavailable(f"torch.compile needs {' and '.join(missing)}. To add it on Debian or Ubuntu: {fix}")


def find_missing_tools() -> dict[str, str]:
    """What `torch.compile` needs on a CPU and this machine lacks, each with the command that adds it."""
    missing = {}
    # torch._inductor reads CXX and falls back to g++, as its `cpp.cxx` setting says.
    compilers = [name for name in inductor.cpp.cxx if name]
    if not any(shutil.which(name) for name in compilers):
        missing[f"a C++ compiler ({' or '.join(compilers)})"] = "apt-get install g++"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        missing["Python's headers (Python.h)"] = "apt-get install python3-dev"
    return missing
