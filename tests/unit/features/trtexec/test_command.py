"""Command lines for five versions of trtexec: accepted as they are by the option parser of each."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from enginebench.core.engine_api import read_index
from enginebench.core.errors import BackendUnavailable, MissingDependency, UsageError
from enginebench.core.records import Artifact, EngineSpec, MeasureSpec, Precision, TensorSpec
from enginebench.core.shapes import (
    drop_plan_shapes,
    find_plan_shapes,
    format_shapes,
    quote_name,
    read_shapes,
    set_plan_shapes,
)
from enginebench.engines.backends.tensorrt.entries import BUILD_OPTIONS
from enginebench.engines.backends.tensorrt.settings import (
    BuildSettings,
    ShapeProfile,
    check_profile,
    list_dla_warnings,
    make_profile,
    read_profiles,
    read_settings,
    read_shape_profile,
)
from enginebench.features.trtexec.command import RunSettings, compose_build, compose_measure, keep_extra, list_switches
from enginebench.features.trtexec.engine import plan_timing
from enginebench.features.trtexec.executable import (
    FLAGS,
    Trtexec,
    find_trtexec,
    parse_version,
    read_trtexec,
    require_trtexec,
)
from fakes.fake_trtexec import TABLE
from fakes.trtexec_shim import VERSIONS, install_trtexec
from trtexec_artifacts import find_real_artifacts

COLUMNS = list(TABLE["versions"])
PROFILE = ShapeProfile(smallest={"in": (1, 3)}, best={"in": (4, 3)}, largest={"in": (8, 3)})
GRAPH = Artifact(
    kind="onnx",
    model="m.onnx",
    path="m.onnx",
    sha256="",
    files=(),
    inputs=(TensorSpec(name="in", dtype="float32", shape=("batch", 3)),),
    outputs=(),
)


def tool(version: str) -> Trtexec:
    return Trtexec(version=parse_version(version))


def flags_of(argv: list[str]) -> set[str]:
    return {a.removeprefix("--").partition("=")[0] for a in argv if a.startswith("--")}


def is_known(flag: str, version: str) -> bool:
    return str(TABLE["flags"].get(flag, "-----"))[TABLE["versions"][version]["column"]] == "y"


EVERYTHING = BuildSettings(
    workspace_mb=512,
    profiles=(PROFILE,),
    timing_cache="t.cache",
    optimization_level=4,
    version_compatible=True,
    hardware_compatibility="ampere+",
    plugins=("a.so", "b b.so"),
    refit=True,
)


@pytest.mark.parametrize("version", COLUMNS)
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "int8", "fp8"])
@pytest.mark.parametrize("weak", [False, True])
def test_every_flag_is_one_that_the_version_knows(version: str, precision: Precision, weak: bool) -> None:
    settings = replace(EVERYTHING, precision=precision, weak_typing=weak)
    if weak and version.startswith("11"):
        words = f"trtexec {re.escape(version)}.* does not know --fp16.*enginebench quantize"
        with pytest.raises(UsageError, match=words):
            compose_build(tool(version), "m.onnx", "m.plan", settings)
        return
    argv = compose_build(tool(version), "m.onnx", "m.plan", settings, layers="l.json")
    assert not {flag for flag in flags_of(argv) if not is_known(flag, version)}


@pytest.mark.parametrize("version", COLUMNS)
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("transfers", [False, True])
def test_timing_uses_known_flags_and_states_every_switch(version: str, graph: bool, transfers: bool) -> None:
    files = {"times": "t", "profile": "p", "layers": "l"}
    settings = RunSettings(cuda_graph=graph, transfers=transfers, spin_wait=graph, shapes={"in": (4, 3)}, **files)
    argv = compose_measure(tool(version), "m.plan", settings)
    assert not {flag for flag in flags_of(argv) if not is_known(flag, version)}
    assert "--infStreams=1" in argv and "--shapes=in:4x3" in argv


def test_the_same_measurement_on_ten_and_eleven() -> None:
    ours, classic = RunSettings(), RunSettings(cuda_graph=False, transfers=True, spin_wait=False)
    old = ["--useCudaGraph", "--noDataTransfers", "--useSpinWait", "--infStreams=1"]
    assert list_switches(tool("10.16"), ours) == old
    assert list_switches(tool("11.0"), ours) == ["--infStreams=1"]
    assert list_switches(tool("10.16"), classic) == ["--infStreams=1"]
    new = ["--noCudaGraph", "--includeDataTransfers", "--noSpinWait", "--infStreams=1"]
    assert list_switches(tool("11.0"), classic) == new


def test_precision_by_graph() -> None:
    def precision_flags(version: str, precision: Precision, half_floats: bool = False) -> list[str]:
        argv = compose_build(tool(version), "m", "p", BuildSettings(precision=precision, half_floats=half_floats))
        return [a for a in argv if a in ("--noTF32", "--stronglyTyped", "--fp16", "--int8", "--fp8", "--bf16")]

    assert precision_flags("11.1", "fp16") == []
    assert precision_flags("11.1", "fp32") == ["--noTF32"]
    assert precision_flags("10.16", "int8") == ["--stronglyTyped"]
    assert precision_flags("8.6", "int8") == ["--int8"]  # 8.6 has no typed networks: Q/DQ nodes need the flag
    assert precision_flags("8.6", "int8", half_floats=True) == ["--int8", "--fp16"]
    with pytest.raises(UsageError, match=r"floats=fp16: TensorRT 10\.16\.0 takes the types of the graph as they are"):
        precision_flags("10.16", "int8", half_floats=True)
    assert precision_flags("8.6", "tf32") == []
    with pytest.raises(UsageError, match=r"trtexec 8\.6\.0 does not know --bf16"):
        precision_flags("8.6", "bf16")


def test_weak_typing_with_a_cache_and_several_profiles() -> None:
    weak = BuildSettings(precision="int8", weak_typing=True, calib_cache="c c.cache")
    assert {"--int8", "--fp16", "--calib=c c.cache"} <= set(compose_build(tool("10.0"), "m", "p", weak))
    with pytest.raises(UsageError, match="is for int8"):
        compose_build(tool("10.0"), "m", "p", BuildSettings(precision="fp16", weak_typing=True, calib_cache="c"))
    argv = compose("10.0", TWO)
    assert argv.index("--profile=0") < argv.index("--minShapes=in:1x3") < argv.index("--profile=1")


TWO = BuildSettings(profiles=(PROFILE, PROFILE))
SAME = BuildSettings(hardware_compatibility="sameComputeCapability")
IMPLICIT = RunSettings(implicit_batch=16)


def compose(version: str, settings: BuildSettings | RunSettings) -> list[str]:
    if isinstance(settings, RunSettings):
        return compose_measure(tool(version), "p", settings)
    return compose_build(tool(version), "m", "p", settings)


@pytest.mark.parametrize(
    ("version", "settings", "flag"),
    [
        ("11", BuildSettings(workspace_mb=512), "--memPoolSize=workspace:512"),  # 512MiB would be 512 bytes
        ("10.0", BuildSettings(strip=True), "--stripWeights"),
        ("9.3", BuildSettings(strip=True), "--weightless"),
        ("10.16", SAME, "--hardwareCompatibilityLevel=sameComputeCapability"),
        ("8.6.1", IMPLICIT, "--batch=16"),
    ],
)
def test_what_a_version_calls_it(version: str, settings: BuildSettings | RunSettings, flag: str) -> None:
    assert flag in compose(version, settings)


@pytest.mark.parametrize(
    ("version", "settings", "words"),
    [
        ("8.6.1", TWO, "2 profiles: trtexec 8"),
        ("8.6.1", BuildSettings(strip=True), "--strip"),
        ("10.0", SAME, r"needs TensorRT 10\.9"),
        ("10.0", IMPLICIT, r"implicit batch: trtexec 10.* does not know --batch\. Instead: a graph with"),
        # What a version does not have yet is told apart from what it has no more.
        ("8.6", BuildSettings(precision="bf16"), r"8\.6\.0 does not know --bf16; it came with TensorRT 9\.0$"),
        ("8.6", TWO, r"does not know --profile; it came with.* 9\.0\. Instead: --engine tensorrt"),
        ("10.16", RunSettings(extra=("--noCudaGraph",)), r"Graph; it came with.*11\.0\. Instead: --no-cuda-graph"),
        ("11", RunSettings(extra=("--bf16",)), r"does not know --bf16\. Instead: TensorRT 11 takes the precision"),
    ],
)
def test_what_a_version_lacks_is_refused(version: str, settings: BuildSettings | RunSettings, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        compose(version, settings)


def test_the_users_own_arguments_are_kept_and_known_mistakes_refused() -> None:
    extra = ("--sparsity=enable", "--markDebug=a", "plain")
    assert compose_build(tool("11"), "m", "p", BuildSettings(), extra=extra)[-3:] == list(extra)
    with pytest.raises(UsageError, match=r"argument --workspace=1024: trtexec 10.*--workspace-mb"):
        keep_extra(tool("10.0"), ("--workspace=1024",))
    assert keep_extra(tool("8.6"), ("--workspace=1024",)) == ("--workspace=1024",)
    with pytest.raises(UsageError, match=r"--sparsty=enable: trtexec 10.* know --sparsty; did you mean --sparsity\?"):
        compose_build(tool("10.16"), "m", "p", BuildSettings(), extra=("--sparsty=enable",))
    listed = Trtexec(version=(10, 99, 0), listed=frozenset({"somethingNew"}))
    for knows in (listed, tool("12")):
        assert keep_extra(knows, ("--somethingNew=1",)) == ("--somethingNew=1",)
    with pytest.raises(UsageError, match=r"does not know --somethingNow; did you mean --somethingNew\?"):
        keep_extra(listed, ("--somethingNow",))


def test_an_option_that_is_composed_already_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"--iterations=7: the command already has --iterations=10.*--iters"):
        compose_measure(tool("10.16"), "p", RunSettings(extra=("--iterations=7",)))
    with pytest.raises(UsageError, match=r"already has --profilingVerbosity=detailed.*trtexec:detailed=0"):
        compose_build(tool("11"), "m", "p", BuildSettings(), extra=("--profilingVerbosity=none",))
    with pytest.raises(UsageError, match=r"already has --verbose"):
        compose_build(tool("11"), "m", "p", BuildSettings(), extra=("--verbose", "--verbose"))
    build, shapes = BuildSettings(profiles=(PROFILE,)), ("--shapes=input:32x3x8x8", "--maxShapes=input:32x3x8x8")
    for argument, instead in zip(shapes, ("--opt-shapes", "--max-shapes"), strict=True):
        with pytest.raises(UsageError, match=rf"{argument}: the command already has --m\w+Shapes=.*{instead}"):
            compose_build(tool("8.6"), "m", "p", build, extra=(argument,))
    usual = RunSettings(extra=("--useCudaGraph", "--noDataTransfers", "--avgRuns=100"))
    argv = compose_measure(tool("10.16"), "p", usual)
    assert argv.count("--useCudaGraph") == argv.count("--noDataTransfers") == 1 and argv[-1] == "--avgRuns=100"
    plugins = BuildSettings(plugins=("a.so",))
    assert compose_build(tool("11"), "m", "p", plugins, extra=("--staticPlugins=b.so",))[-1] == "--staticPlugins=b.so"


def test_plugins_that_export_their_creators_are_loaded_by_the_registry(tmp_path: Path) -> None:
    """8.6.0 finds no plugin in such a library that is only opened ("could not find plugin: EbCopy")."""
    paths = tmp_path / "self.so", tmp_path / "exporting.so"
    for path, name in zip(paths, (b"_GLOBAL__sub_I", b"\0getPluginCreators\0"), strict=True):
        path.write_bytes(b"\x7fELF" + name)
    expected = [f"--staticPlugins={paths[0]}", f"--dynamicPlugins={paths[1]}"]
    plugins = tuple(map(str, paths))
    for argv in (
        compose_build(tool("8.6"), "m", "p", BuildSettings(plugins=plugins)),
        compose_measure(tool("8.6"), "p", RunSettings(plugins=plugins)),
    ):
        assert [argument for argument in argv if "Plugins=" in argument] == expected


def test_files_are_named_by_their_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """trtexec runs in a folder of its own, in which a relative path names another file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b.so").touch()
    found = settings_of(plugins="a b.so\nlibother.so", timing_cache="t.cache")
    assert found.plugins == (str(tmp_path / "a b.so"), "libother.so")
    assert found.timing_cache == str(tmp_path / "t.cache")


