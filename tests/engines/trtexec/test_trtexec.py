"""The engine `trtexec` over a stand-in for five versions: plans, rows, answers, proof, and every way to fail."""

import gzip
import json
import shlex
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from calls import answer_as_ort
from enginebench.core import errors
from enginebench.core.errors import ArtifactError, BackendUnavailable, FeedError, MeasurementError, UsageError
from enginebench.core.feeds import random_feeds
from enginebench.core.names import configuration_id
from enginebench.core.records import Artifact, EngineSpec, MeasureSpec, ShapeRange
from enginebench.engines.abilities import KeepsLog
from enginebench.engines.backends.tensorrt.plan_store import PlanRecord, describe_gpu
from enginebench.features.trtexec import process
from enginebench.features.trtexec.command import RunSettings
from enginebench.features.trtexec.engine import TrtexecBackend, create_backend
from enginebench.features.trtexec.records import LogRun
from enginebench.features.trtexec.tool_files import ToolFiles, check_switches
from enginebench.models.onnx.source import read_onnx
from enginebench.models.zoo import DATA_DIR
from fakes.trtexec_shim import VERSIONS, install_trtexec
from graphs import write_graph
from processes import environment, run_cli
from trtexec_artifacts import find_real_artifacts

EXACT = MeasureSpec(warmup=3, iters=25)
DATA_OF_8_6 = Path(__file__).parents[2] / "data" / "tensorrt-8.6"


# That which ran over NVIDIA's own library, the last before the defaults changed, the newest; what is compared with real
# outputs runs for the five whose source was compiled.
SOME = ("8.6.0", "10.16", "11.1")
ALL = pytest.mark.parametrize("version", VERSIONS, indirect=True)
# What does not hang on the version: how each of them fails is read from real outputs, below.
NEWEST = pytest.mark.parametrize("version", ["11.1"], indirect=True)


@pytest.fixture(params=SOME)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def backend(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrtexecBackend:
    monkeypatch.setenv("TRTEXEC", str(install_trtexec(tmp_path / "tools", version)))
    return create_backend(tmp_path / "run" / "cache")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Artifact]:
    """The plan of a version, built once: for tests of what is done with a plan."""

    @lru_cache
    def find(version: str) -> Artifact:
        folder = tmp_path_factory.mktemp("built")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRTEXEC", str(install_trtexec(folder / "tools", version)))
            source = read_onnx(DATA_DIR / "digits-cnn.onnx")
            return create_backend(folder / "run" / "cache").build(source, make_spec(), folder / "run")

    return find


@pytest.fixture
def plan(built: Callable[[str], Artifact], version: str) -> Artifact:
    return built(version)


def make_spec(**options: str) -> EngineSpec:
    return EngineSpec(backend="trtexec", device="cuda:0", batch=4, options=options)


def build(backend: TrtexecBackend, graph: Artifact, tmp_path: Path, **options: str) -> Artifact:
    return backend.build(graph, make_spec(**options), tmp_path / "run")


def test_a_plan_with_its_log_and_layers(backend: TrtexecBackend, graph: Artifact, tmp_path: Path, version: str) -> None:
    plan = build(backend, graph, tmp_path)
    path = Path(plan.path)
    assert plan.kind == "plan" and plan.parent_sha256 == graph.sha256 and path.stat().st_size > 0
    assert plan.made_by["tensorrt"].startswith(version)
    assert plan.warnings == ()
    log = path.with_suffix(".build.log").read_text(encoding="utf-8")
    command = shlex.split(log.splitlines()[0].removeprefix("$ "))
    assert f"--onnx={graph.path}" in command and "&&&& PASSED" in log
    assert json.loads(path.with_suffix(".layers.json").read_text(), strict=False)["Layers"][0]["LayerType"]


