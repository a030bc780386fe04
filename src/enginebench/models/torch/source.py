"""A MODEL to a `torch` artifact (model text and state dict), and back to the module in any process."""

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal, TypeAlias, TypeGuard

import numpy as np
from msgspec.structs import replace

from enginebench.core.array_files import ONLY, read_array_file
from enginebench.core.errors import ArtifactError, FeedError, ModelError, UsageError, importing
from enginebench.core.feeds import random_feeds
from enginebench.core.input_sets import EXAMPLES
from enginebench.core.names import slug
from enginebench.core.protocols import Array
from enginebench.core.records import Artifact, Precision, ResultWarning, ShapeRange, TensorSpec, Weights
from enginebench.core.shapes import concrete_shape, find_batch_axes, format_shape, format_shapes
from enginebench.core.store import copy_file, hash_file, hash_files, write_atomic
from enginebench.core.warnings import make_warning

with importing("PyTorch", 'pip install "enginebench[torch]"'):
    import torch
from torch import nn

from enginebench.core.text import count_of, list_some
from enginebench.models.archives import explain_no_examples
from enginebench.models.downloads import DownloadFailed
from enginebench.models.file_kind import check_weights_file, find_kind_of_file
from enginebench.models.objects import find_object, may_open
from enginebench.models.samples import list_problems, require_names, write_samples
from enginebench.models.task import hash_preprocess
from enginebench.models.torch.architectures import (
    build_module,
    describe_inputs,
    describe_outputs,
    examples_of_shapes,
    name_inputs,
    refuse_input_size,
    set_batch,
    stands_in_list,
)
from enginebench.models.torch.flat import Flat, find_state, holds_script, restore_buffers, take_picture_bytes
from enginebench.models.torch.scripted import describe_inputs as describe_scripted
from enginebench.models.torch.torchvision_import import count_stand_in_calls
from enginebench.models.torch.weights import (
    State,
    Undrawn,
    calibrate_batch_norm,
    draw_zeros,
    fetch_pretrained,
    reset_parameters,
    seed_torch,
)
from enginebench.models.zoo import BUILTIN, HF_PREFIX, ModelRef, find_packaged, resolve_model

