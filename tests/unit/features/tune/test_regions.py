"""8 bits by region: where graphs are cut, which regions are kept on scripted times, and what becomes a candidate."""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace

import enginebench
from enginebench.core.errors import ArtifactError, UsageError
from enginebench.core.records import EngineSpec, Estimate
from enginebench.features.tune import regions as timing
from enginebench.features.tune.jobs import NodeGroup, RegionsJob, RegionsResponse
from enginebench.features.tune.proposals import Tried
from enginebench.features.tune.records import SearchRequest
from enginebench.features.tune.region_graphs import RegionProposer, list_excluded
from enginebench.features.tune.regions import choose_regions, count_crossing, find_regions, list_spans
from enginebench.features.tune.sensitivity import find_groups
from enginebench.features.tune.space import list_arms
from enginebench.features.tune.track import CandidatePlanner
from enginebench.models.onnx.source import read_onnx
from enginebench.models.precision.calibrate import calibrate
from enginebench.models.precision.calibration_data import open_arrays
from enginebench.models.precision.graph import load_whole_graph, prepare_graph
from enginebench.models.precision.quantize import quantize
from enginebench.runs.folder import RunFolder, RunRequest
from enginebench.runs.targets.sources import gather_sources
from enginebench.stats.intervals import measure_spread
from graphs import build_graph, build_residual, save
from reporters import Silent


def make_groups(nodes: str, macs: Sequence[int]) -> list[NodeGroup]:
    return [
        NodeGroup(name=name, kind="Conv", nodes=(name,), originals=(name,), macs=size)
        for name, size in zip(nodes.split(), macs, strict=True)
    ]


def build_chain(count: int) -> onnx.ModelProto:
    """c0 to cN in a row, and a tensor that skips c1 and c2."""
    nodes = "c0 = Relu (x) c1 = Relu (c0) c2 = Relu (c1) s = Add (c2, c0) "
    nodes += " ".join(f"c{i} = Relu ({'s' if i == 3 else f'c{i - 1}'})" for i in range(3, count))
    return build_graph(f"{nodes} y = Relu (c{count - 1})", {})


def test_a_graph_is_cut_where_one_tensor_passes_and_in_halves_where_several_do() -> None:
    model = build_chain(6)
    crossing = dict(zip([node.name for node in model.graph.node], count_crossing(model), strict=True))
    assert [crossing[f"c{i}"] for i in range(6)] == [1, 1, 2, 1, 1, 1]
    groups = make_groups("c0 c1 c2 c3 c4 c5", [10, 10, 10, 10, 1, 1])
    names = [region.nodes for region in find_regions(model, groups, most=5)]
    assert names == [("c0",), ("c1", "c2"), ("c3",), ("c4",), ("c5",)]
    assert [r.nodes for r in find_regions(model, groups, most=4)] == [("c0",), ("c1", "c2"), ("c3",), ("c4", "c5")]
    assert len(find_regions(model, groups, most=6)) == 6, "what can be cut nowhere else is cut within the skip"
    assert [len(span) for span in list_spans(5)] == [2, 3, 1, 1, 1, 2, 1, 1]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> RegionsJob:
    folder = tmp_path_factory.mktemp("regions")
    artifact = read_onnx(save(build_residual(), folder / "m.onnx"))
    np.save(folder / "x.npy", np.random.default_rng(0).standard_normal((8, 3, 8, 8), dtype=np.float32))
    calibration = calibrate(artifact, open_arrays(folder / "x.npy", artifact.inputs, 8), threads=1)
    quantized = quantize(artifact, "int8", "cpu", folder / "q.onnx", calibration=calibration)
    engine = EngineSpec(backend="ort", precision="int8", recipe="cpu", threads=1, batch=2)
    return RegionsJob(artifact=artifact, quantized=quantized, engine=engine, seed=0, out_dir=str(folder / "out"))


def script(monkeypatch: pytest.MonkeyPatch, costs: Sequence[float], conversion: float, sd: float = 0.001) -> None:
    """Each region takes 1 in floats and its cost in 8 bits; a change between neighbours costs a conversion."""

    def measure(inside: frozenset[int]) -> float:
        kinds = [False, *(i in inside for i in range(len(costs))), False]
        changes = sum(a != b for a, b in pairwise(kinds))
        return sum(cost if i in inside else 1.0 for i, cost in enumerate(costs)) + conversion * changes

    rng = np.random.default_rng(0)

    def compare(self: Any, first: frozenset[int], second: frozenset[int]) -> Any:
        log = math.log(measure(first) / measure(second))
        return measure_spread([log + sd * rng.standard_normal() for _ in range(8)])

    monkeypatch.setattr(timing.RegionTimer, "compare", compare)


