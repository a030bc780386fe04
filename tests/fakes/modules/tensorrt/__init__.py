"""A stand-in for the `tensorrt` module that computes through ONNX Runtime on host memory.

`FAKE_TENSORRT_VERSION` (8.6, 10.16, 11.4, 11.4-lean or rtx-1.7) chooses the version. Names that the real bindings
of that version lack are taken away at the end of this file, by the inventory in `names.json`: code that uses one fails
here as it would there.
`FAKE_TENSORRT_FAULT`: build (None from the builder), context (None), execute (False), profile (False),
builder (none, and a warning that says why), runtime (an error, and an object all the same), capturable (False), and of
a plan of TensorRT for RTX the name of a diagnostic, or suboptimal.
"""

import ctypes
import enum
import json
import os
import sys
import weakref
from pathlib import Path

import numpy as np
from cuda.bindings import runtime as cudart

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from fake_plan import MAGIC, PlanError, describe_graph, misread, read_plan, time_layer, write_plan

_NAMES = json.loads((Path(__file__).parent / "names.json").read_text(encoding="utf-8"))
_VERSION = os.environ.get("FAKE_TENSORRT_VERSION", "11.4")
_INVENTORY = _NAMES[_VERSION]
_LEAN = _VERSION.endswith("-lean")
_RTX = _VERSION.startswith("rtx")
_MAJOR = _VERSION.split(".")[0]
__version__ = _INVENTORY["version"]


def _fault(name):
    return name in os.environ.get("FAKE_TENSORRT_FAULT", "").split(",")


def _make_enum(name):
    return enum.IntEnum(name, {member: i for i, member in enumerate(_INVENTORY["enums"].get(name, []))})


BuilderFlag = _make_enum("BuilderFlag")
NetworkDefinitionCreationFlag = _make_enum("NetworkDefinitionCreationFlag")
MemoryPoolType = _make_enum("MemoryPoolType")
DeviceType = _make_enum("DeviceType")
ProfilingVerbosity = _make_enum("ProfilingVerbosity")
HardwareCompatibilityLevel = _make_enum("HardwareCompatibilityLevel")
TensorIOMode = _make_enum("TensorIOMode")
TensorLocation = _make_enum("TensorLocation")
DataType = _make_enum("DataType")
LayerInformationFormat = _make_enum("LayerInformationFormat")
ComputeCapability = _make_enum("ComputeCapability")
CudaGraphStrategy = _make_enum("CudaGraphStrategy")
DynamicShapesKernelSpecializationStrategy = _make_enum("DynamicShapesKernelSpecializationStrategy")
EngineValidity = _make_enum("EngineValidity")
# The values are those of 1.7.1.
_DIAGNOSTICS = "VERSION_MISMATCH UNSUPPORTED_CC OLD_CUDA_DRIVER OLD_CUDA_RUNTIME INSUFFICIENT_GPU_MEMORY"
_DIAGNOSTICS = (_DIAGNOSTICS + " MALFORMED_ENGINE CUDA_ERROR").split()
EngineInvalidityDiagnostics = enum.IntEnum(
    "EngineInvalidityDiagnostics", {name: 1 << i for i, name in enumerate(_DIAGNOSTICS)}
)

_ONNX_TYPES = {1: "FLOAT", 2: "UINT8", 3: "INT8", 6: "INT32", 7: "INT64", 9: "BOOL", 10: "HALF", 16: "BF16"}
_NUMPY = {"FLOAT": "float32", "HALF": "float16", "INT8": "int8", "INT32": "int32", "INT64": "int64", "UINT8": "uint8"}


class _Checked:
    """Takes no attribute that the real class of this version lacks."""

    def __setattr__(self, name, value):
        if not name.startswith("_") and name not in _INVENTORY["classes"][type(self).__name__]:
            raise AttributeError(f"tensorrt {__version__}: {type(self).__name__} has no attribute {name}")
        object.__setattr__(self, name, value)


class ILogger:
    class Severity(enum.IntEnum):
        INTERNAL_ERROR = 0
        ERROR = 1
        WARNING = 2
        INFO = 3
        VERBOSE = 4

    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = Severity

    def log(self, severity, msg):
        raise AssertionError("a logger must say what it does with messages")


