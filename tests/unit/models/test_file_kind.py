"""What a file is, by its content; made here by hand, so that nothing depends on PyTorch, and under misleading names."""

import collections
import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enginebench.core.errors import ModelError, UsageError
from enginebench.models.file_kind import check_weights_file, find_file_content, find_kind_of_file
from enginebench.models.zoo import resolve_model
from graphs import write_text

LEGACY = 0x1950A86A20F9469CFC6C
RAN: list[str] = []


class Weights:
    """A class that stands for a user's module."""


class Attack:
    """A pickle that would call a function if it were opened."""

    def __reduce__(self) -> Any:
        return RAN.append, ("opened",)


def zip_of(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"net/{name.replace('__', '/').replace('_dot_', '.')}", data)
    return file.getvalue()


def saved(value: object, protocol: int = 2) -> bytes:
    """As torch.save writes it: an archive with one pickle, and the storages beside it."""
    return zip_of(data_dot_pkl=pickle.dumps(value, protocol), version=b"3\n")


def legacy(value: object) -> bytes:
    """As torch.save wrote it before 1.6: four pickles, one behind the other."""
    return b"".join(pickle.dumps(part, 2) for part in (LEGACY, 1001, {"little_endian": True}, value))


STATE = collections.OrderedDict([("fc.weight", 1), ("fc.bias", 2)])
NPZ = io.BytesIO()
np.savez(NPZ, x=np.zeros(3))
CONTENTS: dict[str, tuple[bytes, str | None]] = {
    "torchscript": (zip_of(code__net_dot_py=b"x", constants_dot_pkl=b"x", data_dot_pkl=b"\x80\x02}."), "torchscript"),
    "frozen torchscript": (zip_of(constants_dot_pkl=b"x", data_dot_pkl=b"\x80\x02}."), "torchscript"),
    "program": (zip_of(archive_format=b"pt2", models__model_dot_json=b"{}"), "pt2"),
    "older program": (zip_of(serialized_exported_program_dot_json=b"{}"), "pt2"),
    "native package": (zip_of(data__aotinductor__model__c_dot_so=b"x", code__a=b"x"), "pt2"),
    "state dict": (saved(STATE), "state"),
    "checkpoint of numbers": (saved({"epoch": 3, "state_dict": STATE, "lr": [0.1]}), "state"),
    "whole module": (saved(Weights()), "module"),
    "whole module, protocol 4": (saved(Weights(), 4), "module"),
    "checkpoint with a module": (saved({"epoch": 3, "model": Weights()}), "checkpoint"),
    "legacy state dict": (legacy(STATE), "state"),
    "legacy module": (legacy(Weights()), "module"),
    "pickle": (pickle.dumps(Weights()), "pickle"),
    "attack": (saved({"w": Attack()}), "checkpoint"),
    "safetensors": ((10).to_bytes(8, "little") + b'{"a":{}}  ', "safetensors"),
    "safetensors, a header of 128 bytes": ((128).to_bytes(8, "little") + b'{"a":{}}'.ljust(128), "safetensors"),
    "arrays": (NPZ.getvalue(), "arrays"),
    "page": (b"<html>404</html>", None),
    "empty": (b"", None),
    "cut archive": (saved(STATE)[:-30], None),
    "text": (b"\x08 is not a graph", None),
}


@pytest.mark.parametrize("name", ["net.pt", "net.onnx", "net.pt2", "net.bin", "net"])
@pytest.mark.parametrize("content", CONTENTS)
def test_the_content_decides_whatever_the_name_is(tmp_path: Path, content: str, name: str) -> None:
    data, kind = CONTENTS[content]
    (tmp_path / name).write_bytes(data)
    assert find_kind_of_file(tmp_path / name) == kind
    assert RAN == []


@pytest.mark.parametrize("content", CONTENTS)
def test_what_is_no_file_of_weights_is_refused_by_what_it_is(tmp_path: Path, content: str) -> None:
    data, kind = CONTENTS[content]
    (tmp_path / "w.pt").write_bytes(data)
    models = {"torchscript": "TorchScript", "pt2": "an exported program", "module": "a pickle of", "pickle": "a pickle"}
    if kind in models or content in ("page", "empty", "text", "cut archive"):
        plain = "an archive that was cut off" if content == "cut archive" else "no file of torch.save"
        with pytest.raises(ModelError, match=rf"w\.pt cannot be read.*{models.get(str(kind), plain)}"):
            check_weights_file(tmp_path / "w.pt")
    else:
        check_weights_file(tmp_path / "w.pt")
    assert RAN == []


def test_a_pickle_of_plain_values_is_no_module(tmp_path: Path) -> None:
    (tmp_path / "plain.pkl").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ModelError, match="is a pickle of a dict, not of a module"):
        resolve_model(str(tmp_path / "plain.pkl"))


@pytest.mark.parametrize("name", ["net.onnx", "net.pt", "net.bin", "net"])
def test_a_graph_is_a_graph_under_any_name(tmp_path: Path, name: str) -> None:
    path = write_text(tmp_path / "a.onnx", "(float[1, 3] x) => (float[1, 3] y) { y = Identity (x) }")
    path.rename(tmp_path / name)
    assert resolve_model(str(tmp_path / name)).kind == "onnx"


@pytest.mark.parametrize(
    ("content", "foreign", "key"),
    [
        ("whole module", "Weights", None),
        ("whole module, protocol 4", "Weights", None),
        ("legacy module", "Weights", None),
        ("checkpoint with a module", "Weights", "model"),
        ("pickle", "Weights", None),
    ],
)
def test_a_pickled_module_is_named_with_a_factory_to_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, foreign: str, key: str | None
) -> None:
    path = tmp_path / "it's mine.pt"
    path.write_bytes(CONTENTS[content][0])
    pickled = find_file_content(path).pickled
    assert pickled is not None and pickled.foreign == f"{Weights.__module__}.{foreign}" and pickled.key == key
    with pytest.raises(
        ModelError, match=rf"{foreign}.*Opening a pickle runs the code in it, so this is not done"
    ) as error:
        resolve_model(str(path))
    # The factory that it names is Python that names this file.
    code = "\n".join(line[4:] for line in str(error.value).split("\n\n")[1].splitlines())
    compile(code, "net.py", "exec")
    assert repr(str(path)) in code and (key is None or f"[{key!r}]" in code)


@pytest.mark.parametrize(
    ("content", "kind", "said"),
    [
        ("state dict", UsageError, "with --weights"),
        ("checkpoint of numbers", UsageError, "has no architecture"),
        ("safetensors", UsageError, "with --weights"),
        ("arrays", UsageError, "give them as --inputs"),
        ("page", ModelError, "is no model: it begins with b'<html>404</h'"),
        ("empty", ModelError, "it is empty"),
        ("cut archive", ModelError, "a damaged archive"),
    ],
)
def test_what_is_no_model_says_what_it_is(tmp_path: Path, content: str, kind: type[Exception], said: str) -> None:
    (tmp_path / "net.pt").write_bytes(CONTENTS[content][0])
    with pytest.raises(kind) as error:
        resolve_model(str(tmp_path / "net.pt"))
    assert said in str(error.value)


def test_a_file_that_is_not_there_is_a_wrong_path(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"no such file \(in the same folder: model\.pt\)"):
        resolve_model(str(tmp_path / "modle.pt"))
    with pytest.raises(UsageError, match="unknown model"):
        resolve_model("a" * 5000)
