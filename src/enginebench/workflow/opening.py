"""Backends opened for a job, and what they build: with the model loader, caches, boards and readers handed in."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from enginebench.core.protocols import NeedsToolReader, ReportsProgress
from enginebench.core.records import Artifact, EngineSpec
from enginebench.workflow.jobs import NoteCall
from enginebench.workflow.reconcile import TENSORRT_ENGINES

if TYPE_CHECKING:
    from enginebench.core.protocols import Backend


def load_module(artifact: Artifact) -> object:
    """The PyTorch module of an artefact; PyTorch is imported by this call, not before."""
    from enginebench.models.torch_source import load_module as load

    return load(artifact)


def open_for(engine: EngineSpec, out_dir: str) -> Backend:
    """The backend of an engine, with the model loader, the folder of its caches and the boards handed in."""
    from enginebench.backends.registry import open_backend
    from enginebench.workflow.fpga import make_board

    backend = open_backend(engine.backend, load_module, Path(out_dir) / "cache", make_board)
    if isinstance(backend, NeedsToolReader):
        from enginebench.workflow.tool_files import ToolFiles

        backend.take_reader(ToolFiles())
    return backend


def build_graph(backend: Backend, artifact: Artifact, engine: EngineSpec, out_dir: str, note: NoteCall) -> Artifact:
    """What the engine loads, built from `artifact`; a quantized graph is looked at before a long build is paid for.

    Raises:
        ArtifactError: TensorRT would refuse a node; names it, and why.
    """
    # ort-tensorrt is none of them: it leaves what TensorRT does not take to other providers, and says so.
    if engine.backend in TENSORRT_ENGINES and artifact.kind == "onnx" and artifact.precision in ("int8", "fp8"):
        _check_for_tensorrt(Path(artifact.path), note)
    return backend.build(artifact, engine, Path(out_dir))


def _check_for_tensorrt(path: Path, note: NoteCall) -> None:
    if find_spec("onnx") is None or find_spec("onnxruntime") is None:
        note("building; the Q/DQ nodes are not looked at before, as that needs onnx and onnxruntime")
        return
    from enginebench.models.precision.graph import load_whole_graph
    from enginebench.models.precision.tensorrt_check import refuse_what_tensorrt_refuses

    refuse_what_tensorrt_refuses(load_whole_graph(path), str(path))


def pass_notes(backend: object, note: NoteCall) -> None:
    """Lets a backend that reports its progress do so."""
    if isinstance(backend, ReportsProgress):
        backend.take_note(note)
