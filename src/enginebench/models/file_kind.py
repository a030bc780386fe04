"""Find the kind of a file by its content, not by its name. Nothing in it is run or unpickled; needs no PyTorch."""

import io
import pickletools
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal

import msgspec
from msgspec import Struct

from enginebench.core.aoti import FOLDER
from enginebench.core.errors import ModelError
from enginebench.core.store import check_regular

FileKind = Literal["onnx", "pt2", "torchscript", "state", "module", "checkpoint", "pickle", "safetensors", "arrays"]

# The first bytes that show what a file is.
_HEAD_BYTES = 64
_ZIP = b"PK\x03\x04"
# A file that torch.save wrote before 1.6, or with `_use_new_zipfile_serialization=False`, begins with this pickle.
# Source: MAGIC_NUMBER in torch/serialization.py. The module, or the weights, are the fourth pickle of such a file.
_LEGACY_MAGIC = b"\x8a\n" + (0x1950A86A20F9469CFC6C).to_bytes(10, "little")
_LEGACY_PICKLES = 4
# Members that only one kind of archive has, after the folder that all of its members lie in. Source: PyTorch 2.13,
# torch/export/pt2_archive/constants.py, and before 2.8 torch/export/__init__.py; torch/csrc/jit/serialization.
_EXPORTED = ("archive_format", "serialized_exported_program.json", "models/")
_SCRIPTED = ("constants.pkl", "code/")
# The largest pickle that is searched. That of a checkpoint of 50,000 tensors has some 10 MB.
_MOST_PICKLE_BYTES = 64 << 20
# Modules of the classes and functions that plain tensors, in lists and dictionaries, need. Source: what
# torch.load(weights_only=True) allows, torch/_weights_only_unpickler.py.
_TENSORS = ("torch", "torch._utils", "torch._tensor", "torch.storage", "torch.serialization", "collections")
_PARAMETER = "torch.nn.parameter Parameter"
# Operators of a pickle that put a text, or a class, on its stack.
_TEXTS = ("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8")
# ModelProto: `ir_version` comes first, a small number; then one of its other fields. Source: onnx/onnx.proto, whose
# fields 2 to 8 and 14 have these tags.
_ONNX_FIRST, _LARGEST_IR_VERSION = 0x08, 0x40
_ONNX_TAGS = (0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42, 0x72)
# The header of a safetensors file: its length in eight bytes, then JSON. Source: the format's README.
_MOST_HEADER_BYTES = 100 << 20

# What is no file of weights.
_NO_WEIGHTS = {
    "onnx": "an ONNX graph, which is a MODEL of its own",
    "pt2": "an exported program, which is a MODEL of its own",
    "torchscript": "a TorchScript archive, which is a MODEL of its own",
    "module": "a pickle of {root}, which is not opened",
    "pickle": "a pickle of {root}, which is not opened",
}


class Pickled(Struct, frozen=True, kw_only=True):
    """The objects that a pickle would make.

    Attributes:
        root: the outermost class, "dict" or "list".
        foreign: the first class that is not that of a tensor; None if there is none.
        key: the key of the dictionary under which `foreign` is.
        classes: the classes before `foreign`.
    """

    root: str
    foreign: str | None = None
    key: str | None = None
    classes: frozenset[str] = frozenset()


class _StoredTensor(Struct, frozen=True):
    """An entry of a safetensors header; `__metadata__`, which is none, has no place in the file."""

    data_offsets: tuple[int, int] = (0, 0)


class FileContent(Struct, frozen=True, kw_only=True):
    kind: FileKind | None  # None: it is none of these
    pickled: Pickled | None = None  # of "state", "module", "checkpoint" and "pickle"
    head: bytes = b""


def find_file_content(path: Path) -> FileContent:
    """Return the content of the file `path`; `kind` is None of a file of no known kind.

    Raises:
        OSError: the file cannot be read.
    """
    with check_regular(path).open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(_ZIP):
        return _find_archive(path, head)
    # Before pickles: the length of a header may begin with the byte that they begin with.
    if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= _MOST_HEADER_BYTES:
        return FileContent(kind="safetensors", head=head)
    if _LEGACY_MAGIC in head or head[:1] == b"\x80":
        skipped = _LEGACY_PICKLES - 1 if _LEGACY_MAGIC in head else 0
        with path.open("rb") as file:
            return _describe_pickle(file, head, skipped)
    if len(head) > 3 and head[0] == _ONNX_FIRST and head[1] < _LARGEST_IR_VERSION and head[2] in _ONNX_TAGS:
        return FileContent(kind="onnx", head=head)
    return FileContent(kind=None, head=head)


def find_kind_of_file(path: Path) -> FileKind | None:
    """Return the kind of a file; None if it is unknown or the file cannot be read."""
    try:
        return find_file_content(path).kind
    except OSError:
        return None


