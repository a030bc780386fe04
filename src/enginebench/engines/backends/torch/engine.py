"""The `pytorch*` engines of both kinds of device: what is recorded of them, and what is checked for a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from enginebench.core.engine_api import read_index
from enginebench.core.entry import Option
from enginebench.core.errors import BackendUnavailable, UsageError
from enginebench.core.precisions import UNKNOWN
from enginebench.core.protocols import ModuleLoader
from enginebench.core.records import Artifact, ArtifactKind, EngineSpec, LayerProfile, Precision, ResultWarning
from enginebench.core.warnings import make_warning
from enginebench.engines.backends.torch.entries import CUDA_PRECISIONS
from enginebench.engines.backends.torch.module import load_ready_module
from enginebench.engines.backends.torch.operators import (
    describe_modules,
    mark_modules,
    name_kernels,
    name_modules,
    read_operator_times,
    record_launches,
)
from enginebench.engines.backends.torch.stored_weights import find_eight_bits
from enginebench.engines.proof import (
    CUPTI,
    KERNELS,
    Operator,
    prove_precision,
    record_profile,
    summarize_layers,
    watch_kernels,
)
from enginebench.engines.pytorch import TorchEngine
from enginebench.engines.pytorch_cuda import CudaTorchEngine, prepare_cuda
from enginebench.engines.pytorch_module import find_mixed_type
from enginebench.engines.request import check_request, read_options

if TYPE_CHECKING:
    from enginebench.engines.backends.torch.generated import GeneratedCode

# The first compute capability whose matrix units take FP8. Source: NVIDIA's CUDA C++ programming guide.
FP8_FROM = (8, 9)
PROFILER = "PyTorch's profiler"
EAGER_NOTE = "layers are modules; an operator outside of a module that has no children is one of its own"
COMPILED_NOTE = "layers are modules, or several where torch.compile made one kernel of them"
PLAIN_NOTE = "layers are operators and generated kernels: {why}"


def list_cast_warnings(module: Any) -> tuple[ResultWarning, ...]:
    """Warn that the module runs under torch.autocast, which was not requested."""
    mixed_type = find_mixed_type(module)
    if mixed_type is None:
        return ()
    record = (
        f"the module's own code mixes types and fails once it is cast to {mixed_type}: it runs under torch.autocast"
    )
    return (make_warning("low_effective_precision", record=record, asked=mixed_type),)


class Generated:
    """The code that a compiler made of an engine's module; nothing if none was compiled."""

    def __init__(self, *others: Any, generated: GeneratedCode | None = None, **named: Any) -> None:
        self._generated = generated
        super().__init__(*others, **named)

    def list_warnings(self) -> tuple[ResultWarning, ...]:
        return list_cast_warnings(self._call)  # type: ignore[attr-defined]  # of the engine that comes after this class

    def find_weight_precision(self) -> Precision | None:
        return find_eight_bits(self._call)  # type: ignore[attr-defined]  # of the engine that comes after this class

    def close(self) -> None:
        super().close()  # type: ignore[misc]  # of the engine that comes after this class
        self._generated = None


class WatchedTorchEngine(Generated, TorchEngine):
    """The engine, and the record of PyTorch's profiler."""

    def __init__(
        self, call: Any, artifact: Artifact, spec: EngineSpec, options: Mapping[str, str], **named: Any
    ) -> None:
        super().__init__(call, artifact, spec, options, **named)
        # Generated code multiplies integers in max-autotune alone; otherwise it dequantizes what it multiplies.
        self._dequantizes = spec.precision == "int8" and options.get("mode") != "max-autotune"

    def effective_precision(self) -> dict[str, float]:
        """Shares of operator time by precision, from PyTorch's profiler and its settings as they are after the run.

        "unknown" is the time inside a compiled graph that belongs to no operator: generated kernels leave no types
        in the record. Where there is no kernel of eight bits either, generated code computed all of it in floats.
        """
        shares = prove_precision(self._watch())
        if self._dequantizes and "int8" not in shares and UNKNOWN in shares:
            shares["fp32"] = shares.get("fp32", 0.0) + shares.pop(UNKNOWN)
        return shares

    def profile_layers(self) -> LayerProfile:
        """Modules as layers, from the same record as the proof of precision."""
        runs = self._watch()
        if self._generated is None:
            return summarize_layers(runs, PROFILER, (EAGER_NOTE,))
        runs, why = self._generated.name_layers(runs, self._tensors)
        return summarize_layers(runs, PROFILER, (PLAIN_NOTE.format(why=why) if why else COMPILED_NOTE,))

    def _watch(self) -> list[list[Operator]]:
        """A few runs under the profiler. An eager module has hooks meanwhile, which say whose operators are whose, and
        of a compiled one the kernels are marked.
        """
        self._check_bound()
        if not self._watched:
            modules = {} if self._generated else name_modules(self._call)
            with self._generated.mark() if self._generated else mark_modules(modules):
                recorded = record_profile(self._run, record_shapes=True)
            self._watched = [list(read_operator_times(events, describe_modules(modules))) for events in recorded]
        return self._watched


