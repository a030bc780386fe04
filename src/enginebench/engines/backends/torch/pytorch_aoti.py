"""`pytorch-aoti`: the module compiled ahead of time by AOTInductor, as a package that is loaded without compiling."""

import hashlib
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec.structs import replace

from enginebench.core.aoti import describe_here, write_record
from enginebench.core.errors import ArtifactError, BackendUnavailable, ModelError
from enginebench.core.protocols import ModuleLoader
from enginebench.core.records import Artifact, Availability, EngineSpec, LayerProfile, ResultWarning
from enginebench.core.shapes import concrete_shape
from enginebench.core.store import derive, hash_file
from enginebench.engines.backends.torch.engine import (
    PLAIN_NOTE,
    PROFILER,
    WatchedCudaTorchEngine,
    WatchedTorchEngine,
    check_cuda_request,
    is_cuda,
    list_cast_warnings,
    probe_cuda,
)
from enginebench.engines.backends.torch.entries import PYTORCH_AOTI
from enginebench.engines.backends.torch.module import check_torch_request, load_ready_module
from enginebench.engines.backends.torch.operators import COMPILED_GRAPH
from enginebench.engines.proof import summarize_layers
from enginebench.engines.pytorch import prepare_torch
from enginebench.engines.pytorch_aoti import load_package, name_gpu
from enginebench.engines.pytorch_cuda import prepare_cuda
from enginebench.engines.request import make_availability

NAME, OPTIONS = PYTORCH_AOTI.name, PYTORCH_AOTI.options
# The first PyTorch whose loader takes what this one is given.
OLDEST = (2, 8)
# What a package was compiled with, and cannot be run otherwise.
COMPILED_WITH = ("freezing", "channels_last", "fold_bn", "cast")
UNTOLD = "a package does not tell which module its code is for"


