"""That a GPU which TensorRT for RTX does not support refuses its plans, in plain words: an H200 (9.0), for example.

Builds a plan of the digits' CNN for 8.9, and asks the engine to load it. On a GPU that runs it, it is run.

    PYTHONPATH=src python3 benchmarks/gpu_rtx_refusal.py [PLAN]

Needs a GPU, numpy, msgspec, nvidia-ml-py, cuda-bindings and the two wheels of the extra tensorrt-rtx. With PLAN, built
elsewhere, nothing is built. Every check raises when it fails; the answer is JSON.

The claims of docs/tensorrt-rtx.md rest on this.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from enginebench.core.errors import BackendUnavailable
from enginebench.core.feeds import random_feeds
from enginebench.core.records import Artifact, EngineSpec, TensorSpec
from enginebench.core.store import hash_files
from enginebench.engines.registry import open_backend, probe
from enginebench.models.zoo import DATA_DIR

SPEC = EngineSpec(backend="tensorrt-rtx", device="cuda:0", options={"compute_capability": "8.9"})
INPUT = TensorSpec(name="input", dtype="float32", shape=("batch", 1, 8, 8))
OUTPUT = TensorSpec(name="output", dtype="float32", shape=("batch", 10))


def take_file(path: Path, kind: str) -> Artifact:
    """The file as an artifact."""
    sha256, files = hash_files([path], path.parent)
    fields = {"model": path.name, "path": str(path), "sha256": sha256, "files": files}
    return Artifact(kind=kind, inputs=(INPUT,), outputs=(OUTPUT,), **fields)  # type: ignore[arg-type]


def main() -> int:
    """0 if the plan is refused with the GPU's compute capability, or runs on a GPU that is supported."""
    asked = probe("tensorrt-rtx")
    if asked.version is None:
        print(f"not run: {asked.reason}")
        return 3
    backend = open_backend("tensorrt-rtx")
    document: dict[str, object] = {"version": asked.version, "available": asked.available, "reason": asked.reason}
    with TemporaryDirectory() as folder:
        if len(sys.argv) > 1:
            plan = take_file(Path(sys.argv[1]), "plan")
        else:
            plan = backend.build(take_file(DATA_DIR / "digits-cnn.onnx", "onnx"), SPEC, Path(folder))
        document["plan"] = plan.sha256
        try:
            with backend.load(plan, SPEC) as engine:  # type: ignore[attr-defined]
                engine.bind(random_feeds((INPUT,), 1, 0))
                engine.run()
                document["ran"] = engine.fetch()["output"].tolist()
            assert asked.available, "it ran where doctor says that it cannot"
        except BackendUnavailable as error:
            assert not asked.available, str(error)
            assert error.exit_code == 3 and "cannot run here" in str(error), str(error)
            document["refused"] = str(error)
    print(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