class IProgressMonitor:
    def phase_start(self, phase_name, parent_phase, num_steps): ...
    def step_complete(self, phase_name, step): ...
    def phase_finish(self, phase_name): ...


class IProfiler:
    def report_layer_time(self, layer_name, ms): ...


class IInt8EntropyCalibrator2:
    def get_batch_size(self): ...
    def get_batch(self, names): ...
    def read_calibration_cache(self): ...
    def write_calibration_cache(self, cache): ...


class IHostMemory(bytes):
    pass


class ITimingCache:
    def __init__(self, data):
        self._data = data

    def serialize(self):
        return IHostMemory(self._data or b"FAKE TIMINGS " + __version__.encode())


class IOptimizationProfile:
    def __init__(self):
        self._shapes = {}

    def set_shape(self, input, min, opt, max):
        self._shapes[input] = [list(min), list(opt), list(max)]


class INetworkDefinition:
    def __init__(self, flags):
        self._flags = flags
        self._onnx = b""

    @property
    def num_outputs(self):
        return len(describe_graph(self._onnx, [])["outputs"])


class IBuilderConfig(_Checked):
    def __init__(self):
        self._flags = {BuilderFlag.TF32}
        self._profiles = []
        self._limits = {}
        self._cache = None
        self.builder_optimization_level = 3
        self.profiling_verbosity = ProfilingVerbosity.LAYER_NAMES_ONLY
        self.hardware_compatibility_level = HardwareCompatibilityLevel.NONE
        if "progress_monitor" in _INVENTORY["classes"]["IBuilderConfig"]:
            self.progress_monitor = None
        if _RTX:
            self.num_compute_capabilities = 0
        self._targets = {}

    def set_compute_capability(self, compute_capability, index):
        self._targets[index] = compute_capability
        return index < self.num_compute_capabilities

    def set_memory_pool_limit(self, pool, pool_size):
        self._limits[pool] = pool_size

    def set_flag(self, flag):
        self._flags.add(flag)

    def clear_flag(self, flag):
        self._flags.discard(flag)

    def get_flag(self, flag):
        return flag in self._flags

    def add_optimization_profile(self, profile):
        self._profiles.append(profile._shapes)
        return -1 if _fault("profile") else len(self._profiles) - 1

    def set_calibration_profile(self, profile):
        self._calibration = profile._shapes
        return True

    def create_timing_cache(self, serialized_timing_cache):
        return ITimingCache(bytes(serialized_timing_cache))

    def set_timing_cache(self, cache, ignore_mismatch):
        if cache._data and not cache._data.startswith(b"FAKE TIMINGS " + __version__.encode()):
            return False
        self._cache = cache
        return True

    def get_timing_cache(self):
        return self._cache


