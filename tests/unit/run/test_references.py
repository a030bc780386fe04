"""What outputs are compared with: a graph as it stands, PyTorch eager, or, with a warning, the first row."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
from msgspec.structs import replace

from asked import make_row
from enginebench.core.errors import ArtifactError
from enginebench.core.records import Artifact, EngineSpec, MeasureSpec
from enginebench.engines import ort
from enginebench.measure.machine import describe_machine
from enginebench.models.onnx.source import read_onnx
from enginebench.runs import references
from enginebench.runs.campaign import Campaign
from enginebench.runs.checking import QUICK_SAMPLES
from enginebench.runs.child.jobs import PrepareJob, ReferenceJob
from enginebench.runs.child.perform import reference as perform
from enginebench.runs.folder import RunFolder
from enginebench.runs.plan import PlannedConfiguration
from enginebench.runs.references import find_eager, find_own_graph, list_exact_engines
from enginebench.stats.ranking import rank_results
from graphs import build_graph
from in_process import Children
from reporters import Silent

MEASURE = MeasureSpec(warmup=1, iters=5, processes=1)
RUNS = {"timeout_s": 60, "reporter": Silent()}


@pytest.fixture
def graph(tmp_path: Path) -> Artifact:
    """y = 2x + 1, as a product and a sum that an optimizer may join."""
    model = build_graph("t = Mul (x, two)\n y = Add (t, one)", {"two": np.float32(2), "one": np.float32(1)})
    return keep(model, tmp_path)


def keep(model: onnx.ModelProto, folder: Path) -> Artifact:
    path = folder / "r" / "artefacts" / "g.onnx"
    path.parent.mkdir(parents=True)
    onnx.save(model, path)
    return read_onnx(path)


def plan(graph: Artifact, backend: str = "ort", precision: Any = None, **options: str) -> PlannedConfiguration:
    engine = EngineSpec(backend=backend, options=options, precision=precision or graph.precision, recipe=graph.recipe)
    return make_row(engine, graph, MEASURE, requested_precision=engine.precision)


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes ONNX Runtime's optimizer add a half to every output from these levels on."""

    def spoil(*levels: str) -> None:
        real = ort.OrtEngine.fetch

        def fetch(self: ort.OrtEngine) -> dict[str, Any]:
            level = self._spec.options.get("opt", "all")
            return {name: array + (level in levels) / 2 for name, array in real(self).items()}

        monkeypatch.setattr(ort.OrtEngine, "fetch", fetch)

    return spoil


class Bed(NamedTuple):
    path: Path
    children: Children

    def run(self, *rows: PlannedConfiguration, **more: Any) -> dict[str, Any]:
        campaign = Campaign(RunFolder(self.path / "r"), rows, describe_machine(), **RUNS, **more)
        return {result.id: result for result in campaign.run()}

    def resume(self, *rows: PlannedConfiguration) -> dict[str, Any]:
        self.children.jobs.clear()
        campaign = Campaign(RunFolder(self.path / "r"), rows, describe_machine(), **RUNS)
        campaign.restore()
        return {result.id: result for result in campaign.run()}


@pytest.fixture
def bed(tmp_path: Path, children: Children) -> Bed:
    return Bed(tmp_path, children)


def list_templates(result: Any) -> set[str]:
    return {warning.template for warning in result.warnings}


def test_a_graph_is_the_reference_of_every_configuration_also_of_the_first(bed: Bed, graph: Artifact) -> None:
    rows = [plan(graph), plan(graph, "openvino")]
    for result in bed.run(*rows).values():
        assert result.drift.passed
        assert (result.drift.reference_kind, result.drift.elsewhere) == ("ort_unoptimized", True)
        assert result.drift.n == 32
    assert len(bed.children.of(ReferenceJob)) == 1, "once for all rows"
    again = bed.resume(*rows)
    assert bed.children.of(ReferenceJob) == [], "what was compared stays"
    assert {result.drift.reference_kind for result in again.values()} == {"ort_unoptimized"}


def test_an_optimizer_that_changes_the_outputs_is_named_and_its_highest_sound_level_is_measured(
    bed: Bed, graph: Artifact, wrong: Callable[..., None]
) -> None:
    wrong("all", "extended")
    row = plan(graph)
    results = bed.run(row)
    basic = plan(graph, opt="basic")
    assert list(results) == [row.id, basic.id]
    assert not results[row.id].drift.passed
    assert results[basic.id].drift.passed
    assert results[basic.id].status == "ok"
    assert results[basic.id].measurements
    (said,) = [c for c in results[row.id].warnings if c.template == "outputs_differ.optimizer"]
    assert said.message == "onnxruntime's optimizer changes this graph's outputs; ort:opt=basic keeps them"
    ranking = rank_results(list(results.values()))
    assert [one.outputs for one in ranking.assessments] == ["changed", "same"]
    assert ranking.recommended is not None
    assert ranking.recommended.id == basic.id
    assert ranking.headlines[0].baseline == row.id, "times stay against what the user runs"

    assert bed.resume(row) == results
    assert bed.children.jobs == [], "nothing is asked for again"


