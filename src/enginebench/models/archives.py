"""Read the inputs or weights of a module from the archive that PyTorch stored it in.

Nothing is run or unpickled; needs no PyTorch.
"""

import ast
import io
import itertools
import json
import math
import pickletools
import re
import zipfile
from pathlib import Path

import msgspec
from msgspec import Struct

from enginebench.core.errors import ModelError, explaining
from enginebench.core.records import TensorSpec
from enginebench.core.trees import INPUT

# The largest member that is read: beyond it the inputs are found out once the module is loaded.
_MOST_BYTES = 64 << 20
# A side of the pictures in a suggestion: most networks that take pictures take these.
_SIDE = 224
# Errors of a damaged or foreign archive: its module says what is wrong when it is loaded.
_DAMAGE = (OSError, ValueError, RuntimeError, NotImplementedError, LookupError, SyntaxError, zipfile.BadZipFile)
# Buffers of BatchNorm, which a count of parameters leaves out.
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
# Members with the graph of an exported program. Source: PyTorch 2.13, torch/export/pt2_archive/constants.py, and
# torch/export/__init__.py of those before 2.8.
_GRAPHS = ("models/model.json", "serialized_exported_program.json")
# Source: PyTorch 2.13, torch/_export/serde/schema.py: ScalarType.
_DTYPES = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    12: "bool",
}


class ScriptInputs(Struct, frozen=True):
    """The arguments that `forward` needs, and the shape of one sample that the first weight takes; () if none does."""

    names: tuple[str, ...]
    shape: tuple[int, ...] = ()