PRECISIONS: dict[torch.dtype, Precision] = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
# Where the configuration of a model of transformers stands in its file, beside the state dict.
CONFIG = "config"
# Made-up inputs on which the lengths of the outputs are checked again.
OTHER_SEEDS = (1, 2)
# What the output of an entry may differ by beside another one, as a share of its largest value: more than rounding.
ALIKE = 1e-2
NUMPY_TYPES = ("float32", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")

# What the first axis of the examples is: a batch of any length or of this one alone, or no batch, so that they are run
# as they are.
_First: TypeAlias = Literal["open", "fixed", "whole"]


# The source of the weights in a module, and warnings about them.
_Filled: TypeAlias = tuple[Weights, tuple[ResultWarning, ...]]


def make_torch_artifact(
    model: str,
    out_dir: Path,
    *,
    weights: str = "default",
    seed: int = 0,
    input_size: int | None = None,
    batch: int | None = 1,
    input_shapes: Mapping[str, tuple[int, ...]] | None = None,
    user_inputs: Mapping[str, Array] | None = None,
) -> Artifact:
    """The `torch` artifact of a model; its state dict is written into `out_dir`.

    Args:
        model: as on the command line, or the text of an object that was offered.
        weights: "default" (trained, pretrained, or the factory's own), "random", or the path of a state dict.
        seed: of everything random: initial weights, and the inputs that calibrate BatchNorm.
        batch: length of axis 0 of the inputs; that of the module's own examples if None, or where it takes no other.
        input_shapes: input name to whole shape, in place of the model's own; wins over `batch`.
        user_inputs: for one call, in place of the model's own examples.

    The example inputs of a factory or a module are kept in `out_dir`, too.
    """
    ref, stand_in_calls = _resolve_for_torch(model), count_stand_in_calls()
    if (batch is not None and batch < 1) or (input_size is not None and input_size < 1):
        raise UsageError(f"batch {batch} and input size {input_size} must be at least 1")
    whole = ref.kind in ("object", "pt2", "torchscript")  # a file that holds a module, weights and all: it is copied
    path = out_dir / f"{slug(model)}.{'pt2' if ref.kind == 'pt2' else 'pt'}"
    if whole:
        refuse_input_size(ref, input_size)
        if weights != "default":
            raise UsageError(f"--weights {weights} does not apply to {ref.text}, which brings its own")
        if ref.kind == "object":
            path = out_dir / f"{ref.text.replace('@', '-')}.pkl"
        copy_file(Path(find_object(ref.text).path) if ref.kind == "object" else ref.path, path)
        module, own = _open_whole(ref, path, hash_files([path], out_dir)[0])
    else:
        with seed_torch(seed):
            module, own = build_module(ref, input_size)
    examples = take_given(module, user_inputs, model, own) if user_inputs else own
    examples, first = _choose_examples(module, examples, own, input_shapes or {}, batch, model)
    warnings = list(_reset_state(module, examples))
    if isinstance(module, Flat) and module.came_training:  # its layers behave otherwise there
        warnings.append(make_warning("eval_mode", layers=", ".join(module.came_training)))
    draft = _describe(module, ref, examples, input_size, first)
    if ref.kind == "hf" and not user_inputs and not input_shapes:
        shapes = {spec.name: concrete_shape(spec, 1) for spec in draft.inputs}
        listed = ", ".join(f"{name} {format_shape(shape)}" for name, shape in shapes.items())
        origin, option = "the model's configuration", format_shapes(shapes)
        warnings.append(make_warning("chosen_shapes", source=origin, shapes=listed, option=option))
    filled: _Filled = ("file", ()) if whole else _fill_weights(module, ref, examples, weights, seed)
    if count_stand_in_calls() > stand_in_calls:
        warnings.append(make_warning("environment.torchvision"))
    if ref.kind in ("factory", "object", "pt2") and not input_shapes:
        _keep_examples(module, own, draft, out_dir / EXAMPLES)
    if not whole:
        config = module.module.config.to_json_string(use_diff=False) if ref.kind == "hf" else None  # complete
        write_state(module, path, config)
    sha256, files = hash_files([path], out_dir)
    return replace(
        draft,
        path=str(path),
        sha256=sha256,
        files=files,
        weights=filled[0],
        warnings=(*filled[1], *draft.warnings, *warnings),
    )


def _reset_state(module: nn.Module, examples: tuple[torch.Tensor, ...]) -> tuple[ResultWarning, ...]:
    """Let every call of a module with a state begin with the same one, with a note about it."""
    try:
        state = find_state(module, examples) if isinstance(module, Flat) else ()
    except Exception:  # user code: the function that describes the outputs reports the error
        return ()
    if not state:
        return ()
    module.begin_anew(state)
    return (make_warning("state_restored", buffers=", ".join(state)),)


def _keep_examples(module: nn.Module, examples: tuple[torch.Tensor, ...], described: Artifact, folder: Path) -> None:
    """Write the user's example inputs beside the artifact, for outputs to be compared on them.

    Those of one value say their shape alone. Those whose first axes are not equally long are no entries.
    """
    arrays = {n: e.numpy() for n, e in zip(name_inputs(module, len(examples)), examples, strict=True)}
    varied = any(array.size and (array != array.flat[0]).any() for array in arrays.values())
    axes = find_batch_axes(described.inputs)
    lengths = {arrays[name].shape[axis] for name, axis in axes.items() if axis is not None and name in arrays}
    if varied and len(lengths) < 2 and not list_problems(arrays, described.inputs, axes):
        write_samples([arrays], described.inputs, folder)


def read_state_names(warnings: Sequence[ResultWarning]) -> tuple[str, ...]:
    """The buffers that `_reset_state` found."""
    names = [str(c.figures["buffers"]) for c in warnings if c.template == "state_restored"]
    return tuple(names[0].split(", ")) if names else ()


def _open_whole(ref: ModelRef, path: Path, sha256: str) -> tuple[Flat, tuple[torch.Tensor, ...]]:
    """(the module of such a file, its example inputs)."""
    if ref.kind == "pt2":
        from enginebench.models.torch.exported_program import open_program

        return open_program(path, ref.text)
    if ref.kind == "torchscript":
        from enginebench.models.torch.scripted import open_scripted

        return open_scripted(path, ref.text)
    from enginebench.models.torch.object_source import unpack_module

    if not may_open(sha256):
        raise ModelError(
            f"{path} is a pickle that this program did not write. It is not opened, since that would run the code in "
            "it. Start a new run of the module itself, or of package.module:factory"
        )
    return unpack_module(path, ref.text)


def load_module(artifact: Artifact) -> nn.Module:
    """Load the module of a `torch` artifact, in eval mode on the CPU.

    It takes the artifact's inputs in their order, as positional arguments, and returns one tensor, or a tuple of
    tensors in the order of the artifact's outputs. Every call begins with the state that the module had first.
    """
    module = _load(artifact).requires_grad_(False)  # an output may be a parameter, which is no plain array by itself
    if state := read_state_names(artifact.warnings):
        assert isinstance(module, Flat)  # state is looked for in no other
        module.begin_anew(state)
    if artifact.normalize is not None and artifact.recipe not in ("pt2e", "static"):  # such a program holds it
        normalize = artifact.normalize
        return take_picture_bytes(
            module,
            [spec.name for spec in artifact.inputs],
            input=normalize.input,
            shape=normalize.shape,
            mean=normalize.mean,
            std=normalize.std,
        )
    return module


def load_weights(model: str, weights: Path, input_size: int | None) -> nn.Module:
    """Build a model that is known by name, with the weights of a file, and without drawing others first."""
    with seed_torch(0), Undrawn():
        module, _ = build_module(_resolve_for_torch(model), input_size)
    return _load_state(module, _read_state(weights), str(weights))


def _load(artifact: Artifact) -> nn.Module:
    if artifact.kind != "torch":
        raise ArtifactError(f"{artifact.path} is of kind {artifact.kind!r}; expected 'torch'")
    path = Path(artifact.path)
    if not path.is_file():
        raise ArtifactError(f"state dict {path} of {artifact.model} does not exist. Make the artifact again")
    if hash_file(path) != artifact.sha256:
        raise ArtifactError(f"state dict {path} of {artifact.model} was changed since it was made. Make it again")
    if artifact.recipe == "pt2e":
        from enginebench.models.torch.eight_bits import import_pt2e

        import_pt2e()
    elif artifact.model.startswith(HF_PREFIX):  # its configuration stands beside its weights: no network is needed
        from enginebench.models.torch.hugging_face import restore_hf

        stored = torch.load(path, map_location="cpu", weights_only=True)
        with seed_torch(0), Undrawn():
            module = restore_hf(stored[CONFIG], artifact.model)
        return _load_state(module, stored["state_dict"], artifact.path)
    kind = find_kind_of_file(path)
    if kind in ("pt2", "torchscript"):  # the file in the run's folder: the user's own may be gone
        return _open_whole(ModelRef(kind=kind, text=artifact.model, name=str(path)), path, artifact.sha256)[0]
    ref = _resolve_for_torch(artifact.model)
    if ref.kind == "object":
        return _open_whole(ref, path, artifact.sha256)[0]
    side = artifact.inputs[0].shape[-1]
    size = side if ref.kind == "timm" and isinstance(side, int) else None  # only timm's transformers depend on it
    # All weights are replaced; a user's factory may draw what it does not store. The caller's generator stays as it is.
    with seed_torch(0), nullcontext() if ref.kind == "factory" else Undrawn():
        module, _ = build_module(ref, size)
    return _load_state(module, _read_state(path), str(path))


def _resolve_for_torch(model: str) -> ModelRef:
    if (ref := resolve_model(model)).kind == "onnx":
        raise UsageError(f"{model} is an ONNX file: there is no PyTorch module of it")
    return ref


def _choose_examples(
    module: nn.Module,
    examples: tuple[torch.Tensor, ...],
    own: tuple[torch.Tensor, ...],
    shapes: Mapping[str, tuple[int, ...]],
    batch: int | None,
    model: str,
) -> tuple[tuple[torch.Tensor, ...], _First]:
    """(the examples in the shapes and the batch asked for, else in those that the module takes; their first axis).

    `own` are the module's own examples, where the user's inputs have taken their place. A batch of None is theirs.
    """
    if batch is None:
        chosen, first = _choose_examples(module, examples, own, shapes, 1, model)
        length = own[0].shape[0] if own and own[0].ndim else 1
        if first != "open" or shapes or length == 1:
            return chosen, first
        return examples if examples[0].shape[0] == length else set_batch(examples, length), first
    if not examples and not shapes:
        if isinstance(module, Flat) and holds_script(module.module):
            raise UsageError(explain_no_examples(model, describe_scripted(module.module)))
        raise UsageError(
            f"{model} brings no example inputs: return (module, (example, ...)) or give --input-shape name:1x3x224x224 "
            "(`build` has no such option: `export` with it first)"
        )
    if stands_in_list(module):
        return examples_of_shapes(module, examples, shapes) if shapes else examples, "whole"
    changed = set_batch(examples, batch)
    if shapes:
        return examples_of_shapes(module, changed, shapes), "open"
    same = all(a.shape == b.shape for a, b in zip(examples, changed, strict=True))
    if not examples[0].ndim or (same and not isinstance(module, Flat)):
        return changed, "open"
    if not same and _run(module, changed) is not None and _holds_batch(module, examples):
        return changed, "open"
    for attempt in (examples, set_batch(examples, own[0].shape[0]) if own and own[0].ndim else examples):
        outputs = _run(module, attempt)
        if outputs is None:
            continue
        length = attempt[0].shape[0]
        if _run(module, set_batch(attempt, length + 1)) is not None:  # what it refuses is not another batch
            return (attempt, "whole") if batch == 1 and not same else (changed, "open")
        if any(tensor.shape[:1] == (length,) for tensor in outputs):
            return attempt, "fixed"
        return attempt, "open" if same else "whole"
    return examples, "whole"  # the error follows when the outputs are described


def _holds_batch(module: nn.Module, examples: tuple[torch.Tensor, ...]) -> bool:
    """Whether the entries on the first axis are apart: the second has the same outputs alone as behind the first.

    Steps of a sequence have others, such as those of `nn.LSTM`, whose first axis is time. Random outputs tell nothing.
    """
    length = examples[0].shape[0]
    parts = [[e[part] if e.shape[:1] == (length,) else e for e in examples] for part in (slice(2), slice(1, 2))]
    both, alone, again = (_run(module, parts[i]) for i in (0, 1, 1))
    if length < 2 or both is None or alone is None or again is None:
        return True
    comparable = [
        (pair[1:], single)
        for pair, single, same in zip(both, alone, again, strict=False)
        if single.shape[:1] == (1,)
        and pair.shape == (2, *single.shape[1:])
        and single.numel()
        and torch.equal(single, same)
    ]
    if not comparable:
        return [tensor.shape for tensor in both] != [tensor.shape for tensor in alone]
    floats = ((a - b, b) for a, b in comparable if b.is_floating_point())
    return all(float(apart.nan_to_num().abs().max()) <= ALIKE * float(b.abs().max()) for apart, b in floats)


def _run(module: nn.Module, examples: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
    """Return the outputs; None if the module does not run on such examples."""
    try:
        with restore_buffers(module), torch.inference_mode():
            returned = module(*(example.clone() for example in examples))
            return [returned] if isinstance(returned, torch.Tensor) else list(returned)
    except Exception:  # user code, or shapes that the layers refuse
        return None


def take_given(
    module: nn.Module, arrays: Mapping[str, Array], model: str, own: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """The user's arrays as example inputs, in the order and in the dtypes of the module's `own`."""
    names = name_inputs(module, len(arrays))
    named = {names[0]: arrays[ONLY]} if set(arrays) == {ONLY} else arrays
    require_names(model, names, named)
    taken = tuple(torch.from_numpy(np.array(named[name])) for name in names)
    pairs = zip(names, taken, own or taken, strict=True)
    if mismatches := [f"{name} has {a.dtype}, not {b.dtype}" for name, a, b in pairs if a.dtype != b.dtype]:
        raise FeedError(f"--inputs does not fit {model}: {'; '.join(mismatches)}. Convert the arrays with astype")
    return taken


def _fill_weights(
    module: nn.Module, ref: ModelRef, examples: tuple[torch.Tensor, ...], weights: str, seed: int
) -> _Filled:
    if weights == "random":
        if ref.kind == "factory":  # it may have loaded weights of its own
            reset_parameters(module, seed)
        return _randomize(module, examples, seed, "because of --weights random")
    if weights != "default":
        _load_state(module, _read_state(Path(weights)), weights)
    if weights != "default" or ref.kind == "factory":
        return "file", ()
    if ref.kind == "builtin" and (path := BUILTIN[ref.name].weights_file) is not None:
        _load_state(module, _read_state(find_packaged(path) or Path(path)), ref.name)
        return "trained", ()
    fetch = fetch_pretrained
    if ref.kind == "hf":
        from enginebench.models.torch.hugging_face import fetch_hf as fetch
    try:
        _load_state(module, fetch(ref), ref.text)
    except DownloadFailed as error:
        return _randomize(module, examples, seed, f"no pretrained ones: {error}")
    return "pretrained", ()


def _randomize(module: nn.Module, examples: tuple[torch.Tensor, ...], seed: int, reason: str) -> _Filled:
    drawn = draw_zeros(module, seed)
    try:
        layers = calibrate_batch_norm(module, examples, seed)
        calibrated = (
            f"; statistics of {count_of(layers, 'BatchNorm layers')} calibrated on random inputs" if layers else ""
        )
    except Exception as error:  # user code: it ran in eval mode before, but may not with BatchNorm in train mode
        calibrated = f"; statistics of BatchNorm are the initial ones, since the module fails in train mode: {error}"
    filled = f"; {count_of(drawn, 'tensors')} of zeros drawn at random" if drawn else ""
    return "random", (make_warning("random_weights", seed=seed, reason=f"{reason}{calibrated}{filled}"),)


def write_state(module: nn.Module, path: Path, config: str | None = None) -> None:
    """Write the module's state dict, and `config` beside it; the same weights give the same bytes in any file."""
    state = (module.module if isinstance(module, Flat) else module).state_dict()
    others = {name: value for name, value in state.items() if not isinstance(value, torch.Tensor)}
    if others:
        named = list_some([f"{name} ({type(value).__name__})" for name, value in others.items()])
        raise ModelError(
            f"the module's state dict holds more than tensors: {named}. PyTorch's own quantization leaves "
            "such values: give the module before it, and let int8 of --precisions quantize it"
        )
    buffer = io.BytesIO()  # given a path, torch.save stores the file's name inside
    torch.save(state if config is None else {"state_dict": state, CONFIG: config}, buffer)
    write_atomic(path, buffer.getvalue())


def _read_state(path: Path) -> State:
    """The tensors of a state dict file; nothing in it is executed."""
    if path.is_file() and path.suffix != ".npz":
        check_weights_file(path)
    try:
        if path.suffix == ".npz":  # of a bundle, which holds no pickle
            stored = read_array_file(path, "the arrays of a bundle", compressed=False)
            return {name: torch.from_numpy(array) for name, array in stored.items()}
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise ModelError(f"weights {path}: no such file; expected default, random, or a state dict") from error
    except Exception as error:  # unpickling, zip, end of file, permission: each of its own kind
        reason = str(error).strip().partition("\n")[0]
        if isinstance(error, UnpicklingError):  # PyTorch's sentence is on what we do not do, in bold
            reason = "it holds other Python objects, or is no file of torch.save"
        raise ModelError(
            f"weights {path} cannot be read as a state dict: {reason}. Make one with torch.save(m.state_dict(), path)"
        ) from error
    return _unwrap_state(state, path)


def _unwrap_state(state: Any, path: Path) -> State:
    """The state dict that a training script put into a checkpoint: `{"state_dict": ..., "epoch": ...}`, or under any
    other key, if there is no second one."""
    if _is_state(state):
        return state
    held = f"a {type(state).__name__}"
    if isinstance(state, dict):
        states = {key: value for key, value in state.items() if value and _is_state(value)}
        if "state_dict" in states or len(states) == 1:
            return states["state_dict" if "state_dict" in states else next(iter(states))]
        held += f" of {list_some([repr(key) for key in state])}"
        if states:
            held += f", of which {list_some([repr(key) for key in states])} are state dicts"
    raise ModelError(
        f"weights {path} hold {held}; expected names to tensors. Save one state dict alone: torch.save(m.state_dict(), "
        "path)"
    )


def _is_state(value: Any) -> TypeGuard[State]:
    return isinstance(value, dict) and all(isinstance(v, torch.Tensor) for v in value.values())


def _load_state(module: nn.Module, state: State, source: str) -> nn.Module:
    try:
        (module.module if isinstance(module, Flat) else module).load_state_dict(state, strict=True)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:4]]
        raise ModelError(f"weights of {source} do not fit the module: {' '.join(lines)[:400]}") from error
    return module


def _describe(
    module: nn.Module, ref: ModelRef, examples: tuple[torch.Tensor, ...], input_size: int | None, first: _First
) -> Artifact:
    """Describe everything but the weights: the inputs and outputs, found by running the module."""
    outputs = describe_outputs(module, examples, ref.text)
    inputs = describe_inputs(module, examples, fixed=first == "whole")
    for spec in (*inputs, *outputs):
        if spec.dtype not in NUMPY_TYPES:
            raise ModelError(
                f"{ref.text}: {spec.name!r} has dtype {spec.dtype}, which no engine takes. Cast it in the model; "
                f"known: {', '.join(NUMPY_TYPES)}"
            )
    outputs = _open_lengths(module, inputs, outputs, examples)
    precision, warnings = _read_precision(module, (*inputs, *outputs))
    batched = find_batch_axes(inputs) if first == "fixed" else {}
    shapes = {spec.name: concrete_shape(spec, 1) for spec in inputs if batched.get(spec.name) is not None}
    return Artifact(
        kind="torch",
        model=ref.text,
        path="",
        sha256="",
        files=(),
        inputs=inputs,
        outputs=outputs,
        precision=precision,
        allowed={name: ShapeRange(smallest=shape, largest=shape) for name, shape in shapes.items()},  # that batch alone
        preprocess_sha256=hash_preprocess(ref.text, input_size),
        made_by=_read_versions(ref),
        warnings=warnings,
    )


def _open_lengths(
    module: nn.Module,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    examples: tuple[torch.Tensor, ...],
) -> tuple[TensorSpec, ...]:
    """The outputs with a name for each axis that is of another length on other values."""
    fixed = [replace(spec, shape=tuple(example.shape)) for spec, example in zip(inputs, examples, strict=True)]
    for seed in OTHER_SEEDS:
        feeds = random_feeds(fixed, 1, seed)
        actual = _run(module, [torch.from_numpy(feeds[spec.name]) for spec in inputs])  # None: it refuses made-up ones
        if actual is None or [tensor.ndim for tensor in actual] != [len(spec.shape) for spec in outputs]:
            return outputs
        named = [
            tuple(axis if axis == tensor.shape[i] else f"{spec.name}_{i}" for i, axis in enumerate(spec.shape))
            for spec, tensor in zip(outputs, actual, strict=True)
        ]
        outputs = tuple(replace(spec, shape=shape) for spec, shape in zip(outputs, named, strict=True))
    return outputs


def _read_precision(module: nn.Module, ends: Sequence[TensorSpec]) -> tuple[Precision, tuple[ResultWarning, ...]]:
    """(the precision of most of the parameters, "fp32" without any; the warning that most floats are FP64).

    Where there are no parameters, the floats are those of the inputs and outputs.
    """
    sizes: Counter[torch.dtype] = Counter()
    for parameter in module.parameters():
        sizes[parameter.dtype] += parameter.numel()
    precision: Precision = next((PRECISIONS[dtype] for dtype, _ in sizes.most_common() if dtype in PRECISIONS), "fp32")
    floats = Counter({str(d).removeprefix("torch."): n for d, n in sizes.items() if d.is_floating_point})
    floats = floats or Counter(spec.dtype for spec in ends if spec.dtype.startswith("float"))
    double = make_warning("unnamed_precision", what="most floats of the model are FP64", precision=precision)
    warnings = [double] if 2 * floats["float64"] > floats.total() else []
    return precision, tuple(warnings)


def _read_versions(ref: ModelRef) -> dict[str, str]:
    from importlib.metadata import version

    versions = {"torch": str(torch.__version__)}
    if ref.kind == "timm":
        versions |= {"timm": version("timm"), "torchvision": version("torchvision")}
    elif ref.kind == "hf":
        versions["transformers"] = version("transformers")
    elif ref.kind == "builtin":
        card = BUILTIN[ref.name]
        package = "torchvision" if card.source is None else card.package
        versions |= {package: version(package)} if package else {}
    return versions