@NEWEST
def test_plans_are_kept_by_what_decides_them(backend, graph, tmp_path, monkeypatch) -> None:
    first = build(backend, graph, tmp_path)
    monkeypatch.setenv("FAKE_TRTEXEC_FAULT", "build_fails")  # a second build would fail
    assert build(backend, graph, tmp_path).sha256 == first.sha256
    assert build(backend, graph, tmp_path, timing_cache="t.cache").path == first.path
    for other in ({"optimization_level": "5"}, {"extra": "--sparsity=enable"}, {"run_extra": "--sparsity=force"}):
        with pytest.raises(ArtifactError):
            build(backend, graph, tmp_path, **other)
    with pytest.raises(ArtifactError):
        backend.build(replace(graph, sha256="other"), make_spec(), tmp_path / "run")
    Path(first.path).write_bytes(b"changed")
    with pytest.raises(ArtifactError):
        build(backend, graph, tmp_path)


@ALL
def test_a_configuration_holds_exactly_the_samples_asked_for(
    backend: TrtexecBackend, plan: Artifact, version: str
) -> None:
    row = backend.measure(plan, make_spec(), EXACT)
    assert row.clock == "tool" and row.stop_rule == "iterations"
    assert len(row.latency_ns) == 25
    assert row.warmup_dropped == 3 + (version == "11.1")  # 11.1 runs one query more than asked for
    assert row.device_ns == row.latency_ns  # without transfers the latency is the computation
    assert row.enqueue_ns is not None and set(np.round(row.enqueue_ns, -3)) == {30_000}
    assert row.throughput_pipelined_per_s == pytest.approx(4e9 / np.mean(row.latency_ns), rel=0.02)
    assert row.warnings == ()
    row = backend.measure(plan, make_spec(), MeasureSpec(iters=25))  # behind the tool's own warm-up
    assert len(row.latency_ns) == 25 and row.warmup_dropped > 0


@NEWEST
def test_the_logs_of_a_configuration_in_their_order(backend, plan, tmp_path, monkeypatch) -> None:
    home = tmp_path / "run"
    assert backend.find_logs(plan, make_spec(), EXACT) == []
    plans = home / "plans"
    plans.mkdir(parents=True)
    for name in (f"{Path(plan.path).stem}.build.log", "other.build.log"):
        (plans / name).write_text("&&&& RUNNING")
    for trial in (10, 9):
        folder = (
            home / "trtexec" / f"{configuration_id(make_spec(), 'fp32', EXACT)}-{plan.sha256[:8]}" / f"process-{trial}"
        )
        folder.mkdir(parents=True)
        (folder / "trtexec_stdout.log").write_text("&&&& RUNNING")
    found = backend.find_logs(plan, make_spec(), EXACT)
    assert [p.parent.name for p in found] == ["plans", "process-9", "process-10"]
    assert (
        len(backend.find_logs(replace(plan, kind="onnx", sha256="x"), make_spec(), EXACT)) == 2
    )  # no plan: all builds
    monkeypatch.setenv("ENGINEBENCH_REPETITION", "11")
    backend.measure(plan, make_spec(), EXACT)
    assert backend.find_logs(plan, make_spec(), EXACT)[-1].parent.name == "process-11"
    assert isinstance(backend, KeepsLog)


def test_outputs_are_those_of_the_graph(backend: TrtexecBackend, plan: Artifact, graph: Artifact, version: str) -> None:
    # Each is a process of its own; that all are answered needs to be seen once.
    feeds = [random_feeds(graph.inputs, 4, seed) for seed in range(6 if version == "11.1" else 1)]
    answers = backend.compute_outputs(plan, make_spec(), feeds)
    expected = np.concatenate([answer_as_ort(graph.path, feed)["output"] for feed in feeds])
    np.testing.assert_allclose(answers["output"], expected, rtol=1e-5, atol=1e-5)  # six digits