@pytest.mark.parametrize(
    ("costs", "conversion", "inside"),
    [
        ([0.4, 0.4, 0.4, 0.4], 0.05, [0, 1, 2, 3]),
        ([2.0, 2.0, 0.4, 0.4], 0.05, [2, 3]),
        ([0.4, 2.0, 0.4, 0.4], 0.05, [0, 2, 3]),
        ([2.0, 2.0, 0.9, 2.0], 0.2, []),  # what it gains, its conversions cost
    ],
)
def test_regions_stay_in_8_bits_where_they_gain(monkeypatch, job, costs, conversion, inside) -> None:
    script(monkeypatch, costs, conversion)
    answer = choose_regions(job, lambda text: None)
    assert len(answer.regions) == 4 and list(answer.inside) == inside
    best = 0 < len(inside) < 4
    assert (answer.gain is not None) is best
    assert not best or (answer.gain.low or 0) > 1
    throughout = sum(costs) + 2 * conversion
    assert (answer.throughout.value > 1) is (throughout < 4)


def test_noise_changes_nothing(monkeypatch, job) -> None:
    script(monkeypatch, [1.0] * 4, 0.0, sd=0.05)
    changed = sum(one.changed for one in choose_regions(job, lambda text: None).comparisons)
    assert changed <= 1


def test_real_engines_are_compared_and_the_rest_is_excluded(job) -> None:
    answer = choose_regions(replace(job, time_limit_s=0.0), lambda text: None)
    assert answer.comparisons == () and len(answer.inside) in (0, 4), "no time for any"
    given, quantized = (load_whole_graph(Path(artifact.path)) for artifact in (job.artifact, job.quantized))
    groups = find_groups(given, prepare_graph(given), quantized)
    originals = {name for group in groups for name in group.originals}
    some = replace(answer, inside=(0, 3))
    excluded = set(list_excluded(some))
    assert excluded and excluded < originals
    assert excluded.isdisjoint(name for i in (0, 3) for name in answer.regions[i].originals)


@pytest.mark.parametrize(
    ("options", "floats"), [({}, "fp32"), ({"floats": "fp16"}, "fp16"), ({"floats": "bf16"}, "bf16")]
)
def test_floats_throughout_are_those_that_8_bits_have_beside_them(job, monkeypatch, options, floats) -> None:
    """TensorRT with `floats=fp16` would seem fast in 8 bits if it were held against FP32."""
    built: list[EngineSpec] = []

    def build(backend: Any, artifact: Any, spec: EngineSpec, *_: Any) -> Any:
        built.append(spec)
        raise ArtifactError("far enough")

    monkeypatch.setattr(timing, "build_graph", build)
    timer = timing.RegionTimer(job, lambda text: None)
    timer._engine = replace(job.engine, options=options)
    for inside in (frozenset[int](), frozenset({0})):
        with pytest.raises(ArtifactError):
            timer._open(inside)
    nothing, some = built
    assert (nothing.precision, nothing.recipe, nothing.options) == (floats, None, {})
    assert (some.precision, some.options) == ("int8", options)


@pytest.fixture
def opened(tmp_path, monkeypatch) -> Any:
    """Opens a proposer on a search over the digits, whose comparisons are scripted: two of three regions gain."""
    run = RunRequest(model="digits-cnn", engines=(("ort", {}),), precisions=(("fp32", None), ("int8", None)))
    request = SearchRequest(run=run, threads=1)
    arms, _ = list_arms(run, "latency", threads=(1,), streams=(1,))
    folder = RunFolder(tmp_path / "search")
    folder.artifacts.mkdir(parents=True)
    sources = gather_sources(run, folder.artifacts, Silent())
    asked: list[RegionsJob] = []

    def compare(job: RegionsJob, **_: Any) -> Any:
        asked.append(job)
        timer = timing.RegionTimer(job, lambda text: None)
        count = len(timer.regions)
        ratio = Estimate(value=1.2, low=1.1, high=1.3, level=0.95, n=8, method="scripted")
        inside = tuple(range(1, count))
        return RegionsResponse(
            regions=timer.regions, inside=inside, comparisons=(), throughout=ratio, gain=ratio, seconds=1.0
        )

    monkeypatch.setattr("enginebench.features.tune.region_graphs.run_child", compare)

    def open_proposer(spare_s: float = math.inf, build_s: float = 0.0) -> RegionProposer:
        planner = CandidatePlanner(run, sources, folder.artifacts, Silent())
        planner.find_spare, planner.expect_build = lambda: spare_s, lambda engine: build_s
        return RegionProposer(request, arms, planner, folder, Silent())

    return SimpleNamespace(open=open_proposer, asked=asked, arms=arms)


