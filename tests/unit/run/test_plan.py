"""Rows that are known to be impossible before anything is built."""

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from msgspec.structs import replace

from enginebench.core.records import Artifact, Availability, Cache, MeasureSpec, TensorSpec
from enginebench.engines.registry import read_engines
from enginebench.runs import plan
from enginebench.runs.child.jobs import SourceResponse
from enginebench.runs.folder import RunRequest
from enginebench.runs.plan import EVERY_GRAPH, LEFT_OUT_ON_GPUS, ResolvedPlan, plan_configurations, resolve
from enginebench.runs.targets import sources

AXES = ("batch", 4)
IN, OUT = ((TensorSpec(name=name, dtype="float32", shape=AXES),) for name in "xy")
GRAPH = Artifact(kind="onnx", model="toy", path="toy.onnx", sha256="0" * 64, files=(), inputs=IN, outputs=OUT)
MODULE = replace(GRAPH, kind="torch", inputs=(TensorSpec(name="x", dtype="f", shape=(1, 4)),))
ENGINES = (("pytorch", dict[str, str]()), ("ort", dict[str, str]()))


def there(name: str) -> Availability:
    return Availability(engine=name, available=True)


SHORT, LONG, PAIR = {"x": (1, 8)}, {"x": (1, 16)}, {"x": (2, 16)}


@pytest.mark.parametrize(
    ("shapes", "batches", "measured"),
    [
        ((SHORT, PAIR), (1, 2), [(SHORT, 1), (PAIR, 2)]),
        ((SHORT, PAIR), (2,), [(SHORT, 2), (PAIR, 2)]),
        ((SHORT, LONG), (1, 8), [(SHORT, 1), (SHORT, 8), (LONG, 1), (LONG, 8)]),
    ],
    ids=["each its own batch", "a 1 stands for the batch", "a 1 stands for each batch"],
)
def test_a_shape_is_measured_with_the_batch_that_it_begins_with(shapes, batches, measured) -> None:
    request = RunRequest(model="toy", engines=ENGINES, buckets=shapes, batches=batches)
    assert plan.list_configuration_sizes(request, (GRAPH,)) == measured


@pytest.mark.feature("trtexec")
def test_each_of_several_shapes_of_a_plan_is_measured_though_its_inputs_are_not_known() -> None:
    finished = replace(GRAPH, kind="plan", path="toy.plan", inputs=(), outputs=())
    request = RunRequest(model="toy.plan", engines=(("trtexec", {}),), buckets=(SHORT, PAIR), batches=(1, 2))
    made = plan_configurations(resolve(request, (finished,)), (finished,), probe=there)
    assert [(one.engine.options["shapes"], one.engine.shapes, one.skip) for one in made] == [
        ("x:1x8", SHORT, None),
        ("x:2x16", PAIR, None),
    ]
    assert len({one.id for one in made}) == 2


@pytest.mark.parametrize(
    ("cache", "device", "skip"),
    [
        ("hot", "cpu", None),
        ("cold", "cuda:0", None),
        ("cold", "cpu", "cache cold empties the cache of a GPU; fake runs on the CPU. Use hot"),
    ],
)
def test_a_cold_cache_needs_a_gpu(cache: Cache, device: str, skip: str | None) -> None:
    request = RunRequest(model="toy", engines=(("fake", {}),), device=device, measure=MeasureSpec(cache=cache))
    (row,) = plan_configurations(resolve(request, (GRAPH,)), (GRAPH,), probe=there)
    assert row.skip == skip


@pytest.mark.feature("trtexec")
def test_a_time_for_warm_up_is_for_engines_that_time_themselves() -> None:
    request = RunRequest(model="toy", engines=(("fake", {}), ("trtexec", {})), measure=MeasureSpec(warmup_ms=200))
    rows = plan_configurations(resolve(request, (GRAPH,)), (GRAPH,), probe=there)
    refusal = "--warmup 200ms is for trtexec; fake counts calls. Give a number, as in 20"
    assert [row.skip for row in rows if row.skip] == [refusal]