def test_the_precision_is_proved(backend, plan, graph, tmp_path, version, monkeypatch) -> None:
    spec = make_spec()
    assert backend.prove_precision(plan, spec) == pytest.approx({"fp32": 1.0})
    profile = backend.profile_plan(plan, spec)
    assert profile.runs > 1 and {layer.precision for layer in profile.layers} <= {"fp32", "reorder", None}
    assert all(layer.mean_ns > 0 and layer.kind for layer in profile.layers)
    if version.startswith("11"):
        plain = build(backend, graph, tmp_path, detailed="0")
        assert backend.prove_precision(plain, make_spec(detailed="0")) == pytest.approx({"unknown": 1.0})
        return
    weak = replace(spec, precision="int8", options={"weak_typing": "1"})
    guessed = backend.build(graph, weak, tmp_path / "run")
    advice = {c.code: c.advice for c in guessed.warnings}["random_calibration"]
    assert "calib_cache=FILE" in advice and "--data" not in advice  # the builder reads no data of a run
    shares = backend.prove_precision(guessed, weak)
    assert shares is not None and shares["int8"] > 0.2
    monkeypatch.setenv("FAKE_TRTEXEC_FAULT", "ignores_precision")
    quiet = backend.build(graph, replace(weak, options={"weak_typing": "1", "refit": "1"}), tmp_path / "run")
    # Only an FP32 build forbids TF32: what stays out of INT8 in this one is multiplied in it.
    shares = backend.prove_precision(quiet, weak)
    assert shares is not None and set(shares) == {"fp32", "tf32"} and sum(shares.values()) == pytest.approx(1)


def test_a_plan_alone(backend: TrtexecBackend, plan: Artifact, tmp_path: Path, version: str) -> None:
    bare = replace(plan, inputs=(), outputs=(), parent_sha256=None, warnings=(), allowed={})
    found = backend.build(bare, make_spec(), tmp_path / "run")
    assert [(s.name, s.dtype, s.shape) for s in found.inputs] == [("input", "float32", ("batch", 1, 8, 8))]
    assert [s.name for s in found.outputs] == ["output"]
    assert len(backend.measure(found, make_spec(), EXACT).latency_ns) == 25
    assert found.warnings == ()
    with pytest.raises(ArtifactError, match=r"does not satisfy any optimization profiles?\..*--batch or --input-shape"):
        backend.build(bare, replace(make_spec(), batch=3), tmp_path / "run")
    if version == "8.6.0":  # which does not say what its profile has
        with pytest.raises(ArtifactError, match="does not satisfy any optimization profile"):
            backend.build(bare, replace(make_spec(), batch=1), tmp_path / "run")
        return
    unasked = backend.build(bare, replace(make_spec(), batch=1), tmp_path / "run")
    assert unasked.inputs[0].shape == (4, 1, 8, 8), "what the profile has, where no batch is asked for"
    assert unasked.allowed == {"input": ShapeRange(smallest=(4, 1, 8, 8), largest=(4, 1, 8, 8))}
    with pytest.raises(UsageError, match="given for other: no such input; the inputs are input"):
        backend.build(bare, make_spec(shapes="other:4x1x8x8"), tmp_path / "run")


@NEWEST
def test_what_a_configuration_cannot_be_called_and_what_is_questionable(backend, plan, monkeypatch) -> None:
    with pytest.raises(UsageError, match="implicit_batch=8, and the configuration's batch is 4: give --batch 8"):
        backend.measure(plan, make_spec(implicit_batch="8"), EXACT)
    row = backend.measure(plan, make_spec(), replace(EXACT, scope="io"))
    assert row.h2d_ns is not None and row.device_ns is not None and row.d2h_ns is not None
    assert min(row.h2d_ns) > 0
    total = np.add(np.add(row.h2d_ns, row.device_ns), row.d2h_ns)
    np.testing.assert_allclose(total, row.latency_ns, rtol=1e-4)
    monkeypatch.setenv("FAKE_TRTEXEC_FAULT", "capture_fails,log_disagrees")
    row = backend.measure(plan, make_spec(), EXACT)
    assert {c.code for c in row.warnings} == {"log_disagrees"}


