"""`build --explain`: what a command, a cache and a graph for TensorRT 10 must change for 11; the new command holds."""

import json
import shlex
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.records import Artifact, EngineSpec
from enginebench.door import program
from enginebench.engines.abilities import Change
from enginebench.features.trtexec.engine import TrtexecBackend
from enginebench.features.trtexec.executable import FLAGS, Trtexec, parse_version
from enginebench.features.trtexec.moving import adapt_build
from enginebench.models.onnx.source import read_onnx_head
from enginebench.models.zoo import packaged_onnx
from fakes.fake_trtexec import TABLE
from processes import ROOT

NEW, OLD = "11.1", "10.16"
# Values that options of trtexec take; others stand alone.
VALUES = {
    "calib": "c.cache",
    "layerPrecisions": "head:fp32,tail:fp16",
    "layerOutputTypes": "head:fp32",
    "precisionConstraints": "obey",
    "inputIOFormats": "fp16:chw,int8:chw4",
    "outputIOFormats": "fp32:chw",
    "workspace": "512",
}


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Artifact:
    home = tmp_path / "mein Ordner"
    home.mkdir()
    shutil.copy(packaged_onnx("digits-mlp"), home / "m.onnx")
    monkeypatch.chdir(home)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    nodes = onnx.load("m.onnx").graph.node
    tensors = ["input", *(name for node in nodes for name in node.output)]
    write_cache(Path("c.cache"), [*tensors, "(Unnamed Layer* 9) [Constant]_output"])
    return read_onnx_head(Path("m.onnx"))


def write_cache(path: Path, names: list[str]) -> None:
    lines = [f"{name}: {struct.pack('>f', 0.01).hex()}" for name in names]
    path.write_text("\n".join(["TRT-100001-EntropyCalibration2", *lines]) + "\n", encoding="utf-8")


def adapt(graph: Artifact, *extra: str, **options: str) -> tuple[EngineSpec, tuple[Change, ...]]:
    options |= {"extra": shlex.join(extra)} if extra else {}
    spec = EngineSpec(backend="trtexec", device="cuda:0", options=options)
    return adapt_build(graph, "m.plan", spec, Trtexec(version=parse_version(NEW)))


def is_known(flag: str, version: str) -> bool:
    return str(TABLE["flags"].get(flag, "-----"))[TABLE["versions"][version]["column"]] == "y"


def list_lost() -> list[str]:
    return [flag for flag in FLAGS if is_known(flag, OLD) and not is_known(flag, NEW)]


def test_the_table_names_options_that_are_gone() -> None:
    assert {"fp16", "best", "calib", "layerPrecisions"} <= set(list_lost())


@pytest.mark.parametrize("flag", [*list_lost(), "workspace", "buildOnly", "heuristic", "maxBatch", "weightless"])
def test_every_option_that_is_gone_is_named_and_none_is_composed(graph: Artifact, flag: str) -> None:
    argument = f"--{flag}={VALUES[flag]}" if flag in VALUES else f"--{flag}"
    spec, changes = adapt(graph, argument)
    assert [change.item for change in changes if change.part == "command"] == [argument]
    composed = TrtexecBackend().compose_build(graph, "m.plan", spec, NEW).argv[1:]
    flags = {argument.removeprefix("--").partition("=")[0] for argument in composed}
    assert flag not in flags and all(is_known(each, NEW) for each in flags)


@pytest.mark.parametrize("flag", ["useCudaGraph", "stronglyTyped", "separateProfileRun"])
def test_an_option_without_effect_is_left_out(graph: Artifact, flag: str) -> None:
    spec, (change,) = adapt(graph, f"--{flag}")
    assert "extra" not in spec.options and "no effect" in change.change