@pytest.mark.parametrize("text", ["1x3", "in:1xx3", "in:-1x3", "in:1x3x", ":1x3"])
def test_malformed_shapes(text: str) -> None:
    with pytest.raises(UsageError, match="shape"):
        read_shapes(text)


def test_profiles_and_names_with_colons() -> None:
    assert read_shape_profile("in:1x3/4x3/8x3") == read_shape_profile("in:1,3/4,3/8,3") == PROFILE
    assert make_profile({}, {"in": (4, 3)}, {}).largest == {"in": (4, 3)}
    with pytest.raises(UsageError, match="same inputs"):
        make_profile({"a": (1,)}, {"b": (1,)}, {})
    for text, words in (
        ("in:1x3/4x3", "NAME:MIN/OPT/MAX"),
        ("in:8x3/4x3/8x3", "must ascend"),
        ("in:8/4x3/8x3", "different numbers of axes"),
    ):
        with pytest.raises(UsageError, match=words):
            read_shape_profile(text)
    assert quote_name("input.1/x-y") == "input.1/x-y"
    assert format_shapes({"in:0": (1, 3), "b": (2,)}) == "'in:0':1x3,b:2"
    odd = {"a,b": (1, 3), "c d": (2,), "e:0": (4, 5, 6)}
    assert read_shapes(format_shapes(odd)) == odd
    assert read_shapes("'in:0':1x3,b:2") == read_shapes("'in:0':1,3,b:2") == {"in:0": (1, 3), "b": (2,)}