@pytest.mark.parametrize("content", [None, b"", b"not one"])
def test_a_cache_that_tensorrt_would_pass_over_is_refused(tmp_path, monkeypatch, graph, content) -> None:
    monkeypatch.setenv("TRTEXEC", str(install_trtexec(tmp_path / "tool", "10.16")))
    cache = tmp_path / "my ranges.cache"
    if content is not None:
        cache.write_bytes(content)
    spec = replace(make_spec(weak_typing="1", calib_cache=str(cache)), precision="int8")
    with pytest.raises(ArtifactError, match=r"calibration cache|cannot read .*my ranges\.cache: No such"):
        create_backend(tmp_path / "run" / "cache").build(graph, spec, tmp_path / "run")


BUILD_FAULTS = {
    "build_fails": (ArtifactError, r"Error Code 10.*workspace-mb"),
    "empty_plan": (ArtifactError, r"no plan at .*, or an empty one.*exit code 0 and PASSED"),
    "no_passed": (ArtifactError, r"exit code 0, but no PASSED banner"),
    "no_driver": (BackendUnavailable, r"CUDA driver version is insufficient.*driver"),
    "no_device": (BackendUnavailable, r"Cannot find device ID 0!.*another device"),
    "no_library": (BackendUnavailable, r"libnvinfer_plugin.*lib folder to LD_LIBRARY_PATH"),
    "weights": (ArtifactError, r"Failed to open file: net\.data; \[8\] Failed to import initializer: w .*beside it"),
}
RUN_FAULTS = {
    "device_fault": "illegal memory access",
    "aborts": "SIGABRT",
    "wrong_version": r"Error Code 1: Serialization.*build it again here",
    "silent_export": r"wrote no times\.json",
}


@NEWEST
@pytest.mark.parametrize("fault", BUILD_FAULTS)
def test_a_failed_build_says_why(backend, graph, tmp_path, monkeypatch, fault) -> None:
    monkeypatch.setenv("FAKE_TRTEXEC_FAULT", fault)
    kind, words = BUILD_FAULTS[fault]
    with pytest.raises(kind, match=words) as caught:
        build(backend, graph, tmp_path)
    log = Path(str(caught.value).split("Full log: ")[1])
    assert log.read_text(encoding="utf-8").startswith("$ ")
    left = {path.name.partition(".")[2] for path in (tmp_path / "run" / "plans").iterdir()}
    assert not left & {"plan", "part", "json"}, left


@NEWEST
@pytest.mark.parametrize("fault", RUN_FAULTS)
def test_a_failed_run_says_why(backend, plan, monkeypatch, fault) -> None:
    monkeypatch.setenv("FAKE_TRTEXEC_FAULT", fault)
    with pytest.raises(MeasurementError, match=RUN_FAULTS[fault]):
        backend.measure(plan, make_spec(), EXACT)


def test_switches_of_the_log_guessed_axes_and_shapes_that_a_profile_allows() -> None:
    seen = LogRun(cuda_graph=True, data_transfers=True, streams=2)
    found = list(check_switches(seen, RunSettings()))
    assert [c.code for c in found] == ["log_disagrees", "log_disagrees"]
    assert "requested data transfers off; the log reports on" in found[0].message
    assert "requested streams 1; the log reports 2" in found[1].message
    line = "[W] Shape missing for input with dynamic shape: {}Automatically setting shape to: 1x3x224x224\n"
    text = line.format("input") + line.format("in put:0")
    assert process.read_guessed_shapes(text) == {"input": (1, 3, 224, 224), "in put:0": (1, 3, 224, 224)}
    assert process.read_guessed_shapes("[I] Input binding for input with dimensions 1x3") == {}
    words = (
        "[E] [TRT] IExecutionContext::setInputShape: Error Code 3: API Usage Error (Parameter check failed, condition: "
        "satisfyProfile. Set dimension [6,128,100] for tensor padded_feature does not satisfy any optimization "
        "profiles. Valid range for profile 0: [10,128,100]..[30,128,100]. In setInputShape at x.cpp:2372)\n"
    )
    expected = ShapeRange(smallest=(10, 128, 100), largest=(30, 128, 100))
    assert process.read_allowed(words, 0) == {"padded_feature": expected}
    assert process.read_allowed(words, 1) == {}
    of_8 = "condition: satisfyProfile Runtime dimension does not satisfy any optimization profile."
    assert process.read_allowed(of_8, 0) == {}


