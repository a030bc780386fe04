"""OpenVINO: every setting is read back, and its own files keep the weights as they are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from msgspec.structs import replace

from calls import run_on
from enginebench.core.errors import ArtifactError, BackendUnavailable, MeasurementError, UsageError
from enginebench.core.feeds import random_feeds
from enginebench.core.records import Artifact, EngineSpec
from enginebench.core.store import hash_files
from enginebench.engines import openvino as engine_file
from enginebench.engines.backends.openvino import openvino as backend_file
from enginebench.engines.backends.openvino.graphs import read_model
from enginebench.engines.backends.openvino.openvino import OPTIONS, OpenvinoBackend, check_openvino_request
from enginebench.engines.backends.openvino.settings import choose_calm_window, choose_longest, note_clock
from enginebench.engines.openvino import compile_model
from enginebench.engines.proof import Operator
from enginebench.engines.request import read_options
from enginebench.models.onnx.source import read_onnx
from enginebench.models.precision.quantize import quantize
from graphs import write_graph

SPEC = EngineSpec(backend="openvino")


def make_settings(spec: EngineSpec) -> dict[str, Any]:
    return engine_file.make_settings(spec, read_options(spec, OPTIONS))


def test_precision_and_threads_are_what_was_asked_for(onnx_artifact: Artifact) -> None:
    compiled = compile_model(read_model(onnx_artifact), make_settings(SPEC))
    assert compiled.get_property("INFERENCE_PRECISION_HINT") == openvino.Type.f32
    assert compiled.get_property("ENABLE_CPU_PINNING") is False
    assert compiled.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE") == 0  # activations of w8 stay floats
    assert compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 1
    with pytest.raises(BackendUnavailable, match="INFERENCE_NUM_THREADS=5000, got"):
        OpenvinoBackend().load(onnx_artifact, replace(SPEC, threads=5000))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("INFERENCE_PRECISION_HINT", openvino.Type.bf16, "INFERENCE_PRECISION_HINT=f32, got bf16"),
        ("EXECUTION_DEVICES", ["GPU.0", "CPU"], "EXECUTION_DEVICES=CPU, got GPU.0,CPU"),
        ("NUM_STREAMS", 2, "NUM_STREAMS=1, got 2"),
    ],
)
def test_setting_that_was_not_taken_is_an_error(key, value, message, onnx_artifact, monkeypatch) -> None:
    class Compiled:
        def __init__(self, real: Any) -> None:
            self.real = real

        def get_property(self, name: str) -> Any:
            return value if name == key else self.real.get_property(name)

    class Core:
        def compile_model(self, *args: Any) -> Compiled:
            return Compiled(openvino_core().compile_model(*args))

    openvino_core, model = openvino.Core, read_model(onnx_artifact)
    monkeypatch.setattr(backend_file.openvino, "Core", Core)
    with pytest.raises(BackendUnavailable, match=message):
        compile_model(model, make_settings(SPEC))


def test_a_graph_that_does_not_compile_in_bf16_runs_in_fp32_with_a_warning(onnx_artifact, monkeypatch) -> None:
    given = openvino.Core

    class WithoutBf16:
        """As the plugin refuses some convolutions in INT8 on a CPU with AMX."""

        def compile_model(self, model: Any, device: str, settings: dict[str, Any]) -> Any:
            if settings["INFERENCE_PRECISION_HINT"] == "bf16":
                raise RuntimeError("No suitable implementations")
            return given().compile_model(model, device, settings)

        def __getattr__(self, name: str) -> Any:
            return getattr(given(), name)

    monkeypatch.setattr(openvino, "Core", WithoutBf16)
    # On a CPU without BF16 its hint would not even be given.
    monkeypatch.setattr(backend_file.engine, "read_capabilities", lambda: ("FP32", "INT8", "BF16"))
    spec, labelled = replace(SPEC, precision="int8", options={"force": "1"}), replace(onnx_artifact, precision="int8")
    feeds = random_feeds(onnx_artifact.inputs, 1, seed=0)
    for floats, codes in (("fp32", []), ("bf16", ["low_effective_precision"])):
        with OpenvinoBackend().load(labelled, replace(spec, options={**spec.options, "floats": floats})) as engine:
            engine.bind(feeds)
            engine.run()
            assert [warning.code for warning in engine.list_warnings()] == codes
            assert "bf16" not in engine.effective_precision()


def test_floats_of_an_int8_graph_can_be_bf16_and_no_other_graph_takes_that(onnx_artifact, monkeypatch) -> None:
    spec = replace(SPEC, options={"floats": "bf16"})
    with pytest.raises(UsageError, match="ask for the precision bf16"):
        OpenvinoBackend().load(onnx_artifact, spec)
    int8 = replace(spec, precision="int8")
    monkeypatch.setattr(engine_file, "read_capabilities", lambda: ("FP32", "INT8"))
    with pytest.raises(BackendUnavailable, match="no BF16 instructions"):
        check_openvino_request(replace(onnx_artifact, precision="int8"), int8)
    monkeypatch.setattr(engine_file, "read_capabilities", lambda: ("FP32", "INT8", "BF16"))
    assert check_openvino_request(replace(onnx_artifact, precision="int8"), int8)["floats"] == "bf16"
    assert make_settings(int8)["INFERENCE_PRECISION_HINT"] == "bf16"
    assert make_settings(replace(SPEC, precision="int8"))["INFERENCE_PRECISION_HINT"] == "f32"


@pytest.mark.parametrize(
    ("precision", "recipe", "group"), [("int8", "w8", 0), ("int8", "dynamic", 32), ("int4", "w4", 0)]
)
def test_weights_of_few_bits_are_proved_by_their_kernel(precision, recipe, group, tmp_path) -> None:
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((256, 256)).astype(np.float32) for name in ("w", "v")}
    text = "g (float[n, 256] x) => (float[n, 256] y) { h = MatMul (x, w) y = MatMul (h, v) }"
    graph = write_graph(tmp_path / "f.onnx", text, weights)
    artifact = quantize(graph, precision, "w4" if precision == "int4" else "w8", tmp_path / "q.onnx")
    spec = replace(SPEC, precision=precision, recipe=recipe, batch=64)
    engine = OpenvinoBackend().load(OpenvinoBackend().build(artifact, spec, tmp_path), spec)
    engine.bind({"x": rng.standard_normal((64, 256)).astype(np.float32)})
    assert engine.effective_precision()[precision] > 0.5
    compiled = compile_model(read_model(artifact), make_settings(spec))
    assert compiled.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE") == group  # of activations; 0: they stay floats


def test_a_build_keeps_weights_whole_in_a_folder_that_can_be_written(onnx_artifact, tmp_path, weights) -> None:
    built = OpenvinoBackend().build(onnx_artifact, SPEC, tmp_path / "new folder é")
    path = Path(built.path)
    assert built.kind == "openvino"
    assert built.parent_sha256 == onnx_artifact.sha256
    assert (built.sha256, built.files) == hash_files([path, path.with_suffix(".bin")], path.parent)
    assert path.with_suffix(".bin").stat().st_size >= sum(array.nbytes for array in weights.values())
    assert OpenvinoBackend().build(built, SPEC, tmp_path) is built
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ArtifactError, match="cannot write"):
        OpenvinoBackend().build(onnx_artifact, SPEC, tmp_path / "file" / "out")


def test_a_build_that_is_killed_leaves_the_files_of_the_build_before_it(onnx_artifact, tmp_path, monkeypatch) -> None:
    """Rows of two batches share them: half a file would be taken for one that was changed after the run began."""
    built = OpenvinoBackend().build(onnx_artifact, SPEC, tmp_path)
    save = openvino.save_model

    def save_half(model: Any, path: str, **how: Any) -> None:
        save(model, path, **how)
        Path(path).write_bytes(Path(path).read_bytes()[:100])
        raise KeyboardInterrupt

    monkeypatch.setattr(backend_file.openvino, "save_model", save_half)
    with pytest.raises(KeyboardInterrupt):
        OpenvinoBackend().build(onnx_artifact, replace(SPEC, batch=2), tmp_path)
    assert hash_files([tmp_path / file.path for file in built.files], tmp_path) == (built.sha256, built.files)


def test_dynamic_shapes_compile_once_and_a_missing_plugin_is_reported(onnx_artifact, expect, monkeypatch) -> None:
    with OpenvinoBackend().load(onnx_artifact, replace(SPEC, options={"shapes": "dynamic"})) as engine:
        compiled = engine._compiled
        for batch in (1, 3, 2):
            feeds = random_feeds(onnx_artifact.inputs, batch, batch)
            np.testing.assert_allclose(run_on(engine, feeds)["scores"], expect(feeds["image"]), rtol=1e-4, atol=1e-5)
        assert engine._compiled is compiled

    class Core:
        available_devices: tuple[str, ...] = ()

    monkeypatch.setattr(backend_file.openvino, "Core", Core)
    answer = OpenvinoBackend().probe()
    assert not answer.available
    assert "devices: none" in str(answer.reason)


def test_nodes_too_short_for_the_clock_prove_a_precision_and_have_no_times(onnx_artifact, monkeypatch) -> None:
    """Counters tell averages in whole microseconds: of a small network on a fast CPU only the first run shows."""

    def cut(runs: Any) -> tuple[list[Any], int]:
        return [node._replace(time_ns=0.0) for node in runs[0]], 10

    monkeypatch.setattr(backend_file, "choose_calm_window", cut)
    with OpenvinoBackend().load(onnx_artifact, SPEC) as engine:
        engine.bind(random_feeds(engine.inputs, 1, 0))
        assert sum(engine.effective_precision().values()) == pytest.approx(1)
        with pytest.raises(MeasurementError, match=r"layers?, all shorter than the resolution of its clock"):
            engine.profile_layers()


# Tests of operators in the ONNX package that OpenVINO 2026.4 answers in another shape than the graph declares.
CONTRADICTED = [
    "test_dft_rfft_opset19",
    "test_dft_irfft_opset19",
    "test_gru_batchwise",
    "test_lstm_batchwise",
    "test_simple_rnn_batchwise",
    "test_maxpool_2d_ceil_output_size_reduce_by_one",
    "test_nonmaxsuppression_iou_threshold_boundary",
    "test_resize_upsample_sizes_nearest_not_larger",
    "test_resize_upsample_sizes_nearest_not_smaller",
    "test_resize_downsample_sizes_nearest_not_larger",
    "test_resize_downsample_sizes_nearest_not_smaller",
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the makers of other cases
@pytest.mark.parametrize("name", CONTRADICTED)
def test_an_output_of_another_shape_than_the_graph_declares_is_refused(name: str, tmp_path: Path) -> None:
    from onnx.backend.test.case.node import collect_testcases

    case = next(case for case in collect_testcases(None) if case.name == name)
    (tmp_path / "graph.onnx").write_bytes(case.model.SerializeToString())
    artifact = read_onnx(tmp_path / "graph.onnx")
    feeds = {spec.name: array for spec, array in zip(artifact.inputs, case.data_sets[0][0], strict=True)}
    with OpenvinoBackend().load(artifact, SPEC) as engine, pytest.raises(ArtifactError) as refusal:
        run_on(engine, feeds)
    assert "the graph declares" in str(refusal.value) and any(o.name in str(refusal.value) for o in artifact.outputs)


def test_graphs_that_declare_other_batches_or_names_are_run_all_the_same(tmp_path: Path) -> None:
    """Such files are common: the first axis of the input was opened, and the outputs were left as they were."""
    for declared in ("float[1, 4]", "float[]"):  # the second is of unknown rank
        artifact = write_graph(tmp_path / "graph.onnx", f"g (float[n, 4] x) => ({declared} y) {{ y = Relu (x) }}")
        with OpenvinoBackend().load(artifact, replace(SPEC, batch=3)) as engine:
            assert run_on(engine, {"x": np.ones((3, 4), np.float32)})["y"].shape == (3, 4)
    # OpenVINO names such an input after what the Dropout makes of it.
    nodes = "d = Dropout (x) y = Sub (d, z)"
    artifact = write_graph(tmp_path / "g.onnx", f"g (float[1, 2] x, float[1, 2] z) => (float[1, 2] y) {{ {nodes} }}")
    with OpenvinoBackend().load(artifact, SPEC) as engine:
        feeds = {"x": np.full((1, 2), 3, np.float32), "z": np.ones((1, 2), np.float32)}
        assert run_on(engine, feeds)["y"].tolist() == [[2, 2]]


def test_an_input_that_is_handed_out_as_it_is_has_its_values(tmp_path: Path) -> None:
    """Compiled, it has only the name of that output."""
    graph = "g (float[4] z, float[4] x) => (float[4] y, float[4] d) { y = Dropout (x) d = Sub (z, x) }"
    artifact = write_graph(tmp_path / "g.onnx", graph)
    with OpenvinoBackend().load(artifact, SPEC) as engine:
        for factor in (1, 3):
            feeds = {"z": np.full(4, 10, np.float32), "x": factor * np.arange(4, dtype=np.float32)}
            outputs = run_on(engine, feeds)
            assert outputs["y"].tolist() == feeds["x"].tolist()
            assert outputs["d"].tolist() == (feeds["z"] - feeds["x"]).tolist()
        assert engine.record_layers().layers


# Mean times of nodes out of counters that tell whole microseconds, averaged over all runs so far.


def count(name: str, times_us: Sequence[int]) -> list[Operator | None]:
    """The counter of a node after each run; None where its average is below a microsecond: it "did not run"."""
    means = [sum(times_us[:n]) // n for n in range(1, len(times_us) + 1)]
    return [Operator("f32", 1000.0 * mean, name, "FullyConnected") if mean else None for mean in means]


def join(*columns: list[Operator | None]) -> list[list[Operator]]:
    """The nodes that ran, of each run."""
    return [[node for node in run if node is not None] for run in zip(*columns, strict=True)]


def test_a_node_below_a_microsecond_has_run_and_is_known() -> None:
    nodes, length = choose_calm_window(join(count("long", [40] + [6] * 20), count("short", [5] + [0] * 20)))
    assert length == 10
    times = {node.name: node.time_ns for node in nodes}
    assert list(times) == ["long", "short"]
    assert times["short"] == 0 and 4000 <= times["long"] <= 6000
    runs = join(count("a", [5] + [0] * 20), count("b", [2] + [0] * 20))
    nodes, _ = choose_calm_window(runs)
    assert not any(node.time_ns for node in nodes)
    assert [(node.name, node.time_ns) for node in choose_longest(runs)] == [("a", 5000.0), ("b", 2000.0)]


def test_an_interruption_is_left_out_and_times_near_the_clock_are_reported() -> None:
    (node,), _ = choose_calm_window(join(count("a", [90] + [50] * 10 + [9000] + [50] * 9)))
    assert 46_000 <= node.time_ns <= 54_000
    nodes, length = choose_calm_window([[Operator("f32", 7000.0, "a", "Add")]])
    assert (nodes[0].time_ns, length) == (7000.0, 1)
    short, long = (Operator("f32", us * 1000.0, "a", "Add") for us in (29, 31))
    assert note_clock([long]) == ()
    assert note_clock([short, long]) == ("1 layer under 30 us: times are cut to whole us, up to 3 us low",)