class PytorchAotiBackend:
    """`torch` artifacts, compiled to a package for their shapes, and such packages.

    Args:
        cache_dir: where the compiler keeps its files; None: PyTorch's own place.
    """

    name = NAME

    def __init__(self, loader: ModuleLoader | None, cache_dir: Path | None) -> None:
        self._loader = loader
        self._cache_dir = cache_dir

    def probe(self) -> Availability:
        """Available where PyTorch is new enough; only building needs a compiler, and says so where it is missing."""
        version = str(torch.__version__)
        devices = ("cpu", *probe_cuda()) if tuple(map(int, version.split(".")[:2])) >= OLDEST else ()
        reason = f"its packages need PyTorch {'.'.join(map(str, OLDEST))} or newer; found {version}"
        return make_availability(NAME, devices, version, reason, PYTORCH_AOTI.fix)

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        """The package, always compiled anew; a package stays as it is."""
        options = check_aoti_request(artifact, spec)
        if artifact.kind == "aoti":
            return artifact
        from enginebench.engines.backends.torch.pytorch_compile import check_gpu_tools, check_tools

        check_tools()
        if is_cuda(spec):
            check_gpu_tools()
            prepare_cuda(spec, options)
        else:
            prepare_torch(spec)
        inputs, outputs = (
            tuple(replace(s, shape=concrete_shape(s, spec.batch), sizes=()) for s in specs)
            for specs in (artifact.inputs, artifact.outputs)
        )
        package = replace(
            artifact,
            kind="aoti",
            inputs=inputs,
            outputs=outputs,
            precision=spec.precision,
            recipe=spec.recipe,
            made_by={"torch": str(torch.__version__)},
            made_with={key: options[key] for key in COMPILED_WITH},
        )
        described = replace(package, path="", sha256="", files=(), parent_sha256=artifact.sha256)
        record = {"here": describe_here(name_gpu(spec)), "artifact": msgspec.to_builtins(described)}
        name = hashlib.sha256(msgspec.json.encode((artifact.sha256, spec))).hexdigest()[:8]
        target = out_dir / f"{Path(artifact.path).stem}-{name}.pt2"
        target.parent.mkdir(parents=True, exist_ok=True)
        written = target.with_name(f"{target.stem}.part.pt2")
        try:
            warnings = self._compile(replace(artifact, inputs=inputs), spec, options, written)
            write_record(written, target, record)
        finally:
            written.unlink(missing_ok=True)
        return derive(package, [target], out_dir, warnings=(*artifact.warnings, *warnings))

    def _compile(
        self, artifact: Artifact, spec: EngineSpec, options: Mapping[str, str], written: Path
    ) -> tuple[ResultWarning, ...]:
        """Export the module, compile it, and return its warnings; the number of threads is not fixed."""
        # Imports that no load is to pay for.
        from torch._inductor import config as inductor

        from enginebench.engines.backends.torch import pytorch_compile as compiler

        module = load_ready_module(artifact, spec, options, self._loader)
        tensors = (torch.zeros(s.shape, dtype=getattr(torch, s.dtype), device=spec.device) for s in artifact.inputs)
        layout = torch.channels_last if options["channels_last"] == "1" else torch.contiguous_format
        examples = tuple(t.contiguous(memory_format=layout) if t.dim() == 4 else t for t in tensors)
        settings = {"freezing": options["freezing"] == "1", "cpp.dynamic_threads": True}
        inductor.compile_threads = 1  # else the import starts workers
        try:
            with compiler.use_cache(self._cache_dir), torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of PyTorch, about itself
                from torch._inductor import aoti_compile_and_package, compile_fx  # noqa: F401

                inductor.compile_threads = len(os.sched_getaffinity(0))
                compiler.trust_instructions(compiler.find_verdict_folder() if self._cache_dir else None)
                program = torch.export.export(module, examples, strict=False)
                aoti_compile_and_package(program, package_path=str(written), inductor_configs=settings)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # of the exporter, the compiler, or the user's own code
            why = compiler.explain_failure(error).partition(". With ")[0]
            failed = ModelError(f"AOTInductor cannot compile {artifact.model}: {why}. pytorch runs it as it is")
            failed.log = str(error)
            raise failed from error
        finally:
            if is_cuda(spec):
                compiler.shutdown_compile_workers()
        return list_cast_warnings(module)

    def load(self, artifact: Artifact, spec: EngineSpec) -> "WatchedPackage | WatchedCudaTorchEngine":
        """An engine of a package. Nothing of it is loaded that was compiled for another machine, or changed since."""
        options = check_aoti_request(artifact, spec)
        if artifact.kind != "aoti":
            raise ArtifactError(f"engine {NAME} opens packages; {artifact.path} is of kind {artifact.kind}: build it")
        if (artifact.precision, artifact.recipe) != (spec.precision, spec.recipe):
            made = f"{artifact.path} was built in {artifact.precision}, not {spec.precision}"
            raise BackendUnavailable(f"{made}; ask for that, or build it again")
        if other := [f"{key}={value}" for key, value in artifact.made_with.items() if options.get(key) != value]:
            raise BackendUnavailable(f"{artifact.path} was built otherwise: ask for {NAME}:{':'.join(other)}")
        if hash_file(Path(artifact.path)) != artifact.sha256:
            raise ArtifactError(f"{artifact.path} was changed since it was built. Build it again")
        if is_cuda(spec):
            prepare_cuda(spec, options)
            graph = options["cuda_graph"] == "1"
            return WatchedCudaTorchEngine(load_package(artifact, spec), artifact, spec, options, graph=graph)
        prepare_torch(spec)
        return WatchedPackage(load_package(artifact, spec), artifact, spec, options)


create_backend = PytorchAotiBackend


def check_aoti_request(artifact: Artifact, spec: EngineSpec) -> dict[str, str]:
    if is_cuda(spec):
        return check_cuda_request(artifact, spec, PYTORCH_AOTI.list_options("cuda"), PYTORCH_AOTI.accepts)
    return check_torch_request(artifact, spec, OPTIONS, PYTORCH_AOTI.accepts)


class WatchedPackage(WatchedTorchEngine):
    """The engine, and the record of PyTorch's profiler of the operators that its package calls."""

    def count_least_ns(self) -> float:
        """Return 0: the least time of compiled code is unknown."""
        return 0.0

    def profile_layers(self) -> LayerProfile:
        return summarize_layers(self._watch(), PROFILER, (PLAIN_NOTE.format(why=UNTOLD),))

    def _watch(self) -> list[list[Any]]:
        """Watch as other engines do, but mark each run as a compiled graph: time in no operator is generated code."""
        run = self._run

        def marked() -> None:
            with torch.profiler.record_function(COMPILED_GRAPH):
                run()

        self._run = marked
        try:
            return super()._watch()
        finally:
            self._run = run