PARSER_OF_8 = """\
[x] [E] [TRT] ModelImporter.cpp:771: While parsing node number 3 [Conv -> "y"]:
[x] [E] [TRT] ModelImporter.cpp:772: --- Begin node ---
[x] [E] [TRT] ModelImporter.cpp:773: input: "x"
[x] [E] [TRT] ModelImporter.cpp:774: --- End node ---
[x] [E] [TRT] ModelImporter.cpp:777: ERROR: ModelImporter.cpp:195 In function parseGraph:
[6] Invalid Node - Conv_3
[x] [E] Failed to parse onnx file
"""


def test_first_errors_also_of_the_parser_reach_the_user() -> None:
    named = 'While parsing node number 3 [Conv -> "y"]: [6] Invalid Node - Conv_3'
    assert process.find_first_error(PARSER_OF_8) == named
    whole = "[x] [E] [TRT] m.cpp:9: ERROR: m.cpp:5 In function parseGraph:\n[8] Failed to import initializer: w\n"
    assert process.find_first_error(whole) == "[8] Failed to import initializer: w"
    logged = "[x] [E] [TRT] WeightsContext.cpp:203: Failed to open file: f\n"
    assert process.find_first_error(logged + PARSER_OF_8.partition("\n")[0] + "\n" + whole) == (
        '[TRT] WeightsContext.cpp:203: Failed to open file: f; While parsing node number 3 [Conv -> "y"]: '
        "[8] Failed to import initializer: w"
    )
    real_log = find_real_artifacts() / "trtexec-logs" / "trt7.0-failed-parse.log"
    assert process.find_first_error(real_log.read_text(encoding="utf-8")) == (
        "While parsing node number 0 [Conv]: [5] Assertion failed: tensors.count(input_name)"
    )
    chain = "[x] [E] Engine set up failed\n[x] [E] [TRT] Error Code 10: no kernel\n"
    assert process.find_first_error(chain) == "[TRT] Error Code 10: no kernel"
    assert process.find_first_error("[x] [E] Engine set up failed\n") == "Engine set up failed"
    assert process.find_first_error("nothing here") is None
    lost = "[x] [E] [TRT] 1: [myelinCache.h::deserializeFromBuffer::52] Error Code 1: Myelin (unknown graph)\n"
    lost += "[x] [E] [TRT] 4: The timing cache will not be used!\n"
    assert process.find_first_error(lost) is None, "the build goes on without it"
    assert process.find_first_error(lost + chain) == "[TRT] Error Code 10: no kernel"
    assert process.find_advice("all is well") is None


MEMORY = "Cuda failure at /src/common.h:101: an illegal memory access was encountered"


@pytest.mark.parametrize(
    ("text", "words", "kind"),
    [
        (
            "Could not load library libnvonnxparser.so.10: Unable to open library: libnvonnxparser.so.10",
            "LD_LIBRARY",
            BackendUnavailable,
        ),
        (
            "Unable to open library: libnvinfer_plugin.so.8 due to libnvinfer_plugin.so.8: cannot open",
            "LD_LIBRARY",
            BackendUnavailable,
        ),
        ("Unable to open library: a.so due to libb.so: cannot open shared object file: No such", "LD_LIBRARY", None),
        ("Unable to open library: a.so due to a.so: cannot open shared object file: No such file", "--plugins", None),
        ("Unable to open library: a.so due to a.so: file too short", "--plugins", None),
        (
            "trtexec: error while loading shared libraries: libnvinfer.so.8: cannot open shared",
            "LD_LIBRARY",
            BackendUnavailable,
        ),
        ("Cuda failure: invalid device ordinal", "another device", BackendUnavailable),
        ("Cuda failure: 101", "another device", BackendUnavailable),
        # A fault on the GPU is not a missing GPU.
        ("Cuda failure: CUDA driver version is insufficient for CUDA runtime version", "driver", BackendUnavailable),
        ("Cuda failure: 35", "driver", BackendUnavailable),
        ("Cuda failure at /src/common.h:1011: no CUDA-capable device is detected", "No GPU", BackendUnavailable),
        ("Cuda failure: system not yet initialized", "driver", BackendUnavailable),
        ("Cuda failure: 700", "dmesg", None),
        ("Cuda failure: 350", "dmesg", None),
        (MEMORY, "dmesg", None),
        ("Cuda failure: out of memory", "memory is full", None),
    ],
)
def test_advice_fits(text: str, words: str, kind: type[Exception] | None) -> None:
    found = process.find_advice(text)
    assert found is not None and words in found.advice and found.kind is kind


