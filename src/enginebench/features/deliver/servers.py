"""Write the files of servers beside a bundle: a Triton repository, KServe's metadata, a Dockerfile."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from enginebench.core.errors import UsageError
from enginebench.core.names import slug
from enginebench.core.records import TensorSpec
from enginebench.core.shapes import BATCH_AXIS, concrete_shape, find_batch_axes, free_batch
from enginebench.core.store import BUNDLE, write_atomic
from enginebench.features.deliver.writing import PROGRAMS
from enginebench.runs.bundles import Bundle

FOLDER = "triton"
VERSION = "1"
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
# NumPy's names of types -> Triton's.
TRITON_TYPES = {name: f"TYPE_{'STRING' if name == 'str' else kind}" for name, kind in TYPES.items()}


# Kind of model -> the line by which Triton finds its backend, and the file's name that the backend expects.
LAYOUTS = {
    "onnx": ('platform: "onnxruntime_onnx"', "model.onnx"),
    "plan": ('platform: "tensorrt_plan"', "model.plan"),
    "openvino": ('backend: "openvino"', "model.xml"),
    "torch": ('backend: "python"', "model.py"),
    "aoti": ('backend: "python"', "model.py"),
}
# Compiled or captured for the shapes that were measured: for others it would be made anew within a request.
FIXED = ("pytorch-compile", "pytorch-aoti", "pytorch-cudagraph")


def write_triton(stage: Path, bundle: Bundle) -> None:
    """Write `triton/NAME/config.pbtxt` and the model beside it. `stage` holds a whole, sealed bundle.

    A PyTorch module uses the Python backend, and needs the bundle: the LibTorch backend wants TorchScript, which was
    not measured.
    """
    name = slug(f"{bundle.model}-{bundle.engine.backend}")
    home = stage / FOLDER / name / VERSION
    file = LAYOUTS[bundle.artifact.kind][1]
    if bundle.artifact.kind in ("torch", "aoti"):
        copies = {path: path for path in (*(f.path for f in bundle.files), BUNDLE)}
    else:  # under the name that the backend expects; files beside the model keep theirs, but a `.bin` of OpenVINO
        model = Path(bundle.artifact.path)
        copies = {(model.parent / f.path).as_posix(): f.path for f in bundle.artifact.files}
        copies[model.as_posix()] = file
        if model.suffix == ".xml" and (weights := model.with_suffix(".bin").as_posix()) in copies:
            copies[weights] = str(Path(file).with_suffix(".bin"))
    for source, target in copies.items():
        (home / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(stage / source, home / target)
    if bundle.artifact.kind in ("torch", "aoti"):
        write_atomic(home / file, (PROGRAMS / "triton_model.py").read_bytes())
    write_atomic(stage / FOLDER / name / "config.pbtxt", format_config(name, bundle).encode())


def format_config(name: str, bundle: Bundle) -> str:
    """Format the text of `config.pbtxt`.

    It has one instance, as in the measurement: more would share its cores or its GPU, and only a load test shows how
    many pay.
    """
    batched = takes_batches(bundle)
    largest = bundle.engine.batch if batched else 0
    sizes = dict.fromkeys(list_batch_names(bundle.artifact.inputs), bundle.engine.batch)
    kind, _, index = bundle.engine.device.partition(":")
    instances = f"kind: KIND_GPU gpus: [ {index or 0} ]" if kind == "cuda" else "kind: KIND_CPU"
    lines = [
        f"# {bundle.row}, delivered by EngineBench. The measured figures are not those of a server.",
        f"name: {json.dumps(name)}",
        LAYOUTS[bundle.artifact.kind][0],
        f"max_batch_size: {largest}",
        *(_format_tensor("input", spec, batched, sizes) for spec in bundle.artifact.inputs),
        *(_format_tensor("output", spec, batched, sizes) for spec in bundle.artifact.outputs),
        *([f"dynamic_batching {{ preferred_batch_size: [ {largest} ] }}"] if largest > 1 else []),
        f"instance_group [ {{ count: 1 {instances} }} ]",
        *_format_parameters(bundle),
        _format_warmup(bundle, batched),
    ]
    return "\n".join([*lines, ""])


def takes_batches(bundle: Bundle) -> bool:
    """Whether Triton may join requests along the first axis: it is the batch of every tensor, and any length of it."""
    artifact = bundle.artifact if bundle.engine.backend in FIXED else free_batch(bundle.artifact)
    axes, fewest = find_batch_axes(artifact.inputs), [allowed.smallest[0] for allowed in artifact.allowed.values()]
    return (
        all(axes[s.name] == 0 and isinstance(s.shape[0], str) for s in artifact.inputs)
        and all(s.shape and s.shape[0] in list_batch_names(artifact.inputs) for s in artifact.outputs)
        and max(fewest, default=1) <= 1
    )


def list_batch_names(inputs: Sequence[TensorSpec]) -> set[int | str]:
    """The names of axes that are a batch; an output's other open axes are as long as its values make them."""
    axes = find_batch_axes(inputs)
    names = {spec.shape[i] for spec in inputs if (i := axes[spec.name]) is not None and isinstance(spec.shape[i], str)}
    return names | {BATCH_AXIS} if names else names


