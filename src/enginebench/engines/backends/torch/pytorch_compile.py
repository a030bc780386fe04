"""`pytorch-compile`: the module through `torch.compile`, for the CPU (C++) or a GPU (Triton), before the first run."""

import hashlib
import os
import re
import shlex
import shutil
import sysconfig
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import torch
import torch._inductor.config as inductor
from torch._inductor import cpu_vec_isa

from enginebench.core.blame import find_line
from enginebench.core.errors import ArtifactError, BackendUnavailable, ModelError, list_causes
from enginebench.core.protocols import ModuleLoader, RunCall
from enginebench.core.records import Artifact, Availability, EngineSpec
from enginebench.core.store import find_cache, open_temporary, write_atomic
from enginebench.core.text import first_line
from enginebench.engines.backends.torch.engine import (
    WatchedCudaTorchEngine,
    WatchedTorchEngine,
    check_cuda_request,
    is_cuda,
    probe_cuda,
)
from enginebench.engines.backends.torch.entries import PYTORCH_COMPILE
from enginebench.engines.backends.torch.generated import GeneratedCode
from enginebench.engines.backends.torch.module import check_torch_request, load_quantized, load_ready_module
from enginebench.engines.pytorch import prepare_torch
from enginebench.engines.pytorch_compile import COMPILING_CALLS, REASON, compile_module, compiles_whole
from enginebench.engines.pytorch_cuda import prepare_cuda
from enginebench.engines.request import make_availability


def find_verdict_folder() -> Path:
    """Return the folder with the instructions that this compiler supports on this machine."""
    compiler = Path(shutil.which(os.environ.get("CXX") or "g++") or "g++")
    stat = compiler.stat() if compiler.exists() else None
    facts = str(compiler), stat and (stat.st_size, stat.st_mtime_ns), torch.backends.cpu.get_cpu_capability()
    return find_cache() / "compilers" / hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def trust_instructions(folder: Path | None) -> None:
    """Let PyTorch's compiler reuse what an earlier process learned about the C++ compiler, from this `folder`.

    PyTorch compiles and loads a small program for each set of vector instructions in every process, a second each time.
    The first process with a folder does so, and stores each result there.

    Source: torch/_inductor/cpu_vec_isa.py, `VecISA.check_build`; its result is kept for the process.
    """
    if folder is None:
        return
    try_out = cpu_vec_isa.VecISA.check_build

    def check_once(isa: cpu_vec_isa.VecISA, code: str) -> bool:
        question = repr((torch.__version__, isa.build_arch_flags(), code)).encode()
        stored = folder / f"{hashlib.sha256(question).hexdigest()[:16]}.txt"
        if not stored.is_file():
            supported = b"yes" if try_out(isa, code) else b"no"
            with suppress(ArtifactError):  # a home that cannot be written: then each process checks again
                write_atomic(stored, supported)
            return supported == b"yes"
        return stored.read_bytes() == b"yes"

    with patch.object(cpu_vec_isa.VecISA, "check_build", check_once):
        bool(cpu_vec_isa.pick_vec_isa())


def is_one_word(path: Path) -> bool:
    """Return whether an unquoted path stays one word of a command line."""
    try:
        return shlex.split(str(path)) == [str(path)]
    except ValueError:  # a quotation mark without its other
        return False


@contextmanager
def reach_by_plain_path(folder: Path) -> Iterator[Path]:
    """The folder, or a link to it that is one word, for as long as it is needed.

    The link lies among the temporary files; where their own folder has a space in its path, it does not help.
    """
    if is_one_word(folder):
        yield folder
        return
    folder.mkdir(parents=True, exist_ok=True)
    with open_temporary() as path:
        link = path / "folder"
        link.symlink_to(folder.absolute(), target_is_directory=True)
        yield link


