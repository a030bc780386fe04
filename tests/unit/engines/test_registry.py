"""Engines by name: what is there or missing, what the user is told to do, and options that are refused at once."""

import re
import subprocess
import sys
from importlib import import_module, metadata
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from enginebench.core.entry import Builder, Entry, OnDevice
from enginebench.core.errors import BackendUnavailable, MissingDependency, UsageError
from enginebench.core.features import Plugin, list_offered
from enginebench.core.records import EngineSpec
from enginebench.engines import registry
from enginebench.engines.registry import (
    ENTRIES,
    check_options,
    choose_graph_engine,
    find_entry,
    list_unasked,
    load_entry,
    open_backend,
    probe,
    read_engine,
    read_engines,
    takes,
)
from enginebench.engines.request import Option, read_number, read_options


def pretend_installed(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    def version(distribution: str) -> str:
        if distribution not in versions:
            raise metadata.PackageNotFoundError(distribution)
        return versions[distribution]

    monkeypatch.setattr(metadata, "version", version)


def test_entries_stand_under_their_own_names_in_the_order_of_the_contract() -> None:
    names = "pytorch pytorch-compile pytorch-aoti pytorch-cudagraph ort ort-cuda ort-tensorrt ort-openvino"
    names += " ort-tensorrt-rtx openvino tensorrt tensorrt-rtx"
    brought = [name for name in ("trtexec",) if name in list_offered("engines")]
    assert list(ENTRIES) == [*names.split(), *brought, "fake"]
    for name, entry in ENTRIES.items():
        assert name == entry.name and entry.module and entry.verified_on and (entry.fix or name == "fake")
        assert takes(name) in ("torch", "onnx"), name


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"builder": Builder(kept_with="ahead")}, "$.builder.kept_with"),  # type: ignore[arg-type]
        ({"on": {"cpu": OnDevice(overlaps="no")}}, "$.on[...].overlaps"),  # type: ignore[arg-type]
        ({"options": {"a": Option(default=1, meaning="")}}, "$.options[...].default"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_type_in_a_record_of_a_package_entry_is_refused_with_its_place(
    fields: dict[str, Any], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = SimpleNamespace(ENTRY=Entry(name="mine", module="mine", takes="onnx", **fields))
    monkeypatch.setitem(sys.modules, "mine", module)  # type: ignore[arg-type]
    with pytest.raises(BackendUnavailable, match=rf"with a field of a wrong type: .* at `{re.escape(where)}`$"):
        load_entry(Plugin("mine", "mine 1.0", "mine:ENTRY"))


def test_a_sound_entry_of_a_package_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "entries", SimpleNamespace(**ENTRIES))  # type: ignore[arg-type]
    for name, entry in ENTRIES.items():
        assert load_entry(Plugin(name, "it 1.0", f"entries:{name}")) == entry


def test_what_run_takes_unasked_stands_in_the_entries() -> None:
    assert list_unasked("cpu") == ("pytorch", "pytorch-compile", "ort", "openvino")
    assert list_unasked("cuda") == (*("pytorch", "pytorch-compile:cuda_graph=1", "pytorch-cudagraph", "ort-cuda"),)
    overlapping = ("pytorch", "pytorch-compile:cuda_graph=1", "pytorch-cudagraph")
    assert (list_unasked("cuda", "pipelined"), list_unasked("cpu", "pipelined")) == (overlapping, list_unasked("cpu"))
    assert (choose_graph_engine("cpu"), choose_graph_engine("cuda")) == ("ort", "ort-cuda")
    for entry in ENTRIES.values():  # an engine for GPUs is not taken unasked on a CPU
        assert not (entry.device and entry.describe_on("cpu").default is not None), entry.name


@pytest.mark.parametrize(
    "entry", [entry for entry in ENTRIES.values() if not entry.modules], ids=lambda entry: entry.name
)
def test_an_engine_file_reads_its_name_and_options_from_its_entry(entry: Entry) -> None:
    if ".torch." in entry.module:
        pytest.importorskip("torch")
    module = import_module(entry.module)
    assert entry.name == module.NAME
    assert module.OPTIONS is entry.options


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (SimpleNamespace(), "its module enginebench.engines.fake has no create_backend"),
        (SimpleNamespace(create_backend=lambda: 7), "gives an int; expected something with name, probe and build"),
    ],
)
def test_a_factory_that_is_none_is_distinguished(module: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "import_module", lambda name: module)
    with pytest.raises(BackendUnavailable, match=words):
        open_backend("fake")
    assert words in str(probe("fake").reason)


