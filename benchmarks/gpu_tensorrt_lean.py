"""What NVIDIA's lean runtime, which cannot build, shows of engine `tensorrt`: version, names, refused plans and builds.

The engine finds the lean runtime by itself where all of TensorRT is not installed; this goes in through that door.

Needs a GPU, cuda-bindings, numpy, msgspec, and the wheels tensorrt-lean-cu13-bindings and tensorrt-lean-cu13-libs:

    PYTHONPATH=src python3 benchmarks/gpu_tensorrt_lean.py

Every check raises when it fails; the answer is JSON.

The claims of docs/tensorrt.md rest on this.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from enginebench.core.errors import ArtifactError, BackendUnavailable
from enginebench.core.records import Artifact, EngineSpec
from enginebench.core.store import hash_files
from enginebench.engines.registry import open_backend, probe
from enginebench.engines.tensorrt_library import import_tensorrt, is_lean

DAMAGED = {
    "empty": b"",
    "text": b"this is no plan at all\n",
    "zeros": bytes(4096),
    "random": np.random.default_rng(0).bytes(1 << 20),
    # The magic of a plan ("ftrt", seen in plans of 8.6 to 11) with nothing behind it.
    "magic only": b"ftrt" + bytes(60),
}
SPEC = EngineSpec(backend="tensorrt", device="cuda:0", precision="fp32", threads=1)


def find_lean() -> Any:
    """The module that the engine imports.

    Raises:
        AssertionError: it is all of TensorRT, which hides the lean runtime.
    """
    trt = import_tensorrt()
    assert is_lean(trt), f"all of TensorRT {trt.__version__} is installed, so that the lean runtime is not used"
    return trt


def list_missing_names(lean: Any) -> list[str]:
    """Names that our engine's files use of TensorRT and the lean runtime lacks."""
    folder = Path(importlib.util.find_spec("enginebench.engines.backends.tensorrt").submodule_search_locations[0])  # type: ignore[union-attr,index]
    used = set()
    for path in sorted(folder.glob("*.py")):
        if path.name == "rtx.py":  # of another library
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", getattr(node.value, "attr", "")) == "trt":
                used.add(node.attr)
    return sorted(name for name in used if not hasattr(lean, name))


def refuse_plan(folder: Path, name: str, content: bytes) -> str:
    """Our engine's words for a plan that is none."""
    path = folder / f"{name}.plan"
    path.write_bytes(content)
    sha256, files = hash_files([path], folder)
    artifact = Artifact(kind="plan", path=str(path), sha256=sha256, files=files, model=path.name, inputs=(), outputs=())
    try:
        open_backend("tensorrt").load(artifact, SPEC)  # type: ignore[attr-defined]
    except ArtifactError as error:
        return str(error)
    raise AssertionError(f"the plan {name!r} was loaded")


def refuse_build(folder: Path) -> str:
    """Our engine's words where a graph is to be built."""
    path = folder / "any.onnx"
    path.write_bytes(b"not looked at")
    graph = Artifact(kind="onnx", path=str(path), sha256="", files=(), model=path.name, inputs=(), outputs=())
    try:
        open_backend("tensorrt").build(graph, SPEC, folder)
    except BackendUnavailable as error:
        return str(error)
    raise AssertionError("the lean runtime built a plan")


def main() -> int:
    """0 if the engine says what it is, refuses to build, and refuses every damaged plan with TensorRT's own words."""
    try:
        lean = find_lean()
    except (AssertionError, ImportError, OSError) as error:
        print(f"not run: {error}")
        return 3
    asked = probe("tensorrt")
    assert asked.available, asked.reason
    assert asked.reason is not None and "lean runtime" in asked.reason, asked.reason
    document: dict[str, object] = {
        "version": asked.version,
        "devices": asked.devices,
        "reason": asked.reason,
        "missing_names": list_missing_names(lean),
    }
    print(json.dumps(document), flush=True)
    with TemporaryDirectory() as folder:
        document["build"] = refuse_build(Path(folder))
        document["refused"] = {name: refuse_plan(Path(folder), name, content) for name, content in DAMAGED.items()}
    print(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