class Builder:
    def __init__(self, logger):
        self._logger = logger
        if _fault("builder"):
            logger.log(ILogger.WARNING, "CUDA initialization failure with error: 35. Please check your CUDA")
            raise TypeError("pybind11::init(): factory function returned nullptr")

    @property
    def num_DLA_cores(self):
        return 2 if _fault("dla") else 0

    def create_network(self, flags=0):
        return INetworkDefinition(flags)

    def create_builder_config(self):
        return IBuilderConfig()

    def create_optimization_profile(self):
        return IOptimizationProfile()

    def build_serialized_network(self, network, config):
        if _fault("build"):
            self._logger.log(ILogger.ERROR, "IBuilder::buildSerializedNetwork: Error Code 10: no implementation")
            return None
        if _MAJOR == "8" and config._cache is not None and config._cache._data:
            place = "1: [myelinCache.h::deserializeFromBuffer::52] Error Code 1: Myelin"
            self._logger.log(ILogger.ERROR, f"{place} (Myelin error from unknown graph)")
            self._logger.log(ILogger.ERROR, "4: The timing cache will not be used!")
        if hasattr(config, "DLA_core"):
            assert config.default_device_type == DeviceType.DLA and BuilderFlag.GPU_FALLBACK in config._flags
            on_gpu = "Default DLA is enabled but layer softmax is not supported on DLA, falling back to GPU."
            self._logger.log(ILogger.WARNING, on_gpu)
        if getattr(config, "progress_monitor", None) is not None:
            config.progress_monitor.phase_start("Building Engine", None, 2)
            for step in range(2):
                config.progress_monitor.step_complete("Building Engine", step)
            config.progress_monitor.phase_finish("Building Engine")
        if _MAJOR == "8" and not network._flags & 1 << NetworkDefinitionCreationFlag.EXPLICIT_BATCH:
            self._logger.log(ILogger.ERROR, "Error Code 4: explicit batch is required")
            return None
        strong = getattr(NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
        typed = _MAJOR == "11" or (strong is not None and bool(network._flags & 1 << strong))
        weak = [] if typed else [flag.name.lower() for flag in config._flags if flag.name in ("FP16", "INT8", "BF16")]
        if not typed and "int8" not in weak and b"QuantizeLinear" in network._onnx:
            self._logger.log(ILogger.ERROR, "Error Code 4: the network has Q/DQ layers, but the INT8 flag is not set")
            return None
        refused = _refuse(config) or self._calibrate(config)
        if refused:
            self._logger.log(ILogger.ERROR, refused)
            return None
        tf32 = BuilderFlag.TF32 in config._flags or _fault("ignores_tf32")
        head = describe_graph(network._onnx, weak, _fault("ignores_precision"), tf32=tf32)
        if not config._profiles and any(a < 0 for v in head["inputs"] for a in v["shape"]):
            self._logger.log(ILogger.ERROR, "Error Code 4: network has dynamic inputs, but no optimization profile")
            return None
        static = {v["name"]: v["shape"] for v in head["inputs"]}
        profiles = [[{n: s[i] for n, s in p.items()} for i in range(3)] for p in config._profiles] or [[static] * 3]
        head |= {
            "version": _VERSION,
            "detailed": config.profiling_verbosity == ProfilingVerbosity.DETAILED,
            "profiles": profiles,
            "flags": sorted(flag.name for flag in config._flags),
            "limits": {pool.name: size for pool, size in config._limits.items()},
            "level": config.builder_optimization_level,
            "typed": typed,
            "targets": [config._targets[i].name for i in range(getattr(config, "num_compute_capabilities", 0))],
        }
        if _RTX:
            self._logger.log(ILogger.VERBOSE, "Layers:\n" + "\n".join(map(_write_line, head["layers"])))
        return IHostMemory(write_plan(network._onnx, **head))

    def _calibrate(self, config):
        """Why it does not: 8.6.0 takes a cache of its own calibrator only, with the tensors that it made up itself."""
        calibrator = getattr(config, "int8_calibrator", None)
        if calibrator is None:
            return None
        cache = calibrator.read_calibration_cache()
        if cache is not None and cache.startswith(_CACHE_HEAD + b"\n"):
            foreign = _MAJOR == "8" and b"(Unnamed Layer*" not in cache
            return "1: Unexpected exception _Map_base::at" if foreign else None
        lines = [_CACHE_HEAD]
        opt = getattr(config, "_calibration", None) or (config._profiles or [{}])[0]
        if opt.get("input", [0, [calibrator.get_batch_size()]])[1][0] != calibrator.get_batch_size():
            raise MemoryError("calibration would read past the end of the arrays")
        while (pointers := calibrator.get_batch(["input"])) is not None:
            lines.append(b"input: %08x" % (pointers[0] & 0xFFFFFFFF))
        if len(lines) == 1:
            return "1: [calibrator.cu::absTensorMax::141] Error Code 1: Cuda Runtime (an illegal memory access)"
        made_up = b"(Unnamed Layer* 9) [Constant]_output: 3ab21177"
        calibrator.write_calibration_cache(b"\n".join([lines[0], b"input: 3c010a14", made_up]))
        return None


_CACHE_HEAD = b"TRT-%d-EntropyCalibration2" % {"8": 8601, "10": 101601}.get(_MAJOR, 0)  # of the versions in names.json


def _refuse(config):
    """What 8.6.0 says to the flags of a version-compatible plan; its wheel has no lean runtime."""
    flags = {flag.name for flag in config._flags}
    if _MAJOR == "8" and {"REFIT", "VERSION_COMPATIBLE"} <= flags:
        return "4: kREFIT can not be set if kVERSION_COMPATIBLE is set"
    if _MAJOR == "8" and "VERSION_COMPATIBLE" in flags and "EXCLUDE_LEAN_RUNTIME" not in flags:
        return "6: Unable to load library: libnvinfer_lean.so.8.6.0"
    return None


def _write_line(layer):
    """A layer as the builder logs it: the inspector's form in one line."""

    def tensors(names):
        kind = {"FP32": "Float", "FP16": "Half", "INT8": "Int8"}[layer["precision"]]
        one = "{ Name: %s, Dimensions: [1,8], Strides: [8,1], StrideOrder: [1,0], Datatype: %s, Format: Row major}"
        return "[ " + ", ".join(one % (name, kind) for name in names) + "]"

    return (
        f"Name: {layer['name']}, LayerType: {layer['type'].lower()}, "
        f"Inputs: {tensors(layer['inputs'])}, Constants: [], "
        f"Outputs: {tensors(layer['outputs'])}, TacticName: {layer['kernel']}, StreamId: 0, "
        f"Metadata: [ONNX Layer: {layer['name']}]"
    )


class ParserError:
    def __init__(self, text):
        self._text = text

    def desc(self):
        return self._text

    def node(self):
        return 6

    def node_operator(self):
        return "Unheard"

    def node_name(self):
        return "/unheard/Of"


class OnnxParser:
    def __init__(self, network, logger):
        self._network = network
        self._errors = []

    @property
    def num_errors(self):
        return len(self._errors)

    def get_error(self, index):
        return self._errors[index]

    def parse_from_file(self, model):
        data = Path(model).read_bytes()
        try:
            data = misread(data) if _MAJOR == "8" else data
            describe_graph(data, [])
        except Exception as error:
            text = str(error) if isinstance(error, PlanError) else "no importer registered for this operator"
            self._errors.append(ParserError(text))
            return False
        self._network._onnx = data
        return True


def _can_load(head):
    """A plan of this version; a version-compatible one of this major, which is all that the lean runtime takes."""
    compatible = "VERSION_COMPATIBLE" in head.get("flags", []) and head["version"].split(".")[0] == _MAJOR
    return compatible or (head["version"].startswith(_VERSION) and not _LEAN)


class Runtime(_Checked):
    def __init__(self, logger):
        self._logger = logger
        if _fault("runtime"):
            logger.log(ILogger.ERROR, "createInferRuntime: Error Code 6: API Usage Error (CUDA initialization failure)")
        self.engine_host_code_allowed = False

    @property
    def engine_header_size(self):
        return 64

    def get_engine_validity(self, buffer):
        assert len(buffer) == 64, "the head is all that is wanted"
        if not bytes(buffer).startswith(MAGIC):
            return EngineValidity.INVALID, int(EngineInvalidityDiagnostics.MALFORMED_ENGINE)
        found = [bit for bit in EngineInvalidityDiagnostics if _fault(bit.name)]
        if found or _fault("no_gpu"):
            self._logger.log(ILogger.INTERNAL_ERROR, "Error reading CUDA GPU properties")
            return EngineValidity.INVALID, sum(found)
        return EngineValidity.SUBOPTIMAL if _fault("suboptimal") else EngineValidity.VALID, 0

    def deserialize_cuda_engine(self, serialized_engine):
        try:
            head, onnx_bytes = read_plan(bytes(serialized_engine))
            if not _can_load(head):
                raise PlanError(f"plan of version {head['version']}")
        except PlanError as error:
            self._logger.log(ILogger.ERROR, f"IRuntime::deserializeCudaEngine: Error Code 1: Serialization ({error})")
            return None
        self._logger.log(ILogger.INFO, f"Loaded engine size: {len(onnx_bytes) >> 20} MiB")
        return ICudaEngine(head, onnx_bytes, self._logger)


class ICudaEngine:
    def __init__(self, head, onnx_bytes, logger):
        self._head, self._onnx, self._logger = head, onnx_bytes, logger
        self._tensors = {v["name"]: v for v in (*head["inputs"], *head["outputs"])}
        self._contexts = weakref.WeakSet()

    @property
    def num_io_tensors(self):
        return len(self._tensors)

    @property
    def num_optimization_profiles(self):
        return len(self._head["profiles"])

    def get_tensor_name(self, index):
        return list(self._tensors)[index]

    def get_tensor_mode(self, name):
        return TensorIOMode.INPUT if self._tensors[name] in self._head["inputs"] else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name):
        kind = _ONNX_TYPES[self._tensors[name]["type"]]
        return DataType[kind if kind in DataType.__members__ else "INT32"]  # 8.6 makes INT32 of INT64

    def get_tensor_shape(self, name):
        return tuple(self._tensors[name]["shape"])

    def get_tensor_location(self, name):
        return TensorLocation.DEVICE

    def get_tensor_profile_shape(self, name, profile_index):
        return [tuple(side[name]) for side in self._head["profiles"][profile_index]]

    def create_execution_context(self, runtime_config=None):
        """As 8.6.0: the first context takes profile 0, and while it lives a second one is refused it."""
        if self.num_optimization_profiles > 1 and any(context._profile == 0 for context in self._contexts):
            self._logger.log(ILogger.ERROR, "3: Profile 0 has been chosen by another IExecutionContext")
            return None
        return None if _fault("context") else IExecutionContext(self, runtime_config)

    def create_runtime_config(self):
        return IRuntimeConfig()

    def create_engine_inspector(self):
        if _LEAN:
            raise TypeError("Unable to convert function return value to a Python type: EngineInspector")
        return EngineInspector(self)