def test_what_stays_is_not_a_change(graph: Artifact) -> None:
    kept = ("--avgTiming=3", "--noTF32", "--inputIOFormats=chw", "--memPoolSize=workspace:64", "--staticPlugins=a b.so")
    spec, changes = adapt(graph, *kept, workspace_mb="64")
    assert shlex.split(spec.options["extra"]) == list(kept) and spec.options["workspace_mb"] == "64"
    assert changes == ()


def test_an_option_that_no_version_has_is_named_and_stays(graph: Artifact) -> None:
    """A version later than those that were read may have it; one that was read refuses it where it is composed."""
    spec, (change,) = adapt(graph, "--useTelepathy=2")
    assert shlex.split(spec.options["extra"]) == ["--useTelepathy=2"]
    assert (change.part, change.item) == ("command", "--useTelepathy=2") and "unchecked" in change.change
    with pytest.raises(UsageError, match="does not know --useTelepathy"):
        TrtexecBackend().compose_build(graph, "m.plan", spec, NEW)


def test_values_become_what_eleven_takes(graph: Artifact) -> None:
    spec, changes = adapt(graph, *(f"--{name}={VALUES[name]}" for name in ("inputIOFormats", "workspace")))
    assert shlex.split(spec.options["extra"]) == ["--inputIOFormats=chw,chw4", "--memPoolSize=workspace:512"]
    assert len(changes) == 2
    (_, layers), (_, constraints) = (
        adapt(graph, "--layerPrecisions=head:fp32,tail:fp16"),
        adapt(graph, "--precisionConstraints=obey"),
    )
    assert "(head)" in layers[0].change and "()" not in constraints[0].change


@pytest.mark.parametrize(
    ("flags", "precision"),
    [
        ((), "fp32"),
        (("--fp16",), "fp16"),
        (("--bf16",), "bf16"),
        (("--best",), "fp16"),
        (("--fp16", "--int8"), "int8"),
        (("--best", "--calib=c.cache"), "int8"),
    ],
)
def test_the_flags_decide_what_the_graph_becomes(graph: Artifact, flags: tuple[str, ...], precision: str) -> None:
    spec, changes = adapt(graph, *flags)
    commands = [change.command for change in changes if change.command]
    assert spec.precision == precision and len(commands) == (precision != "fp32")
    assert all(f"--to {precision}" in command for command in commands)


def test_a_pasted_command_names_its_files_already(graph: Artifact) -> None:
    spec, changes = adapt(graph, "trtexec", "--onnx=m.onnx", "--saveEngine=m.plan", "--verbose")
    assert spec.options["extra"] == "--verbose" and not changes
    spec, _ = adapt(graph, "--onnx=other.onnx")
    with pytest.raises(UsageError, match=r"--onnx=other.onnx.*F\.onnx"):
        TrtexecBackend().compose_build(graph, "m.plan", spec, NEW)


def test_the_shapes_of_a_pasted_command_are_those_of_the_plan(graph: Artifact) -> None:
    shapes = [f"--{kind}Shapes=input:{size}x64" for kind, size in (("min", 1), ("opt", 4), ("max", 8))]
    spec, changes = adapt(graph, *shapes, "--verbose")
    composed = TrtexecBackend().compose_build(graph, "m.plan", spec, NEW).argv
    assert not changes and [argument for argument in composed if "Shapes" in argument] == shapes
    with pytest.raises(UsageError, match="--minShapes"):  # two that differ: nobody knows which is meant
        spec, _ = adapt(graph, *shapes, min_shapes="input:2x64")
        TrtexecBackend().compose_build(graph, "m.plan", spec, NEW)