def try_arms(arms: Sequence[Any], int8: float | None) -> list[Tried]:
    costs = {"fp32": 1.0, "int8": int8}
    return [Tried(setting=arm.default, cost=costs[arm.precision]) for arm in arms]


def test_the_graph_of_the_regions_that_gain_is_a_candidate_and_is_made_once(opened) -> None:
    proposer, tried = opened.open(), try_arms(opened.arms, 1.2)
    (setting,) = proposer.propose(12, tried)
    assert setting.graph.startswith("regions-") and setting.engine == "ort" and setting.precision == "int8"
    (found,) = proposer.document.engines
    assert set(found.excluded) == set(found.response.regions[0].originals)
    assert "8 bits pay in" in proposer.describe(tried)[0] and "1.200x (1.100 to 1.300)" in proposer.describe(tried)[0]
    assert proposer.propose(12, [*tried, Tried(setting=setting, cost=0.9)]) == []
    again = opened.open()
    assert again.propose(12, tried) == [setting] and len(opened.asked) == 1


@pytest.mark.parametrize(("spare_s", "build_s", "compares"), [(500, 60, True), (100, 60, False), (500, 90, False)])
def test_regions_are_compared_where_three_builds_fit_beside_the_final(opened, spare_s, build_s, compares) -> None:
    """Plans of TensorRT take a minute each: the search would end within the comparison, and without a final."""
    proposer, tried = opened.open(spare_s, build_s), try_arms(opened.arms, 1.2)  # a fifth of the budget is 240 s
    assert bool(proposer.propose(12, tried)) is compares is bool(opened.asked)
    if not compares:
        (words,) = proposer.describe(tried)
        assert f"comparing takes at least 3 builds of about {build_s} s, and has {min(spare_s, 240)} s" in words


@pytest.mark.parametrize("cost", [None, 0.3])
def test_regions_are_not_compared_where_8_bits_are_refused_or_gain_enough(opened, cost) -> None:
    assert opened.open().propose(12, try_arms(opened.arms, cost)) == [] == opened.asked


@pytest.fixture
def compared(job, monkeypatch) -> Any:
    """`quantize --by-time` on scripted costs of the four regions, in this process."""

    def prepare(costs: Sequence[float]) -> None:
        script(monkeypatch, costs, 0.05)
        monkeypatch.setattr(
            "enginebench.features.tune.region_graphs.run_child", lambda job, **_: choose_regions(job, lambda text: None)
        )

    return prepare


def test_quantize_by_time_leaves_in_fp32_what_8_bits_do_not_make_faster(job, compared, tmp_path) -> None:
    compared([2.0, 2.0, 0.4, 0.4])
    source, calib = Path(job.artifact.path), tmp_path / "x.npy"
    np.save(calib, np.random.default_rng(0).standard_normal((8, 3, 8, 8), dtype=np.float32))
    asked = {"calib": calib, "progress": False}
    found = enginebench.quantize(source, to="int8@cpu", out=tmp_path / "q.onnx", by_time="ort", **asked)
    whole = enginebench.quantize(source, to="int8@cpu", out=tmp_path / "whole.onnx", **asked)
    assert found.coverage is not None and whole.coverage is not None and 0 < found.coverage < whole.coverage
    assert found.artifact.excluded and not whole.artifact.excluded
    compared([2.0, 2.0, 2.0, 2.0])
    with pytest.raises(ArtifactError, match=r"no region of .* is faster in 8 bits on ort.*Use the FP32 graph"):
        enginebench.quantize(source, to="int8@cpu", out=tmp_path / "none.onnx", by_time="ort", **asked)
    assert not (tmp_path / "none.onnx").exists()


@pytest.mark.parametrize(
    ("to", "engine", "message"),
    [
        ("fp16", "ort", "--by-time is for int8 with ranges"),
        ("int8@cpu", "trtexec", "a program that times itself.*Name an engine that is loaded"),
        ("int8@dynamic", "ort", "not for int8@dynamic"),
        ("int8@cpu", "pytorch", "expected one engine that runs ONNX graphs"),
        ("int8@cpu", "ort,openvino", "expected one engine that runs ONNX graphs"),
    ],
)
def test_by_time_is_refused_before_anything_is_converted(job, tmp_path, to, engine, message) -> None:
    with pytest.raises(UsageError, match=message):
        enginebench.quantize(Path(job.artifact.path), to=to, out=tmp_path / "q.onnx", by_time=engine, progress=False)
    assert not (tmp_path / "q.onnx").exists()
