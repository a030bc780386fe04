"""What NVIDIA's lean runtime, which cannot build, shows of `backends/tensorrt.py`: version, names, refused plans.

Needs a GPU, cuda-bindings, numpy, msgspec, and the wheels tensorrt-lean-cu13-bindings and tensorrt-lean-cu13-libs:

    PYTHONPATH=src python3 benchmarks/gpu_tensorrt_lean.py

Every check raises when it fails; the answer is JSON.
"""

from __future__ import annotations

import ast
import ctypes
import importlib
import importlib.util
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from enginebench.core.errors import ArtifactError
from enginebench.core.records import Artifact, EngineSpec
from enginebench.core.store import hash_files

DAMAGED = {
    "empty": b"",
    "text": b"this is no plan at all\n",
    "zeros": bytes(4096),
    "random": np.random.default_rng(0).bytes(1 << 20),
    # The magic of a plan ("ftrt", seen in plans of 8.6 to 11) with nothing behind it.
    "magic only": b"ftrt" + bytes(60),
}


def import_lean() -> Any:
    """The lean bindings, under the name by which our engine imports TensorRT."""
    libraries = importlib.util.find_spec("tensorrt_lean_libs")
    assert libraries is not None and libraries.submodule_search_locations, "tensorrt-lean-cu13-libs is not installed"
    for library in sorted(Path(libraries.submodule_search_locations[0]).glob("libnvinfer_lean.so*")):
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    lean = importlib.import_module("tensorrt_lean_bindings")
    sys.modules["tensorrt"] = lean
    return lean


def list_missing_names(lean: Any) -> list[str]:
    """Names that our engine's files use of TensorRT and the lean runtime lacks."""
    folder = Path(importlib.util.find_spec("enginebench.backends").submodule_search_locations[0])  # type: ignore[union-attr,index]
    used = set()
    for path in sorted(folder.glob("tensorrt*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "trt":
                used.add(node.attr)
    return sorted(name for name in used if not hasattr(lean, name))


def refuse(folder: Path, name: str, content: bytes) -> str:
    """Our engine's words for a plan that is none."""
    from enginebench.backends.tensorrt import TensorRtBackend

    path = folder / f"{name}.plan"
    path.write_bytes(content)
    sha256, files = hash_files([path], folder)
    artifact = Artifact(kind="plan", path=str(path), sha256=sha256, files=files, model=path.name, inputs=(), outputs=())
    spec = EngineSpec(backend="tensorrt", device="cuda:0", precision="fp32", threads=1)
    try:
        TensorRtBackend().load(artifact, spec)
    except ArtifactError as error:
        return str(error)
    raise AssertionError(f"the plan {name!r} was loaded")


def main() -> int:
    """0 if every damaged plan was refused with TensorRT's own words."""
    try:
        lean = import_lean()
    except (AssertionError, ImportError, OSError) as error:
        print(f"not run: {error}")
        return 3
    document: dict[str, object] = {"version": lean.__version__, "missing_names": list_missing_names(lean)}
    print(json.dumps(document), flush=True)
    with TemporaryDirectory() as folder:
        document["refused"] = {name: refuse(Path(folder), name, content) for name, content in DAMAGED.items()}
    print(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
