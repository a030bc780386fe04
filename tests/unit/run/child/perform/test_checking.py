"""A plan is held against its graph: TensorRT 8.6 makes another network of some graphs, and says nothing."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper

from enginebench.core.errors import ArtifactError, UnsupportedOperator
from enginebench.core.records import Artifact, EngineSpec
from enginebench.engines.registry import ENTRIES
from enginebench.models.onnx.source import read_onnx
from enginebench.models.samples import write_samples
from enginebench.runs.child.arrays import load_arrays
from enginebench.runs.child.jobs import BuildJob, BuildResponse, Labelled, PrepareJob
from enginebench.runs.child.opening import lower_first, open_for
from enginebench.runs.child.perform import build
from enginebench.stats.drift import default_limits, measure_drift
from fakes.tensorrt_modules import forget_modules, use_fakes
from fakes.trtexec_shim import install_trtexec
from graphs import write_text

# The fakes are found on a path of their own, where another distribution's namespace package may lie as well.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:importlib")
ENGINES = ("tensorrt", "trtexec")
node = helper.make_node


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """TensorRT 8.6, both as a module and as a tool."""
    use_fakes(monkeypatch, "8.6")
    monkeypatch.setenv("TRTEXEC", str(install_trtexec(tmp_path / "tools", "8.6.1")))
    yield
    forget_modules()


@pytest.fixture
def normalizing(tmp_path: Path) -> Path:
    """Of opset 20: what is divided by the root of its mean square, an RMSNorm written out."""
    text = "(float[4, 8] x) => (float[4, 8] y) { s = Mul(x, x) m = ReduceMean(s, axes) r = Sqrt(m) y = Div(x, r) }"
    return write_text(tmp_path / "normalizing.onnx", text, {"axes": np.array([-1])}, opset=20)


Built = Callable[..., BuildResponse]


@pytest.fixture
def build_file(tmp_path: Path, normalizing: Path) -> Built:
    def build_it(engine: str, source: Path = normalizing, **options: str) -> BuildResponse:
        spec = EngineSpec(backend=engine, options=options, device="cuda:0", batch=4)
        job = BuildJob(source=str(source), engine=spec, out_dir=str(tmp_path / "out"))
        return build.build_file(job, print, lambda answer: None)

    return build_it


def read_newer(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    """As before 8.6's limit was known: the graph goes to the parser as it is."""
    module = importlib.import_module(ENTRIES[engine].module)
    monkeypatch.setattr(module, "find_newest_opset", lambda version: 99)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.feature("trtexec", "trtexec")
