"""No stored file makes the program load a library, import a module, start a program or open a path of its choice."""

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import enginebench
from enginebench.core import aoti
from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.features import list_features
from enginebench.core.store import hash_file
from enginebench.models.zoo import DATA_DIR
from enginebench.runs import trust
from enginebench.runs.child.environments import describe_environment
from enginebench.runs.folder import RunFolder, RunRequest, format_resume, trust_request
from enginebench.runs.targets.sides import open_stored
from in_process import run_here
from processes import Cli
from shared import make_once

FAST = ("--threads", "1", "--warmup", "1", "--iters", "5", "--processes", "1")
ENGINES = ("--engines", "ort,fake")  # outputs of a graph are compared with the graph, and a fake computes none
LOAD = ("load", "tiny.onnx", "--engine", "ort", "--qps", "50", "--duration", "0.1", "--out", "l")
ROW = "ort-fp32-b1-compute-t1-hot"
EVIL = "evil_module_of_a_stored_file"
BAIT = ("evil.so", "evil.sh", "secret.onnx")
# What the audit sees: the events of this process, the children of a run with it.
_seen: list[str] = []
_watching = False


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event in ("open", "import", "ctypes.dlopen", "subprocess.Popen", "os.posix_spawn"):
        _seen.append(f"{event} {arguments[0]}")


sys.addaudithook(_audit)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is opened, imported, loaded and started meanwhile; and no earlier test has allowed anything."""
    monkeypatch.setattr(trust, "_named", {})
    monkeypatch.setattr(sys.modules[__name__], "_watching", True)
    _seen.clear()
    yield _seen
    sys.modules.pop(EVIL, None)


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a graph, a run of it in `r`, a bundle of a row in `b`, a search in `t` and a sweep in `s`."""
    return make_once(tmp_path_factory, "stored", store)


def store(home: Path) -> None:
    (home / "tiny.onnx").write_bytes((DATA_DIR / "digits-mlp.onnx").read_bytes())
    (home / "sweep.toml").write_text(
        'engines = ["ort"]\nprocesses = 1\niters = 5\nwarmup = 1\n[[model]]\nname = "tiny.onnx"\n'
    )
    for command in (
        ("run", "tiny.onnx", *ENGINES, *FAST, "--out", "r"),
        ("deliver", "r", "--row", ROW, "--out", "b"),
        ("tune", "tiny.onnx", "--engines", "ort", "--threads", "1", "--time-budget", "20s", "--out", "t"),
        ("sweep", "sweep.toml", "--out", "s"),
        LOAD,
    ):
        if command[0] == "run" or command[0] in list_features():
            done = run_here(home, *command)
            assert done.returncode in (0, 6), done.stderr


@pytest.fixture
def place(stored: Path, tmp_path: Path) -> Path:
    """A copy of it, beside what a stored file could name: a library, a module, a program, a secret."""
    for path in stored.iterdir():
        (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / path.name)
    mark = tmp_path / "mark"
    (tmp_path / f"{EVIL}.py").write_text(
        f"open({str(mark)!r}, 'w')\ndef make(*a): open({str(mark)!r}, 'w')\nget_library_path = make\n"
    )
    (tmp_path / "evil.sh").write_text(f"#!/bin/sh\ntouch '{mark}'\n")
    (tmp_path / "evil.sh").chmod(0o755)
    (tmp_path / "secret.onnx").write_bytes((DATA_DIR / "digits-mlp.onnx").read_bytes())
    if shutil.which("gcc"):
        source = f'#include <stdio.h>\n__attribute__((constructor)) static void f(void) {{ fopen("{mark}", "w"); }}\n'
        source += "void *RegisterCustomOps(void *a, void *b) { return 0; }\n"
        (tmp_path / "evil.c").write_text(source)
        subprocess.run(["gcc", "-shared", "-fPIC", "-w", "evil.c", "-o", "evil.so"], cwd=tmp_path, check=True)
    else:
        (tmp_path / "evil.so").write_text("")
    return tmp_path