def test_shapes_of_a_plan_are_an_option_which_the_user_s_own_wins_over() -> None:
    shapes = {"in:0": (1, 3), "a,b": (2, 8)}
    engine = set_plan_shapes(EngineSpec(backend="trtexec", options={"graph": "0"}), shapes)
    assert find_plan_shapes(engine.options) == shapes and drop_plan_shapes(engine).options == {"graph": "0"}
    assert set_plan_shapes(engine, {"other": (1,)}) == engine and set_plan_shapes(engine, None) == engine
    other = EngineSpec(backend="openvino", options={"shapes": "dynamic"})
    assert drop_plan_shapes(other) == other and find_plan_shapes({}) == {}


def test_a_leading_1_in_the_shapes_of_a_plan_stands_for_the_batch() -> None:
    engine = EngineSpec(backend="trtexec", batch=8)
    assert set_plan_shapes(engine, {"x": (1, 3), "y": (1,)}).options == {"shapes": "x:8x3,y:8"}
    assert set_plan_shapes(engine, {"x": (8, 3), "y": (1,)}).options == {"shapes": "x:8x3,y:1"}


def settings_of(graph: Artifact = GRAPH, spec: EngineSpec | None = None, **options: str) -> BuildSettings:
    spec = spec or EngineSpec(backend="trtexec", device="cuda:1", batch=4)
    defaults = {key: option.default for key, option in BUILD_OPTIONS.items()}
    return read_settings(spec, {**defaults, **options}, graph)