def probe_cuda() -> tuple[str, ...]:
    """The GPUs that PyTorch sees, as `cuda:N`; none without a driver or in a build without CUDA."""
    if not torch.cuda.is_available():
        return ()
    return tuple(f"cuda:{i}" for i in range(torch.cuda.device_count()))


def explain_no_cuda() -> str:
    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is built without CUDA"
    return "PyTorch sees no NVIDIA GPU; is the driver installed (nvidia-smi)?"


def is_cuda(spec: EngineSpec) -> bool:
    return spec.device.partition(":")[0] == "cuda"


def read_device_index(spec: EngineSpec) -> int:
    index, devices = read_index(spec), probe_cuda()
    if f"cuda:{index}" not in devices:
        why = f"there is {', '.join(devices)}" if devices else explain_no_cuda()
        raise BackendUnavailable(f"{spec.backend} cannot run on {spec.device}: {why}")
    return index


def check_cuda_request(
    artifact: Artifact,
    spec: EngineSpec,
    options_by_name: Mapping[str, Option],
    kinds: tuple[ArtifactKind, ...] = ("torch",),
) -> dict[str, str]:
    """The options of a request that PyTorch can take on this GPU."""
    own: tuple[Precision, ...] = (
        ("int8", "fp8") if "scales" in options_by_name and spec.recipe in ("dynamic", "static") else ()
    )
    check_request(artifact, spec, kinds, (*CUDA_PRECISIONS, *own), (spec.device,))
    options = read_options(spec, options_by_name)
    if options["defaults"] == "1" and spec.precision != "tf32":
        raise UsageError(
            f"{spec.backend}:defaults=1 is what PyTorch does by default, with TF32 in convolutions: "
            f"its precision is tf32, not {spec.precision}"
        )
    if options.get("cuda_graph") == "1" and options.get("mode") == "reduce-overhead":
        raise UsageError(f"{spec.backend}: cuda_graph=1 takes the place of mode=reduce-overhead; leave one of them out")
    index = read_device_index(spec)
    if spec.precision == "fp8" and torch.cuda.get_device_capability(index) < FP8_FROM:
        raise BackendUnavailable(f"{torch.cuda.get_device_name(index)} computes nothing in FP8; ask for bf16")
    return options


def load_cuda_engines(
    artifact: Artifact,
    specs: Sequence[EngineSpec],
    options_by_name: Mapping[str, Option],
    loader: ModuleLoader | None,
    *,
    graph: bool = False,
) -> list[WatchedCudaTorchEngine]:
    """An engine for each spec; they share the module, and each has a stream of its own."""
    options = check_cuda_request(artifact, specs[0], options_by_name)
    prepare_cuda(specs[0], options)
    module = load_ready_module(artifact, specs[0], options, loader)
    return [WatchedCudaTorchEngine(module, artifact, spec, options, graph=graph) for spec in specs]


class WatchedCudaTorchEngine(Generated, CudaTorchEngine):
    """The engine, and what CUPTI and PyTorch's profiler say of it."""

    def effective_precision(self) -> dict[str, float]:
        """Shares of kernel time by precision, from the names of the kernels that CUPTI recorded."""
        return prove_precision(self._watch())

    def profile_layers(self) -> LayerProfile:
        """Profile modules as layers, by the kernels in the record that also verifies the precision.

        Where the record does not show which module launched them, kernels are the layers.
        """
        runs = self._watch()
        if self._generated is None:
            named, note = self._name_launched(runs)
        else:
            self._lane.select_stream()
            named, why = self._generated.name_layers(runs, self._tensors)
            note = f"{KERNELS}: {why}" if why else COMPILED_NOTE
        return summarize_layers(named, CUPTI, (note,))

    def _name_launched(self, runs: list[list[Operator]]) -> tuple[list[list[Operator]], str]:
        """The layers of kernels, from one more run that launches them one by one under the profiler."""
        try:
            named = name_kernels(runs, record_launches(self._call_once, name_modules(self._call)))
        except torch.OutOfMemoryError:
            return runs, f"{KERNELS}: there is no memory for a run outside of the graph"
        others = "those of a run outside of the graph are others, which leaves their modules unknown"
        return (named, EAGER_NOTE) if named else (runs, f"{KERNELS}: {others}")

    def _call_once(self) -> None:
        """Call the module and wait; the outputs of the last run are not touched."""
        self._lane.select_stream()
        with torch.inference_mode():
            self._call(*self._tensors)  # type: ignore[misc]  # `_check_bound` was called
        self._lane.synchronize()

    def _watch(self) -> list[list[Operator]]:
        def run_quietly() -> None:
            """Wait in one call: CUPTI would record every query of a spinning wait, thousands in each run."""
            self._lane.select_stream()
            self._launch()
            self._lane.synchronize()

        self._check_bound()
        self._watched = self._watched or watch_kernels(run_quietly)
        return self._watched