def suggest_shape(weight: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of one sample that a layer with this weight takes."""
    return (1, weight[1], *[_SIDE] * (len(weight) - 2))


def explain_no_examples(model: str, inputs: ScriptInputs) -> str:
    """Explain what to give for the inputs of a scripted module."""
    shape = "x".join(map(str, inputs.shape or (1, 3, _SIDE, _SIDE)))
    options = " ".join(f"--input-shape {name}:{shape}" for name in inputs.names)
    return (
        f"{model} is TorchScript, which holds no example inputs: give their shapes, for example {options}, or arrays "
        "with --inputs F.npz, also for inputs that are not FP32 (`build` has no such option: `export` with it first)"
    )


def read_script_inputs(path: Path) -> ScriptInputs | None:
    """Read the inputs of a TorchScript archive from its code and its pickle; None if they cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            folder = archive.namelist()[0].partition("/")[0]
            pickled = _read_member(archive, f"{folder}/data.pkl")
            owner, weight = _read_script_pickle(pickled)
            module, _, name = owner.rpartition(".")
            code = _read_member(archive, f"{folder}/code/{module.replace('.', '/')}.py").decode()
    except _DAMAGE:
        return None
    pattern = (
        rf"^class {re.escape(name)}\(Module\):\n(?:(?!^class ).*\n)*?  def (forward\([^\n]*(?:\n    [^\n]*)*?\)) -> "
    )
    match = re.search(pattern, code, re.MULTILINE)
    try:
        definition = ast.parse(f"def {match[1]}: pass").body[0] if match else None
    except _DAMAGE:
        return None
    if not isinstance(definition, ast.FunctionDef):
        return None
    arguments = definition.args.args[1:]
    needed = arguments[: len(arguments) - len(definition.args.defaults)]
    return ScriptInputs(tuple(one.arg for one in needed), suggest_shape(weight) if weight else ())


def check_program(path: Path, text: str) -> None:
    """Check that an exported program is a zip archive whose graph is JSON; its kind was found by its content or name.

    Checksums are not compared: PyTorch may write archives without (`torch.serialization.set_crc32_options`).

    Raises:
        ModelError: it is neither.
    """
    cure = "Expected a file that torch.export.save wrote. Copy or export it again"
    with explaining(ModelError, f"{text} cannot be opened as an exported program", *_DAMAGE, cure=cure):
        with zipfile.ZipFile(path) as archive:
            graphs = [one for one in archive.infolist() if one.filename.endswith(_GRAPHS)]
        for graph in graphs:
            if graph.compress_type == zipfile.ZIP_STORED and graph.file_size <= _MOST_BYTES:
                json.loads(_read_stored(path, graph))  # PyTorch's own may hold NaN, which msgspec refuses


def _read_stored(path: Path, member: zipfile.ZipInfo) -> bytes:
    """Read a member that is not compressed, whatever its checksum. Source: APPNOTE.TXT of PKWARE, 4.3.7."""
    with path.open("rb") as file:
        file.seek(member.header_offset + 26)
        lengths = file.read(4)
        file.seek(int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little"), io.SEEK_CUR)
        return file.read(member.file_size)


def _read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    if archive.getinfo(name).file_size > _MOST_BYTES:
        raise ValueError(f"{name} is too large")
    return archive.read(name)


def _read_script_pickle(pickled: bytes) -> tuple[str, tuple[int, ...]]:
    """Read (class of the module, shape of its first tensor with several axes) from a pickle's operators."""
    owner = ""
    numbers: list[int] | None = None  # after the storage of a tensor: its offset, then its shape
    for operator, argument, _ in pickletools.genops(io.BytesIO(pickled)):
        if operator.name == "GLOBAL" and not owner:
            owner = str(argument).replace(" ", ".")
        elif operator.name == "BINPERSID":
            numbers = []
        elif numbers is not None and isinstance(argument, int) and operator.name.startswith(("BININT", "LONG")):
            numbers.append(argument)
        elif numbers is not None and operator.name.startswith("TUPLE"):
            if len(numbers) > 2:
                return owner, tuple(numbers[1:])
            numbers = None
    return owner, ()


def count_weights(path: Path) -> int | None:
    """Return the number of values in a state dict, statistics of BatchNorm apart; None where that cannot be seen.

    That is a file of torch.save in its present format, with names to tensors and nothing around them.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            member = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            shapes = _read_state_pickle(_read_member(archive, member))
    except (*_DAMAGE, StopIteration):
        return None
    counted = (math.prod(shape) for name, shape in shapes.items() if name.rpartition(".")[2] not in _STATISTICS)
    return sum(counted) if shapes else None


def _read_state_pickle(pickled: bytes) -> dict[str, tuple[int, ...]]:
    """Read the shapes of tensors by name from a pickle's operators; none where they are not in the outermost dict."""
    shapes: dict[str, tuple[int, ...]] = {}
    name, dicts = "", 0
    numbers: list[int] | None = None  # after the storage of a tensor: its offset, then its shape
    for operator, argument, _ in pickletools.genops(io.BytesIO(pickled)):
        code = operator.name
        if code in ("BINUNICODE", "SHORT_BINUNICODE"):
            name = name or str(argument)  # what follows it names the storage
        elif not shapes and (code == "EMPTY_DICT" or argument == "collections OrderedDict"):
            dicts += 1
        elif code == "BINPERSID":
            if dicts > 1:
                return {}
            numbers = []
        elif numbers is not None and isinstance(argument, int) and code.startswith(("BININT", "LONG")):
            numbers.append(argument)
        elif numbers is not None and code.endswith(("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3")):
            shapes[name] = tuple(numbers[1:])
            name, numbers = "", None
    return shapes


class _Name(Struct):
    name: str


class _Argument(Struct):
    as_tensor: _Name | None = None


class _UserInput(Struct):
    arg: _Argument


class _InputSpec(Struct):
    user_input: _UserInput | None = None


class _Signature(Struct):
    input_specs: list[_InputSpec]


class _Meta(Struct):
    dtype: int
    sizes: list[msgspec.Raw]


class _Graph(Struct):
    tensor_values: dict[str, _Meta]


class _Tree(Struct):
    type: str | None
    children_spec: list["_Tree"]


class _CallSignature(Struct):
    in_spec: str = ""  # [version, tree] of the positional and of the named arguments, as JSON
    forward_arg_names: list[str] | None = None


class _Call(Struct):
    fqn: str
    signature: _CallSignature | None = None


class _GraphModule(Struct):
    graph: _Graph
    signature: _Signature
    module_call_graph: list[_Call]


class _Program(Struct):
    graph_module: _GraphModule


class _Size(Struct):
    as_int: int | None = None  # of an axis that takes no other length


def read_program_inputs(path: Path) -> tuple[TensorSpec, ...] | None:
    """Read names, dtypes and ranks of an exported program's inputs, each a tensor; None if they cannot be read.

    All axes are open: which lengths the program takes shows when it runs.
    """
    metas = _read_program_metas(path)
    if metas is None:
        return None
    axes = itertools.count()
    shapes = {name: tuple(f"n{next(axes)}" for _ in meta.sizes) for name, meta in metas.items()}
    # With a size of its own an open axis is no batch: which one is shows when the module runs.
    return tuple(
        TensorSpec(name=name, dtype=_DTYPES[meta.dtype], shape=shapes[name], sizes=(1,) * len(shapes[name]))
        for name, meta in metas.items()
    )


def read_program_batch(path: Path) -> int | None:
    """Return the only length that the first axes of an exported program's inputs take; None if it is not one length,
    is open, or cannot be read."""
    metas = _read_program_metas(path) or {}
    if not all(meta.sizes for meta in metas.values()):
        return None
    try:
        lengths = {msgspec.json.decode(meta.sizes[0], type=_Size).as_int for meta in metas.values()}
    except msgspec.MsgspecError:
        return None
    return lengths.pop() if len(lengths) == 1 else None


def _read_program_metas(path: Path) -> dict[str, _Meta] | None:
    """Read what an exported program says of its inputs, by their names; None if they cannot be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            member = next(name for name in archive.namelist() if name.endswith(_GRAPHS))
            module = msgspec.json.decode(_read_member(archive, member), type=_Program).graph_module
        inputs = [spec.user_input.arg.as_tensor for spec in module.signature.input_specs if spec.user_input]
        call = next(call for call in module.module_call_graph if call.fqn == "")
        signature = call.signature
        names = signature.forward_arg_names if signature else None
        if signature is None or names is None:
            return None
        _, tree = msgspec.json.decode(signature.in_spec, type=tuple[int, _Tree])
        arguments = [argument for group in tree.children_spec for argument in group.children_spec]
        plain = all(argument.type is None for argument in arguments)  # others hold tensors with names of their own
        if not plain or not len(arguments) == len(names) == len(inputs):
            return None
        if len(tree.children_spec[0].children_spec) == len(names) == 1:
            names = [INPUT]  # as `core/trees.py` names the only positional argument
        metas = dict[str, _Meta]()
        for name, one in zip(names, inputs, strict=True):
            if one is None:
                return None
            metas[name] = module.graph.tensor_values[one.name]
        return metas if all(meta.dtype in _DTYPES for meta in metas.values()) else None
    except (*_DAMAGE, StopIteration, msgspec.MsgspecError):
        return None