@pytest.mark.parametrize(
    ("precision", "problem", "reason"),
    [("fp32", EVERY_GRAPH, "no ONNX graph: operator x"), ("fp16", "fp16", "no graph in fp16: operator x")],
)
def test_a_graph_that_could_not_be_made_costs_the_configurations_of_graph_engines_alone(
    precision, problem, reason
) -> None:
    wanted = ((precision, None),)
    request = RunRequest(model="toy", engines=(*ENGINES, ("openvino", {})), precisions=wanted)  # type: ignore[arg-type]
    module, problems = replace(GRAPH, kind="torch"), {problem: "operator x"}
    rows = plan_configurations(resolve(request, (module,)), (module,), probe=there, problems=problems)
    assert [row.skip for row in rows] == [None, reason, reason]


def test_configurations_have_the_batch_of_the_module_only_where_nobody_asked_for_one() -> None:
    of_eight = replace(MODULE, inputs=tuple(replace(spec, shape=(8, *spec.shape[1:])) for spec in MODULE.inputs))
    request = RunRequest(model="toy", engines=ENGINES)
    for asked, batch in ((replace(request, any_batch=True), 8), (replace(request, batches=(2,)), 2), (request, 1)):
        rows = plan_configurations(resolve(asked, [of_eight, GRAPH]), [of_eight, GRAPH], probe=there)
        assert {row.engine.batch for row in rows} == {batch}


@pytest.mark.parametrize(
    ("module", "graph", "rows"),
    [
        ("fp16", "fp16", ["fp16", "fp16"]),
        ("fp32", "fp32", ["fp32", "fp32"]),
        ("bf16", "bf16", ["bf16", "bf16"]),
        ("fp16", None, ["fp16", "fp16"]),
        ("bf16", None, ["bf16", "bf16"]),
    ],
)
def test_a_module_keeps_its_precision_as_a_graph_does(module: str, graph: str | None, rows: list[str]) -> None:
    sources = [replace(MODULE, precision=module), *([replace(GRAPH, precision=graph)] if graph else [])]
    planned = plan_configurations(resolve(RunRequest(model="toy", engines=ENGINES), sources), sources, probe=there)
    assert [row.requested_precision for row in planned] == rows
    assert [row.skip is None for row in planned] == [True, graph is not None and graph != "bf16"]


@pytest.mark.parametrize(
    ("changes", "graph", "planned"),
    [
        ({}, True, ["ort cpu"]),
        ({}, False, ["pytorch-compile pt2e", "ort cpu"]),
        ({"any_engine": False}, True, ["pytorch-compile pt2e", "ort cpu"]),
        ({"baseline": "pytorch-compile"}, True, ["pytorch-compile pt2e", "ort cpu"]),
        ({"precisions": (("int8", None), ("int8", "pt2e"))}, True, ["pytorch-compile pt2e", "ort cpu"]),
        ({"device": "cuda:0"}, True, ["pytorch-compile dynamic", "ort cpu"]),
    ],
)
def test_the_recipe_that_is_slowest_to_build_runs_only_by_name_where_there_is_a_graph(
    changes: dict[str, Any], graph: bool, planned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "find_installed", there)
    monkeypatch.setattr(plan, "find_spec", lambda name: object())
    request = RunRequest(model="toy", engines=tuple(read_engines("pytorch,pytorch-compile,ort")), any_engine=True)
    asked = replace(request, **{"precisions": (("int8", None),), **changes})
    opened = (MODULE, GRAPH)[: 1 + graph]
    rows = plan_configurations(resolve(asked, opened), opened, probe=there)
    assert [f"{row.engine.backend} {row.engine.recipe}" for row in rows if row.engine.recipe] == planned
    transforms = resolve(asked, opened).transforms
    assert (("int8", "pt2e") in transforms) == ("pytorch-compile pt2e" in planned)
    line = "left out by default: int8@pt2e of pytorch-compile; name it with --precisions int8,int8@pt2e"
    notes = resolve(replace(asked, any_precision=True), opened).list_notes()
    assert (LEFT_OUT_ON_GPUS in notes) == (asked.device != "cpu") and (line in notes) == (planned == ["ort cpu"])