def test_a_graph_is_lowered_to_what_the_version_reads(engine: str, build_file: Built, normalizing: Path) -> None:
    built = build_file(engine)
    given = read_onnx(normalizing)
    assert built.lowered is not None and built.lowered.opset == 17
    assert [a.parent_sha256 for a in (built.artifact, built.lowered)] == [built.lowered.sha256, given.sha256]
    assert "outputs_not_compared" not in {c.code for c in built.artifact.warnings}
    assert build_file(engine).artifact.sha256 == built.artifact.sha256  # the stored plan is found again


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.feature("trtexec", "trtexec")
def test_another_network_is_not_delivered(engine: str, build_file: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    read_newer(monkeypatch, engine)
    said = r"gives other outputs than normalizing.onnx does \(y: .*limit 60.*opset 20"
    with pytest.raises(ArtifactError, match=said):
        build_file(engine)


def test_what_rounds_too_much_is_given_with_a_warning(normalizing: Path) -> None:
    """Random weights make a network that rounding alone takes beyond the limits of its format."""
    graph = read_onnx(normalizing)
    wanted, noise = np.random.default_rng(0).normal(size=(2, 8, 16)).astype(np.float32)
    for precision, given in (("fp16", nullcontext()), ("fp32", pytest.raises(ArtifactError, match="other outputs"))):
        spec = EngineSpec(backend="tensorrt", device="cuda:0", precision=precision)
        drift = measure_drift({"y": wanted}, {"y": wanted + noise / 10}, default_limits(precision), reference_id="g")
        with given:
            assert [c.code for c in build.require_alike(graph, graph, drift, spec).warnings] == ["outputs_differ"]


def test_an_operator_without_an_equal_is_refused_before_a_build(build_file: Built, normalizing: Path) -> None:
    model = onnx.load(normalizing)
    model.graph.node[1].CopyFrom(node("ReduceMean", ["s", "shape"], ["m"], "mean"))
    model.graph.node.insert(1, node("Shape", ["s"], ["shape"]))
    onnx.save(model, normalizing)
    with pytest.raises(UnsupportedOperator, match=r"^ReduceMean \(node 'mean'\).*TensorRT 8\.6.* up to opset 17"):
        build_file("tensorrt")


@pytest.mark.feature("trtexec")
def test_a_graph_with_newer_types_alone_is_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT 10.0 has BF16, and is documented up to opset 20; convolutions take BF16 from 22."""
    path = tmp_path / "bf16.onnx"
    x, y = (helper.make_tensor_value_info(name, TensorProto.BFLOAT16, [1, 1, 4, 4]) for name in "xy")
    weight = helper.make_tensor("w", TensorProto.BFLOAT16, [1, 1, 1, 1], [1.0])
    graph = helper.make_graph([node("Conv", ["x", "w"], ["y"], "conv")], "g", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10), path)
    spec = EngineSpec(backend="trtexec", device="cuda:0")
    monkeypatch.setenv("TRTEXEC", str(install_trtexec(tmp_path / "ten", "10.0.1")))
    told: list[str] = []
    artifact, backend = read_onnx(path), open_for(spec, str(tmp_path))
    assert lower_first(backend, artifact, spec, str(tmp_path), told.append) == artifact
    assert "handed on as it is" in told[-1] and "up to opset 20, and bf16.onnx is of opset 22" in told[-1]


@pytest.mark.parametrize(("batch", "calls"), [(1, 4), (4, 1)])
def test_labels_that_lie_near_a_tie_are_no_other_network(batch, calls, build_file, tmp_path, monkeypatch) -> None:
    """Four samples at least, and one of them may read otherwise."""
    text = f"(float[{batch}, 8] x) => (int64[{batch}] y) {{ y = ArgMax <axis = 1, keepdims = 0> (x) }}"
    path = write_text(tmp_path / "labels.onnx", text)
    asked = []

    def ask(graph: Artifact, feeds: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        asked.append(len(feeds))
        answers = real(graph, feeds)
        answers[0]["y"][:wrong] += 1
        return answers

    real = build._ask_graph
    monkeypatch.setattr(build, "_ask_graph", ask)
    wrong = 1
    print(build_file("tensorrt", path).artifact.warnings)
    assert asked == [calls]
    if calls == 1:
        wrong = 3
        with pytest.raises(ArtifactError, match=r"labels\.onnx"):
            build_file("tensorrt", path)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.feature("trtexec", "trtexec")
def test_a_configuration_keeps_the_lowered_graph(engine: str, normalizing: Path, tmp_path: Path) -> None:
    spec = EngineSpec(backend=engine, device="cuda:0", batch=4)
    graph = read_onnx(normalizing)
    job = PrepareJob(
        model="normalizing.onnx",
        artifact=graph,
        engine=spec,
        out_dir=str(tmp_path / "run"),
        outputs_path=str(tmp_path / "outputs.npz"),
        samples=4,
        seed=0,
        prove=False,
    )
    answer = build.prepare_engine(job, print, lambda sure: None)
    assert answer.lowered is not None and answer.artifact.parent_sha256 == answer.lowered.sha256
    with np.load(tmp_path / "outputs.npz") as found:
        assert np.square(found["y"]).mean(axis=-1) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.feature("trtexec", "trtexec")
def test_a_plan_is_held_against_the_graph_that_it_names(engine, build_file, normalizing, tmp_path, monkeypatch) -> None:
    spec = EngineSpec(backend=engine, device="cuda:0", batch=4)
    read_newer(monkeypatch, engine)
    plan = open_for(spec, str(tmp_path / "wrong")).build(read_onnx(normalizing), spec, tmp_path / "wrong")
    finished = replace(plan, kind="plan", inputs=(), outputs=(), parent_sha256=None)
    job = PrepareJob(
        model="p.plan",
        artifact=finished,
        engine=spec,
        out_dir=str(tmp_path / "run"),
        outputs_path=str(tmp_path / "outputs.npz"),
        samples=4,
        seed=0,
        prove=False,
    )
    answer = build.prepare_engine(replace(job, graph=str(normalizing)), print, lambda sure: None)
    assert answer.drift is not None and not answer.drift.passed and answer.drift.reference == "normalizing.onnx"
    assert build.prepare_engine(job, print, lambda sure: None).drift is None


@pytest.mark.feature("trtexec")
@pytest.mark.parametrize("seconds", [1e9, 0.0])
def test_a_tool_is_scored_by_what_it_exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Two in six labels are wrong: the score is that of the outputs, of as many samples as there was time for."""
    path = write_text(tmp_path / "same.onnx", "(float[2, 3] x) => (float[2, 3] y) { y = Identity (x) }")
    samples, labels = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1, 2]], np.array([0, 1, 2, 0, 2, 1])
    write_samples([{"x": samples}], read_onnx(path).inputs, tmp_path / "inputs")
    np.save(tmp_path / "labels.npy", labels)
    monkeypatch.setattr(build, "TOOL_SCORING_S", seconds)
    targets = str(tmp_path / "labels.npy")
    labelled = Labelled(data=None, n=6, input_size=None, metrics=("top1",), targets=targets, task=None)
    job = PrepareJob(
        model="same.onnx",
        artifact=read_onnx(path),
        engine=EngineSpec(backend="trtexec", device="cuda:0", batch=2),
        out_dir=str(tmp_path / "out"),
        outputs_path=str(tmp_path / "outputs.npz"),
        labelled_path=str(tmp_path / "answers.npz"),
        samples=2,
        seed=0,
        labelled=labelled,
        inputs=str(tmp_path / "inputs"),
    )
    build.prepare_engine(job, lambda text: None, lambda answer: None)
    kept = load_arrays(tmp_path / "answers.npz")
    places = kept["places"] if "places" in kept else np.arange(6)
    assert kept["counts/top1"][:, 0].tolist() == np.array([1, 1, 1, 1, 0, 0])[places].tolist()
    assert len(places) == (6 if seconds else 2)