def test_products_that_the_default_rounds_are_measured_in_floats(bed: Bed, tmp_path: Path) -> None:
    """ONNX Runtime rounds activations before it multiplies them with weights in blocks: a large one hides the others.

    Its default session is measured as it is, changed, and beside it the one that computes what the graph says.
    """
    if onnxruntime.__version__ < "1.24":
        pytest.skip("ONNX Runtime 1.23 computes such products in FP32")
    rng = np.random.default_rng(0)
    scale = np.where(np.arange(64) % 32, 1, 1000).astype(np.float32)  # one in each block, and no weight reads it
    weights = np.where(np.arange(64)[:, None] % 32, rng.integers(-90, 90, (64, 16)), 0).astype(np.int8)
    model = build_graph(
        "l = Mul (x, large)\n f = DequantizeLinear <axis = 0, block_size = 32> (w, s)\n y = MatMul (l, f)",
        {"large": scale, "w": weights, "s": np.full((2, 16), 0.01, np.float32)},
        ("batch", 64),
        ("batch", 16),
        opset=21,
    )
    row = plan(keep(model, tmp_path), precision="int8")
    results = bed.run(row)
    floats = replace(row, engine=replace(row.engine, options={"accuracy_level": "0"}))
    names = {result.id: result.engine.options for result in results.values()}
    assert list(names.values()) == [{}, floats.engine.options]
    assert [result.drift.passed for result in results.values()] == [False, True]
    (said,) = [c for c in results[row.id].warnings if c.template == "outputs_differ.optimizer"]
    expected = "onnxruntime's 8-bit activations change this graph's outputs; ort:accuracy_level=0 keeps them"
    assert said.message == expected


