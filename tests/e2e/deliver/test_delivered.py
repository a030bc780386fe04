"""What `deliver` writes: complete, checked, the row itself; and what it refuses."""

import json
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from getpass import getuser
from pathlib import Path
from platform import node
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from bundles import ask, name, share_between_threads
from enginebench.core.errors import ArtifactError, ParseError
from enginebench.core.records import Artifact, EngineSpec
from enginebench.core.store import hash_files
from enginebench.features.deliver.verb import DeliverDocument, deliver_configuration, format_delivery
from enginebench.features.deliver.writing import copy_model, find_instructions
from enginebench.measure.machine import describe_machine
from enginebench.models.task import feed_digits, load_digits
from enginebench.runs.folder import RunFolder
from enginebench.runs.targets.bundles import find_problems, load_engine, read_bundle_folder
from graphs import classify, translate_words
from in_process import children, cli
from processes import Cli
from reporters import Silent

__all__ = ["children", "cli"]

ENGINES = ("pytorch", "ort", "openvino")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bundle_holds_nothing_of_whoever_made_it(delivered: dict[str, Path], engine: str) -> None:
    root = delivered[engine]
    secrets = [str(Path.home()), str(root.parent.parent), node(), f"/{getuser()}/"]
    for path in (path for path in root.rglob("*") if path.is_file()):
        data = path.read_bytes()
        assert [text for text in secrets if text.encode() in data] == [], path
        assert path.suffix in (".json", ".md", ".py", ".txt", ".npz", ".onnx", ".xml", ".bin", ".pbtxt", "")
        if path.suffix == ".npz":
            assert all(array.dtype != object for array in np.load(path, allow_pickle=False).values())


def test_its_document_says_where_it_comes_from_with_a_command_to_paste(run: Path, delivered: dict[str, Path]) -> None:
    result = RunFolder(run).read_result(name("ort"))
    found = read_bundle_folder(delivered["ort"])
    assert result is not None and found.row == result.id
    assert found.engine == result.engine
    assert [a.sha256 for a in found.chain] == [a.sha256 for a in result.artifacts]
    assert found.runtime.keys() == {"onnxruntime"}
    assert (found.figures.processes, found.figures.n) == (2, 40)
    assert {c.code for c in found.warnings} >= {"too_few_samples"}
    assert {f.path for f in found.files} >= {"predict.py", "check.npz", "requirements.txt", "model/model.onnx"}
    document = DeliverDocument(bundle="my models/it's a bundle", row="a", files=(), checked=True)
    *_, last = format_delivery(document)
    assert shlex.split(last.partition(": ")[2]) == ["python", "my models/it's a bundle/predict.py", "--check"]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_check_passes_and_bench_points_to_the_configuration(delivered: dict[str, Path], engine: str) -> None:
    done = ask(delivered[engine], "--check", "--bench", "--calls", "5")
    assert done.returncode == 0, done.stderr
    assert "output: max_abs_diff" in done.stdout and "within the limits (snr" in done.stdout
    row = read_bundle_folder(delivered[engine])
    assert f"measured: p50 {row.figures.p50_ms.value:.4g} ms" in done.stdout and row.machine_name in done.stdout


@pytest.mark.parametrize("engine", ENGINES)
def test_load_engine_gives_the_right_digits(delivered: dict[str, Path], engine: str) -> None:
    digits = load_digits().select(held_out=True)
    inputs = feed_digits("digits-mlp", digits.images[:50])
    with load_engine(delivered[engine]) as predict:
        answers = [predict({"input": image[None]})["output"].argmax() for image in inputs]
        assert [spec.name for spec in predict.inputs] == ["input"]
    assert np.mean(answers == digits.labels[:50]) > 0.9
    predict.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_threads_that_share_a_predictor_get_their_own_outputs(delivered: dict[str, Path], engine: str) -> None:
    done = share_between_threads(delivered[engine])
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr


def test_a_bundle_is_measured_beside_its_configuration(cli: Cli, run: Path, delivered: dict[str, Path]) -> None:
    few = ("--iters", "20", "--warmup", "1", "--processes", "1", "--json")
    done = cli("bench", delivered["openvino"], "--against", run, *few, code=0)
    row = json.loads(done.stdout)["row"]
    assert row["engine"] == "openvino" and row["threads"] == 1
    assert row["outputs_agree"] is True and row["max_abs_diff"] == 0
    done = cli("bench", delivered["ort"], "--engine", "ort")
    assert done.returncode == 2 and "brings its engine" in done.stderr
    assert cli("bench", "digits-mlp").returncode == 2
    done = cli("drift", delivered["pytorch"], delivered["ort"], "--n", "8", "--json", code=0)
    assert json.loads(done.stdout)["passed"] is True


def test_a_configuration_with_a_warning_wants_to_be_named_and_carries_its_warning(run: Path, tmp_path: Path) -> None:
    folder = copy_run(run, tmp_path)
    for configuration_id in folder.read_record().rows:
        result = folder.read_result(configuration_id)
        assert result is not None
        if result.drift is not None:
            noisy = tuple(replace(o, snr_db=1.0, centred_cosine_mean=0.1) for o in result.drift.outputs)
            folder.write_result(replace(result, drift=replace(result.drift, passed=False, outputs=noisy), scores=()))
    safe = deliver_configuration(folder.root, tmp_path / "safe", reporter=Silent())
    assert safe.row == name("pytorch")  # what the user has is what is left
    document = deliver_configuration(folder.root, tmp_path / "out", row=name("ort"), force=True, reporter=Silent())
    assert document.notes[0] == "its outputs do not agree with the reference of the run"
    assert read_bundle_folder(tmp_path / "out").figures.outputs_agree is False


def test_a_changed_artifact_is_not_delivered_and_a_lost_configuration_is_named(run: Path, tmp_path: Path) -> None:
    folder = copy_run(run, tmp_path)
    folder.configuration_path(name("openvino")).unlink()
    document = deliver_configuration(folder.root, tmp_path / "out", row=name("ort"), reporter=Silent())
    assert f"1 configuration without results, which could change this: {name('openvino')}." in document.notes[0]
    with (folder.artifacts / "model.onnx").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(ArtifactError, match="was changed"):
        deliver_configuration(folder.root, tmp_path / "other", row=name("ort"), reporter=Silent())


def test_a_bundle_with_other_outputs_is_not_handed_over(run: Path, tmp_path: Path) -> None:
    folder = copy_run(run, tmp_path)
    path = folder.outputs_path(name("ort"))
    with np.load(path) as stored:
        np.savez(path, **{key: array + (key == "output") for key, array in stored.items()})
    with pytest.raises(ArtifactError, match=r"own check here: output: .* NOT within"):
        deliver_configuration(folder.root, tmp_path / "out", row=name("ort"), reporter=Silent())
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    document = deliver_configuration(folder.root, tmp_path / "out", row=name("ort"), force=True, reporter=Silent())
    assert document.checked is False and "does not pass" in document.notes[0]


def copy_run(run: Path, tmp_path: Path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(run, tmp_path / "run")))


def make_artifact(folder: Path, *files: str) -> Artifact:
    for file in files:
        (folder / file).write_text(f"the bytes of {file}")
    sha256, hashes = hash_files([folder / file for file in files], folder)
    return Artifact(
        kind="onnx", model=files[0], path=str(folder / files[0]), sha256=sha256, files=hashes, inputs=(), outputs=()
    )