def test_advice_on_what_the_real_8_6_printed() -> None:
    def ask(name: str) -> tuple[str | None, str]:
        text = gzip.decompress((DATA_OF_8_6 / name).read_bytes()).decode()
        found = process.find_first_error(text)
        advice = process.find_advice(found)
        return found, advice.advice if advice else ""

    found, advice = ask("calibration-refused.trtexec.log.gz")
    assert "absTensorMax" in str(found) and "Let it write the cache" in advice
    found, advice = ask("gelu-opset20.trtexec.log.gz")
    assert "Plugin not found" in str(found) and "neither such an operator nor such a plug-in" in advice
    assert ask("resnet18-fp16-timing-cache.log.gz") == (None, "")
    # A crash without a word: lines that are no errors give no advice.
    ended = "[x] [I] Engine deserialized in 0.3 sec.\n[x] [I] [TRT] Loaded engine size: 1 MiB\n"
    crash = process.Outcome(exit_code=-11, log=Path("log"), text=ended)
    assert str(process.describe_failure(crash, "x", MeasurementError)) == (
        "x: trtexec printed no error (trtexec was ended by SIGSEGV). Full log: log"
    )


@pytest.mark.parametrize("version", ["8.6.0"], indirect=True)
def test_what_the_tool_is_given_and_asked_once_more(backend, plan, monkeypatch, graph, tmp_path) -> None:
    notes: list[str] = []
    backend.take_note(notes.append)
    monkeypatch.setenv("FAKE_TRTEXEC_FAULT", "not_ready")
    assert backend.prove_precision(plan, make_spec())
    assert "the GPU was not ready, as others work on it; once more" in notes
    notes: list[str] = []
    backend.take_note(notes.append)
    ranges = tmp_path / "ours.cache"
    ranges.write_bytes((DATA_OF_8_6 / "calibration.ours-refused.cache").read_bytes())
    timing = tmp_path / "t.cache"
    timing.write_bytes(b"timings")
    spec = make_spec(weak_typing="1", calib_cache=str(ranges), version_compatible="1", timing_cache=str(timing))
    spec = replace(spec, precision="int8")
    plan = backend.build(graph, spec, tmp_path / "run")
    log = Path(plan.path).with_suffix(".build.log").read_text()
    given = next(word for word in shlex.split(log.splitlines()[0]) if word.startswith("--calib="))
    lines = Path(given.removeprefix("--calib=")).read_bytes().splitlines()
    assert lines[0] == b"TRT-8600-EntropyCalibration2" and lines[1:] == ranges.read_bytes().splitlines()[1:]
    assert "--excludeLeanRuntime" in log, "there is no lean runtime here to put in"
    assert any("without the timing cache" in note for note in notes)
    with pytest.raises(UsageError, match="both --refit and --version-compatible"):
        build(backend, graph, tmp_path, refit="1", version_compatible="1")


@NEWEST
@pytest.mark.parametrize("fault", ["no_driver", "no_device", "no_library", ""])
def test_doctor_asks_for_a_gpu_and_for_tensorrts_libraries(backend, monkeypatch, fault, version) -> None:
    """The help, by which a trtexec is known, needs neither."""
    monkeypatch.setenv("FAKE_TRTEXEC_FAULT", fault)
    found = backend.probe()
    assert found.version == f"{version}.0"[:6].rstrip(".") or version in str(found.version)
    assert (found.available, found.devices) == ((not fault), () if fault else ("cuda:0",))
    words = {"no_driver": "driver", "no_device": "no such GPU", "no_library": "LD_LIBRARY_PATH", "": ""}[fault]
    assert words in (found.reason or "")