@pytest.mark.parametrize(
    ("changes", "source", "short"),
    [
        ({}, MODULE, ["openvino"]),
        ({"any_precision": False}, MODULE, ["pytorch", "openvino"]),
        ({"device": "cuda:0", "engines": (("pytorch", {}),)}, MODULE, ["pytorch"]),
        ({}, replace(MODULE, precision="bf16"), ["pytorch", "openvino"]),  # the model's own
    ],
)
def test_bf16_is_tried_unasked_on_a_cpu_by_engines_that_cast_themselves(changes, source, short) -> None:
    request = RunRequest(
        model="toy",
        engines=tuple(read_engines("pytorch,ort,openvino")),
        precisions=(("fp32", None), ("bf16", None)),
        any_engine=True,
        any_precision=True,
    )
    opened = (source, GRAPH)[: 1 + (source is MODULE)]
    rows = plan_configurations(resolve(replace(request, **changes), opened), opened, probe=there)
    assert [row.engine.backend for row in rows if row.engine.precision == "bf16"] == short


@pytest.mark.parametrize(
    ("device", "asked", "made", "starts", "skip"),
    [
        ("cpu", ("int8", None), [("int8", "pt2e")], "pt2e", None),
        ("cuda:0", ("int8", None), [], None, None),
        ("cuda:0", ("fp8", "dynamic"), [], None, None),
        (
            "cpu",
            ("fp8", None),
            [],
            None,
            "fp8@static runs only on pytorch-compile on cuda; pytorch-compile on cpu takes int8@pt2e",
        ),
        ("cpu", ("int8", "cpu"), [], None, "int8@cpu runs only on engines of graphs; pytorch-compile takes int8@pt2e"),
    ],
)
def test_a_compiled_module_starts_from_one_in_eight_bits_or_makes_it(device, asked, made, starts, skip, monkeypatch):
    monkeypatch.setattr(plan, "find_installed", there)
    monkeypatch.setattr(plan, "find_spec", lambda name: object())
    engines = (("pytorch", {}), ("pytorch-compile", {}))
    request = RunRequest(model="toy", engines=engines, precisions=(("fp32", None), asked), device=device)
    assert list(resolve(request, (MODULE, GRAPH)).transforms) == made
    sources = (MODULE, replace(MODULE, precision="int8", recipe="pt2e"))

    def plan_both() -> list[tuple[str | None, str | None]]:
        rows = plan_configurations(resolve(request, sources), sources, probe=there)
        return [(row.source and row.source.recipe, row.skip) for row in rows]

    eager = f"pytorch has no {asked[0]}, only fp32, "
    assert plan_both()[:2] == [(None, None)] * 2 and str(plan_both()[2][1]).startswith(eager)
    assert plan_both()[3][1] == skip and (skip or plan_both()[3][0] == starts)
    fp8 = replace(request, precisions=(("fp8", None),))
    assert resolve(fp8, (MODULE, GRAPH)).transforms == ((("fp8", "static"),) if device == "cuda:0" else ())
    monkeypatch.setattr(plan, "find_spec", lambda name: None)
    assert resolve(request, (MODULE, GRAPH)).transforms == ()
    needed = 'torchao is not installed. To add it: pip install "enginebench[torchao]"'
    assert plan_both()[3][1] == (skip or needed)


def test_a_graph_takes_no_longer_than_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = MagicMock()
    fakes: dict[str, Any] = {"describe_graph": None, "_take_graph": GRAPH}
    for name, value in (fakes | {"_begin_telling": ("int8", print), "Child": child, "find_variables": {}}).items():
        monkeypatch.setattr(sources, name, lambda *_, value=value: value)
    monkeypatch.setattr(sources, "wait_until_sure", lambda *_, **__: None)
    request = RunRequest(model="toy", engines=(("openvino", {}),), timeout_s=600)
    resolved = ResolvedPlan(request=request, engines=(), transforms=(("int8", "nncf"),))
    for limit, seconds in ((None, 600), (lambda: 7.0, 7.0)):
        sources._transform_all(resolved, SourceResponse(artifacts=(GRAPH,)), tmp_path, Mock(), limit)
        assert child.__enter__().start.call_args.kwargs["timeout_s"] == seconds