def _format_tensor(side: str, spec: TensorSpec, batched: bool, sizes: Mapping[int | str, int]) -> str:
    # As Triton counts them: without the batch where it joins requests; -1 is open.
    axes = [axis if isinstance(axis, int) else sizes.get(axis, -1) for axis in spec.shape[batched:]]
    # Triton requires an axis beside the batch; `reshape` hides it from a model without one.
    # Source: ValidateIOShape in triton-inference-server/core, src/model_config_utils.cc.
    dims = f"dims: [ {', '.join(map(str, axes))} ]" if axes or not batched else "dims: [ 1 ] reshape { shape: [ ] }"
    return f"{side} [ {{ name: {json.dumps(spec.name)} data_type: {TRITON_TYPES[spec.dtype]} {dims} }} ]"


def _format_parameters(bundle: Bundle) -> Iterator[str]:
    """Format the configuration's settings for which the backend has names."""
    threads, settings = str(bundle.engine.threads), dict[str, str]()
    if bundle.artifact.kind == "onnx":
        settings = {"intra_op_thread_count": threads, "inter_op_thread_count": "1", "execution_mode": "0"}
    elif bundle.artifact.kind == "openvino":
        settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": "1", "PERFORMANCE_HINT": "LATENCY"}
        settings |= {"HINT_BF16": "YES"} if bundle.engine.precision == "bf16" else {}
    for key, value in settings.items():
        yield f"parameters {{ key: {json.dumps(key)} value: {{ string_value: {json.dumps(value)} }} }}"
    level = {"basic": -1, "extended": 1, "none": 2}.get(bundle.engine.options.get("opt", "all"))
    if bundle.artifact.kind == "onnx" and level is not None:
        yield f"optimization {{ graph {{ level: {level} }} }}"


def _format_warmup(bundle: Bundle, batched: bool) -> str:
    """Format one request before the first real one, in the measured shapes."""
    inputs = []
    for spec in bundle.artifact.inputs:
        dims = ", ".join(map(str, concrete_shape(spec, bundle.engine.batch)[batched:] or [1]))
        data = "random_data" if spec.dtype.startswith("float") else "zero_data"
        inputs.append(
            f"inputs {{ key: {json.dumps(spec.name)} "
            f"value: {{ data_type: {TRITON_TYPES[spec.dtype]} dims: [ {dims} ] {data}: true }} }}"
        )
    size = bundle.engine.batch if batched else 1
    return f'model_warmup [ {{ name: "first call" batch_size: {size} {" ".join(inputs)} }} ]'


FORMS = ("bundle", "triton", "kserve", "dockerfile")


def check_forms(forms: Sequence[str]) -> None:
    if unknown := [form for form in forms if form not in FORMS]:
        raise UsageError(f"unknown form {', '.join(unknown)} of a bundle; known: {', '.join(FORMS)}")


def add_forms(stage: Path, bundle: Bundle, forms: Sequence[str]) -> None:
    """Write the requested servers' files beside a whole, sealed bundle."""
    if "triton" in forms:
        write_triton(stage, bundle)
    if "kserve" in forms:
        document = json.dumps(describe_model(bundle), indent=2)
        write_atomic(stage / "kserve" / "metadata.json", document.encode())
    if "dockerfile" in forms:
        write_atomic(stage / "Dockerfile", format_dockerfile(bundle).encode())


def describe_model(bundle: Bundle) -> dict[str, object]:
    """Return the response to `GET v2/models/NAME` of the Open Inference Protocol. An axis of any length is -1."""
    return {
        "name": slug(f"{bundle.model}-{bundle.engine.backend}"),
        "versions": ["1"],
        "platform": LAYOUTS[bundle.artifact.kind][0].split('"')[1],
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
        *(
            ["RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*"]
            if bundle.engine.backend in FIXED[:1]
            else []
        ),
        *(["ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility"] if gpu else []),
        "WORKDIR /bundle",
        "COPY requirements.txt .",
        f"RUN pip install --no-cache-dir -r requirements.txt{index}",
        *(
            [f'RUN pip install --no-cache-dir "onnxruntime-gpu[cuda,cudnn]=={bundle.requirements["onnxruntime-gpu"]}"']
            if "onnxruntime-gpu" in bundle.requirements and gpu
            else []
        ),
        "COPY . .",
        'CMD ["python", "predict.py", "--check", "--bench"]',
        "",
    ]
    return "\n".join(lines)