@pytest.mark.parametrize(
    ("options", "ranges", "says"),
    [
        (("--weak-typing",), ("--calib-cache", "c.cache"), "calibration cache"),
        ((), ("--calib-cache", "c.cache"), "calibration cache"),
        ((), ("--calib", "digits.npz"), "with ranges of real inputs"),
    ],
)
def test_the_ranges_of_a_build_go_into_the_graph(
    graph: Artifact, options: tuple[str, ...], ranges: tuple[str, str], says: str
) -> None:
    np.savez("digits.npz", input=np.zeros((8, 64), np.float32))
    given = ["build", "m.onnx", "--dry-run", "--tensorrt-version", NEW, "--explain", "--engine", "trtexec"]
    done = CliRunner().invoke(program, [*given, "--precision", "int8", *options, *ranges])
    assert done.exit_code == 0, done.output
    command = shlex.split(done.stdout.splitlines()[0])
    assert command[1] == "quantize" and command[-2] == ranges[0] and Path(command[-1]).name == ranges[1]
    assert says in done.stderr and "F.npz" not in done.output


def test_a_cache_is_held_against_the_graph(graph: Artifact) -> None:
    _, changes = adapt(graph, weak_typing="1", calib_cache="c.cache")
    (cache,) = [change for change in changes if change.part == "calibration cache"]
    total = len(Path("c.cache").read_text().splitlines()) - 1
    assert f"{total - 1} of {total} entries" in cache.change and "(Unnamed Layer* 9)" in cache.change
    write_cache(Path("other.cache"), ["p", "q"])
    with pytest.raises(ArtifactError, match=r"other\.cache.*none of its 2 entries.*m\.onnx, such as p"):
        adapt(graph, "--calib=other.cache")
    Path("wrong.cache").write_text("TRT-1\n")
    with pytest.raises(ArtifactError, match=r"wrong\.cache, line 1"):
        adapt(graph, "--calib=wrong.cache")


def test_plug_ins_of_the_old_interface_are_named(graph: Artifact) -> None:
    for name, symbols in {
        "old.so": b"getPluginCreators",
        "both.so": b"getCreators getPluginCreators",
        "none.so": b"",
    }.items():
        Path(name).write_bytes(b"\x7fELF " + symbols)
    _, changes = adapt(graph, plugins="\n".join(["old.so", "both.so", "none.so", "absent.so"]))
    assert [change.item for change in changes] == ["--plugins old.so"]


def test_operators_that_need_plug_ins_are_named(graph: Artifact) -> None:
    model = onnx.load("m.onnx")
    model.graph.node[-1].op_type = "EfficientNMS_TRT"
    onnx.save(model, "m.onnx")
    _, (change,) = adapt(graph)
    assert change.part == "graph" and change.change.startswith("EfficientNMS_TRT: ")


def run(*words: str) -> Any:
    return CliRunner().invoke(program, words)


def test_the_printed_commands_make_the_graph_that_they_build(graph: Artifact) -> None:
    old = ("build", "m.onnx", "--dry-run", "--tensorrt-version", NEW, "--explain")
    result = run(*old, "--weak-typing", "--precision", "int8", "--calib-cache", "c.cache")
    assert result.exit_code == 0, result.stderr
    quantize, build = map(shlex.split, result.stdout.splitlines())
    assert quantize[:2] == ["enginebench", "quantize"] and run(*quantize[1:]).exit_code == 0
    made = next(word.removeprefix("--onnx=") for word in build if word.startswith("--onnx="))
    assert Path(made).is_file() and read_onnx_head(Path(made)).precision == "int8"
    assert "command --weak-typing: leave it out" in result.stderr and "FP16 was allowed" in result.stderr
    document = json.loads(run(*old, "--json", "--", "--fp16").stdout)
    assert [change["part"] for change in document["changes"]] == ["command", "graph"]


def test_it_compares_with_eleven_or_later_alone(graph: Artifact) -> None:
    for words, reason in (
        (("--tensorrt-version", OLD), "10.16.0 is older: give --tensorrt-version 11.0 or later"),
        ((), "add --dry-run --tensorrt-version 11.0"),
    ):
        result = run("build", "m.onnx", "--dry-run", *words, "--explain")
        assert isinstance(result.exception, UsageError) and reason in str(result.exception)
