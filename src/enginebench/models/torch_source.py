"""A MODEL to a `torch` artefact (model text and state dict), and back to the module in any process."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from enginebench.core.errors import ArtifactError, MissingDependency, ModelError, UsageError
from enginebench.core.names import slug
from enginebench.core.records import Artifact, Caveat, Precision, TensorSpec, Weights
from enginebench.core.store import hash_file, hash_files, write_atomic

try:
    import torch
except ModuleNotFoundError as missing:
    raise MissingDependency("PyTorch", 'pip install "enginebench[torch]"') from missing
from torch import nn

from enginebench.models.architectures import (
    FlatOutputs,
    build_module,
    describe_outputs,
    describe_tensors,
    examples_of_shapes,
    name_inputs,
    set_batch,
)
from enginebench.models.pretrained import DownloadFailed, State, fetch_pretrained
from enginebench.models.random_weights import calibrate_batch_norm, reset_parameters, seed_torch
from enginebench.models.task import hash_preprocess
from enginebench.models.zoo import BUILTIN, DATA_DIR, ModelRef, resolve_model

PRECISIONS: dict[torch.dtype, Precision] = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
}
NUMPY_TYPES = frozenset(
    {"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"},
)


class _Filled(msgspec.Struct, frozen=True):
    """Where the weights in a module came from."""

    weights: Weights
    caveats: tuple[Caveat, ...] = ()


def make_torch_artifact(
    model: str,
    out_dir: Path,
    *,
    weights: str = "default",
    seed: int = 0,
    input_size: int | None = None,
    batch: int = 1,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Artifact:
    """The `torch` artefact of a model; its state dict is written into `out_dir`.

    Args:
        model: a built-in name, `timm:NAME` or `package.module:factory`.
        out_dir: folder of the state dict; made if it is not there.
        weights: "default" (trained, pretrained, or the factory's own), "random", or the path of a state dict.
        seed: of everything random: initial weights, and the inputs that calibrate BatchNorm.
        input_size: height and width in pixels, for image models.
        batch: length of axis 0 of the inputs.
        input_shapes: input name to whole shape, in place of the model's own; wins over `batch`.

    Raises:
        UsageError: an unknown model, option or combination.
        ModelError: the model cannot be built or run, or the weights do not fit it.
        MissingDependency: a package is not installed.
    """
    ref = _resolve_for_torch(model)
    if batch < 1 or (input_size is not None and input_size < 1):
        raise UsageError(f"batch {batch} and input size {input_size} must be at least 1")
    with seed_torch(seed):
        module, examples = build_module(ref, input_size)
    examples = _choose_examples(module, examples, input_shapes or {}, batch, model)
    draft = _describe(module, ref, examples, input_size)
    filled = _fill_weights(module, ref, examples, weights, seed)
    path = out_dir / f"{slug(model)}.pt"
    write_state(module, path)
    sha256, files = hash_files([path], out_dir)
    return msgspec.structs.replace(
        draft, path=str(path), sha256=sha256, files=files, weights=filled.weights, caveats=filled.caveats
    )


def load_module(artifact: Artifact) -> nn.Module:
    """The module of a `torch` artefact, in eval mode on the CPU.

    It takes the artefact's inputs in their order, as positional arguments, and answers with one tensor, or with a
    tuple of tensors in the order of the artefact's outputs.

    Raises:
        ArtifactError: the artefact is of another kind, or its state dict is missing or was changed.
        ModelError: the module can no longer be built, or the weights do not fit it.
    """
    if artifact.kind != "torch":
        raise ArtifactError(f"{artifact.path} is of kind {artifact.kind!r}; expected 'torch'")
    path = Path(artifact.path)
    if not path.is_file():
        raise ArtifactError(f"state dict {path} of {artifact.model} is not there. Make the artefact again")
    if hash_file(path) != artifact.sha256:
        raise ArtifactError(f"state dict {path} of {artifact.model} was changed since it was made. Make it again")
    ref = _resolve_for_torch(artifact.model)
    with seed_torch(0):  # initial weights are drawn and then replaced; the caller's generator stays as it is
        module, _ = build_module(ref, _built_size(ref, artifact))
    _load_state(module, _read_state(path), str(path))
    return module.eval()


def _resolve_for_torch(model: str) -> ModelRef:
    ref = resolve_model(model)
    if ref.kind == "onnx":
        raise UsageError(f"{model} is an ONNX file: there is no PyTorch module of it")
    return ref


def _built_size(ref: ModelRef, artifact: Artifact) -> int | None:
    """The input size to rebuild with; only timm's transformers depend on it."""
    axis = artifact.inputs[0].shape[-1]
    return axis if ref.kind == "timm" and isinstance(axis, int) else None


def _choose_examples(
    module: nn.Module,
    examples: tuple[torch.Tensor, ...],
    shapes: Mapping[str, tuple[int, ...]],
    batch: int,
    model: str,
) -> tuple[torch.Tensor, ...]:
    if not examples and not shapes:
        raise UsageError(
            f"{model} brings no example inputs: return (module, (example, ...)) or give --input-shape name:1x3x224x224"
        )
    examples = set_batch(examples, batch)
    return examples_of_shapes(module, examples, shapes) if shapes else examples


def _fill_weights(
    module: nn.Module, ref: ModelRef, examples: tuple[torch.Tensor, ...], weights: str, seed: int
) -> _Filled:
    if weights == "random":
        if ref.kind == "factory":  # it may have loaded weights of its own
            reset_parameters(module, seed)
        return _randomize(module, examples, seed, "asked for by --weights random")
    if weights != "default":
        _load_state(module, _read_state(Path(weights)), weights)
        return _Filled("file")
    if ref.kind == "factory":
        return _Filled("file")
    if ref.kind == "builtin" and BUILTIN[ref.name].task == "digits":
        _load_state(module, _read_state(DATA_DIR / f"{ref.name}.pt"), ref.name)
        return _Filled("trained")
    try:
        _load_state(module, fetch_pretrained(ref), ref.text)
    except DownloadFailed as error:
        return _randomize(module, examples, seed, f"no pretrained ones: {error}")
    return _Filled("pretrained")


def _randomize(module: nn.Module, examples: tuple[torch.Tensor, ...], seed: int, reason: str) -> _Filled:
    try:
        layers = calibrate_batch_norm(module, examples, seed)
    except Exception as error:  # user code: it ran on one batch before, but may not take this one
        raise ModelError(f"BatchNorm cannot be calibrated, the module fails on a batch of 8: {error}") from error
    calibrated = f"; statistics of {layers} BatchNorm layers calibrated on random inputs" if layers else ""
    message = f"weights are random, seed {seed} ({reason}{calibrated})"
    advice = "times hold; agreement of outputs is a smoke test only. Give --weights FILE"
    return _Filled("random", (Caveat(code="random_weights", message=message, advice=advice),))


def write_state(module: nn.Module, path: Path) -> None:
    """Writes the module's state dict; the same weights give the same bytes, whatever the file is called.

    Raises:
        ArtifactError: the file cannot be written.
    """
    inner = module.module if isinstance(module, FlatOutputs) else module
    buffer = io.BytesIO()  # given a path, torch.save stores the file's name inside
    torch.save(inner.state_dict(), buffer)
    write_atomic(path, buffer.getvalue())


def _read_state(path: Path) -> State:
    """The tensors of a state dict file; nothing in it is executed.

    Raises:
        ModelError: no such file, or it is no state dict.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise ModelError(f"weights {path}: no such file; expected default, random, or a state dict") from error
    except Exception as error:  # unpickling, zip, end of file, permission: each of its own kind
        reason = str(error).strip().partition("\n")[0]
        raise ModelError(
            f"weights {path} cannot be read as a state dict: {reason}. Make one with torch.save(m.state_dict(), path)"
        ) from error
    # Training scripts often wrap it: {"state_dict": ..., "epoch": ...}.
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(v, torch.Tensor) for v in state.values()):
        raise ModelError(f"weights {path} hold a {type(state).__name__} of other things; expected names to tensors")
    return state


def _load_state(module: nn.Module, state: State, source: str) -> None:
    inner = module.module if isinstance(module, FlatOutputs) else module
    try:
        inner.load_state_dict(state, strict=True)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:4]]
        raise ModelError(f"weights of {source} do not fit the module: {' '.join(lines)[:400]}") from error


def _describe(module: nn.Module, ref: ModelRef, examples: tuple[torch.Tensor, ...], input_size: int | None) -> Artifact:
    """All but the weights: what it takes and answers, found by running it once."""
    inputs = describe_tensors(name_inputs(module, len(examples)), examples)
    outputs = describe_outputs(module, examples, ref.text)
    _require_numpy_types(ref, (*inputs, *outputs))
    return Artifact(
        kind="torch",
        model=ref.text,
        path="",
        sha256="",
        files=(),
        inputs=inputs,
        outputs=outputs,
        precision=read_module_precision(module),
        preprocess_sha256=hash_preprocess(ref.text, input_size),
        made_by=_read_versions(ref),
    )


def _require_numpy_types(ref: ModelRef, specs: Sequence[TensorSpec]) -> None:
    for spec in specs:
        if spec.dtype not in NUMPY_TYPES:
            raise ModelError(
                f"{ref.text}: {spec.name!r} has dtype {spec.dtype}; expected one that NumPy has. Cast it in the model"
            )


def read_module_precision(module: nn.Module) -> Precision:
    """The precision of most of the module's parameters; "fp32" where it has none."""
    sizes: Counter[torch.dtype] = Counter()
    for parameter in module.parameters():
        sizes[parameter.dtype] += parameter.numel()
    return next((PRECISIONS[dtype] for dtype, _ in sizes.most_common() if dtype in PRECISIONS), "fp32")


def _read_versions(ref: ModelRef) -> dict[str, str]:
    from importlib.metadata import version

    versions = {"torch": str(torch.__version__)}
    if ref.kind == "timm":
        versions |= {"timm": version("timm"), "torchvision": version("torchvision")}
    elif ref.kind == "builtin" and BUILTIN[ref.name].task == "imagenet":
        versions["torchvision"] = version("torchvision")
    return versions
