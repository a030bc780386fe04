"""`tensorrt-rtx`: plans built ahead of time by TensorRT for RTX, without a GPU; the GPU that runs one compiles it.

Building was done with NVIDIA's own library. What runs a plan is written against the names of its bindings.
"""

from __future__ import annotations

import hashlib
import json
import re
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from enginebench.core.engine_api import read_index
from enginebench.core.errors import ArtifactError, BackendUnavailable, UsageError, importing
from enginebench.core.records import Artifact, Availability, EngineSpec, Precision, ResultWarning
from enginebench.core.store import write_atomic
from enginebench.core.warnings import make_warning
from enginebench.engines.backends.tensorrt.builder import MIB, build_plan
from enginebench.engines.backends.tensorrt.entries import BUILD_OPTIONS, TENSORRT_RTX
from enginebench.engines.backends.tensorrt.plan_store import (
    UNKNOWN_GPU,
    PlanBackend,
    PlanRecord,
    describe_gpu,
    ensure_plan,
    read_capability,
)
from enginebench.engines.backends.tensorrt.settings import BuildSettings, read_plugins, read_settings
from enginebench.engines.request import check_request, make_availability, read_number, read_options
from enginebench.engines.tensorrt_library import LAYERS, RTX_MODULE, Library

if TYPE_CHECKING:
    from enginebench.engines.backends.tensorrt.engine import WatchedPlanEngine


# What stands before each value of a line. Names of layers may hold commas, colons and brackets; not these.
_TENSORS = ("Inputs", "Constants", "Outputs")
_FIELD = re.compile(rf", ({'|'.join(('LayerType', *_TENSORS, 'TacticName', 'StreamId', 'Metadata'))}): ")
_AXES = r"Dimensions: \[(?P<axes>[-\d,]*)\]"
_TENSOR = re.compile(rf"\{{ Name: (?P<Name>.*?), {_AXES},.*?Datatype: (?P<Datatype>\w+)")
_BINDING = re.compile(rf" Name: (?P<Name>.*?), IOMode: (?P<IOMode>\w+), DataType: (?P<Datatype>\w+), {_AXES}")


def read_dump(message: str) -> str:
    """The inspector's JSON of the message that begins with `Layers:`, in which each line is a layer."""
    lines, _, rest = message.removeprefix(LAYERS).partition("\nI/O Tensors:\n")
    layers = []
    for line in (line for line in lines.splitlines() if line.startswith("Name: ")):
        # `Name: .., LayerType: .., Inputs: [ { Name: .., .. }], ..`
        name, *pairs = _FIELD.split(line.removeprefix("Name: "))
        fields: dict[str, str] = dict(zip(pairs[::2], pairs[1::2], strict=True))
        tensors = {key: [_read_tensor(match) for match in _TENSOR.finditer(fields.get(key, ""))] for key in _TENSORS}
        layers.append({"Name": name, **fields, **tensors})
    bindings = [_read_tensor(match) for line in rest.splitlines() if (match := _BINDING.match(line))]
    return json.dumps({"Layers": layers, "I/O Tensors": bindings}, indent=1)


def _read_tensor(match: re.Match[str]) -> dict[str, object]:
    named: dict[str, str] = match.groupdict()
    axes = named.pop("axes")
    return {**named, "Dimensions": [int(axis) for axis in axes.split(",") if axis]}


trt = import_module(RTX_MODULE)
LIBRARY = Library(trt, "TensorRT for RTX")

NAME, OPTIONS = TENSORRT_RTX.name, TENSORRT_RTX.options
DEFAULTS = {key: option.default for key, option in BUILD_OPTIONS.items()}  # the values that TensorRT itself would get

# Compute capabilities that the builder knows, and those of them without a type. Seen in 1.7.1.
TARGETS = ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1")
LACKING: dict[Precision, tuple[str, ...]] = {"tf32": ("7.5",), "bf16": ("7.5",), "fp8": ("7.5", "8.0", "8.6")}

UNVERIFIED = make_warning("unverified_engine.rtx")
SUBOPTIMAL = make_warning("environment.suboptimal_plan")

# Why a plan does not run here, by the names of its diagnostics.
INVALID = {
    "UNSUPPORTED_CC": "the plan is not for this GPU's compute capability, or TensorRT for RTX does not support it",
    "OLD_CUDA_DRIVER": "the GPU's driver is too old for it",
    "OLD_CUDA_RUNTIME": "the CUDA runtime is too old for it",
    "INSUFFICIENT_GPU_MEMORY": "the GPU has too little memory for it",
    "CUDA_ERROR": "CUDA reports an error",
}
DAMAGED = {
    "MALFORMED_ENGINE": "it is not a plan of TensorRT for RTX, or it is damaged",
    "VERSION_MISMATCH": "another version of TensorRT for RTX built it: build it again",
}


