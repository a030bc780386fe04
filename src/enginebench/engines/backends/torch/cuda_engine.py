"""What every `pytorch*` backend on an NVIDIA GPU checks, and what is recorded of its engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from enginebench.core.engine_api import read_index
from enginebench.core.entry import Option
from enginebench.core.errors import BackendUnavailable, UsageError
from enginebench.core.protocols import ModuleLoader
from enginebench.core.records import Artifact, ArtifactKind, Availability, EngineSpec, LayerProfile, Precision
from enginebench.engines.backends.torch.engine import COMPILED_NOTE, EAGER_NOTE, Generated
from enginebench.engines.backends.torch.module import REASONS, load_ready_module
from enginebench.engines.backends.torch.operators import name_kernels, name_modules, record_launches
from enginebench.engines.proof import KERNELS, PROFILER, Operator, prove_precision, summarize_layers, watch_kernels
from enginebench.engines.pytorch_cuda import CudaTorchEngine, prepare_cuda
from enginebench.engines.request import check_request, read_options

PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "fp16", "bf16")

OTHER_LAUNCHES = "those of a run outside of the graph are others, which leaves their modules unknown"


def probe_cuda() -> tuple[str, ...]:
    """The GPUs that PyTorch sees, as `cuda:N`; none without a driver or in a build without CUDA."""
    if not torch.cuda.is_available():
        return ()
    return tuple(f"cuda:{i}" for i in range(torch.cuda.device_count()))


def explain_no_cuda() -> str:
    """Why PyTorch sees no GPU."""
    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is built without CUDA"
    return "PyTorch sees no NVIDIA GPU; is the driver installed (nvidia-smi)?"


def probe_gpu_engine(name: str) -> Availability:
    """Availability of an engine that needs a GPU."""
    devices = probe_cuda()
    return Availability(
        engine=name,
        available=bool(devices),
        version=str(torch.__version__),
        devices=devices,
        reason=None if devices else explain_no_cuda(),
        fix=None if devices else "pip install --upgrade torch --index-url https://download.pytorch.org/whl/cu130",
    )


def is_cuda(spec: EngineSpec) -> bool:
    """Whether a spec names an NVIDIA GPU."""
    return spec.device.partition(":")[0] == "cuda"


def read_device_index(spec: EngineSpec) -> int:
    """The N of `cuda:N`."""
    index, devices = read_index(spec), probe_cuda()
    if f"cuda:{index}" not in devices:
        why = f"there is {', '.join(devices)}" if devices else explain_no_cuda()
        raise BackendUnavailable(f"{spec.backend} cannot run on {spec.device}: {why}")
    return index


def check_cuda_request(
    artifact: Artifact, spec: EngineSpec, known: Mapping[str, Option], kinds: tuple[ArtifactKind, ...] = ("torch",)
) -> dict[str, str]:
    """The options of a request that PyTorch can take on this GPU."""
    own: tuple[Precision, ...] = ("int8", "fp8") if (spec.recipe, "scales" in known) == ("dynamic", True) else ()
    check_request(artifact, spec, kinds, (*PRECISIONS, *own), (spec.device,), reasons=REASONS)
    options = read_options(spec, known)
    if options["defaults"] == "1" and spec.precision != "tf32":
        raise UsageError(
            f"{spec.backend}:defaults=1 is what PyTorch does by default, with TF32 in convolutions: "
            f"its precision is tf32, not {spec.precision}"
        )
    if options.get("cuda_graph") == "1" and options.get("mode") == "reduce-overhead":
        raise UsageError(f"{spec.backend}: cuda_graph=1 takes the place of mode=reduce-overhead; leave one of them out")
    read_device_index(spec)
    return options


def load_cuda_engines(
    artifact: Artifact,
    specs: Sequence[EngineSpec],
    known: Mapping[str, Option],
    loader: ModuleLoader | None,
    *,
    graph: bool = False,
) -> list[WatchedCudaTorchEngine]:
    """An engine for each spec; they share the module, and each has a stream of its own."""
    options = check_cuda_request(artifact, specs[0], known)
    prepare_cuda(specs[0], options)
    module = load_ready_module(artifact, specs[0], options, loader)
    return [WatchedCudaTorchEngine(module, artifact, spec, options, graph=graph) for spec in specs]


class WatchedCudaTorchEngine(Generated, CudaTorchEngine):
    """The engine, and what CUPTI and PyTorch's profiler say of it."""

    def effective_precision(self) -> dict[str, float]:
        """Shares of kernel time by precision, from the names of the kernels that CUPTI recorded."""
        return prove_precision(self._watch())

    def profile_layers(self) -> LayerProfile:
        """Modules as layers, from the kernels of the same record as the proof of precision; kernels where it cannot
        be told which module launched them.
        """
        runs = self._watch()
        named, note = self._name_compiled(runs) if self._generated else self._name_launched(runs)
        return summarize_layers(named, PROFILER, (note,))

    def _name_compiled(self, runs: list[list[Operator]]) -> tuple[list[list[Operator]], str]:
        assert self._generated is not None
        self._lane.enter()
        named, why = self._generated.name_layers(runs, self._tensors)
        return named, f"{KERNELS}: {why}" if why else COMPILED_NOTE

    def _name_launched(self, runs: list[list[Operator]]) -> tuple[list[list[Operator]], str]:
        """The layers of kernels, from one more run that launches them one by one under the profiler."""
        try:
            named = name_kernels(runs, record_launches(self._call_once, name_modules(self._call)))
        except torch.OutOfMemoryError:
            return runs, f"{KERNELS}: there is no memory for a run outside of the graph"
        return (named, EAGER_NOTE) if named else (runs, f"{KERNELS}: {OTHER_LAUNCHES}")

    def _call_once(self) -> None:
        """Calls the module and waits; the answer of the last run stays what it is."""
        self._lane.enter()
        with torch.inference_mode():
            self._call(*self._tensors)  # type: ignore[misc]  # `_check_bound` was called
        self._lane.synchronize()

    def _watch(self) -> list[list[Operator]]:
        self._check_bound()
        self._watched = self._watched or watch_kernels(self._run_quietly)
        return self._watched

    def _run_quietly(self) -> None:
        """A run that waits in one call: of one that spins CUPTI records every look, thousands in each run."""
        self._lane.enter()
        self._launch()
        self._lane.synchronize()
