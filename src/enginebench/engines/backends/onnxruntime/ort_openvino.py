"""`ort-openvino`: ONNX Runtime with OpenVINO's provider, a package of its own, on the CPU."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import onnxruntime

from enginebench.core.errors import BackendUnavailable, EngineBenchError
from enginebench.core.names import require_precision
from enginebench.core.records import Artifact, Availability, EngineSpec
from enginebench.core.store import JsonObject
from enginebench.engines.backends.onnxruntime.entries import ORT_OPENVINO
from enginebench.engines.backends.onnxruntime.ort import read_kernel_times, record_events
from enginebench.engines.backends.onnxruntime.providers import (
    Provider,
    ProviderEngine,
    find_devices,
    open_provider_session,
)
from enginebench.engines.backends.openvino.settings import choose_calm_window, find_node_dtype
from enginebench.engines.openvino_settings import find_hint, list_settings
from enginebench.engines.ort import make_plain_options
from enginebench.engines.proof import Operator, relabel_moves
from enginebench.engines.request import (
    check_graph_precision,
    check_instructions,
    check_request,
    make_availability,
    read_options,
)

NAME, OPTIONS = ORT_OPENVINO.name, ORT_OPENVINO.options
PROVIDER = Provider(engine=NAME, module="onnxruntime_ep_openvino")
DEVICE = "CPU"
PROVIDER_NAME = "OpenVINOExecutionProvider"
# What the provider writes about a node of OpenVINO's own graph into ONNX Runtime's profile.
NODE = "OV::"


class OrtOpenvinoBackend:
    """ONNX artifacts on OpenVINO's CPU plugin, through ONNX Runtime."""

    name = NAME

    def probe(self) -> Availability:
        """Available if the provider's library loads and finds the CPU; with ONNX Runtime's version and its own."""
        try:
            metadata, reason = find_cpu().ep_metadata, None
        except EngineBenchError as error:
            metadata, reason = {}, str(error)
        version = (
            f"{metadata['version'].partition('+')[0]} (onnxruntime {onnxruntime.__version__})" if metadata else None
        )
        return make_availability(NAME, ("cpu",) if metadata else (), version, reason)

    def build(self, artifact: Artifact, spec: EngineSpec, out_dir: Path) -> Artifact:
        """The artifact as it is: OpenVINO compiles while a session is opened. Refuses what `load` would refuse."""
        check_plugin_request(artifact, spec)
        return artifact

    def load(self, artifact: Artifact, spec: EngineSpec) -> OrtOpenvinoEngine:
        """An engine on `spec.threads` threads, all of whose nodes OpenVINO runs."""
        check_plugin_request(artifact, spec)
        return OrtOpenvinoEngine(open_provider(artifact, spec), artifact, spec)


create_backend = OrtOpenvinoBackend


def find_cpu() -> Any:
    devices = find_devices(PROVIDER)
    for device in devices:
        if device.ep_metadata.get("ov_device") == DEVICE:
            return device
    raise BackendUnavailable(
        f"{PROVIDER.module} offers no CPU device here. It supports Intel's processors only; on others "
        "use the engine openvino"
    )


def check_plugin_request(artifact: Artifact, spec: EngineSpec) -> None:
    check_request(artifact, spec, ("onnx",), ORT_OPENVINO.precisions)
    check_graph_precision(artifact, spec)
    options = read_options(spec, OPTIONS)
    if spec.precision == "bf16":
        check_instructions(spec, "BF16" in read_plugin_capabilities(), options["force"] == "1")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if spec.threads > cores:  # it would silently use fewer
        raise BackendUnavailable(f"{NAME} was asked for {spec.threads} threads; the process may use {cores} CPUs")


def read_plugin_capabilities() -> tuple[str, ...]:
    """Return the precisions in which OpenVINO's CPU plugin reports to compute here: FP32, INT8, BF16, ..."""
    return tuple(find_cpu().ep_metadata.get("OPTIMIZATION_CAPABILITIES", "").split())


def make_openvino_options(spec: EngineSpec) -> dict[str, str]:
    """The provider's options: OpenVINO's own settings, for its CPU plugin, as it reads them from JSON."""
    chosen = list_settings(spec.threads, find_hint(require_precision(spec.precision), read_plugin_capabilities()))
    texts = {True: "YES", False: "NO"}
    properties = {key: texts[value] if isinstance(value, bool) else str(value) for key, value in chosen.items()}
    return {"load_config": json.dumps({DEVICE: properties})}


def open_provider(artifact: Artifact, spec: EngineSpec, settings: Any = None) -> Any:
    chosen = read_options(spec, OPTIONS)
    return open_provider_session(artifact, PROVIDER, find_cpu(), make_openvino_options(spec), chosen, settings)


class OrtOpenvinoEngine(ProviderEngine):
    """A session whose nodes OpenVINO runs, on threads of its own."""

    @property
    def threads(self) -> int:
        """The threads that the session's provider gives OpenVINO."""
        _ = self.session  # refuses a closed engine
        return int(self._spec.threads)

    def _record(self) -> list[list[Operator]]:
        opened = partial(open_provider, self._artifact, self._spec)
        settings = make_plain_options(1, read_options(self._spec, OPTIONS)["opt"])
        return split_node_times(record_events(opened, settings, self._feeds))


def split_node_times(events: list[JsonObject]) -> list[list[Operator]]:
    """The nodes of OpenVINO's graph over the calm runs, and the kernels that ONNX Runtime ran itself.

    Source: the Chrome trace of ONNX Runtime 1.31 with onnxruntime-ep-openvino 1.8: an event for each node of OpenVINO's
    graph, with its counter after that run.
    """
    runs: dict[str, list[Operator]] = {}
    for event in events:
        args = event.get("args") or {}
        if str(event.get("name", "")).startswith(NODE) and args.get("ov_status") == "EXECUTED":
            kind = args.get("ov_node_type", "")
            dtype = find_node_dtype(kind, args.get("ov_exec_type", ""))
            node = Operator(dtype, 1e3 * event["dur"], event["name"].removeprefix(NODE), kind)
            runs.setdefault(args.get("ort_correlation_id", ""), []).append(node)
    nodes = choose_calm_window(list(runs.values()))[0] if runs else []
    others = [e for e in events if (e.get("args") or {}).get("provider") != PROVIDER_NAME]
    return [relabel_moves([*nodes, *kernels]) for kernels in read_kernel_times(others)]