def test_options_are_held_to_the_entry() -> None:
    check_options(EngineSpec(backend="pytorch", options={"force": "1", "wait": "block"}))  # of a CPU, of a GPU
    with pytest.raises(UsageError, match="engine ort has no option 'speed'; known: spinning="):
        check_options(EngineSpec(backend="ort", options={"speed": "9"}))


def test_the_registry_and_the_fake_import_no_runtime() -> None:
    code = (
        "import sys, enginebench.engines.fake, enginebench.engines.registry as r; r.probe('nothing'); "
        "heavy = {'torch', 'onnxruntime', 'openvino', 'onnx', 'scipy', 'psutil'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_package_names_the_exact_command(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(monkeypatch, {})
    with pytest.raises(MissingDependency) as caught:
        open_backend("ort")
    assert 'pip install "enginebench[ort]"' in str(caught.value)
    answer = probe("ort")
    assert not answer.available
    assert (answer.version, answer.reason) == (None, "onnxruntime is not installed")
    assert answer.fix == 'pip install "enginebench[ort]" (or: pip install onnxruntime onnx)'


def test_missing_modules_are_named_and_the_command_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "find_absent_modules", lambda *_: ("tensorrt", "cuda.bindings"))
    answer = probe("tensorrt")
    assert answer.reason == "what engine tensorrt needs (tensorrt and cuda.bindings) is not installed"
    assert answer.fix == 'pip install "enginebench[tensorrt]" (or: pip install tensorrt cuda-python)'


def test_broken_package_is_unavailable_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(module: str) -> None:
        raise OSError("libruntime.so.1: cannot open shared object file")

    pretend_installed(monkeypatch, {"openvino": "1.2.3"})
    monkeypatch.setattr(registry, "import_module", explode)
    with pytest.raises(BackendUnavailable, match=r"libruntime\.so\.1") as caught:
        open_backend("openvino")
    assert isinstance(caught.value.__cause__, OSError)
    answer = probe("openvino")
    assert (answer.available, answer.version) == (False, "1.2.3")
    assert "libruntime.so.1" in str(answer.reason)


def test_probe_survives_a_backend_that_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def probe(self) -> None:
            raise ZeroDivisionError("no devices")

    monkeypatch.setattr(registry, "open_backend", lambda name, **_: Broken())
    assert probe("fake").reason == "ZeroDivisionError: no devices"


def test_two_onnxruntimes_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_installed(monkeypatch, {"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.24.4"})
    answer = probe("ort")
    assert "onnxruntime 1.31.1 and onnxruntime-gpu 1.24.4 are both installed" in str(answer.reason)
    assert answer.fix == "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime"


def test_unknown_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="unknown engine 'onnx'; known: pytorch, "):
        read_engine("onnx")
    with pytest.raises(UsageError, match=r"\. Did you mean openvino or ort-openvino\?$"):
        read_engines("ort,openvno:force=1")
    with pytest.raises(UsageError, match=r"known: [^.]+, fake\b"):
        find_entry("warp")
    assert not probe("onnx").available


KNOWN = {
    "mode": Option(default="a", choices=("a", "b"), meaning="which way"),
    "size": Option(default="3", meaning="how large"),
}
SPEC = EngineSpec(backend="x")


def test_unknown_option_lists_the_known_ones() -> None:
    with pytest.raises(UsageError) as caught:
        read_options(replace(SPEC, options={"colour": "red"}), KNOWN)
    assert str(caught.value) == (
        "engine x has no option 'colour'; known: mode=a|b (which way; default a); size=3 (how large)"
    )
    with pytest.raises(UsageError, match="known: none"):
        read_options(replace(SPEC, options={"colour": "red"}), {})


def test_value_outside_the_choices_is_refused() -> None:
    with pytest.raises(UsageError, match="option mode='c' of engine x must be one of: a, b"):
        read_options(replace(SPEC, options={"mode": "c"}), KNOWN)


@pytest.mark.parametrize("text", ["", "red", "nan", "inf", "-1", "1e999"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="must be a number, zero or more"):
        read_number(SPEC, "size", text)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("onnxruntime", ["ort", "ort-cuda", "ort-tensorrt", "ort-openvino", "ort-tensorrt-rtx"]),
        ("trt", ["tensorrt", "tensorrt-rtx"]),
        ("tensort", ["tensorrt", "tensorrt-rtx"]),
        ("pytorch-compil", ["pytorch-compile", "pytorch"]),
    ],
)
def test_a_mistyped_engine_gets_all_that_may_be_meant(name: str, near: list[str]) -> None:
    with pytest.raises(UsageError, match=f"unknown engine '{name}'") as error:
        find_entry(name)
    hint = str(error.value).partition("Did you mean ")[2].rstrip("?")
    meant = re.split(", | or ", hint)
    assert {*near} <= {*meant} and meant[0] == near[0]