@pytest.fixture
def saturating(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor without VNNI, on which sums of 8-bit products are wrong unless exact ones are asked for."""
    real = ort.OrtEngine.fetch

    def fetch(self: ort.OrtEngine) -> dict[str, Any]:
        inexact = self._spec.precision == "int8" and self._spec.options.get("sums") != "exact"
        return {name: array * (0.1 if inexact else 1) for name, array in real(self).items()}

    monkeypatch.setattr(references, "sums_saturate", lambda: True)
    monkeypatch.setattr(ort.OrtEngine, "fetch", fetch)


@pytest.mark.parametrize("here", [False, True])
def test_sums_that_saturate_in_a_users_session_are_measured_exactly_beside_it(
    here: bool, bed: Bed, saturating: None, tmp_path: Path
) -> None:
    """Of a graph that came in 8 bits, and of one that was quantized here and is compared with FP32."""
    rng = np.random.default_rng(0)
    constants = {
        "s": np.float32(0.05),
        "z": np.uint8(128),
        "w": rng.integers(-90, 90, (4, 4)).astype(np.int8),
        "t": np.float32(0.01),
    }
    text = """q = QuantizeLinear (x, s, z)
        a = DequantizeLinear (q, s, z)
        b = DequantizeLinear (w, t)
        y = MatMul (a, b)"""
    eight_bits = keep(build_graph(text, constants, opset=21), tmp_path)
    row = plan(eight_bits, precision="int8")
    if here:
        floats = {"b": constants["w"] * constants["t"]}
        onnx.save(build_graph("y = MatMul (x, b)", floats), tmp_path / "r" / "artefacts" / "f.onnx")
        source = read_onnx(tmp_path / "r" / "artefacts" / "f.onnx")
        engine = replace(row.engine, recipe="cpu")
        row = make_row(engine, replace(eight_bits, recipe="cpu"), MEASURE, requested_precision="int8")
        row = replace(row, chain=(source, row.source))
    results = bed.run(row)
    assert [result.engine.options for result in results.values()] == [{}, {"sums": "exact"}]
    assert [result.drift.passed for result in results.values()] == [False, True]
    (said,) = [c for c in results[row.id].warnings if c.template == "outputs_differ.optimizer"]
    expected = "onnxruntime's saturating 8-bit sums change this graph's outputs; ort:sums=exact keeps them"
    assert said.message == expected


@pytest.mark.parametrize(
    ("recipe", "saturates", "settings"),
    [
        ("cpu", False, []),
        ("cpu", True, [{"sums": "exact"}]),
        ("w8", False, [{"accuracy_level": "0"}]),
        (None, True, [{"sums": "exact"}, {"accuracy_level": "0"}]),
    ],
)
def test_exact_settings_are_those_that_can_matter(
    recipe: Any, saturates: bool, settings: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(references, "sums_saturate", lambda: saturates)
    engine = EngineSpec(backend="ort", precision="int8", recipe=recipe)
    assert [one.options for one in list_exact_engines(engine)] == settings
    assert list_exact_engines(replace(engine, backend="openvino")) == []
    assert all(list_exact_engines(one) != list_exact_engines(engine) for one in list_exact_engines(engine))


def test_a_level_that_was_asked_for_is_not_measured_twice(
    bed: Bed, graph: Artifact, wrong: Callable[..., None]
) -> None:
    wrong("all", "extended")
    rows = [plan(graph), plan(graph, opt="basic")]
    results = bed.run(*rows)
    assert list(results) == [row.id for row in rows]
    assert "outputs_differ.optimizer" in list_templates(results[rows[0].id])


def test_without_any_optimization_if_nothing_else_keeps_the_outputs(
    bed: Bed, graph: Artifact, wrong: Callable[..., None]
) -> None:
    wrong("all", "extended", "basic")
    rows = [plan(graph), plan(graph, "openvino")]
    results = bed.run(*rows)
    assert [one for one in results if one not in {row.id for row in rows}] == [plan(graph, opt="none").id]
    assert results[rows[1].id].drift.passed, "the engine that is right is not rejected"


def test_the_evaluator_computes_where_the_session_cannot(bed: Bed, graph: Artifact, monkeypatch: Any) -> None:
    monkeypatch.setattr(perform, "open_unoptimized", refuse)
    row = plan(graph)
    (result,) = bed.run(row).values()
    assert result.drift.passed
    assert result.drift.reference_kind == "onnx_evaluator"


def test_without_either_the_first_configuration_is_the_reference_with_a_warning(
    bed: Bed, graph: Artifact, monkeypatch: Any
) -> None:
    monkeypatch.setattr(perform, "open_unoptimized", refuse)
    monkeypatch.setattr(perform, "open_evaluator", refuse)
    rows = [plan(graph), plan(graph, "openvino")]
    for result in bed.run(*rows).values():
        assert (result.drift.reference, result.drift.reference_kind) == (rows[0].id, "configuration")
        (said,) = [c for c in result.warnings if c.template == "outputs_not_compared.unoptimized"]
        assert "no kernel for Odd" in said.message


def refuse(artifact: Artifact, threads: int) -> Any:
    raise ArtifactError("no kernel for Odd")


def test_a_slow_graph_is_compared_on_fewer_samples(bed: Bed, graph: Artifact, monkeypatch: Any) -> None:
    monkeypatch.setattr(references, "REFERENCE_BUDGET_S", 0.0)
    (result,) = bed.run(plan(graph)).values()
    assert (result.drift.n, result.drift.n_requested) == (2, 32)
    (said,) = [c for one in rank_results([result]).assessments for c in describe_warnings(one.result)]
    assert said.message == "outputs were compared on 2 of 32 samples"


def describe_warnings(result: Any) -> list[Any]:
    from enginebench.stats.drift import list_sample_warnings

    return [warning for warning in list_sample_warnings(result.drift) if warning.code == "partly_compared"]


def test_a_graph_with_random_numbers_is_not_judged(bed: Bed, tmp_path: Path) -> None:
    graph = keep(build_graph("r = RandomNormalLike (x)\n y = Add (x, r)", {}), tmp_path)
    result = bed.run(plan(graph))[plan(graph).id]
    assert rank_results([result]).assessments[0].outputs == "not_judged"


def test_quick_compares_fewer_samples(bed: Bed, graph: Artifact) -> None:
    (result,) = bed.run(plan(graph), samples=QUICK_SAMPLES).values()
    assert (result.drift.n, result.drift.n_requested) == (16, 16), "and nothing is missing"


def test_bench_compares_nothing(bed: Bed, graph: Artifact) -> None:
    bed.run(plan(graph), checks_graph=False)
    assert bed.children.of(ReferenceJob) == []


def test_beside_a_fake_that_comes_first_the_graph_says_nothing(graph: Artifact) -> None:
    assert find_own_graph([plan(graph, "fake"), plan(graph)]) is None
    found = find_own_graph([plan(graph), plan(graph, "fake")])
    assert found is not None
    assert found[1] == graph


def test_eager_is_the_configuration_in_the_precision_of_the_module(graph: Artifact) -> None:
    source = replace(graph, kind="torch")
    tf32, plain = plan(source, "pytorch", "tf32", defaults="1"), plan(source, "pytorch", "fp32")
    others = [plan(source, "pytorch-compile"), plan(source, "pytorch", "bf16")]
    assert find_eager([*others, tf32, plain]) == plain
    assert find_eager([*others, tf32]) == tf32
    assert find_eager(others) is None


def test_samples_of_the_reference_are_those_of_the_check(bed: Bed, graph: Artifact) -> None:
    bed.run(plan(graph))
    (asked,), (check,) = bed.children.of(ReferenceJob), bed.children.of(PrepareJob)
    for name in ("model", "artifact", "samples", "seed", "inputs", "labelled"):
        assert getattr(asked.check, name) == getattr(check, name)
    assert asked.check.engine.options == {"opt": "none"}