class IRuntimeConfig(_Checked):
    def __init__(self):
        self._cache = None

    def create_runtime_cache(self):
        return IRuntimeCache()

    def set_runtime_cache(self, cache=None):
        self._cache = cache
        return True


class IRuntimeCache:
    """What it was given, and a line for each context that was compiled with it."""

    def __init__(self):
        self._data = b""

    def deserialize(self, blob):
        if not bytes(blob).startswith(b"COMPILED"):
            return False
        self._data = bytes(blob)
        return True

    def serialize(self):
        return IHostMemory(self._data)


class EngineInspector(_Checked):
    def __init__(self, engine):
        self._engine = engine
        self.execution_context = None

    def get_engine_information(self, format):
        from fake_trtexec import describe_layer, leave_raw

        head = self._engine._head
        layers = [describe_layer(layer) if head["detailed"] else layer["name"] for layer in head["layers"]]
        tensors = [*head["inputs"], *head["outputs"]]
        if _MAJOR != "11" and not _RTX:
            return leave_raw(json.dumps({"Layers": layers, "Bindings": [t["name"] for t in tensors]}))
        ends = [{"Name": t["name"], "Dimensions": t["shape"]} for t in tensors]
        return leave_raw(json.dumps({"Layers": layers, "I/O Tensors": ends}))