TREES = "reduce-overhead"
NAME, OPTIONS = PYTORCH_COMPILE.name, PYTORCH_COMPILE.options
CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
CACHE_NAME = "inductor-cache"
# What the compiler writes: modules of Triton, C++, and the settings that were fastest when it timed several.
CHOICE = ".best_config"
SOURCES = (".py", ".cpp", CHOICE)
# The folder of an absolute path; a division has something to divide in front of it.
_FOLDERS = re.compile(r"(?<![\w)\].])/(?:[\w.~+-]+/)+")
_TIMES = re.compile(r'"(?:time_taken_ms|found_by_coordesc)":[^,}]*,?|"triton_cache_hash":[^,}]*,?')


class PytorchCompileBackend:
    """`torch` artifacts, compiled for the shapes that are bound.

    Args:
        cache_dir: where compiled code is kept, so that the next process starts warm; None: PyTorch's own place.
    """

    name = NAME

    def __init__(self, loader: ModuleLoader | None, cache_dir: Path | None) -> None:
        self._loader = loader
        self._cache_dir = cache_dir

    def probe(self) -> Availability:
        """Available on the CPU and the GPUs for which code can be compiled here; says what is missing if on none."""
        problem = find_problem()
        devices = (*(() if problem else ("cpu",)), *(() if find_missing_gpu_tools() else probe_cuda()))
        return make_availability(NAME, devices, str(torch.__version__), *(problem or (None,)))

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        """The artifact as it is: `load` compiles, and what it compiled waits in the cache for the next process.

        Refuses what `load` would refuse, before a minute of compiling.
        """
        if is_cuda(spec):
            check_cuda_request(artifact, spec, PYTORCH_COMPILE.list_options("cuda"))
            check_gpu_tools()
        else:
            check_torch_request(artifact, spec, OPTIONS)
            check_tools()
        return artifact

    def hash_code(self) -> str | None:
        """Hash of the sources that were generated, and of what was chosen among them by timing; None without a cache.

        Folders that are named in them, and how long a choice took, are left out.
        """
        if self._cache_dir is None:
            return None
        hashes = set()
        for path in (path for suffix in SOURCES for path in (self._cache_dir / CACHE_NAME).rglob(f"*{suffix}")):
            text = path.read_text(encoding="utf-8", errors="replace")
            if path.suffix == CHOICE:  # JSON: the settings that were fastest, beside how long it took to find them
                text = _TIMES.sub("", text)
            hashes.add(hashlib.sha256(_FOLDERS.sub("", text).encode()).hexdigest())
        return hashlib.sha256("".join(sorted(hashes)).encode()).hexdigest() if hashes else None

    def import_ahead(self) -> None:
        """Import the compiler, which PyTorch imports at the first call: about half of a load from a warm cache.

        Versions before 2.10 start workers with it unless `compile_threads` is 1; a load sets the number that it needs.
        """
        inductor.compile_threads = 1
        import torch._inductor.compile_fx  # noqa: F401

    def load(self, artifact: Artifact, spec: EngineSpec) -> WatchedTorchEngine | WatchedCudaTorchEngine:
        """An engine on `spec.threads` threads, compiled for `spec.batch`; another batch compiles again, in `bind`."""
        return self._load_cuda(artifact, [spec])[0] if is_cuda(spec) else self._load_cpu(artifact, spec)

    def load_several(
        self, artifact: Artifact, specs: Sequence[EngineSpec]
    ) -> Sequence[WatchedTorchEngine | WatchedCudaTorchEngine]:
        """An engine for each spec; on a GPU they share the module, which is compiled once for each batch."""
        if is_cuda(specs[0]) and specs[0].options.get("mode") != TREES:
            return self._load_cuda(artifact, specs)
        return [self.load(artifact, spec) for spec in specs]

    def _load_cpu(self, artifact: Artifact, spec: EngineSpec) -> WatchedTorchEngine:
        options = check_torch_request(artifact, spec, OPTIONS)
        check_tools()
        prepare_torch(spec)
        with use_cache(self._cache_dir):
            trust_instructions(find_verdict_folder() if self._cache_dir else None)
        # Compilers run side by side, started by threads that end with them. Workers, which would stay and share the
        # cores with the timed loop, are started by this import alone.
        self.import_ahead()
        inductor.compile_threads = len(os.sched_getaffinity(0))
        compiled, generated = self._wrap(artifact, spec, options)
        prepare = partial(self._compile, generated, options)
        return WatchedTorchEngine(compiled, artifact, spec, options, prepare=prepare, generated=generated)

    def _load_cuda(self, artifact: Artifact, specs: Sequence[EngineSpec]) -> list[WatchedCudaTorchEngine]:
        options = check_cuda_request(artifact, specs[0], PYTORCH_COMPILE.list_options("cuda"))
        check_gpu_tools()
        prepare_cuda(specs[0], options)
        compiled, generated = self._wrap(artifact, specs[0], options)
        engines: list[WatchedCudaTorchEngine] = []
        for spec in specs:
            stamp = None  # an empty file: this engine was compiled into the cache before
            if self._cache_dir is not None:
                key = msgspec.json.encode((artifact.sha256, spec, str(torch.__version__)))
                stamp = self._cache_dir / CACHE_NAME / f"{hashlib.sha256(key).hexdigest()[:16]}.stamp"
            prepare = partial(self._compile_for_gpu, generated, options, stamp)
            engine = WatchedCudaTorchEngine(
                compiled,
                artifact,
                spec,
                options,
                prepare=prepare,
                generated=generated,
                graph=options["cuda_graph"] == "1",
            )
            # All graphs of a thread are one tree, where each overwrites what the one before it left.
            engine.overlaps = options["mode"] != TREES
            engines.append(engine)
        return engines

    def _wrap(self, artifact: Artifact, spec: EngineSpec, options: Mapping[str, str]) -> tuple[Any, GeneratedCode]:
        # Weights in eight bits are laid out for their kernels where they are constants.
        inductor.freezing = options["freezing"] == "1" or spec.recipe == "pt2e"
        load = load_quantized if spec.recipe == "dynamic" else load_ready_module
        module = load(artifact, spec, options, self._loader)
        generated = GeneratedCode(module, fullgraph=compiles_whole(module, options), strict=options["fullgraph"] == "1")
        return compile_module(module, options), generated

    def _compile_for_gpu(
        self, generated: GeneratedCode, options: Mapping[str, str], stamp: Path | None, run: RunCall
    ) -> None:
        """Compile by several workers the first time, and from the cache, without any, once there is a stamp.

        Workers take as long to start as a network from the cache takes altogether, and would share the cores with the
        timed loop.
        """
        cached = stamp is not None and stamp.exists()
        inductor.compile_threads = 1 if cached else len(os.sched_getaffinity(0))
        for _ in range(COMPILING_CALLS):
            self._compile(generated, options, run)
        if not cached:
            shutdown_compile_workers()
        if stamp is not None and not cached:
            stamp.parent.mkdir(parents=True, exist_ok=True)
            stamp.touch()

    def _compile(self, generated: GeneratedCode, options: Mapping[str, str], run: RunCall) -> None:
        """Run once, which compiles, with the cache in its place."""
        with use_cache(self._cache_dir), generated.listen():
            try:
                with refuse_breaks() if options["fullgraph"] == "1" else nullcontext():
                    run()
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                failed = ModelError(f"torch.compile cannot compile the module: {explain_failure(error)}")
                failed.log = str(error)
                raise failed from error