def change(folder: Path, poison: Callable[[dict[str, Any]], object]) -> None:
    """Changes every record in every JSON file of a folder."""

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            poison(value)
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            walk(inner)

    for path in folder.rglob("*.json"):
        if path.name == "sweep.json":  # it must be the specification that the command names
            continue
        document = json.loads(path.read_text("utf-8"))
        walk(document)
        path.write_text(json.dumps(document), "utf-8")


def is_artifact(record: dict[str, Any]) -> bool:
    return "sha256" in record and "outputs" in record


def name_library(record: dict[str, Any]) -> None:
    if is_artifact(record):
        record["operator_libraries"] = [str(Path.cwd() / "evil.so")]


def name_module_as_library(record: dict[str, Any]) -> None:
    if is_artifact(record):
        record["operator_libraries"] = [EVIL]


def name_factory(record: dict[str, Any]) -> None:
    record |= {"kind": "torch", "model": f"{EVIL}:make"} if is_artifact(record) else {}
    record |= {"backend": "pytorch"} if "backend" in record else {}


def name_request(record: dict[str, Any]) -> None:
    asked = {"inputs": f"{EVIL}:make", "metrics": [f"{EVIL}:make"], "targets": "secret.onnx"}
    record |= asked if "calibration_method" in record else {}
    record |= {"sources": [], "rows": []} if "sources" in record else {}


def name_path(record: dict[str, Any]) -> None:
    if is_artifact(record):
        record["path"] = record["path"] and str(Path.cwd() / "secret.onnx")
    if record.get("path", "").endswith(".onnx") and "size_bytes" in record:
        record["path"] = "secret.onnx"


def name_program(record: dict[str, Any]) -> None:
    spec = {"backend": "trtexec", "options": {"path": "evil.sh", "plugins": "evil.so"}}
    record |= spec if "backend" in record else {}
    if "engines" in record and "calibration_method" in record:
        record |= {"engines": [["trtexec", {"path": "evil.sh"}]], "wanted": [], "sources": []}


def name_package(record: dict[str, Any]) -> None:
    """Whatever there is to open is a package of AOTInductor, for this machine, with a library that leaves a mark."""
    if is_artifact(record) and record["path"]:
        files = [{"path": "evil.pt2", "sha256": hash_file(Path("evil.pt2")), "size_bytes": 1}]
        path = str(Path(record["path"]).with_name("evil.pt2"))
        record |= {"kind": "aoti", "path": path, "sha256": files[0]["sha256"], "files": files}
    if "backend" in record:
        record |= {"backend": "pytorch-aoti", "options": {}}
    if "engines" in record and "calibration_method" in record:
        record["engines"] = [["pytorch-aoti", {}]]


def write_package(place: Path) -> None:
    """`evil.pt2`, beside every file that a record may name."""
    with zipfile.ZipFile(place / "evil.pt2", "w") as archive:
        archive.write(place / "evil.so", "m/data/aotinductor/model/c.wrapper.so")
        archive.writestr("m/data/aotinductor/model/c.wrapper_metadata.json", '{"AOTI_DEVICE_KEY": "cpu"}')
        record = {"schema": aoti.SCHEMA, "here": aoti.describe_here(None)}
        archive.writestr(f"m/{aoti.RECORD}", json.dumps(record))
        for name in ("archive_format", "archive_version"):
            archive.writestr(f"m/{name}", "pt2" if name.endswith("format") else "0")
    for folder in {path.parent for path in place.rglob("*") if path.suffix in (".onnx", ".json", ".npz")}:
        if folder != place:
            shutil.copy(place / "evil.pt2", folder)


