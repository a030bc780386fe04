"""A session of ONNX Runtime's CUDA provider, set as the row was, and the inputs that it reads in host memory."""

from __future__ import annotations

from typing import Any

import facts
import gpu
import onnxruntime

PROVIDER = "CUDAExecutionProvider"
LEVELS = {"all": "ENABLE_ALL", "extended": "ENABLE_EXTENDED", "basic": "ENABLE_BASIC", "none": "DISABLE_ALL"}


def make_settings(bundle: dict[str, Any]) -> Any:
    """Session options of the row: its batch as a constant, and no node on the CPU unless the row allowed it."""
    engine = bundle["engine"]
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = engine["threads"]
    settings.inter_op_num_threads = 1
    level = LEVELS[engine["options"].get("opt", "all")]
    settings.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{level}")
    settings.log_severity_level = 3  # errors only
    for axis in find_batches(bundle["artifact"]["inputs"]):
        settings.add_free_dimension_override_by_name(axis, engine["batch"])
    if engine["options"].get("on_cpu", "refuse") == "refuse":
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    return settings


def find_batches(inputs: list[dict[str, Any]]) -> set[str]:
    """The names of the axes that are the batch: of each input the first one that is open and has no size of its own."""
    known = [zip(s["shape"], s.get("sizes") or [0, *[1] * len(s["shape"])], strict=False) for s in inputs]
    opened = [[axis for axis, size in pairs if isinstance(axis, str) and not size] for pairs in known]
    return {names[0] for names in opened if names}


def make_provider(engine: dict[str, Any], index: int, stream: gpu.Stream) -> dict[str, str]:
    """The CUDA provider's options of the row."""
    options = engine["options"]
    return {
        "device_id": str(index),
        "use_tf32": "0" if engine["precision"] == "fp32" else "1",  # "1" also lets FP16 use its tensor cores
        "enable_cuda_graph": options.get("cuda_graph", "0"),
        "prefer_nhwc": options.get("prefer_nhwc", "0"),
        "fuse_conv_bias": options.get("fuse_conv_bias", "0"),
        "cudnn_conv_algo_search": options.get("conv_search", "exhaustive").upper(),
        "user_compute_stream": str(stream.handle),
    }


def open_session(bundle: dict[str, Any], index: int, stream: gpu.Stream) -> Any:
    """The model on the GPU, whose work goes to the stream."""
    onnxruntime.preload_dlls()
    path, wanted = str(facts.HERE / bundle["artifact"]["path"]), make_provider(bundle["engine"], index, stream)
    session = onnxruntime.InferenceSession(path, make_settings(bundle), providers=[(PROVIDER, wanted)])
    session.disable_fallback()
    if session.get_providers()[:1] != [PROVIDER]:
        raise RuntimeError(f"ONNX Runtime gave {session.get_providers()}, not {PROVIDER}: see its log above")
    return session


def find_host_inputs(session: Any) -> list[str]:
    """Inputs that ONNX Runtime wants in host memory: all, where it (before 1.23.1) does not say."""
    names = [value.name for value in session.get_inputs()]
    told = getattr(session, "get_input_memory_infos", None)
    if told is None:
        return names
    return [name for name, memory in zip(names, told(), strict=True) if memory.name != "Cuda"]


def bind_by_host(binding: Any, buffers: dict[str, gpu.Buffers], names: list[str]) -> None:
    """Binds these anew: they are read there and then, and later values in the same buffer are not seen."""
    for name in names:
        host = buffers[name].host
        binding.bind_input(name, "cpu", 0, host.dtype.type, host.shape, host.ctypes.data)