create_backend = PytorchCompileBackend


def explain_failure(error: Exception) -> str:
    """Return what could not be compiled, with the user's line: the first words of the cause, no hints and stacks."""
    complaint = next((line.strip() for line in str(error).splitlines() if "error:" in line), None)
    if complaint and "CppCompileError" in first_line(error):
        return f"{first_line(error)}: {complaint}"
    where = f" ({location})" if (location := find_line(error)) else ""
    reason = first_line(list(list_causes(error))[-1])
    return f"{reason}{where}. With {NAME}:fullgraph=0 the parts that it cannot compile run eagerly"


@contextmanager
def use_cache(cache_dir: Path | None) -> Iterator[None]:
    """PyTorch's compiler keeps its files in a folder of `cache_dir` meanwhile.

    The environment variable is its only setting for this; the old value is back afterwards.
    """
    if cache_dir is None:
        yield
        return
    before = os.environ.get(CACHE_VARIABLE)
    with reach_by_plain_path(cache_dir / CACHE_NAME) as folder:
        os.environ[CACHE_VARIABLE] = str(folder)
        try:
            yield
        finally:
            if before is None:
                os.environ.pop(CACHE_VARIABLE, None)
            else:
                os.environ[CACHE_VARIABLE] = before


def check_tools() -> None:
    if problem := find_problem():
        raise BackendUnavailable(". To fix it: ".join(problem))


