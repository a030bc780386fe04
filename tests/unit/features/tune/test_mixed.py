"""Precision by layer in a search: groups by what they cost, the worst in FP32, as few as keep the limits."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from msgspec.structs import replace

from enginebench.core.errors import ArtifactError, ChildFailed, MeasurementError, ParseError
from enginebench.core.names import name_mix
from enginebench.core.records import MeasureSpec
from enginebench.features.tune import mixed
from enginebench.features.tune.jobs import GroupHarm, NodeGroup
from enginebench.features.tune.mixed import MIXED_FILE, MixedProposer, choose_counts, format_layering, read_mixed
from enginebench.features.tune.proposals import Tried
from enginebench.features.tune.records import Budget, SearchRecord, SearchRequest
from enginebench.features.tune.sensitivity import WORST, find_groups, measure_harm, quantize_only
from enginebench.features.tune.session import _open as open_search
from enginebench.features.tune.space import list_arms
from enginebench.features.tune.track import CandidatePlanner
from enginebench.measure.machine import describe_machine
from enginebench.models.onnx.source import read_onnx
from enginebench.models.precision.calibrate import calibrate
from enginebench.models.precision.calibration_data import open_arrays, open_data
from enginebench.models.precision.exclusion import read_exclusion
from enginebench.models.precision.graph import count_quantizers, load_whole_graph, prepare_graph, run_graph
from enginebench.models.precision.macs import list_quantized_products
from enginebench.models.precision.quantize import quantize
from enginebench.models.zoo import packaged_onnx
from enginebench.runs.folder import RunFolder, RunRequest, begin_record
from enginebench.runs.targets.sources import gather_sources
from graphs import build_residual, save
from reporters import Silent


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    """A search over the small CNN, of which 8 bits throughout are said to break the limits; its first graphs are made.

    `open` opens the proposer anew, as a session that goes on does.
    """
    run = RunRequest(
        model="digits-cnn",
        engines=(("ort", {}),),
        precisions=(("fp32", None), ("int8", None)),
        measure=MeasureSpec(processes=1, iters=20),
    )
    request = SearchRequest(run=run, limits={"centred_cosine": 0.95}, threads=1)
    arms, _ = list_arms(run, "latency", threads=(1,), streams=(1,))
    folder = RunFolder(tmp_path_factory.mktemp("search"))
    folder.artifacts.mkdir(parents=True)
    sources = gather_sources(run, folder.artifacts, Silent())
    rows = CandidatePlanner(run, sources, folder.artifacts, Silent())

    def open_proposer(folder=folder):
        return MixedProposer(
            request, arms, CandidatePlanner(run, sources, folder.artifacts, Silent()), folder, Silent()
        )

    tried = [Tried(setting=arm.default, cost=1.0 if arm.precision == "fp32" else None) for arm in arms]
    proposer = MixedProposer(request, arms, rows, folder, Silent())
    settings = proposer.propose(12, tried)
    return SimpleNamespace(
        request=request,
        sources=sources,
        folder=folder,
        rows=rows,
        proposer=proposer,
        tried=tried,
        settings=settings,
        open=open_proposer,
    )


def test_graphs_are_proposed_and_each_is_a_configuration_of_its_own(search):
    (layering,) = search.proposer.document.layerings
    noises = [one.noise for one in layering.groups]
    assert layering.reason is None and len(noises) == 5 and noises == sorted(noises, reverse=True) and min(noises) >= 0
    assert [graph.groups for graph in layering.graphs] == [1, 2, 4]
    planned = [search.rows.plan(setting, search.request.run.measure) for setting in search.settings]
    assert [row.skip for row in planned] == [None] * 3 and len({row.id for row in planned}) == 3
    for graph, row in zip(layering.graphs, planned, strict=True):
        worst = tuple(name for one in layering.groups[: graph.groups] for name in one.group.originals)
        assert row.source.excluded == graph.excluded == worst
        assert row.engine.mix == name_mix(worst) != ""


def find_fewest(groups, needed):
    """(numbers of groups in FP32 in the order in which they are judged, the fewest that keep the limits)."""
    kept = {}
    while counts := choose_counts(groups, kept):
        assert kept.keys().isdisjoint(counts) and all(0 < count < groups for count in counts)
        kept |= {count: count >= needed for count in counts}
    return list(kept), min((count for count, fine in kept.items() if fine), default=None)


@pytest.mark.parametrize(
    ("groups", "needed", "judged", "fewest"),
    [
        (82, 1, [1, 2, 4, 8], 1),
        (82, 3, [1, 2, 4, 8, 3], 3),
        (82, 5, [1, 2, 4, 8, 6, 5], 5),
        (82, 12, [1, 2, 4, 8, 16, 32, 64, 12], 12),  # eight graphs are the most
        (82, 82, [1, 2, 4, 8, 16, 32, 64], None),
        (5, 4, [1, 2, 4, 3], 4),
        (1, 1, [], None),
        (0, 0, [], None),
    ],
)
def test_the_number_is_doubled_until_the_limits_are_kept_and_then_halved(groups, needed, judged, fewest):
    assert find_fewest(groups, needed) == (judged, fewest)


def judge(search, *kept):
    """What was tried, where the graphs proposed first kept the limits or not."""
    return [
        *search.tried,
        *(Tried(setting=one, cost=2.0 if fine else None) for one, fine in zip(search.settings, kept, strict=False)),
    ]


def test_the_next_graph_lies_between_the_last_broken_and_the_first_kept(search):
    before = len(search.proposer.document.layerings[0].graphs)
    proposer = search.open()
    (setting,) = proposer.propose(12, judge(search, False, False, True))
    graph = proposer.document.layerings[0].graphs[-1]
    assert (before, graph.groups, graph.name) == (3, 3, setting.graph)
    assert search.proposer.propose(12, judge(search, True, True, True)) == []


def test_the_lists_are_written_and_that_of_the_fastest_once_more(search):
    folder, proposer = search.folder, search.proposer
    for graph in proposer.document.layerings[0].graphs:
        assert read_exclusion(folder.root / mixed.LISTS / f"{graph.name}.txt") == graph.excluded
    assert proposer.write_best(judge(search, False, False, False)) is None
    path = proposer.write_best([*judge(search, False, True), Tried(setting=search.settings[2], cost=1.5)])
    assert path == folder.root / mixed.BEST
    assert read_exclusion(path) == proposer.document.layerings[0].graphs[2].excluded


def test_an_interrupted_search_goes_on_without_measuring_again(search, monkeypatch):
    monkeypatch.setattr(mixed, "run_child", lambda *args, **kwargs: pytest.fail("a child was started"))
    monkeypatch.setattr(mixed, "make_graph", lambda *args: pytest.fail("a graph was made"))
    assert search.open().propose(12, search.tried) == search.settings


def test_where_8_bits_throughout_keep_the_limits_no_group_is_asked(search, tmp_path, monkeypatch):
    monkeypatch.setattr(mixed, "run_child", lambda *args, **kwargs: pytest.fail("a child was started"))
    proposer = search.open(RunFolder(tmp_path))
    tried = [replace(one, cost=1.0) for one in search.tried]
    assert proposer.propose(12, []) == [] == proposer.propose(12, tried)
    assert proposer.describe(tried) == ("ort int8@cpu: no precision by layer: 8 bits throughout keep the limits.",)


def test_a_child_that_dies_costs_precision_by_layer_and_nothing_else(search, tmp_path, monkeypatch):
    def die(*args, **kwargs):
        raise ChildFailed("the process was killed by signal 9")

    monkeypatch.setattr(mixed, "run_child", die)
    assert search.open(RunFolder(tmp_path)).propose(12, search.tried) == []
    assert "signal 9" in str(read_mixed(RunFolder(tmp_path)).layerings[0].reason)


def test_damage_and_another_version_are_reported(tmp_path):
    folder = RunFolder(tmp_path)
    assert read_mixed(folder).layerings == ()
    (tmp_path / MIXED_FILE).write_text('{"schema": "enginebench.mixed/1", "layerings": []}')
    with pytest.raises(ParseError, match=r"mixed/1.*mixed/2.*begin the search anew"):
        read_mixed(folder)
    (tmp_path / MIXED_FILE).write_text('{"schema": ')
    with pytest.raises(ParseError):
        read_mixed(folder)


def test_the_layers_that_stay_in_fp32_are_named_with_their_harm(search):
    noises = (0.5, 0.25, 0.1, None)
    groups = tuple(
        GroupHarm(group=NodeGroup(name=name, kind="Conv", nodes=(name,), originals=(name,)), noise=noise)
        for name, noise in zip("abcd", noises, strict=True)
    )
    layering = replace(search.proposer.document.layerings[0], groups=groups)
    assert format_layering(layering, {1: False, 2: True, 4: True}) == (
        "ort int8@cpu: the limits are kept with 2 of 4 groups in FP32 (noise over signal in 8 bits alone): "
        "a (0.5), b (0.25)."
    )
    broken = "ort int8@cpu: no graph with groups in FP32 keeps the limits (2 tried, of 4 groups)."
    assert format_layering(layering, {1: False, 2: False}) == broken


@pytest.mark.parametrize(
    ("precisions", "first"), [((("fp32", None), ("int8", None)), "precision by layer"), ((("fp32", None),), None)]
)
def test_a_search_with_8_bits_asks_for_precision_by_layer_first(search, precisions, first):
    request = replace(search.request, run=replace(search.request.run, precisions=precisions))
    sources = tuple(search.folder.relative(artifact) for artifact in search.sources.artifacts)
    run = begin_record(request.run, describe_machine(), verb="tune", sources=sources)
    _, proposers, _ = open_search(search.folder, run, SearchRecord(request=request), Budget(60.0), Silent())
    names = [proposer.name for proposer in proposers]
    assert names[0] == "lower optimization levels"
    assert (names[1:3] == ["precision by layer", "8 bits by region"]) == (first is not None)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """By (model, recipe): (exported graph, prepared graph, quantized graph, feeds)."""
    folder = tmp_path_factory.mktemp("graphs")
    digits = replace(read_onnx(packaged_onnx("digits-cnn")), model="digits-cnn")
    data = open_data("digits", model="digits-cnn", inputs=digits.inputs, n=16)
    artifacts = {"digits": (replace(digits, preprocess_sha256=data.preprocess_sha256), data)}
    residual = read_onnx(save(build_residual(), folder / "residual.onnx"))
    np.save(folder / "x.npy", np.random.default_rng(0).standard_normal((16, 3, 8, 8), dtype=np.float32))
    artifacts["residual"] = residual, open_arrays(folder / "x.npy", residual.inputs, 16)
    found = {}
    for name, (artifact, entries) in artifacts.items():
        given = load_whole_graph(Path(artifact.path))
        calibration = calibrate(artifact, entries, threads=1)
        for recipe in ("cpu", "tensorrt"):
            out = folder / f"{name}.{recipe}.onnx"
            quantize(artifact, "int8", recipe, out, calibration=calibration)
            found[name, recipe] = given, prepare_graph(given), load_whole_graph(out), entries.read(0, 16)
    return found


CASES = [(model, recipe) for model in ("digits", "residual") for recipe in ("cpu", "tensorrt")]


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_one_group_has_its_own_pairs_and_no_others(made, case):
    given, prepared, quantized, feeds = made[case]
    reference = run_graph(prepared, feeds, 1)
    products = list_quantized_products(quantized)
    for group in find_groups(given, prepared, quantized):
        alone = quantize_only(prepared, quantized, group.nodes)
        assert list_quantized_products(alone) == [name for name in products if name in group.nodes]
        assert 0 < sum(count_quantizers(alone)) < sum(count_quantizers(quantized))
        assert np.isfinite(measure_harm(reference, run_graph(alone, feeds, 1)))


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_each_quantized_node_is_in_one_group_and_every_product_begins_one(made, case):
    given, prepared, quantized, _ = made[case]
    groups = find_groups(given, prepared, quantized)
    names = [name for group in groups for name in group.nodes]
    assert len(names) == len(set(names))
    assert [group.nodes[0] for group in groups if group.macs] == list_quantized_products(quantized)
    exported = {node.name for node in given.graph.node}
    assert all(set(group.originals) <= exported for group in groups)


def test_a_graph_that_does_not_run_is_refused(made):
    _, prepared, _, feeds = made["digits", "cpu"]
    with pytest.raises(ArtifactError, match="does not run"):
        run_graph(prepared, {name: array[:, :, :2] for name, array in feeds.items()}, 1)


def test_noise_is_the_power_of_the_difference_over_that_about_the_mean():
    reference = {"y": np.array([[1.0, 5.0], [3.0, 5.0]])}  # about its mean: 1 + 1
    answers = {"y": np.array([[1.0, 5.5], [3.0, 5.0]])}
    assert measure_harm(reference, answers) == pytest.approx(0.25 / 2)

    with pytest.raises(MeasurementError, match="do not depend on the inputs"):
        measure_harm({"y": np.ones((4, 3))}, {"y": np.zeros((4, 3))})
    broken = {"y": np.full((2, 2), np.nan)}
    assert measure_harm(reference, broken) == WORST and math.isfinite(WORST)
