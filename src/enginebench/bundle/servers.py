"""What a bundle may hold beside itself for whoever serves it: a Triton repository, KServe's metadata, a Dockerfile."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from enginebench.bundle.record import Bundle
from enginebench.bundle.triton import FIXED, LAYOUTS, takes_batches, write_triton
from enginebench.core.errors import UsageError
from enginebench.core.names import slug
from enginebench.core.records import TensorSpec
from enginebench.core.store import write_atomic

FORMS = ("bundle", "triton", "kserve", "dockerfile")
# NumPy's names of types -> those of the Open Inference Protocol, version 2.
# Source: kserve/open-inference-protocol, specification/protocol/inference_rest.md, "Tensor Data Types".
TYPES = {
    "bool": "BOOL",
    "str": "BYTES",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


def check_forms(forms: Sequence[str]) -> None:
    """Checks that all are known.

    Raises:
        UsageError: one is not.
    """
    unknown = [form for form in forms if form not in FORMS]
    if unknown:
        raise UsageError(f"unknown form {', '.join(unknown)} of a bundle; known: {', '.join(FORMS)}")


def add_forms(stage: Path, bundle: Bundle, forms: Sequence[str]) -> None:
    """Writes what was asked for beside a whole, sealed bundle."""
    if "triton" in forms:
        write_triton(stage, bundle)
    if "kserve" in forms:
        document = json.dumps(describe_model(bundle), indent=2)
        write_atomic(stage / "kserve" / "metadata.json", document.encode())
    if "dockerfile" in forms:
        write_atomic(stage / "Dockerfile", format_dockerfile(bundle).encode())


def describe_model(bundle: Bundle) -> dict[str, object]:
    """The answer to `GET v2/models/NAME` of the Open Inference Protocol. An axis of any length is -1."""
    chooser = LAYOUTS[bundle.artifact.kind].chooser
    return {
        "name": slug(f"{bundle.model}-{bundle.engine.backend}"),
        "versions": ["1"],
        "platform": chooser.split('"')[1],
        "inputs": [_describe_tensor(spec, bundle) for spec in bundle.artifact.inputs],
        "outputs": [_describe_tensor(spec, bundle) for spec in bundle.artifact.outputs],
    }


def _describe_tensor(spec: TensorSpec, bundle: Bundle) -> dict[str, object]:
    shape = [axis if isinstance(axis, int) else -1 for axis in spec.shape]
    free = bundle.artifact.kind == "torch" and takes_batches(bundle)
    return {"name": spec.name, "datatype": TYPES[spec.dtype], "shape": [-1, *shape[1:]] if free else shape}


def format_dockerfile(bundle: Bundle) -> str:
    """A Dockerfile over Python's own image: wheels bring their runtime, on a GPU CUDA too; the driver is the host's."""
    python = ".".join((bundle.machine.versions.get("python", "3.11") if bundle.machine else "3.11").split(".")[:2])
    torch = bundle.requirements.get("torch", "")
    index = f" --extra-index-url https://download.pytorch.org/whl/{torch.partition('+')[2]}" if "+" in torch else ""
    gpu = bundle.engine.device != "cpu"
    lines = [
        f"# {bundle.row}, delivered by EngineBench.",
        f"FROM python:{python}-slim",
        *(["RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*"]
          if bundle.engine.backend in FIXED[:1] else []),
        *(["ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility"] if gpu else []),
        "WORKDIR /bundle",
        "COPY requirements.txt .",
        f"RUN pip install --no-cache-dir -r requirements.txt{index}",
        *([f'RUN pip install --no-cache-dir "onnxruntime-gpu[cuda,cudnn]=={bundle.requirements["onnxruntime-gpu"]}"']
          if "onnxruntime-gpu" in bundle.requirements and gpu else []),
        "COPY . .",
        'CMD ["python", "predict.py", "--check", "--bench"]',
        "",
    ]  # fmt: skip
    return "\n".join(lines)