def shutdown_compile_workers() -> None:
    """End the processes that compile; with versions of PyTorch that cannot do that, they stay and sleep."""
    from torch._inductor import async_compile

    getattr(async_compile, "shutdown_compile_workers", bool)()


def check_gpu_tools() -> None:
    if missing := find_missing_gpu_tools():
        fix = " && ".join(missing.values())
        raise BackendUnavailable(f"torch.compile for a GPU needs {' and '.join(missing)}. To add it: {fix}")


def find_missing_gpu_tools() -> dict[str, str]:
    """List what `torch.compile` needs for a GPU and this machine lacks, each with the command that adds it."""
    missing = {}
    if find_spec("triton") is None:
        missing["Triton"] = "pip install triton"
    # Triton reads CC, then looks for gcc and clang. Source: triton/runtime/build.py.
    if not any(shutil.which(name) for name in (os.environ.get("CC") or "gcc", "gcc", "clang")):
        missing["a C compiler (gcc or clang)"] = "apt-get install gcc"
    return missing | {k: v for k, v in find_missing_tools().items() if "Python.h" in k}


def find_problem() -> tuple[str, str] | None:
    """(why, what to do) where no code can be compiled for the CPU; None where it can.

    Source: PyTorch 2.13, torch/_inductor/cpp_builder.py, where libraries' folders are not quoted.
    """
    folder = Path(torch.__file__).parent
    if not is_one_word(folder):
        why = f"torch.compile does not quote the path of PyTorch for the C++ compiler, and {folder} needs it"
        return why, "make the virtual environment in a folder whose path has no space, quote or backslash"
    if missing := find_missing_tools():
        fix = f"{' && '.join(missing.values())} (Debian, Ubuntu; other systems use similar names)"
        return f"torch.compile needs {' and '.join(missing)}", fix
    return None


def find_missing_tools() -> dict[str, str]:
    """List what `torch.compile` needs on a CPU and this machine lacks, each with the command that adds it."""
    missing = {}
    # torch._inductor reads CXX and falls back to g++, as its `cpp.cxx` setting says.
    compilers = [name for name in inductor.cpp.cxx if name]
    if not any(shutil.which(name) for name in compilers):
        missing[f"a C++ compiler ({' or '.join(compilers)})"] = "apt-get install g++"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        missing["Python's headers (Python.h)"] = "apt-get install python3-dev"
    return missing


# The message of a break that `leave_recurrent` made. Source: PyTorch 2.6 to 2.13, torch/_dynamo/variables/functions.py;
# versions before 2.8 cannot even pass by such a layer. Source: torch/_dynamo/variables/builder.py.
_MEANT = re.compile(rf"{REASON}|disable.*<function (?:RNN|LSTM|GRU)\.forward|RNN, GRU,? (?:or )?LSTM", re.DOTALL)


@contextmanager
def refuse_breaks() -> Iterator[None]:
    """Refuse, inside the block, to compile anything in more than one graph, except recurrent layers.

    Raises:
        RuntimeError: at the end: there was another break, or nothing has been compiled at all.
    """
    from torch._dynamo.utils import counters

    before = Counter(counters["graph_break"])
    yield
    breaks = Counter(counters["graph_break"]) - before
    for reason in breaks:
        if not _MEANT.search(reason):
            raise RuntimeError(reason)
    if breaks and not counters["stats"]["unique_graphs"]:  # of this process: some may have been compiled before
        raise RuntimeError("beside LSTM, GRU and RNN, which run by PyTorch's own kernels, there is nothing to compile")