@pytest.mark.parametrize(
    ("files", "delivered"),
    [
        (("net.onnx",), ["net.onnx"]),
        (("mein großes netz.onnx",), ["model.onnx"]),
        (("mein netz.fixed.xml", "mein netz.fixed.bin"), ["model.bin", "model.xml"]),
        (("mein netz.onnx", "weights.data"), ["model.onnx", "weights.data"]),
    ],
)
def test_a_model_with_a_space_in_its_name_is_delivered(tmp_path, files, delivered) -> None:
    artifact = make_artifact(tmp_path, *files)
    copied = copy_model(tmp_path / "stage", artifact)
    folder = tmp_path / "stage" / "model"
    assert sorted(path.name for path in folder.iterdir()) == delivered
    assert (tmp_path / "stage" / copied.path).read_bytes() == (tmp_path / files[0]).read_bytes()
    assert (copied.sha256, copied.files) == hash_files([folder / f.path for f in copied.files], folder)
    assert artifact.sha256 in (copied.sha256, copied.parent_sha256)


def test_a_file_that_a_model_mentions_by_an_odd_name_is_refused(tmp_path: Path) -> None:
    artifact = make_artifact(tmp_path, "net.onnx", "my weights.data")
    with pytest.raises(ArtifactError, match=r"'model/my weights.data' cannot be the name of a file in a bundle"):
        copy_model(tmp_path / "stage", artifact)


def test_an_int8_graph_whose_floats_are_bf16_needs_the_instructions_of_both() -> None:
    machine = replace(describe_machine(), cpu_flags=("avx512_vnni", "avx512_bf16", "avx2"))
    engine = EngineSpec(backend="openvino", precision="int8")
    assert find_instructions("int8", machine, engine) == ("avx512_vnni",)
    floats = replace(engine, options={"floats": "bf16"})
    assert find_instructions("int8", machine, floats) == ("avx512_vnni", "avx512_bf16")
    assert find_instructions("int8", machine, replace(floats, device="cuda:0")) == ()


@pytest.mark.parametrize("make", [translate_words, classify])
def test_text_and_maps_are_delivered(cli: Cli, tmp_path: Path, make: Callable[[Path], Path]) -> None:
    few = ("--warmup", "1", "--iters", "20", "--processes", "1", "--threads", "1")
    if make is translate_words:
        np.savez(tmp_path / "in.npz", x=np.array([["red", "green"], ["green", "a longer word"]]))
        few = (*few, "--inputs", "in.npz")
    assert cli("run", make(tmp_path / "m.onnx"), "--engines", "ort", *few, "--out", "r").returncode == 0
    done = cli("deliver", "r", "--row", name("ort"), "--out", "b", "--as", "triton", "--as", "kserve", "--json", code=0)
    assert json.loads(done.stdout)["checked"] is True
    with np.load(tmp_path / "b" / "check.npz") as stored:
        feeds = {"x": stored["inputs.x"][0]}
    with load_engine(tmp_path / "b") as ours:
        wanted = ours(feeds)
    code = (
        "import predict, sys, numpy as np\n"
        "from measured.core.engine_api import FeedError\n"
        "x = np.load('check.npz')['inputs.x'][0]\n"
        "loaded = predict.load()\n"
        "print({k: a.tolist() for k, a in loaded({'x': x}).items()})\n"
        "for bad in ({}, {}, {'x': np.zeros((1, 1), 'int32')}):\n"
        "    try: loaded(bad)\n"
        "    except FeedError: print('refused')\n"
    )
    found = subprocess.run([sys.executable, "-B", "-c", code], cwd=tmp_path / "b", capture_output=True, text=True)
    told = str({key: array.tolist() for key, array in wanted.items()})
    assert found.stdout.splitlines() == [told, *["refused"] * 3], found.stderr


# Tampering and drift of versions: the bundle's own program and our reader say the same before anything runs.