class TensorRtRtxBackend(PlanBackend):
    """ONNX graphs and finished plans through TensorRT for RTX."""

    name = NAME

    def probe(self) -> Availability:
        """Available where a GPU can run what it builds; it builds anywhere, and says so."""
        capability = read_capability(0)
        here = "there is no GPU here" if capability is None else f"the GPU here has {capability}"
        reason = (
            f"it builds plans here, for GPUs of compute capability {', '.join(TARGETS)}, and runs them on such a GPU "
            f"only: {here}"
        )
        return make_availability(NAME, ("cuda:0",) if capability in TARGETS else (), LIBRARY.version, reason)

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        """A plan for these compute capabilities and settings, the stored one if there is one; no GPU is asked."""
        check_request(artifact, spec, ("onnx", "plan"), TENSORRT_RTX.precisions, (spec.device,))
        options = read_options(spec, OPTIONS)
        if artifact.kind == "plan":  # finished: with the inputs and outputs that it names itself
            finished, path = open_plan(Path(artifact.path), spec, options), Path(artifact.path)
            from enginebench.engines.backends.tensorrt.engine import adopt_tensors

            return replace(
                adopt_tensors(trt, finished, artifact, options),
                made_by={**artifact.made_by, NAME: LIBRARY.version},
                warnings=(*artifact.warnings, UNVERIFIED, *check_validity(path, read_index(spec))),
            )
        if options["weight_streaming"] == options["graph"] == "1":
            raise UsageError(
                f"{NAME}:weight_streaming=1 cannot be launched as our CUDA graph, for which all memory would have to "
                "be ours: add graph=0 or graph=rtx"
            )
        settings = read_settings(spec, {**DEFAULTS, **options}, artifact)
        flags = {
            "EXCLUDE_LEAN_RUNTIME": settings.version_compatible,  # the wheels bring no lean runtime to put in
            "WEIGHT_STREAMING": options["weight_streaming"] == "1",
            "REQUIRE_USER_ALLOCATION": options["graph"] == "1",  # without it a stream cannot be captured
        }
        targets = read_compute_capabilities(options["compute_capability"], settings.precision)
        settings = replace(settings, targets=targets, flags=tuple(name for name, wanted in flags.items() if wanted))
        gpu, record_flags = ", ".join(targets), (repr(settings),)
        record = PlanRecord(
            onnx_sha256=artifact.sha256, tensorrt=LIBRARY.version, gpu=gpu, flags=record_flags, engine=NAME
        )
        build = partial(self._build, Path(artifact.path), settings)
        plan = ensure_plan(out_dir / "plans", record, artifact, spec, build, settings.profiles)
        layers = find_layers(Path(plan.path))  # what the builder decided about them; it may have been taken away
        ahead = self._reader.read_ahead(layers) if self._reader is not None and layers.is_file() else None
        return replace(plan, made_by={NAME: LIBRARY.version}, ahead_of_time=ahead)

    def load(self, artifact: Artifact, spec: EngineSpec) -> WatchedPlanEngine:
        """The plan, compiled for this GPU and ready for arrays; what was compiled before is found again."""
        check_request(artifact, spec, ("plan",), TENSORRT_RTX.precisions, (spec.device,))
        options = read_options(spec, OPTIONS)
        plan = open_plan(Path(artifact.path), spec, options)
        from enginebench.engines.backends.tensorrt.engine import WatchedPlanEngine

        if budget := options["weight_budget_mb"]:
            plan.weight_streaming_budget_v2 = int(read_number(spec, "weight_budget_mb", budget)) * MIB
        config = configure(plan, options)
        path = self._find_cache(artifact, spec)
        cache = LIBRARY.require(config.create_runtime_cache(), "cannot create a runtime cache")
        if path is not None and path.is_file():  # one of elsewhere is not taken by the library
            cache.deserialize(path.read_bytes())
            LIBRARY.log.errors.clear()
        LIBRARY.require(config.set_runtime_cache(cache), "refuses a runtime cache")

        def write_cache() -> None:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, bytes(cache.serialize()))

        create = partial(plan.create_execution_context, config)
        return WatchedPlanEngine(
            LIBRARY, plan, artifact, spec, options, self._reader, create_context=create, on_close=write_cache
        )

    def _build(self, onnx: Path, settings: BuildSettings, plan: Path) -> tuple[ResultWarning, ...]:
        LIBRARY.log.layers = ""
        build_plan(LIBRARY, onnx, settings, plan, note=self._note)
        write_atomic(find_layers(plan), read_dump(LIBRARY.log.layers).encode())
        return (UNVERIFIED,)

    def _find_cache(self, artifact: Artifact, spec: EngineSpec) -> Path | None:
        """Return the path of the kernels that a GPU compiled of a plan: valid for one version and one kind of GPU."""
        gpu = describe_gpu(read_index(spec))
        if self._cache_dir is None or gpu == UNKNOWN_GPU:
            return None
        key = hashlib.sha256(f"{LIBRARY.version} {gpu} {artifact.sha256}".encode()).hexdigest()[:16]
        return self._cache_dir / f"{NAME}-{key}.cache"


