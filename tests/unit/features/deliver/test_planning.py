"""What `deliver` says of a configuration before anything is opened: as it stands in the head of a report."""

import shlex
import zipfile
from pathlib import Path

import click
import numpy as np
import pytest
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.records import Artifact, Result
from enginebench.core.store import hash_files
from enginebench.door import program
from enginebench.features.deliver.planning import plan_delivery, refuse_delivery
from enginebench.features.deliver.verb import deliver
from enginebench.runs.folder import RunFolder, RunRequest, read_results
from samples import make_drift, make_machine, make_result
from stored_run import write_run

REQUEST = RunRequest(model="m", engines=(("ort", {}),))
VERSIONS = {"onnxruntime": "1.24.4", "torch": "2.11", "numpy": "2.0"}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of PyTorch and ORT, with a file for each artifact, and a module beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_module.py").write_text("import torch\ndef make(): ...\n")
    rows = [keep(tmp_path / "r", make_result()), keep(tmp_path / "r", make_result("ort", drift=make_drift(1e-6)))]
    return write_run(tmp_path / "r", rows)


def keep(root: Path, result: Result, model: str = "my_module:make") -> Result:
    """The result with files for its artifact and its outputs."""
    folder = RunFolder(root)
    torch = result.engine.backend == "pytorch"
    path = folder.artifacts.absolute() / ("module.pt" if torch else "model.onnx")
    outputs = folder.outputs_path(result.id)
    outputs.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"model")
    np.savez(outputs, y=np.zeros(2))
    sha256, files = hash_files([path], path.parent)
    kind = "torch" if torch else "onnx"
    made = Artifact(kind=kind, model=model, path=str(path), sha256=sha256, files=files, inputs=(), outputs=())
    return replace(result, artifacts=(made,), machine=make_machine(versions=VERSIONS))


def plan(root: Path, place: int, **changes: object) -> tuple[str | None, tuple[tuple[str, str | None], ...]]:
    result = read_results(root)[1][place]
    found = plan_delivery(root, REQUEST, replace(result, **changes))
    return found.refusal, found.options


def test_a_module_of_the_user_needs_its_name_and_a_graph_needs_none(root: Path) -> None:
    assert plan(root, 0) == (None, (("--allow-code", "my_module:make"),))
    assert plan(root, 1) == (None, ())


def test_native_code_libraries_and_options_that_name_files_need_their_names(root: Path) -> None:
    result = read_results(root)[1][1]
    library = replace(result.artifacts[0], operator_libraries=("my ops.so",))
    assert plan(root, 1, artifacts=(library,)) == (None, (("--allow-code", "my ops.so"),))
    package = replace(result.artifacts[0], kind="aoti")
    engine = replace(result.engine, backend="pytorch-aoti")
    assert plan(root, 1, artifacts=(package,), engine=engine) == (None, (("--allow-native-code", None),))


def test_what_is_gone_is_named_and_deliver_says_the_same(root: Path) -> None:
    (root / "artefacts" / "model.onnx").unlink()
    reason = "the folder of the run lacks model.onnx; run it again"
    assert plan(root, 1) == (reason, ())
    with pytest.raises(ArtifactError, match=f"ort-fp32-b1 cannot be delivered: {reason}. Name another"):
        deliver(root, "ship", row="ort-fp32")


def test_a_module_whose_source_cannot_ship_is_refused_without_being_imported(root: Path) -> None:
    Path("my_module.py").write_text("import torch, my_other\nraise RuntimeError('imported')\n")
    assert "my_module.py imports my_other, which no package index has" in str(plan(root, 0)[0])
    Path("my_module.py").unlink()
    assert "the source of my_module is not found here" in str(plan(root, 0)[0])


def test_what_was_not_finished_is_refused_with_the_command_that_goes_on(root: Path) -> None:
    refusal = str(plan(root, 1, status="partial")[0])
    reason, _, command = refusal.partition(". To finish it: ")
    words = shlex.split(command)
    assert reason == "the run is not finished" and words[:2] == ["enginebench", "run"]
    verb = program.get_command(click.Context(program), "run")
    assert verb is not None
    parsed = verb.make_context("run", words[2:]).params
    assert parsed["resume"] is True and parsed["out"] == str(root)
    folder = RunFolder(root)
    folder.write_record(replace(folder.read_record(), verb="bench"))
    assert plan(root, 1, status="partial")[0] == "it has not all of its trials; measure it again"


def test_a_refusal_by_the_record_alone_is_one_of_usage(root: Path) -> None:
    result = read_results(root)[1][1]
    fake = replace(result, engine=replace(result.engine, backend="fake"))
    assert isinstance(refuse_delivery(root, REQUEST, fake), UsageError)
    assert "there is no record of which onnxruntime" in str(plan(root, 1, machine=make_machine(versions={}))[0])


def write_weights(root: Path, pickled: bytes) -> None:
    """The weights of the module as torch.save lays them out."""
    with zipfile.ZipFile(root / "artefacts" / "module.pt", "w") as archive:
        archive.writestr("module/data.pkl", pickled)


def test_weights_that_no_plain_array_holds_are_refused_by_their_class(root: Path) -> None:
    write_weights(root, b"\x80\x02}X\x01\x00\x00\x00wctorch\nFloatStorage\ns.")
    assert plan(root, 0)[0] is None
    write_weights(root, b"\x80\x02}X\x01\x00\x00\x00wctorchao.quantization\nInt8Tensor\ns.")
    assert "my_module:make has weights of torchao.quantization.Int8Tensor" in str(plan(root, 0)[0])
    with pytest.raises(ArtifactError, match=r"of torchao\.quantization\.Int8Tensor, and a bundle"):
        deliver(root, "ship", row="pytorch-fp32")
    write_weights(root, b"\x80\x02}X\x01\x00\x00\x00wctorch\nBFloat16Storage\ns.")
    assert "weights in torch.bfloat16, which NumPy lacks" in str(plan(root, 0)[0])