def test_settings_that_fit_and_that_do_not() -> None:
    only = {"in": (4, 3)}
    assert settings_of().profiles == (ShapeProfile(smallest=only, best=only, largest=only),)
    assert settings_of().device == 1
    static = replace(GRAPH, inputs=(TensorSpec(name="in", dtype="float32", shape=(1, 3)),))
    assert settings_of(static).profiles == ()
    with pytest.raises(UsageError, match="no dynamic axis"):
        settings_of(static, opt_shapes="in:1x3")
    two = replace(GRAPH, inputs=(*GRAPH.inputs, TensorSpec(name="b:0", dtype="float32", shape=("batch", 4))))
    with pytest.raises(UsageError, match="every input with a dynamic axis; none for b:0"):
        check_profile(PROFILE, two)
    for name, value, words in (
        ("opt_shapes", "other:1x3", "the graph's inputs: in"),
        ("opt_shapes", "in:1x4", "does not fit the graph's batchx3"),
        ("calib_cache", "c", "weak typing only"),
        ("workspace_mb", "1.5", "whole number"),
    ):
        with pytest.raises(UsageError, match=words):
            settings_of(**{name: value})
    with pytest.raises(UsageError, match="cuda:N"):
        settings_of(spec=EngineSpec(backend="trtexec", device="cpu"))
    assert read_index(EngineSpec(backend="trtexec", device="cuda")) == 0
    assert read_profiles(EngineSpec(backend="x"), {**dict.fromkeys(BUILD_OPTIONS, "")}, static) == ()


@pytest.mark.parametrize("version", COLUMNS)
def test_our_table_is_that_of_the_builds(version: str) -> None:
    tested = FLAGS.keys() - {"model", "deploy", "uff"}
    assert [flag for flag in tested if tool(version).accepts(flag) != is_known(flag, version)] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_help_of_real_builds_lists_nothing_that_the_fake_lacks(version: str) -> None:
    help_text = find_real_artifacts() / "trtexec-cli" / version / "help.stdout"
    listed = set(re.findall(r"^\s+--(\w+)", help_text.read_text(encoding="utf-8"), re.MULTILINE))
    ours = {flag for flag in TABLE["flags"] if is_known(flag, version)}
    untestable = {"model", "deploy", "uff"}  # looked up only without --onnx
    assert (listed & set(FLAGS)) - untestable <= ours
    assert (ours & set(FLAGS)) - listed <= {*TABLE["not_in_help"], *untestable, "vc", "help"}


