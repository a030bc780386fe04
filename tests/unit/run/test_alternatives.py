"""A second recipe where little of the time is in INT8: which one, when none, and what is reported of it."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from enginebench.core.records import Artifact, EngineSpec, Precision, Recipe
from enginebench.models.onnx.source import read_onnx
from enginebench.runs import alternatives, plan
from enginebench.runs.alternatives import NextRecipes
from enginebench.runs.folder import RunFolder, RunRequest
from enginebench.runs.plan import choose_graph_recipe
from graphs import write_text
from reporters import Silent
from samples import make_result

SOFTMAX = "y = Softmax (x) z = Softmax (y)"
PLAIN = "z = Relu (x)"
CONVOLUTIONS = " ".join(f"c{i} = Conv (x, x)" for i in range(5))
GATED = f"{CONVOLUTIONS} s = Sigmoid (c4) t = HardSwish (s) z = Mul (t, c4)"
ONE_SIGMOID = f"{CONVOLUTIONS} z = Sigmoid (c4)"
GATES_ALONE = "s = HardSigmoid (x) t = HardSigmoid (s) z = Mul (t, x)"


def keep(folder: Path, nodes: str) -> Artifact:
    return read_onnx(write_text(folder / "m.onnx", f"g (float[1, 4] x) => (float[1, 4] z) {{ {nodes} }}"))


@pytest.mark.parametrize(
    ("engine", "nodes", "flags", "recipe"),
    [
        ("openvino", SOFTMAX, {"amx_int8"}, "tensorrt"),
        ("openvino", SOFTMAX, {"avx512_vnni"}, "nncf"),
        ("openvino", PLAIN, {"amx_int8"}, "cpu"),
        ("openvino", GATED, {"avx2"}, "tensorrt"),
        ("openvino", ONE_SIGMOID, {"amx_int8"}, "cpu"),
        ("openvino", GATES_ALONE, {"amx_int8"}, "cpu"),
        ("ort", GATED, {"avx2"}, "cpu"),
        ("ort", SOFTMAX, {"avx2"}, "dynamic"),
        ("ort", PLAIN, {"amx_int8"}, "cpu"),
    ],
)
def test_int8_depends_on_the_kind_of_model_and_for_transformers_on_the_processor(
    engine: str, nodes: str, flags: set[str], recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "read_instructions", lambda: frozenset(flags))
    assert choose_graph_recipe(engine, "int8", [keep(tmp_path, nodes)]) == recipe
    assert choose_graph_recipe(engine, "int4", [keep(tmp_path, nodes)]) == "w4"


@pytest.mark.parametrize(
    ("engine", "recipe", "share", "nodes", "flags", "asked", "found"),
    [
        ("openvino", "nncf", 0.59, PLAIN, {"avx512_bf16"}, None, "openvino-int8.tensorrt"),
        ("openvino", "nncf", 0.6, PLAIN, {"avx512_bf16"}, None, None),
        ("openvino", "nncf", 0.1, PLAIN, {"avx512_bf16"}, "nncf", None),
        ("openvino", "tensorrt", 0.5, SOFTMAX, {"amx_bf16"}, None, "openvino-floats-bf16"),
        ("openvino", "nncf", 0.89, SOFTMAX, {"avx512_bf16"}, None, "openvino-floats-bf16-56fd6d2b-int8.tensorrt"),
        ("openvino", "nncf", 0.9, SOFTMAX, {"avx512_bf16"}, None, None),
        ("openvino", "nncf", 0.89, SOFTMAX, {"avx512_vnni"}, None, None),
        ("openvino", "tensorrt", 0.5, SOFTMAX, {"avx512_vnni"}, None, "openvino-int8.nncf"),
        (
            "openvino:floats=bf16",
            "tensorrt",
            0.5,
            SOFTMAX,
            {"amx_bf16"},
            None,
            "openvino-floats-bf16-56fd6d2b-int8.nncf",
        ),
        ("ort", "dynamic", 0.4, SOFTMAX, {"avx2"}, None, "ort-int8.cpu"),
        ("ort", "cpu", 0.4, PLAIN, {"avx2"}, None, None),
        ("ort", "dynamic", None, SOFTMAX, {"avx2"}, None, None),
    ],
)
def test_the_next_recipe_is_tried_once_where_nobody_named_one(
    engine: str,
    recipe: Recipe,
    share: float | None,
    nodes: str,
    flags: set[str],
    asked: Recipe | None,
    found: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alternatives, "read_instructions", lambda: frozenset(flags))
    made: list[object] = []
    graph = keep(tmp_path, nodes)
    monkeypatch.setattr(alternatives, "make_graph", lambda request, job, reporter: made.append(job) or graph)
    precisions: tuple[tuple[Precision, Recipe | None], ...] = (("int8", asked),)
    backend, _, option = engine.partition(":")
    options = dict([option.split("=")]) if option else {}
    request = RunRequest(model=graph.path, engines=((backend, options),), precisions=precisions)
    source = replace(graph, precision="int8", recipe=recipe, parent_sha256=graph.sha256)
    spec = EngineSpec(backend=backend, precision="int8", recipe=recipe, options=options)
    (row,) = [plan.plan_stored("m", spec, (graph, source), request.measure, plan.find_installed(backend))]
    recipes = NextRecipes(request, [graph], RunFolder(tmp_path / "r"), Silent())
    shares = None if share is None else {"int8": share, "fp32": 1 - share}
    result = replace(make_result(backend, f"int8@{recipe}"), id=row.id, effective_precision=shares)
    proposed = recipes.propose(row, result)
    assert (proposed.id if proposed else "").startswith(found or "") and (proposed is None) == (found is None)
    if proposed is not None:
        assert len(made) == (proposed.engine.recipe != recipe), "a graph of the same recipe is there already"


def test_a_note_names_both_and_the_one_that_is_faster(tmp_path: Path) -> None:
    recipes = NextRecipes(RunRequest(model="m", engines=()), [], RunFolder(tmp_path / "r"), Silent())
    own = replace(make_result("openvino", "int8@nncf", 4.0), effective_precision={"int8": 0.48, "fp32": 0.52})
    other = make_result("openvino", "int8@tensorrt", 2.0)
    recipes._tried[own.id] = other.id
    (note,) = recipes.describe({own.id: own, other.id: other})
    assert note.startswith("openvino int8 (nncf): 48% of the time in INT8; also tried openvino int8 (tensorrt), ")
    assert re.search(r", (1\.9\d|2\.00)x as fast \((1\.9\d|2\.00) to 2\.0\d\): kept openvino int8 \(tensorrt\)$", note)
    (slower,) = recipes.describe({own.id: own, other.id: make_result("openvino", "int8@tensorrt", 8.0)})
    assert slower.endswith("kept openvino int8 (nncf)")
    once = [replace(one, measurements=one.measurements[:1]) for one in (own, other)]
    (short,) = recipes.describe({one.id: one for one in once})
    assert "x as fast (one trial: no interval): kept openvino int8 (tensorrt)" in short
    (alone,) = recipes.describe({own.id: own})
    assert "its outputs are beyond the limits or it failed" in alone and recipes.describe({}) == []