POISONS = (name_library, name_module_as_library, name_factory, name_request, name_path, name_program, name_package)
READING = (
    ("report", "r", "--format", "md,json"),
    ("diff", "r", "r"),
    ("history", "."),
    ("baseline", "save", "x", "r"),
    ("report", "t", "--format", "md"),
    ("report", "s"),
)
RUNNING = (
    ("run", "tiny.onnx", *FAST, "--out", "r", "--resume"),
    ("bench", "tiny.onnx", "--engine", "ort", "--against", f"r/rows/{ROW}.json", *FAST),
    ("drift", f"r/rows/{ROW}.json", "fake@tiny.onnx"),
    ("accuracy", f"r/rows/{ROW}.json", "--data", "digits", "--model", "digits-mlp"),
    ("deliver", "r", "--row", ROW, "--out", "new"),
    ("bench", "b", *FAST[2:]),
    ("load", "b", "--qps", "50", "--duration", "0.1"),
    ("tune", "tiny.onnx", "--engines", "ort", "--threads", "1", "--time-budget", "20s", "--out", "t", "--resume"),
    ("sweep", "sweep.toml", "--out", "s", "--resume"),
    (*LOAD, "--resume"),
)


@pytest.mark.parametrize("poison", POISONS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("command", [*READING, *RUNNING], ids=lambda words: " ".join(words[:2]))
@pytest.mark.feature("sweep", "'sweep'")
def test_what_a_stored_file_names_is_neither_run_nor_opened(cli, place, watch, command, poison, monkeypatch) -> None:
    monkeypatch.chdir(place)
    if command[0] == "sweep":  # a store knows its models by their whole paths
        shutil.rmtree(place / "s")
        assert cli(*command[:-1]).returncode == 0
        trust._named.clear()
    if poison is name_package:
        pytest.importorskip("torch")  # a package is one of this PyTorch
        write_package(place)
    for folder in ("r", "b", "t", "s", "l"):
        change(place / folder, poison)
    for path in place.rglob(f"{ROW}.json" if command[0] == "run" else "done.json"):  # so that there is something to do
        path.unlink()
    for path in (place / "s").rglob("rows"):
        shutil.rmtree(path)
    watch.clear()
    done = cli(*command)
    assert "Traceback" not in done.stderr
    touched = [line for line in watch if Path(line.partition(" ")[2]).name in (EVIL, f"{EVIL}.py", *BAIT)]
    assert (touched, (place / "mark").exists()) == ([], False), done.stderr


@pytest.mark.skipif(not shutil.which("gcc"), reason="makes a library that leaves a mark")
def test_a_stored_package_is_opened_only_where_the_command_allows_native_code(cli, place, watch, monkeypatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(place)
    write_package(place)
    change(place / "r", name_package)
    for options, marked in (((), False), (("--allow-native-code",), True)):
        done = cli("drift", f"r/rows/{ROW}.json", "fake@tiny.onnx", *options)
        assert ("--allow-native-code" in done.stderr, (place / "mark").exists()) == (not marked, marked), done.stderr
    built = cli("build", "evil.pt2", "--engine", "pytorch-aoti", "--out", "x.pt2", code=2)
    assert "evil.pt2 is a package already" in built.stderr


def test_a_library_is_loaded_from_where_the_command_names_it(cli: Cli, place: Path, watch: list[str]) -> None:
    named = {"operator_libraries": ["/elsewhere/evil.so"]}
    change(place / "r", lambda record: is_artifact(record) and record.update(named))
    for options in (("--ort-extension", "evil.so"), ("--allow-code", "evil.so")):
        done = cli("drift", f"r/rows/{ROW}.json", "fake@tiny.onnx", *options)
        assert "/elsewhere" not in done.stderr
        assert "--ort-extension evil.so" not in done.stderr
    if shutil.which("gcc"):
        assert (place / "mark").exists()


@pytest.mark.feature("deliver")
def test_a_name_allowed_as_one_thing_is_not_allowed_as_another(cli: Cli, place: Path, watch: list[str]) -> None:
    """A library may be a module's name, and MODEL, a folder, could be a package beside the user."""
    (place / "evilmodel").mkdir()
    (place / "evilmodel" / "__init__.py").write_text(f"open({str(place / 'mark')!r}, 'w')")
    shutil.copytree(place / "b", place / "evilmodel", dirs_exist_ok=True)
    change(place / "evilmodel", lambda record: "outputs" in record and record.update(operator_libraries=["evilmodel"]))
    done = cli("bench", "evilmodel", *FAST[2:])
    assert (done.returncode, (place / "mark").exists()) == (2, False)
    assert "add --ort-extension evilmodel" in done.stderr


def test_a_factory_is_imported_only_if_it_is_named(place, watch, monkeypatch) -> None:
    monkeypatch.chdir(place)
    change(place / "r", name_factory)
    row = place / "r" / "rows" / f"{ROW}.json"
    with pytest.raises(UsageError, match=f"--allow-code {EVIL}:make"):
        open_stored(row)
    enginebench.allow_code(f"{EVIL}:make")
    assert open_stored(row).chain[-1].model == f"{EVIL}:make"


def test_an_exported_program_is_opened_only_if_it_is_the_one_that_is_named(place: Path, watch: list[str]) -> None:
    (place / "m.pt2").write_bytes(b"the user's")
    (place / "r" / "m.pt2").write_bytes(b"another")
    folder = RunFolder(place / "r")
    row = folder.read_result(ROW)
    assert row is not None
    stored = replace(row.artifacts[-1], kind="torch", model="m.pt2", path="m.pt2", files=())
    with pytest.raises(UsageError, match=r"add --allow-code m\.pt2"):
        trust.trust_artifact(replace(stored, sha256=hash_file(place / "r" / "m.pt2")), "r")
    trust.allow_model(str(place / "m.pt2"))
    with pytest.raises(ArtifactError, match="is not that of"):
        trust.trust_artifact(replace(stored, sha256=hash_file(place / "r" / "m.pt2")), "r")
    assert trust.trust_artifact(replace(stored, sha256=hash_file(place / "m.pt2")), "r").path == "m.pt2"
    made = replace(stored, model="digits-cnn", recipe="pt2e", path="model.int8-pt2e.pt2")  # by a run, of another MODEL
    with pytest.raises(UsageError, match=r"add --allow-code model\.int8-pt2e\.pt2"):
        trust.trust_artifact(made, "r")
    trust.allow_code("model.int8-pt2e.pt2")
    assert trust.trust_artifact(made, "r") == made


@pytest.mark.parametrize("member", ["archive_format", "code/__torch__.py", "data/aotinductor/model/c.so"])
@pytest.mark.parametrize("stored_as", ["weights.pt", "model.bin"])
def test_code_under_another_name_keeps_the_rule_of_its_content(place: Path, member: str, stored_as: str) -> None:
    """A record that calls such a file the weights of a built-in model does not make it data."""
    with zipfile.ZipFile(place / "r" / stored_as, "w") as archive:
        archive.writestr(f"m/{member}", "x")
        archive.writestr("m/data.pkl", b"\x80\x02}.")
    row = RunFolder(place / "r").read_result(ROW)
    assert row is not None
    path, kind = place / "r" / stored_as, "torch"
    stored = replace(row.artifacts[-1], kind=kind, model="digits-cnn", path=str(path), sha256=hash_file(path), files=())
    with pytest.raises(
        UsageError, match=r"names 'digits-cnn', an? (exported|TorchScript).* add --allow-code digits-cnn"
    ):
        trust.trust_artifact(stored, "r")
    shutil.copy(path, place / "mine")
    trust.allow_code(str(place / "mine"))
    with pytest.raises(UsageError, match="add --allow-code digits-cnn"):  # the user's own is another MODEL
        trust.trust_artifact(stored, "r")
    assert trust.trust_artifact(replace(stored, model="mine"), "r").path == str(path)


def test_an_allowed_file_that_is_not_here_is_asked_for_by_its_path(place: Path) -> None:
    with zipfile.ZipFile(place / "r" / "s.pt", "w") as archive:
        archive.writestr("m/constants.pkl", "x")
    row = RunFolder(place / "r").read_result(ROW)
    assert row is not None
    stored = replace(row.artifacts[-1], kind="torch", model="gone.pt", path=str(place / "r" / "s.pt"))
    trust.allow_code("gone.pt")
    with pytest.raises(UsageError, match=r"names 'gone\.pt', a TorchScript archive, .* give its path, --allow-code"):
        trust.trust_artifact(stored, "r")


@pytest.mark.parametrize("name", ["/bin/sh", "../evil.sh", "./evil.sh", "nobody"])
def test_an_environment_of_a_stored_configuration_is_a_name_of_the_users(place: Path, name: str) -> None:
    with pytest.raises(UsageError, match="unknown environment"):
        describe_environment(name)


@pytest.mark.parametrize(
    ("command", "folder"),
    [
        (RUNNING[0], "r"),
        (RUNNING[7], "t"),
        (RUNNING[9], "l"),
        (("run", "tiny.onnx", *ENGINES, *FAST, "--out", "n"), "n"),
    ],
    ids=lambda value: " ".join(value[:1]),
)
@pytest.mark.feature("load", "'load'")
@pytest.mark.feature("tune", "'tune'")
def test_what_compilers_left_in_a_folder_is_removed_before_it_is_used(cli, place, watch, command, folder) -> None:
    left = place / folder / "artefacts" / "env-x" / "cache" / "inductor"
    left.mkdir(parents=True)
    (left / "evil.so").write_bytes(b"code")
    done = cli(*command)
    assert (done.returncode, left.exists()) == (0, False), done.stderr


@pytest.mark.parametrize("link", ["artefacts", "artefacts/outputs", f"artefacts/outputs/{ROW}.npz"])
@pytest.mark.parametrize("command", [RUNNING[0], RUNNING[4], ("diff", f"r/rows/{ROW}.json", "r")], ids=lambda c: c[0])
@pytest.mark.feature("deliver", "'deliver'")
@pytest.mark.feature("load", "'load'")
@pytest.mark.feature("tune", "'tune'")
def test_links_in_a_run_are_not_followed(cli, place, watch, link, command) -> None:
    away = place / "away"
    (place / "r" / link).rename(away)
    (place / "r" / link).symlink_to(away)
    (away / "cache").mkdir() if away.is_dir() else None
    watch.clear()
    done = cli(*command)
    refused = "is a symbolic link" in done.stderr or "leads out of the folder" in done.stderr
    assert (done.returncode == 5 and refused) or command[0] == "diff", done.stderr
    assert not [line for line in watch if f"{ROW}.npz" in line]
    assert not away.is_dir() or (away / "cache").is_dir(), "nothing behind a link is removed"


@pytest.mark.parametrize(
    ("field", "value", "option"),
    [
        ("data", "photos", "--data photos"),
        ("weights", "w.pth", "--weights w.pth"),
        ("metrics", ["m:f"], "--metric m:f"),
        ("engines", [["trtexec", {"run_extra": "--x"}]], "--engines trtexec:run_extra=--x"),
    ],
)
@pytest.mark.feature("trtexec", "trtexec:")
def test_what_a_run_named_outside_of_its_folder_is_named_again(cli, place, watch, field, value, option) -> None:
    change(place / "r", lambda record: "calibration_method" in record and record.update({field: value}))
    done = cli("run", "tiny.onnx", *FAST, "--out", "r", "--resume")
    assert (done.returncode, f"add {option}" in done.stderr) == (2, True), done.stderr


def test_the_command_to_continue_names_what_must_be_named_again() -> None:
    request = RunRequest(
        model="m.onnx", engines=(("ort", {}),), data="my photos", metrics=("top1", "m:f"), operator_libraries=("o.so",)
    )
    again = "--data 'my photos' --metric m:f --ort-extension o.so --resume --out r"
    assert format_resume("run", request, Path("r")) == f"enginebench run m.onnx {again}"
    assert trust_request(request, request, Path("r")) == request
    plain = replace(request, data="digits", metrics=(), operator_libraries=())
    assert format_resume("tune", plain, Path("r")) == "enginebench tune m.onnx --resume --out r"