def test_versions() -> None:
    assert parse_version("11") == (11, 0, 0) and parse_version("v10.16.1.11") == (10, 16, 1)
    for text in ("8.5", "ten", "", "10.x"):
        with pytest.raises(UsageError, match=r"8\.6 or later"):
            parse_version(text)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_executable_says_what_it_is(version: str, tmp_path: Path) -> None:
    found = read_trtexec(install_trtexec(tmp_path / "a b", version))
    assert found.version_text.startswith(version)
    assert found.accepts("streams")  # known, and absent from help
    assert found.accepts("noCudaGraph") == version.startswith("11")


def test_finding_it_and_something_else_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = install_trtexec(tmp_path / "bin", "11.1")
    assert find_trtexec(environment={"PATH": str(path.parent)}) == path
    assert find_trtexec(environment={"PATH": "", "TRTEXEC": str(path)}) == path
    assert find_trtexec(str(path), {"TRTEXEC": "/nowhere"}) == path
    with pytest.raises(UsageError, match=r"\$TRTEXEC names /nowhere"):
        find_trtexec(environment={"TRTEXEC": "/nowhere"})
    monkeypatch.setattr("enginebench.features.trtexec.executable.FOLDERS", (str(tmp_path / "b*"),))
    assert find_trtexec(environment={"PATH": ""}) == path
    monkeypatch.setattr("enginebench.features.trtexec.executable.FOLDERS", ())
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("TRTEXEC", raising=False)
    with pytest.raises(MissingDependency, match="libnvinfer-bin"):
        require_trtexec()
    path = tmp_path / "trtexec"
    path.write_text("#!/bin/sh\necho hello >&2\nexit 3\n", encoding="utf-8")
    path.chmod(0o755)
    with pytest.raises(BackendUnavailable, match=r"exit code 3.*hello"):
        read_trtexec(path)
    path.write_text("no program", encoding="utf-8")
    with pytest.raises(BackendUnavailable, match="does not run"):
        read_trtexec(path)
    path.write_text(f"#!/bin/sh\nwhile :; do echo {1000 * chr(120)}; done\n", encoding="utf-8")
    with pytest.raises(BackendUnavailable, match="--help does not run: was stopped: it printed more than"):
        read_trtexec(path)


@pytest.mark.parametrize(
    ("measure", "warmup_ms", "duration_s", "iterations"),
    [
        (MeasureSpec(warmup=20, iters=100), 0, 0, 120),
        (MeasureSpec(iters=100), 200, 0, 100),
        (MeasureSpec(time_limit_s=2.5), 200, 2.5, 1),
        (MeasureSpec(warmup_ms=50, iters=7), 50, 0, 7),
    ],
)
def test_exact_numbers_are_had_without_the_tools_warm_up(measure, warmup_ms, duration_s, iterations) -> None:
    assert plan_timing(measure) == (warmup_ms, duration_s, iterations)


def test_a_dla_core_is_named_for_building_and_timing() -> None:
    fp16 = BuildSettings(precision="fp16", dla=1)
    argv = compose_build(tool("10.3"), "m", "p", fp16)
    assert {"--useDLACore=1", "--allowGPUFallback"} <= set(argv)
    assert "--useDLACore=1" in compose_measure(tool("10.3"), "m", RunSettings(dla=1))
    assert not {"useDLACore", "allowGPUFallback"} & flags_of(compose_build(tool("10.3"), "m", "p", BuildSettings()))
    for version in ("10.8", "10.16", "11.0", "11.4"):
        with pytest.raises(UsageError, match=rf"dla=1: TensorRT {re.escape(version)}\S* has no DLA"):
            compose_build(tool(version), "m", "p", fp16)
    assert "--useDLACore=1" in compose_build(tool("11.4.1"), "m", "p", fp16)
    with pytest.raises(UsageError, match="--use-dla"):
        keep_extra(tool("10.3"), ("--useDLACore=0",), ("--useDLACore=1",))


def test_many_layers_on_the_gpu_are_cut_short() -> None:
    (warning,) = list_dla_warnings(BuildSettings(dla=0), [f"layer{index}" for index in range(14)])
    assert warning.message.startswith("the device of 14 layers is the GPU, not DLA core 0: layer0, layer1")
    assert warning.message.endswith("layer9 and 4 more (all are in the log)")
    assert list_dla_warnings(BuildSettings(dla=0), []) == list_dla_warnings(BuildSettings(), ["a"]) == ()