@ALL
@pytest.mark.parametrize("source", ["trtexec-gpu", "trtexec-cli"])
def test_doctor_reads_the_real_tool(version: str, source: str, tmp_path: Path) -> None:
    """What trtexec printed about a plan that is not there, with a GPU and without a driver."""
    case = find_real_artifacts() / source / version / "missing-engine"
    if not case.with_suffix(".stdout").is_file():
        pytest.skip(f"{source} of {version} has no case of a missing plan")
    tool = tmp_path / "trtexec"
    tool.write_text(f"#!/bin/sh\ncat {case}.stdout\ncat {case}.stderr >&2\nexit $(cat {case}.exit)\n")
    tool.chmod(0o755)
    devices, reason = process.list_gpus(str(tool))
    assert (devices == ("cuda:0",)) == (reason is None) == (source == "trtexec-gpu"), reason
    assert reason is None or "CUDA driver version is insufficient" in reason


def write_sum(path: Path, dtype: str) -> Artifact:
    """y = x + x over two open axes."""
    x, y = (f"{dtype.replace('float32', 'float')}[batch, length] {name}" for name in "xy")
    return write_graph(path, f"({x}) => ({y}) {{ y = Add (x, x) }}")


@pytest.mark.parametrize(
    ("dtype", "bare"),
    [("float32", True), ("float16", False), ("int64", True), ("int32", False)],  # a plan alone
)
def test_outputs_have_the_shapes_and_types_of_the_arrays(backend, tmp_path, version, dtype, bare) -> None:
    """8.6 has no INT64 inputs, and its log shows no types; from 10 on half of a file that is too long is read."""
    source = write_sum(tmp_path / "sum.onnx", dtype)
    options = {"min_shapes": "x:1x1", "opt_shapes": "x:2x4", "max_shapes": "x:4x8"}
    spec = replace(make_spec(**options), batch=3)
    plan = backend.build(source, spec, tmp_path / "run")
    x = np.arange(15).reshape(3, 5).astype(dtype)
    asked = make_spec(shapes="x:3x5") if bare else make_spec()
    asked = replace(asked, batch=3)
    if bare:
        plan = backend.build(replace(plan, inputs=(), outputs=()), asked, tmp_path / "run")
    answer = backend.compute_outputs(plan, asked, [{"x": x}])["y"]
    np.testing.assert_array_equal(answer, 2 * x)
    wrong = {"float32": "int32", "int32": "float32", "float16": "int16", "int64": "float64"}[dtype]
    if version != "8.6.0":
        with pytest.raises(FeedError, match=f"has dtype {wrong}"):
            backend.compute_outputs(plan, asked, [{"x": x.astype(wrong)}])
    with pytest.raises(FeedError, match="has dtype complex128"):
        backend.compute_outputs(plan, asked, [{"x": x.astype("complex128")}])


def test_integers_that_do_not_fit_are_refused_where_a_plan_has_32_bits(backend, tmp_path, version) -> None:
    plan = backend.build(write_sum(tmp_path / "sum.onnx", "int64"), make_spec(), tmp_path / "run")
    large = np.full((4, 1), 2**40)
    if version != "8.6.0":
        assert backend.compute_outputs(plan, make_spec(), [{"x": large}])["y"].shape == (4, 1)
        return
    with pytest.raises(FeedError, match="more than INT32 holds"):
        backend.compute_outputs(plan, make_spec(), [{"x": large}])