def check_weights_file(path: Path) -> None:
    """Check that the content of a file is not known to be something else than weights.

    Raises:
        ModelError: it is a model, a pickled module, a file that was cut off, or no file of torch.save at all.
    """
    content = find_file_content(path)
    refused = _NO_WEIGHTS.get(content.kind or "")
    if content.kind == "safetensors":
        refused = _find_cut_safetensors(path)
    elif content.head.startswith(_ZIP) and not zipfile.is_zipfile(path):
        refused = "an archive that was cut off"
    # An archive damaged inside, and a pickle too large to be searched, are left to PyTorch.
    elif content.kind is None and not content.head.startswith((_ZIP, b"\x80")) and _LEGACY_MAGIC not in content.head:
        refused = "no file of torch.save"
    if refused is not None:
        refused = refused.format(root=content.pickled.root if content.pickled is not None else "")
        raise ModelError(
            f"weights {path} cannot be read as a state dict: it is {refused}. Make one with torch.save(m.state_dict(), "
            "path)"
        )


def _find_cut_safetensors(path: Path) -> str | None:
    """Describe a safetensors file that does not have the length of which its header speaks; None for a whole one.

    A header that is no such table is left to the library.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length)
    expected = 8 + length
    if size >= expected:
        try:
            tensors = msgspec.json.decode(header, type=dict[str, _StoredTensor])
        except msgspec.MsgspecError:
            return None
        expected += max((tensor.data_offsets[1] for tensor in tensors.values()), default=0)
    return f"a safetensors file of {expected} bytes that was cut off after {size}" if size < expected else None


def _find_archive(path: Path, head: bytes) -> FileContent:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            inner = [name.partition("/")[2] for name in names]
            if any(FOLDER in name for name in names):  # native code: its reader checks that
                return FileContent(kind="pt2", head=head)
            if any(name.startswith(_SCRIPTED) for name in inner):
                return FileContent(kind="torchscript", head=head)
            if any(name.startswith(_EXPORTED) for name in (*inner, *names)):
                return FileContent(kind="pt2", head=head)
            pickles = [name for name, below in zip(names, inner, strict=True) if below == "data.pkl"]
            if pickles and archive.getinfo(pickles[0]).file_size <= _MOST_PICKLE_BYTES:
                return _describe_pickle(io.BytesIO(archive.read(pickles[0])), head, 0)
            arrays = bool(names) and all(name.endswith(".npy") for name in names)
            return FileContent(kind="arrays" if arrays else None, head=head)
    except (OSError, ValueError, RuntimeError, NotImplementedError, zipfile.BadZipFile):
        return FileContent(kind=None, head=head)


def _describe_pickle(file: IO[bytes], head: bytes, skipped: int) -> FileContent:
    """Describe a pickle by its operators, none of which is executed; `skipped` pickles come before it in the file."""
    torch_made = skipped or head.startswith(_ZIP)
    try:
        for _ in range(skipped):
            for _ in pickletools.genops(file):
                pass
        pickled = _read_pickle(file)
    except Exception:  # pickletools raises whatever its decoders do
        return FileContent(kind=None, head=head)
    if pickled.root in ("dict", "list") or _is_of_tensors(pickled.root):
        kind: FileKind = "state" if pickled.foreign is None else "checkpoint"
        return FileContent(kind=kind if torch_made else "pickle", pickled=pickled, head=head)
    return FileContent(kind="module" if torch_made else "pickle", pickled=pickled, head=head)


def _read_pickle(file: IO[bytes]) -> Pickled:
    root = foreign = key = None
    classes = set[str]()
    for name, text in _list_classes(file):
        if root is None:
            root = "dict" if name in ("dict", "collections.OrderedDict") else name
        if name not in ("dict", "list") and not _is_of_tensors(name):
            foreign, key = name, text if root == "dict" else None
            break
        classes.add(name)
    return Pickled(root=root or "list", foreign=foreign, key=key, classes=frozenset(classes))


def _is_of_tensors(name: str) -> bool:
    module, _, last = name.rpartition(".")
    return module in _TENSORS or f"{module} {last}" == _PARAMETER


def _list_classes(file: IO[bytes]) -> Iterator[tuple[str, str | None]]:
    """Yield (class, "dict" or "list" that an operator makes, the text before it), in order."""
    texts: list[str] = []
    memo: dict[int, str] = {}
    last = ""
    for operator, argument, _ in pickletools.genops(file):
        code = operator.name
        if code in _TEXTS:
            texts = [*texts[-2:], str(argument)]
            last = str(argument)
        elif code == "MEMOIZE":
            memo[len(memo)] = last
        elif code in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[int(argument or 0)] = last
        elif code in ("BINGET", "LONG_BINGET", "GET"):
            texts = [*texts[-2:], memo.get(int(argument or 0), "")]
        elif code == "GLOBAL":
            yield str(argument).replace(" ", "."), texts[-1] if texts else None
            last = ""
        elif code == "STACK_GLOBAL":
            yield ".".join(texts[-2:]), texts[-3] if len(texts) > 2 else None
            last = ""
        elif code in ("EMPTY_DICT", "EMPTY_LIST"):
            yield ("dict" if code == "EMPTY_DICT" else "list"), texts[-1] if texts else None
            last = ""