class IExecutionContext(_Checked):
    def __init__(self, engine, config=None):
        import onnxruntime

        if config is not None:
            config._cache._data = config._cache._data or b"COMPILED"
            config._cache._data += f" {config.dynamic_shapes_kernel_specialization_strategy.name}".encode()
        self._config = config

        self._engine = engine
        engine._contexts.add(self)
        self._session = onnxruntime.InferenceSession(engine._onnx)
        self._profile = 0
        self._shapes = {}
        self._addresses = {}
        self.profiler = None

    def set_optimization_profile_async(self, profile_index, stream_handle):
        cudart.find_stream(stream_handle)
        self._profile = profile_index
        return profile_index < self._engine.num_optimization_profiles

    def set_input_shape(self, name, shape):
        low, _, high = self._engine._head["profiles"][self._profile]
        fits = len(shape) == len(low[name]) and all(
            a <= s <= b for a, s, b in zip(low[name], shape, high[name], strict=True)
        )
        if not fits:
            self._engine._logger.log(ILogger.ERROR, f"setInputShape: Error Code 3: {name} is outside of the profile")
            return False
        self._shapes[name] = tuple(shape)
        return True

    def is_stream_capturable(self, stream):
        cudart.find_stream(stream)
        return not _fault("capturable")

    def infer_shapes(self):
        return [v["name"] for v in self._engine._head["inputs"] if v["name"] not in self._shapes]

    def get_tensor_shape(self, name):
        if name in self._shapes:
            return self._shapes[name]
        shape = self._engine._tensors[name]["shape"]
        if any(a < 0 for a in shape[1:]) and not self.infer_shapes():
            names = [value["name"] for value in self._engine._head["inputs"]]
            feeds = {n: self._cast(n, np.zeros(self._shapes[n])) for n in names}
            return self._session.run([name], feeds)[0].shape
        batch = next(iter(self._shapes.values()), (1,))[0]
        return tuple(batch if a < 0 else a for a in shape)

    def set_tensor_address(self, name, memory):
        self._addresses[name] = memory
        return memory in cudart.memory

    def execute_async_v3(self, stream_handle):
        stream = cudart.find_stream(stream_handle)
        if _fault("execute") or cudart.break_capture(stream):
            self._engine._logger.log(ILogger.ERROR, "enqueueV3: Error Code 1: Cuda Runtime (not permitted)")
            return False
        stream.enqueue(self._compute)
        return True

    def _compute(self):
        head = self._engine._head
        feeds = {v["name"]: self._read(v["name"]) for v in head["inputs"]}
        names = [v["name"] for v in head["outputs"]]
        for name, value in zip(names, self._session.run(names, feeds), strict=True):
            kind = self._engine.get_tensor_dtype(name).name
            data = np.ascontiguousarray(value, _NUMPY.get(kind))
            ctypes.memmove(self._addresses[name], data.ctypes.data, data.nbytes)
        if self.profiler is not None:
            if _fault("profile_aborts"):
                os.abort()
            for layer in head["layers"]:
                self.profiler.report_layer_time(layer["name"], time_layer(layer))

    def _read(self, name):
        block = cudart.memory[self._addresses[name]]
        dtype = _NUMPY[self._engine.get_tensor_dtype(name).name]
        shape = self._shapes.get(name, self._engine.get_tensor_shape(name))  # fixed axes need not be set
        return self._cast(name, np.frombuffer(block, dtype, count=int(np.prod(shape))).reshape(shape))

    def _cast(self, name, array):
        """The array in the type that the graph has, not TensorRT."""
        kind = _NUMPY[self._engine.get_tensor_dtype(name).name]
        return array.astype("int64" if self._engine._tensors[name]["type"] == 7 else kind)


class IPluginRegistry:
    _creators = all_creators = plugin_creator_list = []

    def load_library(self, plugin_path):  # 8.6.0 takes no other, and says nothing
        return object() if b"getPluginCreators" in Path(plugin_path).read_bytes() else None


def get_plugin_registry():
    return IPluginRegistry()


def init_libnvinfer_plugins(logger, namespace):
    return True


def _take_away():
    """Removes every public name that the real bindings of this version lack."""
    for name in [n for n, v in globals().items() if isinstance(v, type) and not n.startswith("_")]:
        known = _INVENTORY["classes"].get(name)
        if known is None and name not in _INVENTORY["enums"] and name not in ("Path", "PlanError"):
            del globals()[name]
            continue
        for attribute in [a for a in vars(globals()[name]) if not a.startswith("_")] if known is not None else []:
            if attribute not in known:
                delattr(globals()[name], attribute)
    for name in ("get_plugin_registry", "init_libnvinfer_plugins"):
        if name not in _INVENTORY["functions"]:
            del globals()[name]


_take_away()


class Logger(ILogger):
    """Of the bindings' own and in every version; a delivered program uses it."""

    def __init__(self, min_severity=None):
        pass

    def log(self, severity, msg):
        print(msg, file=sys.stderr)