def test_outputs_that_json_lacks_and_a_tool_that_vanishes(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text('[ { "name" : "nan", "dimensions" : "1x4", "values" : [ -nan, inf, -inf, 1e-05 ] } ]')
    values = process.read_outputs(path, ())["nan"]
    assert np.isnan(values[0, 0]) and list(values[0, 1:3]) == [np.inf, -np.inf]
    path.write_text("[ { ")
    with pytest.raises(errors.ParseError, match="--exportOutput"):
        process.read_outputs(path, ())
    with pytest.raises(errors.MissingDependency, match="nowhere"):
        process.run_trtexec(["/nowhere/trtexec"], tmp_path / "a.log", tmp_path)
    record = PlanRecord(onnx_sha256="a", tensorrt="11.1.0", gpu=describe_gpu(99), flags=("--x",), engine="trtexec")
    assert len({replace(record, **change).key for change in ({}, {"gpu": "b"}, {"flags": ()}, {"tensorrt": "10"})}) == 4


def real(version: str, name: str) -> str:
    path = find_real_artifacts() / "trtexec-gpu" / version / name
    if path.with_name(path.name + ".gz").is_file():
        return gzip.decompress(path.with_name(path.name + ".gz").read_bytes()).decode()
    if not path.is_file():
        pytest.skip(f"this build's {name} is not among the real outputs")
    return path.read_text(encoding="utf-8")


@ALL
def test_bindings_and_times_of_real_runs(version: str, tmp_path: Path) -> None:
    inputs, outputs = process.read_bindings(real(version, "exact-50.stdout"))
    assert [(s.name, s.dtype, s.shape) for s in inputs] == [("input", "float32", (1, 3, 224, 224))]
    assert [(s.name, s.shape) for s in outputs] == [("logits", (1, 1000))]
    # Our reader on a real run: the samples are those of the file, and the log agrees with them.
    times, log = tmp_path / "times.json", tmp_path / "trtexec_stdout.log"
    times.write_text(real(version, "exact-50.times.json"))
    log.write_text(real(version, "exact-50.stdout"))
    new = version.startswith("11")  # as trtexec does by itself
    usual = RunSettings(cuda_graph=new, transfers=not new, spin_wait=new)
    row = ToolFiles().read_times(times, log, usual, batch=1, drop=0, keep=50)
    assert len(row.latency_ns) == 50
    assert "log_disagrees" not in {c.code for c in row.warnings}
    raw: list[dict[str, Any]] = json.loads(times.read_text())
    assert row.latency_ns[-1] == round(raw[-1]["latencyMs"] * 1e6)
    with pytest.raises(MeasurementError, match="expected 60 or more"):
        ToolFiles().read_times(times, log, usual, batch=1, drop=0, keep=60)


@ALL
@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("build-fails-save", "Error Code 10"),
        ("unsupported-op", "no importer registered"),
        ("other-version-engine", "does not match"),
        ("shapes-outside-profile", "outside of the profile|Error opening engine file: dynamic"),
        ("device-fault", "Cuda failure"),
        ("empty-engine", "Serialization|Engine blob is empty"),
        ("save-unwritable", ""),
    ],
)
def test_real_failures_are_explained(version: str, case: str, words: str) -> None:
    import re

    text = real(version, f"{case}.stdout") + real(version, f"{case}.stderr")
    found = process.find_first_error(text)
    assert found and re.search(words, found), found
    assert "&&&& PASSED" not in text


def test_a_build_that_the_kernel_ends_is_repeated_with_less_memory(
    graph: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `build` does it, with real processes."""
    install_trtexec(tmp_path / "tools", "10.16")
    variables = environment(tmp_path) | {"TRTEXEC": str(tmp_path / "tools" / "trtexec")}
    variables["FAKE_TRTEXEC_FAULT"] = "exhausted"
    result = run_cli(tmp_path, "build", graph.path, "--engine", "trtexec", "--out", "m.plan", "--json", env=variables)
    document = json.loads(result.stdout)
    (warning,) = [w for w in document["caveats"] if "workspace" in w["message"]]
    assert "is 256 MiB, its optimization level 0: memory ran out with more" in warning["message"]
    assert "--memPoolSize=workspace:256" in document["command"] and result.stderr.count("memory ran out") == 2