def edit(bundle: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Writes `bundle.json` with a change in it."""
    document = json.loads((bundle / "bundle.json").read_text("utf-8"))
    change(document)
    (bundle / "bundle.json").write_text(json.dumps(document), "utf-8")


def flip(bundle: Path) -> None:
    path = bundle / "model" / "model.onnx"
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)


DIFFERENCES = {
    "a changed model": (flip, "model/model.onnx was changed"),
    "a changed program": (lambda b: (b / "preprocess.py").write_text("x = 1\n"), "preprocess.py was changed"),
    "a missing file": (lambda b: (b / "labels.json").unlink(), "labels.json is missing"),
    "another version": (
        lambda b: edit(b, lambda d: d["runtime"].update(onnxruntime="1.0.0")),
        "onnxruntime 1.0.0 was measured; here is",
    ),
    "another CPU": (lambda b: edit(b, lambda d: d.update(instructions=["amx_int9"])), "with amx_int9"),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_a_difference_is_said_and_force_goes_on(bundle: Path, what: str) -> None:
    change, text = DIFFERENCES[what]
    change(bundle)
    done = ask(bundle, "--check")
    assert done.returncode == 1
    assert text in done.stderr and "--force" in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""
    forced = ask(bundle, "--check", "--force").stderr
    assert "continuing anyway: " in forced and text in forced
    with pytest.raises(ArtifactError, match=text.partition(";")[0]):
        load_engine(bundle)


def test_force_opens_with_a_warning_and_a_missing_runtime_is_named(bundle: Path) -> None:
    (bundle / "labels.json").unlink()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with load_engine(bundle, force=True) as predict:
            assert predict({"input": np.zeros((1, 64), np.float32)})["output"].shape == (1, 10)
    assert ["labels.json is missing" in str(w.message) for w in said if w.category is UserWarning] == [True]
    edit(bundle, lambda d: d["requirements"].update({"no-such-runtime": "1.0"}))
    done = ask(bundle, "--check")
    assert done.returncode == 1 and "no-such-runtime not installed. pip install -r" in done.stderr


def link(bundle: Path) -> None:
    model = bundle / "model" / "model.onnx"
    shutil.move(model, bundle.parent / "elsewhere.onnx")
    model.symlink_to(bundle.parent / "elsewhere.onnx")


NAMES = ("../secret", "/etc/passwd", "model/../../x", "a\\b", ".hidden", "model/.x", "a b", "", "model//x", "x\n")
TRAPS = {
    "a link": (link, "symbolic link"),
    **{
        f"a file named {name!r}": (lambda b, name=name: edit(b, lambda d: d["files"][0].update(path=name)), "expected")
        for name in NAMES
    },
    "a model elsewhere": (lambda b: edit(b, lambda d: d["artifact"].update(path="../model.onnx")), "expected"),
}

# The program has our own rule for names (`core/judging.py`); that it goes by it is asked of the first one.
JUDGED_ALIKE = [f"a file named {name!r}" for name in NAMES[1:]]


@pytest.mark.parametrize("what", TRAPS)
def test_what_leads_out_of_a_bundle_is_refused_whatever_is_forced(bundle: Path, what: str) -> None:
    trap, text = TRAPS[what]
    trap(bundle)
    if what not in JUDGED_ALIKE:
        done = ask(bundle, "--check", "--force")
        assert done.returncode == 1 and "Refused" in done.stderr and text in done.stderr
    with pytest.raises(ArtifactError, match=text):
        load_engine(bundle, force=True)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"schema": "enginebench.bundle/9"}'])
def test_a_damaged_document_is_an_error_of_ours(bundle: Path, text: str) -> None:
    (bundle / "bundle.json").write_text(text)
    with pytest.raises(ParseError):
        read_bundle_folder(bundle)


def test_the_plan_of_another_gpu_is_named(bundle: Path) -> None:
    edit(bundle, lambda d: (d["artifact"].update(kind="plan"), d.update(gpu="NVIDIA H200")))
    problems = list(find_problems(bundle, read_bundle_folder(bundle), (), ("NVIDIA L4",)))
    assert problems == ["the plan was built for NVIDIA H200; here is NVIDIA L4"]
    assert list(find_problems(bundle, read_bundle_folder(bundle), (), ("NVIDIA H200",))) == []