create_backend = TensorRtRtxBackend


def read_compute_capabilities(text: str, precision: Precision) -> tuple[str, ...]:
    """Parse the compute capabilities `8.6,8.9` or `8.6+8.9`; an empty text means every one from 8.0 with the type.

    They are always named to the builder: without them it silently drops those that lack a type.
    """
    lacking = LACKING.get(precision, ())
    if not text.strip():
        # Turing is built for only where it is named: it multiplies no FP32 matrices there.
        return tuple(target for target in TARGETS[1:] if target not in lacking)
    requested = [part for part in re.split(r"[+,\s]+", text) if part]
    if unknown := [part for part in requested if part not in TARGETS]:
        raise UsageError(
            f"compute capability {', '.join(unknown)} is not one that {LIBRARY.title} {LIBRARY.version} builds for: "
            f"expected some of {', '.join(TARGETS)}, such as 8.6,8.9,12.0"
        )
    if without := [target for target in TARGETS if target in requested and target in lacking]:
        rest = ", ".join(target for target in TARGETS if target not in lacking)
        raise UsageError(
            f"GPUs of compute capability {', '.join(without)} have no {precision}, so a plan cannot be for them: "
            f"expected some of {rest}, or another --precision"
        )
    return tuple(target for target in TARGETS if target in requested)


def find_layers(plan: Path) -> Path:
    """Return the path of the builder's description of a plan's layers, in the form that `parse layers` reads."""
    return plan.with_suffix(".layers.json")


def open_plan(path: Path, spec: EngineSpec, options: dict[str, str]) -> Any:
    """The library's engine of a plan, on the GPU of `spec`."""
    check_validity(path, read_index(spec))
    with importing("cuda.bindings, which runs the plans of TensorRT for RTX,", str(TENSORRT_RTX.fix), ImportError):
        from enginebench.engines import cuda
    cuda.use_device(read_index(spec))
    LIBRARY.load_plugins(read_plugins(options))
    runtime = LIBRARY.make(trt.Runtime, "a runtime")
    return LIBRARY.require(runtime.deserialize_cuda_engine(path.read_bytes()), f"cannot load {path}")


def check_validity(path: Path, index: int) -> tuple[ResultWarning, ...]:
    """The warning about a plan that runs here, and not as well as it could; the library looks at its head alone."""
    runtime = LIBRARY.make(trt.Runtime, "a runtime")
    with path.open("rb") as file:
        validity, bits = runtime.get_engine_validity(file.read(runtime.engine_header_size))
    if validity != trt.EngineValidity.INVALID:
        return (SUBOPTIMAL,) if validity == trt.EngineValidity.SUBOPTIMAL else ()
    named = {name for name in (*INVALID, *DAMAGED) if int(bits) & int(getattr(trt.EngineInvalidityDiagnostics, name))}
    if damaged := [text for name, text in DAMAGED.items() if name in named]:
        raise ArtifactError(f"{path} cannot be used by {LIBRARY.title} {LIBRARY.version}: {'; '.join(damaged)}")
    capability = read_capability(index)
    reasons = [text for name, text in INVALID.items() if name in named]
    if not reasons:  # without a driver it has none
        reasons = [f"{'it says' if capability else 'no GPU responds'} ({LIBRARY.log.take().rstrip('.')})"]
    here = f"GPU {index} here has compute capability {capability}" if capability else "NVML shows no GPU here"
    raise BackendUnavailable(
        f"{path} cannot run here: {'; '.join(reasons)}. {here}; {LIBRARY.title} runs on {', '.join(TARGETS)}, each "
        "plan on those that it was built for"
    )


def configure(plan: Any, options: dict[str, str]) -> Any:
    """Set how the plan runs: when kernels are made for a shape, and whether the library captures CUDA graphs."""
    config = LIBRARY.require(plan.create_runtime_config(), "cannot create a runtime configuration")
    strategies = trt.DynamicShapesKernelSpecializationStrategy
    config.dynamic_shapes_kernel_specialization_strategy = getattr(strategies, options["specialization"].upper())
    own = options["graph"] == "rtx"
    config.cuda_graph_strategy = getattr(trt.CudaGraphStrategy, "WHOLE_GRAPH_CAPTURE" if own else "DISABLED")
    return config
